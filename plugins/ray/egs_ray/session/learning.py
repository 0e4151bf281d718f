"""Where a session writes its run log, and under which header."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from egs_core.runlog import records as r
from egs_ray.observe import runlog_path

if TYPE_CHECKING:  # a driver reserves its file before it needs the engine
    from egs_core.site import Learning

_used_paths: set[Path] = set()


def make_learning(runlog: str | None, history: str | None, policy: str) -> Learning:
    """Of one session. runlog: a file, by default one of this process; history: a URL, by default the user's."""
    from egs_core.site import Learning

    path = _unused(Path(runlog) if runlog else runlog_path())
    header = r.Header(
        run_id=path.stem, driver="ray", policy=policy, mode="on", started_at=time.time(), label=f"EGS ({policy})"
    )
    return Learning(path, header, history)


def reserve(path: Path) -> None:
    """A file that something else of this process writes."""
    _used_paths.add(path)


def _unused(path: Path) -> Path:
    """Sessions of one process that follow each other have run logs of their own."""
    number, chosen = 1, path
    while chosen in _used_paths:
        number += 1
        chosen = path.with_stem(f"{path.stem}-{number}")
    _used_paths.add(chosen)
    return chosen
