"""Tables that commands print: names in them are others', and no markup."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDE = 10_000  # columns, of what no terminal shows: no row is folded


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One row of each; a text that is wider than its column goes on below."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    print_table(table)


def print_table(table: Table, least: int = 0) -> None:
    """A line for each row where the output is a pipe or a file, else as wide as the terminal is, or `COLUMNS` says; but
    least columns wide, whatever it is."""
    is_shown = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=max(least, Console().width) if is_shown else WIDE).print(table)
