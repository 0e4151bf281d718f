"""Run logs whose durations are not in the history yet.

    a script ends ── leave ─► a note of some bytes ── learn_pending, when history is next asked for ─► the history

Reading a run log takes as long as it has tasks: the script that wrote it shall not wait for that at its end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.history.from_runlog import history_from_runlog
from egs_core.history.opened import open_history
from egs_core.history.sqlite import plain_path
from egs_core.history.stored import FILE_NAME
from egs_core.places import data_folder, replace_file
from egs_core.runlog.io import read_run

TAKEN = "taken-"
ABANDONED_S = 3600.0  # since a note was taken: whoever did hangs, or is on another machine and has ended


class Note(msgspec.Struct):
    """log: the run log's path; history: the URL at which the script had its history, "" for the user's own."""

    log: str
    history: str = ""


describe(Note)


def pending_folder() -> Path:
    """Where the notes are; not created here."""
    return data_folder() / "pending"


def leave(log: Path) -> None:
    """Note that a finished run log may be learned from. Raises OSError."""
    note = Note(str(log.absolute()), os.environ.get("EGS_HISTORY", ""))
    replace_file(pending_folder() / f"{time.time_ns()}-{os.getpid()}.json", msgspec.json.encode(note))


def learn_pending(history: str = "") -> int:
    """Put what pending run logs tell into their history, that at a URL or the user's; returns how many were learned.

    Several processes may do so at once: each log is learned by one. Logs that are gone or unreadable are forgotten.
    """
    wanted, learned = _place_of(history or os.environ.get("EGS_HISTORY", "")), 0
    for path in sorted(pending_folder().glob("*.json*")):
        if _is_taken(path):
            continue
        note = _read(path)
        if note is None or _place_of(note.history) == wanted:
            learned += _learn(path, note)
    return learned


def _place_of(url: str) -> str:
    """One spelling for each store."""
    path = plain_path(url) if url else data_folder() / FILE_NAME
    return str(path.absolute()) if path is not None else url


def _is_taken(path: Path) -> bool:
    """Whether some process is at it."""
    _, is_taken, pid = path.name.partition(TAKEN)
    if not is_taken:
        return False
    try:
        os.kill(int(pid), 0)
        return time.time() - path.stat().st_mtime < ABANDONED_S
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True


def _read(path: Path) -> Note | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None


def _learn(path: Path, note: Note | None) -> int:
    taken = path.with_name(f"{path.name.partition('.json')[0]}.json.{TAKEN}{os.getpid()}")
    try:
        path.rename(taken)  # of several processes one succeeds
        os.utime(taken)
    except OSError:
        return 0
    kept = note is not None and _record(note)
    taken.unlink(missing_ok=True)
    return int(kept)


def _record(note: Note) -> bool:
    try:
        run = read_run(note.log)
    except InputError:
        return False
    store = open_history(note.history or None)
    kept = store.record(history_from_runlog([run.header, *run.records]))
    store.close()
    return kept > 0
