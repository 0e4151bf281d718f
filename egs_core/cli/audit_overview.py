"""`egs audit --overview`: several histories in one report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from egs_core.audit.observed import Observed
from egs_core.budgets import cost_words, money
from egs_core.cli.printable import printable
from egs_core.cost.overview import BY, NONE, Overview, Row
from egs_core.cost.prices import load_prices
from egs_core.cost.uses import TeamOf
from egs_core.errors import InputError
from egs_core.queues import load_teams
from egs_core.runlog.io import RunReader
from egs_core.units import two_places

SHOWN = {"source": 20, "framework": 8, "team": 8, "user": 8, "week": 12}


def show_overview(
    logs: Iterable[Path],
    histories: Iterable[Observed],
    prices: Path | None,
    queues: Path | None,
    gpu_price: float,
    as_json: bool,
) -> None:
    """Read and print. Raises InputError."""
    if prices is not None and gpu_price:
        raise InputError("--gpu-price, --prices", "both say what a GPU costs", "leave one of them out")
    known = load_prices(prices) if prices is not None else None
    overview, notes = Overview(_team_of(queues), known, gpu_price), list[str]()
    seen: dict[tuple[str, str, float], Path] = {}
    for path in logs:
        with RunReader(path) as reader:
            run = reader.header.driver, reader.header.run_id, reader.header.started_at
            if run in seen:
                raise InputError(str(path), f"is of the same run as {seen[run]}", "name each run once")
            seen[run] = path
            label = reader.header.label
            overview.add(f"{path.name}: {label}" if label else str(path), reader.header, reader)
            notes += [f"{path}: {note}" for note in reader.header.notes]
            if reader.truncated:
                notes.append(f"{path} was cut off: its last line is left out")
    for one in histories:
        overview.add(one.header.label, one.header, one.records)
        notes += [f"{one.header.label}: {note}" for note in one.notes]
    notes += overview.notes()
    if as_json:
        typer.echo(json.dumps({**overview.to_dict(), "notes": notes}))
    else:
        _print(overview, known.currency if known is not None else "", notes)


def _team_of(queues: Path | None) -> TeamOf:
    if queues is None:
        return lambda queue: queue
    teams = load_teams(queues).of_queue
    return lambda queue: teams.get(queue, "")


def _print(overview: Overview, currency: str, notes: list[str]) -> None:
    console = Console(markup=False)  # names are the users'
    total = overview.total
    hours = (f"{two_places(value)} {word}" for word, value in _hours(total).items())
    offered = f"{two_places(overview.offered_h)} offered, " if overview.offered_h else ""
    text = f"GPU hours: {offered}{', '.join(hours)}{cost_words(total.cost, total.cost_wasted, currency)}"
    console.print(text, highlight=False, soft_wrap=True)
    for kind in BY:
        rows = overview.rows(kind)
        if [name for name, _ in rows] not in ([], [NONE]):
            console.print(_table(kind, rows))
    changes = overview.changes()
    if changes:
        console.print("what would save most:", highlight=False)
    for number, one in enumerate(changes, 1):
        worth = f"{two_places(one.gpu_h)} GPU h" + ("" if one.cost is None else f", {money(one.cost, currency)}")
        console.print(f"{number}. up to {worth}: {printable(one.words)}", highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {printable(note)}", highlight=False, soft_wrap=True)


def _hours(row: Row) -> dict[str, float]:
    return {"held": row.held_h, "used": row.used_h, "cold": row.cold_h, "idle": row.idle_h, "lost": row.lost_h}


def _table(kind: str, rows: list[tuple[str, Row]]) -> Table:
    title = "by week (UTC, from Monday on)" if kind == "week" else f"by {kind}, most wasteful first"
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for column in ("held h", "used", "cold start", "idle", "lost", "wasted", "cost wasted"):
        table.add_column(column, justify="right")
    most = SHOWN[kind]
    for name, row in rows[-most:] if kind == "week" else rows[:most]:
        share = f"{row.wasted_h / row.held_h:.0%}" if row.held_h else "-"
        cost = "-" if row.cost_wasted is None else two_places(row.cost_wasted)
        table.add_row(printable(name), *map(two_places, _hours(row).values()), share, cost)
    if len(rows) > most:
        table.caption = f"and {len(rows) - most} more: --json has them all"
    return table
