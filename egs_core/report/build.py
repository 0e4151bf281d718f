"""From run logs on disk to a page on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from egs_core.errors import InputError
from egs_core.report.compare import check_same_tasks
from egs_core.report.page import render_page
from egs_core.runlog.io import Run


def write_report(
    runs: Sequence[Run], output: str | os.PathLike[str], *, compare: bool = True, same_work: bool = False
) -> Path:
    """Write the page for `runs` to `output`, replacing an earlier page. Raises InputError where that cannot be, and for
    a comparison of runs that are not of the same tasks.

    compare: False shows each run for itself. same_work: the runs are known to do the same, whatever their tasks are.
    """
    if not runs:
        raise InputError("report", "no run logs given", "name at least one run log")
    if compare and not same_work:
        check_same_tasks(list(runs))
    path = Path(output)
    if os.path.isdir(path):
        raise InputError(str(path), "is a folder", "name a file to write, such as report.html")
    if any(run.path and _same_file(path, run.path) for run in runs):
        raise InputError(str(path), "is one of the run logs", "choose another name for the page")
    try:
        path.write_text(render_page(list(runs), compare=compare), encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be written: {getattr(error, 'strerror', None) or error}") from None
    return path


def _same_file(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
