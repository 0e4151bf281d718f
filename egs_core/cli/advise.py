"""`egs advise`: which flavor of GPU, and how many, each task should have, from all that is known of its runs."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.cli.advise_model import advise_model
from egs_core.cli.history import check_readable, quiet
from egs_core.cli.printable import printable
from egs_core.cli.profile_runs import site_here
from egs_core.client.http import connected
from egs_core.client.messages import Device
from egs_core.client.places import none_here
from egs_core.cost.prices import HOUR_S, Prices, load_prices
from egs_core.engine.specs import STRETCH
from egs_core.errors import EgsError, InputError, counted, listed
from egs_core.flavor_names import meant
from egs_core.flavors import load_flavors, load_memory, spec_for
from egs_core.graph.places import did_you_mean
from egs_core.history.pending import open_learned
from egs_core.profiling.advising import Advised
from egs_core.profiling.advising import advise as advised_of
from egs_core.profiling.known import Known
from egs_core.profiling.tiers import GIB, Measured, Tier, Wishes, span
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Started
from egs_core.units import parse_seconds

SHOWN = 20
OF_LOGS = "which flavor nodes are of, where their run log does not tell, the file of --prices says"
OF_SITE = "a server's GPUs tell their flavor; of a trial without GPUs, egs serve --emulated-gpus a100=1,t4=2 says it"


def advise(
    runlogs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNLOG]...", help="Run logs; none: the history, and the site server's runs."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Instead: a program of torch.export, tried here in fewer bits, pruned and fused."),
    ] = None,
    task: Annotated[str, typer.Option(help="Only tasks of this name; * stands for anything.")] = "*",
    flavors: Annotated[
        Path | None, typer.Option(help="YAML file of what GPUs of which flavor cost, as for `egs serve`.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="YAML file with prices and the flavors of nodes, as for `egs cost`: for run logs without."),
    ] = None,
    deadline: Annotated[str, typer.Option(help="In so long each should have ended, as 2h.")] = "",
    stretch: Annotated[
        float, typer.Option(min=1.0, help="Without a deadline: so many times as long as on the fastest it may take.")
    ] = STRETCH,
    hour_worth: Annotated[float, typer.Option(min=0.0, help="What it is worth to have each an hour sooner.")] = 0.0,
    server: Annotated[bool, typer.Option("--server", help="Beside run logs: the site server's runs, too.")] = False,
    url: Annotated[
        str, typer.Option("--history", envvar="EGS_HISTORY", help="Database URL; default: this user's own.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say for each task that ran on GPUs which flavor it should ask for and how many, why, what that saves and what may
    go wrong; and what is not known, with what would tell it. From run logs, or from the history, profiles and the site
    server's runs. It changes nothing.

    With --model: whether a model would fit a cheaper GPU with weights in fewer bits, pruned or fused, and how far its
    output moves."""
    if model is not None:
        if runlogs or server or task != "*":
            raise InputError("--model", "is about a model, not about tasks", "leave run logs, --server and --task out")
        named = load_flavors(flavors) if flavors is not None else ()
        sizes = load_memory(flavors) if flavors is not None else {}
        advise_model(model, {spec.name: spec for spec in named}, sizes, as_json=as_json)
        return
    wishes = Wishes(parse_seconds(deadline, "--deadline") if deadline else None, stretch, hour_worth)
    specs = load_flavors(flavors) if flavors is not None else ()
    paid = load_prices(prices) if prices is not None else None
    known, costs, devices = Known(), dict[str, float](), tuple[Device, ...]()
    for path in runlogs or ():
        _read_log(known, path, paid, costs)
    if server or not runlogs:
        devices = _read_site(known, is_asked=server)
    if not runlogs:
        _read_history(known, url)
    seen = {kind: one for kind, one in known.seen.items() if fnmatchcase(kind.task, task)}
    if known.seen and not seen:
        names = sorted({kind.task for kind in known.seen})
        raise InputError("--task", f"no task {task!r} ran on GPUs", did_you_mean(task, names))
    names = list(dict.fromkeys([*known.flavors, *(one.flavor for one in devices if one.flavor)]))
    names += [one.name for one in specs if not meant((one.name,), names)]
    stated = load_memory(flavors) if flavors is not None else {}
    memory = {one: size for name, size in stated.items() for one in meant((name,), names)}
    memory |= {one.flavor: one.memory_bytes for one in devices if one.memory_bytes}
    tiers = [Tier(one, spec_for(one, specs).gpu_hour or costs.get(one, 0.0), memory.get(one, 0)) for one in names]
    are_stated = len({spec.speed for spec in specs}) > 1  # else they are what a file has that says nothing of them
    speeds = {one: spec_for(one, specs).speed for one in names if any(meant((spec.name,), (one,)) for spec in specs)}
    speeds = speeds if are_stated else {}
    here = {one.flavor for one in devices if one.flavor}
    gone = [one for one in known.flavors if here and one not in here]
    found = [one for one in advised_of(known.seen, tiers, speeds, wishes, gone) if fnmatchcase(one.task, task)]
    if as_json:
        typer.echo(json.dumps({"tasks": msgspec.to_builtins(found)}, indent=2))
    elif not found:
        typer.echo("no run on GPUs is known: runs with EGS leave what they took, and `egs profile -- CMD` measures it")
    else:
        for one in found[:SHOWN]:
            _show(one)
        if len(found) > SHOWN:
            typer.echo(f"and {len(found) - SHOWN} more: --json has them all")
        if any(one.nameless for one in found[:SHOWN]):
            typer.echo(OF_LOGS if runlogs else OF_SITE)


