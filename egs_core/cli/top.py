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

from egs_core.cli.site import WIDE, the_site
from egs_core.client import messages as c
from egs_core.client.http import Unreachable, connected
from egs_core.client.overview import Overview
from egs_core.client.supervise import starts_words

EVERY_S = 1.0
LONGEST = 8  # rows of each list on a terminal of unknown height


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
                live.update(shown(seen, time.time(), _rows(console.height), problem), refresh=True)
                time.sleep(EVERY_S)
                try:
                    seen, problem = client.overview(), ""
                except Unreachable as error:
                    problem = str(error)


def _rows(height: int) -> int:
    """Of each of the three long lists, so that all have room on a terminal."""
    return max(3, (height - 12) // 3) if height else LONGEST


def shown(seen: Overview, now: float, most: int | None = None, problem: str = "") -> RenderableType:
    """most: rows of each list; problem: why this is not what is now."""
    parts: list[RenderableType] = [Text(_totals(seen), style="bold")]
    if problem:
        parts.append(Text(f"old: {problem}", style="red"))
    runs = {run.id: run for run in seen.running}
    several = len(seen.hosts) > 1
    devices = [_device(one, runs, now, several) for one in seen.devices]
    queues = [_queue(one.name, one.team, one.gpus, one.used, one.waiting) for one in seen.queues]
    waiting = [(_named(run), run.user, run.queue, f"{run.gpus:g}", _starts(run), run.reason) for run in seen.waiting]
    parts += _listed("GPU|state|held by|for", devices, most)
    parts += _listed("queue|team|quota|used|waiting", queues, most)
    parts += _listed("running|user|queue|GPUs|for|state", [_running(run, now) for run in seen.running], most)
    parts += _listed("waiting|user|queue|GPUs|starts|why", waiting, most)
    parts += _listed("driver|user|queue|tasks run|wait|state", [_driver(run) for run in seen.drivers], most)
    silent = [one.name for one in seen.hosts if one.state == "silent"]
    if silent:
        parts.append(Text(f"silent: {', '.join(silent)}", style="red"))
    return Group(*parts)


def _listed(heads: str, rows: Sequence[tuple[str, ...]], most: int | None) -> list[RenderableType]:
    """Nothing for no rows. A cell is text, never markup."""
    if not rows:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads.split("|"):
        table.add_column(head, overflow="fold" if most is None else "ellipsis", no_wrap=most is not None)
    for row in rows[:most]:
        table.add_row(*map(Text, row))
    more = [] if most is None or len(rows) <= most else [Text(f"… and {len(rows) - most} more", style="dim")]
    return [Text(""), table, *more]


def _totals(seen: Overview) -> str:
    free = sum(1 for one in seen.devices if one.state == "free")
    kind = "emulated GPUs" if any(one.label == "emulated" for one in seen.devices) else "GPUs"
    return f"{free} of {len(seen.devices)} {kind} free; {seen.running_count} running, {seen.waiting_count} waiting"


def _device(one: c.Device, runs: dict[str, c.RunView], now: float, several: bool) -> tuple[str, ...]:
    holders = [runs[run] for run in one.runs if run in runs]
    held = ", ".join(_named(run) for run in holders) or ("another team's" if one.state == "held" else "")
    since = max((run.started_at for run in holders if run.started_at is not None), default=None)
    name = f"{one.host}/{one.id}" if several else one.id
    return name, one.state, held, "" if since is None else _span(now - since)


def _queue(name: str, team: str, quota: float | None, used: float | None, waiting: int) -> tuple[str, ...]:
    bound, in_use = "no bound" if quota is None else f"{quota:g}", "" if used is None else f"{used:g}"
    return name, team, bound, in_use, str(waiting)


def _running(run: c.RunView, now: float) -> tuple[str, ...]:
    since = run.started_at if run.started_at is not None else run.submitted_at
    state = f"{run.state}, lost" if run.lost else f"{run.state}: {run.stop}" if run.stop else run.state
    return _named(run), run.user, run.queue, f"{run.gpus:g}", _span(now - since), state


def _driver(run: c.RunView) -> tuple[str, ...]:
    tasks = run.tasks or c.DriverTasks(running=0, waiting=0)
    return f"{_named(run)} ({run.framework})", run.user, run.queue, str(tasks.running), str(tasks.waiting), run.state


def _named(run: c.RunView) -> str:
    return f"{run.id} {run.name}"


def _starts(run: c.RunView) -> str:
    words = starts_words(run)
    return words.removeprefix("it should start ").replace("when it starts is not known", "not known")


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
