"""`egs demo`: the same pipelines natively and with EGS on a real local framework, side by side."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from egs_core.adapter import (
    POLICIES,
    Demonstrating,
    DemoOutcome,
    DemoRequest,
    RunOutcome,
    adapter_names,
    default_adapter,
    load_able,
)
from egs_core.cli.running import shown_progress
from egs_core.dashboard.log_serving import Logs, serve
from egs_core.errors import InputError
from egs_core.report.build import write_report
from egs_core.runlog.claims import LEAST_NOISE, claim_of, noise_between
from egs_core.runlog.figures import FIGURES
from egs_core.runlog.io import read_run
from egs_core.runlog.timeline import build_timeline

NATIVE, EGS = "native", "egs"
FIFO, TUNED, NO_HINTS = "fifo", "tuned", "egs-no-hints"
HEADINGS = {
    NATIVE: "alone",
    FIFO: "parallel, fifo",
    TUNED: "tuned by hand",
    EGS: "with EGS",
    NO_HINTS: "EGS, no hints",
}
DEFAULT_OUT = Path("egs-demo")
PAGE = "report.html"

ROWS = {
    "makespan_s": "all done after",
    "wastage_effective": "GPU capacity wasted while work waits",
    "gpu_held_s": "GPU time held",
    "gpu_used_s": "GPU time used",
    "cold_starts": "cold starts",
}


def demo(
    on: Annotated[str, typer.Option("--on", help="Framework to run on, by its adapter's name.")] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder for the run logs and the page.")] = DEFAULT_OUT,
    variant: Annotated[str, typer.Option(help="Run this variant alone, and print its figures.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show: Annotated[
        bool | None,
        typer.Option(
            "--serve/--no-serve", help="Then show the runs in a browser until Ctrl-C (default: on a terminal)."
        ),
    ] = None,
) -> int:
    """Run the demo's pipelines natively and with EGS on a real local framework, and compare them.

    Takes three to five minutes. Exit code 1 if the variants do not give the same results.
    """
    on = on or default_adapter()
    if on not in adapter_names():
        raise InputError("--on", f"unknown {on!r}", f"one of {', '.join(adapter_names()) or 'none installed'}")
    _make_folder(out)
    adapter = load_able(on, Demonstrating, "give a demo")
    if variant:
        _show_alone(_run(adapter, on, variant, out), variant, as_json)
        return 0
    outcomes = [_run(adapter, on, variant, out) for variant in getattr(adapter, "demo_variants", (NATIVE, EGS))]
    runs = {name: run for outcome in outcomes for name, run in outcome.runs.items()}
    problem = difference(runs)
    if problem:
        print(f"error: {problem}; the run logs are in {out}", file=sys.stderr)
        return 1
    page = write_report([read_run(run.runlog_path) for run in runs.values()], out / PAGE, same_work=True)
    if as_json:
        typer.echo(json.dumps(figures(outcomes[0], runs)))
    else:
        _show(outcomes[0], runs, page)
        _lead_to_dashboard(runs, sys.stdin.isatty() and sys.stdout.isatty() if show is None else show)
    return 0


def _lead_to_dashboard(runs: dict[str, RunOutcome], is_served: bool) -> None:
    """The run with EGS first. What nobody looks at is not served: then there is the command that does it."""
    paths = [run.runlog_path for name, run in sorted(runs.items(), key=lambda item: item[0] != EGS)]
    if is_served:
        serve(Logs(paths), 0, lambda address: typer.echo(f"see it: {address}   (Ctrl-C ends it)"))
    else:
        program = Path(sys.executable).with_name("egs")
        program = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
        typer.echo(f"see it: {shlex.join([str(program), 'dashboard', *map(str, paths)])}")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(str(out), "is a file", "--out names a folder") from None
    except OSError as error:
        raise InputError(str(out), f"cannot be made: {error.strerror}", "--out names a folder") from None


def _run(adapter: Demonstrating, on: str, variant: str, out: Path) -> DemoOutcome:
    with shown_progress(f"{on} {HEADINGS.get(variant, variant)}") as progress:
        return adapter.demo(DemoRequest((variant,), out, progress))


def difference(runs: dict[str, RunOutcome]) -> str:
    """What is wrong with the results, or nothing: a variant without any, or with other ones than the first."""
    without = [name for name, run in runs.items() if not run.digest]
    if without or set(POLICIES) - runs.keys():
        return f"no results from {', '.join(without or sorted(set(POLICIES) - runs.keys()))}"
    if len({run.digest for run in runs.values()}) > 1:
        return f"the results of {' and '.join(runs)} differ"
    return ""


def figures(outcome: DemoOutcome, runs: dict[str, RunOutcome]) -> dict[str, Any]:
    """The comparison as `--json` prints it."""
    return {
        "ideal_bound_s": round(outcome.ideal_bound_s, 3),
        "emulated_gpus": outcome.emulated_gpus,
        "runs": {name: {figure: run.metrics[figure] for figure in FIGURES} for name, run in runs.items()},
    }


def _show_alone(outcome: DemoOutcome, variant: str, as_json: bool) -> None:
    """One run by itself; digest: equal for runs with equal results."""
    run = outcome.runs[variant]
    bound = {"ideal_bound_s": round(outcome.ideal_bound_s, 3), "emulated_gpus": outcome.emulated_gpus}
    found = {"variant": variant, **bound, **run.metrics, "digest": run.digest, "runlog": str(run.runlog_path)}
    typer.echo(json.dumps(found) if as_json else "\n".join(f"{name:>18}  {value}" for name, value in found.items()))


def _show(outcome: DemoOutcome, runs: dict[str, RunOutcome], page: Path) -> None:
    table = Table(title=outcome.title, title_justify="left")
    for heading in ("", *(HEADINGS[name] for name in runs), "ideal"):
        table.add_column(heading, justify="left" if not heading else "right")
    ideal = {"makespan_s": f"{outcome.ideal_bound_s:.1f} s", "wastage_effective": "0 %", "cold_starts": ""}
    for figure, title in ROWS.items():
        shown = (_shown(figure, run.metrics[figure]) for run in runs.values())
        table.add_row(title, *shown, ideal.get(figure, ""))
    console = Console()
    console.print(table)
    makespan_s = {name: run.metrics["makespan_s"] for name, run in runs.items()}
    for line in conclusions(outcome.ideal_bound_s, makespan_s, noise_of(runs)):
        console.print(line, highlight=False)
    if outcome.emulated_gpus:
        console.print("The GPUs are emulated: a GPU phase is a short real computation, then a wait.", highlight=False)
    console.print(
        "Clocks start at the first submission, when the framework has started its processes, and EGS its own.",
        highlight=False,
    )
    console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)


def conclusions(ideal_s: float, makespan_s: dict[str, float], noise: dict[str, float] | None = None) -> list[str]:
    """What one run of each variant says of EGS, one line each. noise: by variant, of the pair that it is in; see
    `runlog.claims`."""
    above = f"{makespan_s[EGS] / ideal_s - 1:.0%} above what no scheduler can beat"
    said = {
        NATIVE: (NATIVE, EGS, f"with EGS, {above}", "the pipelines alone"),
        FIFO: (FIFO, EGS, "as the same tasks in parallel, first ready first served", "the same tasks in parallel"),
        TUNED: (TUNED, EGS, "as tuned by hand", "the pipelines as tuned by hand"),
        NO_HINTS: (NATIVE, NO_HINTS, "with EGS on pipelines as they are, no hints", "the pipelines alone, no hints"),
    }
    lines = []
    for name, (slow, fast, claimed, against) in said.items():
        if name not in makespan_s:
            continue
        claim = claim_of([(makespan_s[slow], makespan_s[fast])], (noise or {}).get(name, LEAST_NOISE))
        if claim is not None and claim.is_claimed:
            digits = 2 if name == NO_HINTS else 1
            lines.append(f"{claim.ratio:.{digits}f} times as fast {claimed}.")
        else:
            both = f"{makespan_s[slow]:.1f} s and {makespan_s[fast]:.1f} s"
            lines.append(f"No claim against {against}: {both} are within the noise of one pair of runs.")
    return lines


def noise_of(runs: dict[str, RunOutcome]) -> dict[str, float]:
    """The noise between each variant and what it is held against: EGS; for EGS without hints, the native run."""
    lines = {name: build_timeline(read_run(run.runlog_path).records) for name, run in runs.items()}
    return {name: noise_between(lines[NATIVE if name == NO_HINTS else EGS], line) for name, line in lines.items()}


def _shown(figure: str, value: float | None) -> str:
    if value is None:
        return "no GPU"
    if figure == "wastage_effective":
        return f"{100 * value:.0f} %"
    return f"{value:.1f} s" if figure.endswith("_s") else str(value)
