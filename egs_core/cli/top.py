"""`egs top`: the site server's GPUs, queues and runs on a terminal, again each second."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from egs_core.cli.rows import WIDE
from egs_core.cli.site import the_site
from egs_core.client import messages as c
from egs_core.client.http import Unreachable, connected
from egs_core.client.overview import Overview, QueueView
from egs_core.client.waiting_words import starts_cell, time_words

EVERY_S = 1.0


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end; so where no terminal shows it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and end.")] = False,
) -> None:
    """Show GPUs, queues, and what runs and waits on the site server, again each second. Ctrl-C ends it."""
    with connected(the_site()) as client:
        seen = client.overview()
        if as_json:
            typer.echo(seen.model_dump_json())
            return
        if once or not sys.stdout.isatty():
            width = None if sys.stdout.isatty() else WIDE
            Console(width=width).print(shown(seen, time.time()))
            return
        console = Console()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            problem = ""
            while True:
                live.update(shown(seen, time.time(), console.height, problem), refresh=True)
                time.sleep(EVERY_S)
                try:
                    seen, problem = client.overview(), ""
                except Unreachable as error:
                    problem = str(error)


def shares(lengths: Sequence[int], lines: int) -> list[int]:
    """Rows of each list, the first ones first: as many as there are, or all alike with what is left over by those that
    need less. Each that has any rows takes a blank line, its heading, and one that says how many it leaves out."""
    given = [0] * len(lengths)
    left = lines - sum(3 for length in lengths if length)
    while wanting := [n for n, length in enumerate(lengths) if given[n] < length]:
        number = min(wanting, key=lambda n: given[n])
        cost = 0 if given[number] + 1 == lengths[number] else 1  # the last one instead of the line that says it
        if cost > left:
            break
        given[number] += 1
        left -= cost
    return given


def shown(seen: Overview, now: float, height: int | None = None, problem: str = "") -> RenderableType:
    """height: of the terminal, None where all is shown; problem: why this is not what is now."""
    silent = [one.name for one in seen.hosts if one.state == "silent"]
    parts: list[RenderableType] = [_line(_totals(seen), "bold")]
    if problem:
        parts.append(_line(f"old: {problem}", "red"))
    if silent:
        parts.append(_line(f"silent: {', '.join(silent)}", "red"))
    runs = {run.id: run for run in seen.running}
    several = len(seen.hosts) > 1
    devices = [_device(one, runs, now, several) for one in seen.devices]
    queues = [_queue(one) for one in seen.queues]
    waiting = [
        (_named(run), run.user, run.queue, f"{run.gpus:g}", starts_cell(run), run.reason) for run in seen.waiting
    ]
    running, drivers = [_running(run, now) for run in seen.running], [_driver(run) for run in seen.drivers]
    most: list[int | None] = [None] * 5
    if height is not None:
        most[:] = shares([len(rows) for rows in (waiting, running, devices, queues, drivers)], height - len(parts))
    parts += _listed("GPU|state|held by|for", devices, most[2])
    parts += _listed("queue|team|quota|used|waiting", queues, most[3])
    parts += _listed("running|user|queue|GPUs|for|state", running, most[1])
    parts += _listed("waiting|user|queue|GPUs|starts|why", waiting, most[0])
    parts += _listed("driver|user|queue|tasks run|wait|state", drivers, most[4])
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    # the text's own, not its column's: then the widest column is the first to be cut
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _listed(heads: str, rows: Sequence[tuple[str, ...]], most: int | None) -> list[RenderableType]:
    """Nothing for no rows. A cell is text, never markup."""
    if not rows:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads.split("|"):
        table.add_column(head if most is None else _line(head), overflow="fold")
    for row in rows[:most]:
        table.add_row(*map(Text if most is None else _line, row))
    more = [] if most is None or len(rows) <= most else [_line(f"… and {len(rows) - most} more", "dim")]
    return [Text(""), table, *more]


def _totals(seen: Overview) -> str:
    free = sum(1 for one in seen.devices if one.state == "free")
    kind = "emulated GPUs" if any(one.label == "emulated" for one in seen.devices) else "GPUs"
    return f"{free} of {len(seen.devices)} {kind} free; {seen.running_count} running, {seen.waiting_count} waiting"


def _device(one: c.Device, runs: dict[str, c.RunView], now: float, several: bool) -> tuple[str, ...]:
    holders = [runs[run] for run in one.runs if run in runs]
    named = [_named(runs[run]) if run in runs else run for run in one.runs]  # some are beyond those that are shown
    held = ", ".join(named) or ("another team's" if one.state == "held" else "")
    since = max((run.started_at for run in holders if run.started_at is not None), default=None)
    name = f"{one.host}/{one.id}" if several else one.id
    return name, one.state, held, "" if since is None else time_words(now - since)


def _queue(one: QueueView) -> tuple[str, ...]:
    return one.name, one.team, one.bound, "" if one.used is None else f"{one.used:g}", str(one.waiting)


def _running(run: c.RunView, now: float) -> tuple[str, ...]:
    since = run.started_at if run.started_at is not None else run.submitted_at
    state = f"{run.state}, lost" if run.lost else f"{run.state}: {run.stop}" if run.stop else run.doing
    return _named(run), run.user, run.queue, f"{run.gpus:g}", time_words(now - since), state


def _driver(run: c.RunView) -> tuple[str, ...]:
    tasks = run.tasks or c.DriverTasks(running=0, waiting=0)
    return f"{_named(run)} ({run.framework})", run.user, run.queue, str(tasks.running), str(tasks.waiting), run.doing


def _named(run: c.RunView) -> str:
    return f"{run.id} {run.name}"