# --- where it is known from ---


def _read_log(known: Known, path: Path, prices: Prices | None, costs: dict[str, float]) -> None:
    """costs: price of an hour by flavor, added to."""
    run = read_run(path)
    nodes = {one.node for one in run.records if isinstance(one, Started) and one.gpus}
    flavor_of: dict[str, str] = {}
    if prices is not None:
        for node in nodes:
            flavor_of[node] = prices.hardware_of(node)[0]
            costs[flavor_of[node]] = prices.of(node, [(0.0, HOUR_S)], is_dated=False)
    known.add_log(run.header, run.records, flavor_of)


def _read_site(known: Known, *, is_asked: bool) -> tuple[Device, ...]:
    """Its devices."""
    address = site_here()
    if address is None:
        if is_asked:
            raise EgsError(f"--server: {none_here()}")
        return ()
    with connected(address) as client:
        found = client.runs(with_ended=True)
    known.add_runs(found.runs)
    return tuple(found.devices)


def _read_history(known: Known, url: str) -> None:
    with quiet():
        store = open_learned(url or None)
        try:
            for pipeline in store.pipelines():
                known.add_rows(store.load(pipeline))
            for name in store.profile_names():
                known.add_profile(name, [msgspec.json.decode(text, type=Measured) for text in store.load_profile(name)])
        finally:
            store.close()
    check_readable(store)


# --- what is printed ---


def _show(one: Advised) -> None:
    phase = f", phase {one.phase}" if one.phase else ""
    called = f"{one.task} of {one.pipeline}" if one.pipeline not in ("", one.task) else one.task
    lost = f"; {one.lost_gpu_h:.3g} more in {counted(one.lost, 'attempt')} that did not succeed" if one.lost else ""
    head = f"{printable(called)}{phase} ({counted(one.runs, 'run')}, {one.gpu_h:.3g} GPU hours{lost})"
    if (advice := one.advice) is None:
        typer.echo(f"{head}: no advice")
    else:
        part = f", a part of {advice.part:.2g} of it" if advice.part < 1 else ""
        typer.echo(f"{head}: ask for {printable(one.size)}{part}: {printable(advice.reason)}")
        risks = f": {printable('; '.join(advice.risks))}" if advice.risks else ""
        way_out = f"; if its memory is not enough: {printable(advice.fallback)}" if advice.fallback else ""
        typer.echo(f"  risk {advice.risk}{risks}{way_out}")
    for size in dict.fromkeys(death.size for death in one.died):
        times = sum(death.size == size for death in one.died)
        typer.echo(f"  its memory was not enough on {printable(size)}: {counted(times, 'run')}")
    if one.starved:
        more = f": ask for {one.memory_bytes / GIB:.3g} GiB" if one.memory_bytes else ", whose need nobody stated"
        typer.echo(f"  its main memory was not enough: {counted(len(one.starved), 'run')}{more}")
    for other in one.untried:
        if other.seconds is not None:
            by = f"as {counted(other.others, 'task')} that ran on both tell" if other.others else "by the site's speeds"
            cost = f", for {other.cost:.3g}" if other.cost else ""
            typer.echo(f"  never tried on {printable(other.flavor)}: about {span(other.seconds)}{cost}, {by}")
    if strange := [printable(other.flavor) for other in one.untried if other.seconds is None]:
        typer.echo(f"  never tried on {listed(strange)}, and nothing says how long it takes there")
    for text in one.unknown:
        typer.echo(f"  not known: {printable(text)}")
