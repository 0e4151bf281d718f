"""`egs profile -- CMD`: what a command needs of a GPU, measured on each flavor at hand, and which it should have."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from egs_core.cli.printable import printable
from egs_core.cli.profile_runs import past_of_site, run_at_site, site_flavors, site_here
from egs_core.cli.rows import print_table
from egs_core.cli.run import name_of
from egs_core.engine.specs import HOUR_S, STRETCH
from egs_core.errors import InputError, listed
from egs_core.flavor_names import flavor_of_product, meant
from egs_core.flavors import load_flavors, spec_for
from egs_core.history.opened import open_history
from egs_core.history.pending import open_learned
from egs_core.history.stored import StoredHistory
from egs_core.notices import warn
from egs_core.profiling.advising import size_of
from egs_core.profiling.running import BATCH, NO_GPU, Ran, local_gpus, run_here
from egs_core.profiling.tiers import (
    GIB,
    Advice,
    Measured,
    Tier,
    Wishes,
    of_best_batch,
    recommend,
    throughput,
)
from egs_core.units import parse_seconds

EMULATED = "no GPU was there: memory and work are those of the command's processes, on emulated GPUs or on none"


def profile(
    ctx: typer.Context,
    words: Annotated[
        list[str], typer.Argument(metavar="TASK | -- CMD...", help="A task of runs before, or a command to measure.")
    ],
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that the command needs, of one flavor.")] = 1,
    flavor: Annotated[
        list[str] | None, typer.Option(help="Only on this flavor of GPU, as a100; default: on each. Repeatable.")
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Sizes to try for {batch} among the command's arguments, as 8,16,32.")
    ] = "",
    runs: Annotated[int, typer.Option(min=1, max=100, help="How often on each flavor, with each size.")] = 1,
    queue: Annotated[str, typer.Option(help="Queue of the site server that its runs are in.")] = "",
    name: Annotated[str, typer.Option(help="Under which it is kept; default: of the script or program.")] = "",
    flavors: Annotated[
        Path | None, typer.Option(help="YAML file of what GPUs of which flavor cost, as for `egs serve`.")
    ] = None,
    deadline: Annotated[str, typer.Option(help="In so long it should have ended, as 2h.")] = "",
    stretch: Annotated[
        float, typer.Option(min=1.0, help="Without a deadline: so many times as long as on the fastest it may take.")
    ] = STRETCH,
    hour_worth: Annotated[float, typer.Option(min=0.0, help="What it is worth to have it an hour sooner.")] = 0.0,
    asked: Annotated[str, typer.Option(help="Flavor that is asked for now, to compare with.")] = "",
    url: Annotated[
        str, typer.Option("--history", envvar="EGS_HISTORY", help="Database URL; default: this user's own.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; the command prints to stderr.")
    ] = False,
) -> int:
    """Measure a command on each flavor of GPU at hand, through the site server or on this host: time, peak memory, how
    much of the time the GPU works, throughput by batch size. Then say which flavor it should have, why, what that saves
    and what may go wrong. Of a TASK: the same from its runs before."""
    is_command = _is_command(ctx.obj or (), words)
    _check_order(ctx, ctx.obj or (), words)
    if not is_command:
        _check_past(gpus=gpus > 1, runs=runs > 1, queue=bool(queue), name=bool(name))
    sizes = _sizes(batch, words, is_command)
    specs = load_flavors(flavors) if flavors is not None else ()
    wishes = Wishes(parse_seconds(deadline, "--deadline") if deadline else None, stretch, hour_worth)
    store = open_history(url or None) if is_command else open_learned(url or None)
    failed: list[Ran] = []
    try:
        if is_command:
            called = name or name_of(words)
            ask = {"name": called, "gpus": gpus, "queue": queue}
            ran = _measure(words, ask, gpus, flavor or [], sizes, runs, as_json, [one.name for one in specs])
            measured, failed = [one.measured for one in ran if one.measured], [one for one in ran if not one.measured]
            store.record_profile(called, [(one.ended_at, msgspec.json.encode(one).decode()) for one in measured])
        else:
            called, measured = words[0], _past(words[0], store, flavor or [])
    finally:
        store.close()
    sized = [msgspec.structs.replace(one, flavor=size_of(one.flavor, one.gpus)) for one in measured]
    compared = of_best_batch([new for new, one in zip(sized, measured, strict=True) if one.flavor != NO_GPU])
    prices = {new.flavor: spec_for(one.flavor, specs).gpu_hour for new, one in zip(sized, measured, strict=True)}
    if asked:
        wishes = msgspec.structs.replace(wishes, asked=_compared_with(asked, measured))
    advice = recommend(compared, [Tier(*one) for one in prices.items()], wishes)
    if as_json:
        typer.echo(json.dumps(_told(called, measured, failed, advice)))
    else:
        _show(called, sized, failed, advice, prices, [one.name for one in specs])
    return 0 if measured else 1


def _compared_with(asked: str, measured: Sequence[Measured]) -> str:
    """The flavor that is meant, as `size_of` has it with the fewest GPUs. Raises InputError where nothing was measured
    on it."""
    known = list(dict.fromkeys(one.flavor for one in measured))
    found = meant((asked,), known)
    if not found:
        raise InputError("--asked", f"nothing was measured on {asked!r}", f"measured on: {listed(known)}")
    return size_of(found[0], min(one.gpus for one in measured if one.flavor == found[0]))


def _is_command(line: Sequence[str], words: Sequence[str]) -> bool:
    """Whether `--` stands before them, or they are more than a name."""
    at = line.index("--") if "--" in line else -1
    return len(words) > 1 or (at >= 0 and list(line[at + 1 :]) == list(words))


def _check_past(**given: bool) -> None:
    """Raises InputError for an option that is of a command to measure, and given with a task of runs before."""
    for option, is_given in given.items():
        if is_given:
            hint = f"leave it out, or measure it: egs profile --{option} … -- CMD"
            raise InputError(f"--{option}", "says how a command is run, and a TASK's runs are over", hint)


def _check_order(ctx: typer.Context, line: Sequence[str], words: Sequence[str]) -> None:
    """Raises InputError for an option of this command behind a name: it would be run as a command with that option."""
    own = {name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")}
    behind = [word for word in words[1:] if word.partition("=")[0] in own]
    if behind and "--" not in line:
        hint = "egs profile OPTIONS TASK, or egs profile OPTIONS -- CMD"
        raise InputError(behind[0], f"stands behind {printable(words[0])}, where words are the command's own", hint)


def _sizes(text: str, words: Sequence[str], is_command: bool) -> list[int | None]:
    """Raises InputError for sizes without a place for them, and the other way round."""
    has_place = is_command and any(BATCH in word for word in words)
    if text and not has_place:
        raise InputError("--batch", f"there is no {BATCH} among the command's arguments", f"write --batch-size={BATCH}")
    if has_place and not text:
        raise InputError(BATCH, "no sizes are named for it", "add --batch 8,16,32")
    try:
        sizes = [int(one) for one in text.split(",")] if text else []
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise InputError("--batch", f"{text!r} are no sizes", "whole numbers with commas between, as 8,16,32")
    return list(dict.fromkeys(sizes)) or [None]


def _measure(
    command: list[str],
    ask: Mapping[str, object],
    gpus: int,
    wanted: list[str],
    sizes: list[int | None],
    runs: int,
    quiet: bool,
    priced: Sequence[str],
) -> list[Ran]:
    """On each flavor that is wanted. ask: name, GPUs and queue of a run; priced: flavors that a file states, none of
    which may be here. Raises InputError where there is none."""
    address = site_here()
    run: Callable[[str, int | None], Ran]
    if address is not None:
        there = site_flavors(address, ask)
        run = partial(run_at_site, address, command, ask, gpus)
    elif ask["queue"]:
        raise InputError("--queue", "there is no site server here, so there are no queues", "leave it out")
    else:
        here = local_gpus()
        there = [one for one, ids in here.items() if len(ids) >= gpus] or [NO_GPU]
        run = partial(run_here, command, {one: ids[:gpus] for one, ids in here.items()})
    chosen = list(meant(wanted, there)) if wanted else there
    if not chosen:
        few = "there is no GPU" if gpus == 1 else f"there are no {gpus} GPUs"
        raise InputError("--flavor", f"{few} of {listed(wanted)} here", f"there are: {listed(there)}")
    if priced and not meant(priced, chosen):
        trial = f" ({_trial(priced)})" if chosen == [NO_GPU] else ""
        warn(f"none of {listed(priced)} is here: it runs on {listed(chosen)}{trial}")
    found = []
    for one in chosen:
        for size in sizes:
            for _ in range(runs):
                with _on_stderr(quiet):
                    found.append(run(one, size))
                if found[-1].measured is None:
                    break  # it would fail again
    return found


def _trial(priced: Sequence[str]) -> str:
    """How GPUs of these flavors are made up."""
    names = [one for one in priced if one and one == flavor_of_product(one)][:2] or ["a100", "t4"]
    return f"for a trial without GPUs: egs serve --emulated-gpus {','.join(f'{one}=1' for one in names)}"


@contextmanager
def _on_stderr(wanted: bool) -> Iterator[None]:
    """What commands print goes there meanwhile."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _past(task: str, store: StoredHistory, wanted: list[str]) -> list[Measured]:
    """What is known of a task of this name: profiles, what the history has of pipelines, and the site server's runs.
    Raises InputError where that is nothing."""
    found = [msgspec.json.decode(text, type=Measured) for text in store.load_profile(task)]
    for pipeline in store.pipelines():
        rows = [row for row in store.load(pipeline) if row.task == task and row.flavor and row.shape.gpu_milli]
        found += [Measured(row.flavor, row.seconds, row.shape.gpu_milli / 1000, ended_at=row.ended_at) for row in rows]
    if (address := site_here()) is not None:
        known = {(one.flavor, one.ended_at) for one in found}  # a profile's runs are at the server, too
        found += [one for one in past_of_site(address, task) if (one.flavor, one.ended_at) not in known]
    found = [one for one in found if not wanted or meant(wanted, (one.flavor,))]
    if not found:
        hint = "measure it: egs profile -- CMD"
        raise InputError(task, "no run of a task of this name is known, on a flavor of GPU that is", hint)
    return sorted(found, key=lambda one: one.ended_at)


