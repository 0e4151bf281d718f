"""`egs history`: what is known of tasks from their runs before, which predictions are made from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from egs_core.cli.printable import printable
from egs_core.cli.rows import print_table
from egs_core.errors import EgsError, InputError
from egs_core.graph.places import did_you_mean
from egs_core.history.pending import open_learned
from egs_core.history.rows import HistoryRow
from egs_core.history.stored import StoredHistory
from egs_core.history.summary import Known, summarise

SHOWN = 200
SPARKS = "▁▂▃▄▅▆▇█"


def history(
    pipeline: Annotated[str, typer.Argument(help="Only pipelines of this name; * stands for anything.")] = "*",
    task: Annotated[str, typer.Option(help="Only tasks of this name; * stands for anything.")] = "*",
    weeks: Annotated[int, typer.Option(min=0, max=1000, help="Show how the last so many weeks went.")] = 0,
    url: Annotated[
        str, typer.Option("--history", envvar="EGS_HISTORY", help="Database URL; default: this user's own.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what is known of tasks: how often each phase ran and how long it took, warm and cold, and when last."""
    with quiet():
        store = open_learned(url or None)
        try:
            known = store.pipelines()
            check_readable(store)
            wanted = [name for name in known if fnmatchcase(name, pipeline)]
            if known and not wanted:
                raise InputError("egs history", f"there is no pipeline {pipeline!r}", did_you_mean(pipeline, known))
            found = summarise((row for row in _rows(store, wanted) if fnmatchcase(row.task, task)), weeks)
            check_readable(store)
        finally:
            store.close()
    if as_json:
        typer.echo(json.dumps({"history": store.shown_url(), "tasks": [_told(one, weeks) for one in found]}, indent=2))
    elif not found:
        typer.echo("no such task" if known else "nothing is known yet: runs with EGS leave their durations")
    else:
        print_table(_table(found, weeks))
        if len(found) > SHOWN:
            typer.echo(f"and {len(found) - SHOWN} more: --json has them all")


def _rows(store: StoredHistory, pipelines: list[str]) -> Iterator[HistoryRow]:
    for name in pipelines:
        yield from store.load(name)


@contextmanager
def quiet() -> Iterator[None]:
    """What is wrong with the store is said once, as an error."""
    log = logging.getLogger("egs.history")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def check_readable(store: StoredHistory) -> None:
    """A history that cannot be used is empty to a pipeline, and an error to who asks for it."""
    if store.problem is not None:
        raise EgsError(f"{store.shown_url()}: cannot be read: {store.problem}")


def _told(one: Known, weeks: int) -> dict[str, object]:
    told = one._asdict() | {"last_at": _moment(one.last_at)}
    told["weeks"] = [week._asdict() for week in one.weeks]
    return told if weeks else {name: value for name, value in told.items() if name != "weeks"}


def _table(found: list[Known], weeks: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("pipeline", "task", "phase"):
        table.add_column(column, overflow="fold")
    for column in ("GPUs", "runs", "median", "p95", "cold", "cold start"):
        table.add_column(column, justify="right")
    for column in ("last", "change", *(["weeks"] if weeks else [])):
        table.add_column(column)
    for one in found[:SHOWN]:
        cold = "-" if one.cold_median_s is None else f"{one.cold_median_s:.3g} s"
        table.add_row(
            *(escape(printable(text)) for text in (one.pipeline, one.task)),
            str(one.phase),
            f"{one.gpus:g}",
            f"{one.runs:,}",
            f"{one.median_s:.3g} s",
            f"{one.p95_s:.3g} s",
            f"{one.cold / one.runs:.0%}",
            cold,
            _moment(one.last_at)[:10],
            "-" if one.change is None else f"{one.change:+.0%}",
            *([sparks([week.median_s for week in one.weeks])] if weeks else []),
        )
    return table


def sparks(values: list[float]) -> str:
    """Values as little bars, the largest the highest.

    >>> sparks([1.0, 2.0, 4.0])
    '▃▅█'
    """
    most = max(values, default=0.0) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / most * len(SPARKS)))] for value in values)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
