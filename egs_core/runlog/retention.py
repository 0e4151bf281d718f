"""How long EGS keeps the run logs that it wrote without being told where: by age, and by their size in all.

Only files that EGS has named itself are looked at, `20260131-120000-train-4711.jsonl` in `runs` of the user's data
folder. Never touched: what a user named, what was written today, and the log of a process that runs.

    EGS_KEEP_DAYS   days after its last record (30; 0: for ever)
    EGS_KEEP_MB     of all such logs together, the oldest go first (1000; 0: without limit)
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from egs_core.notices import warn
from egs_core.places import data_folder

KEEP_DAYS, KEEP_MB = "EGS_KEEP_DAYS", "EGS_KEEP_MB"
DEFAULTS = {KEEP_DAYS: 30.0, KEEP_MB: 1000.0}
DAY_S = 86_400.0
OWN_NAME = re.compile(r"\d{8}-\d{6}-.+-(?P<pid>\d+)(-\d+)?\.jsonl")


class _Log(msgspec.Struct):
    path: Path
    size: int
    written_at: float


def runs_folder() -> Path:
    """Where run logs go that nobody named; not created here."""
    return data_folder() / "runs"


def prune(now: float | None = None) -> list[Path]:
    """Remove run logs that are too old or too many, and return which. Never raises for what the folder is like."""
    now = time.time() if now is None else now
    days, megabytes = _setting(KEEP_DAYS), _setting(KEEP_MB)
    logs = sorted(_own_logs(runs_folder()), key=lambda log: log.written_at)
    total, removed = sum(log.size for log in logs), list[Path]()
    for log in logs:
        age_s = now - log.written_at
        is_old = days > 0 and age_s > days * DAY_S
        is_much = megabytes > 0 and total > megabytes * 1e6
        if (is_old or is_much) and age_s > DAY_S and not _is_alive(log.path):
            with contextlib.suppress(OSError):
                log.path.unlink()
                total -= log.size
                removed.append(log.path)
    return removed


def _own_logs(folder: Path) -> Iterator[_Log]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if OWN_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                yield _Log(Path(entry.path), about.st_size, about.st_mtime)


def _is_alive(path: Path) -> bool:
    """Whether a process of the number in the log's name runs here, be it the one that wrote it or not."""
    found = OWN_NAME.fullmatch(path.name)
    try:
        os.kill(int(found["pid"]) if found else 0, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _setting(name: str) -> float:
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else DEFAULTS[name]
        if value >= 0:
            return value
    except ValueError:
        pass
    warn(f"{name}={text!r} is no number of zero or more: {DEFAULTS[name]:g}")
    return DEFAULTS[name]