def _told(name: str, measured: Sequence[Measured], failed: Sequence[Ran], advice: Advice | None) -> dict[str, object]:
    rates = [dict(zip(("unit", "per_second"), throughput(one), strict=True)) for one in measured]
    rows = [msgspec.structs.asdict(one) | rate for one, rate in zip(measured, rates, strict=True)]
    return {
        "name": name,
        "emulated": any(one.is_emulated for one in measured),
        "measured": rows,
        "failed": [{"flavor": one.flavor, "batch": one.batch, "exit_code": one.exit_code} for one in failed],
        "advice": None if advice is None else msgspec.to_builtins(advice),
        "no_advice": "" if advice is not None else _why_none(measured),
    }


def _why_none(measured: Sequence[Measured]) -> str:
    """Why there is no advice."""
    return "it ran on no flavor of GPU that is known" if measured else "nothing was measured"


def _show(
    name: str,
    measured: Sequence[Measured],
    failed: Sequence[Ran],
    advice: Advice | None,
    prices: Mapping[str, float],
    priced: Sequence[str],
) -> None:
    """measured, prices of a GPU hour: by flavor and number, as `size_of` has them; priced: flavors of the file."""
    table = Table(box=None, pad_edge=False)
    table.add_column("flavor")
    has_prices = any(prices.values())
    for column in ("batch", "time", *(["cost"] if has_prices else []), "peak memory", "GPU works", "throughput"):
        table.add_column(column, justify="right")
    for one in measured:
        unit, rate = throughput(one)
        cost = prices[one.flavor] * one.gpus * one.seconds / HOUR_S
        table.add_row(
            escape(printable(one.flavor or "-")),
            str(one.batch or "-"),
            f"{one.seconds:.3g} s",
            *([f"{cost:.3g}" if cost else "-"] if has_prices else []),
            f"{one.peak_bytes / GIB:.2f} GiB" if one.peak_bytes else "-",
            "-" if one.busy is None else f"{one.busy:.0%}",
            f"{rate:.3g} {escape(printable(unit))}/s" if unit != "runs" else "-",
        )
    if measured:
        print_table(table)
    for lost in failed:
        size = f" with batch {lost.batch}" if lost.batch else ""
        typer.echo(f"on {printable(lost.flavor)}{size} it failed with exit code {lost.exit_code}")
    if any(one.is_emulated for one in measured):
        typer.echo(EMULATED)
    if advice is None:
        what = f" ({_trial(priced)})" if measured else ""
        typer.echo(f"{printable(name)}: {_why_none(measured)}, so there is no advice{what}")
        return
    part = f", a part of {advice.part:.2g} of it" if advice.part < 1 else ""
    typer.echo(f"{printable(name)}: ask for {advice.flavor}{part}: {advice.reason}")
    risks = f": {'; '.join(advice.risks)}" if advice.risks else ""
    way_out = f"; if its memory is not enough: {advice.fallback}" if advice.fallback else ""
    typer.echo(f"risk {advice.risk}{risks}{way_out}")
