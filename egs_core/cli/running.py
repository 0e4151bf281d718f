"""What `demo` and `replay` show while something real runs: a bar of ended tasks, on stderr: stdout stays clean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from egs_core.adapter import Progress as Told


@contextmanager
def shown_progress(title: str) -> Iterator[Told]:
    """A function to tell how many tasks have ended; without a terminal one line says that it began."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} …", markup=False, highlight=False)
        yield lambda _ended, _total: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("tasks"), TimeElapsedColumn(), console=console) as bar:
        shown = bar.add_task(title, total=None)
        yield lambda ended, total: bar.update(shown, completed=ended, total=total)
