"""Run logs whose durations are not in the history yet.

    a script ends ── leave ─► a note of some bytes ── learn_pending, when history is next asked for ─► the history
                                  │                          ▲
    its log is overwritten ── keep_pending ─► the old log, among those that nobody named

Reading a run log takes as long as it has tasks: the script that wrote it shall not wait for that at its end, nor the
next one at its start. A note names one run, so that a log which another run has written since teaches nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.history.from_runlog import history_from_runlog
from egs_core.history.opened import open_history
from egs_core.history.sqlite import plain_path
from egs_core.history.stored import FILE_NAME, StoredHistory
from egs_core.places import data_folder, replace_file
from egs_core.runlog.io import Run, RunReader, read_run
from egs_core.runlog.records import Header
from egs_core.runlog.retention import runs_folder

TAKEN = "taken-"
ABANDONED_S = 3600.0  # since a note was taken: whoever did hangs, or is on another machine and has ended


class Note(msgspec.Struct):
    """log: the run log's path; history: the URL at which the script had its history, "" for the user's own. run_id,
    started_at: of the log's header; started_at is 0 in notes of an EGS that did not write it, which fit every run."""

    log: str
    history: str = ""
    run_id: str = ""
    started_at: float = 0.0

    def is_of(self, header: Header) -> bool:
        """Whether this run is meant."""
        return not self.started_at or (self.run_id, self.started_at) == (header.run_id, header.started_at)


describe(Note)


def pending_folder() -> Path:
    """Where the notes are; not created here."""
    return data_folder() / "pending"


def leave(log: Path, header: Header) -> None:
    """Note that a finished run log, with that header, may be learned from; once, however often. Raises OSError."""
    note = Note(str(log.absolute()), os.environ.get("EGS_HISTORY", ""), header.run_id, header.started_at)
    name = f"{round(header.started_at * 1e9)}-{os.getpid()}.json"
    replace_file(pending_folder() / name, msgspec.json.encode(note))


def keep_pending(log: Path) -> None:
    """Before this file is overwritten: where it has yet to be learned from, it goes to the logs that nobody named.

    Costs a rename, whatever its length. Never raises for what the folders or files are like.
    """
    with contextlib.suppress(OSError):
        if not log.is_file() or not log.stat().st_size:
            return
        place = os.path.realpath(log)
        for path in _notes():
            note = _read(path)
            if note is None or os.path.realpath(note.log) != place:
                continue
            header = _header_of(place)
            if header is not None and note.is_of(header):
                kept = _kept(path, note)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(place, kept)
                return


def open_learned(url: str | None = None) -> StoredHistory:
    """The history as `open_history` has it, with what pending run logs tell: for who wants to know all there is."""
    with contextlib.suppress(OSError):
        learn_pending(url or "")
    return open_history(url)


def learn_pending(history: str = "") -> int:
    """Put what pending run logs tell into their history, that at a URL or the user's; returns how many were learned.

    Several processes may do so at once: each log is learned by one. Logs that are gone or unreadable are forgotten;
    where the history cannot be used all stay. Raises OSError.
    """
    wanted, learned = _place_of(history or os.environ.get("EGS_HISTORY", "")), set[tuple[str, str, float]]()
    for path in _notes():
        if _is_taken(path):
            continue
        note = _read(path)
        if (note is None or _place_of(note.history) == wanted) and not _learn(path, note, learned):
            break
    return len(learned)


def _notes() -> list[Path]:
    return sorted(pending_folder().glob("*.json*"))


def _kept(path: Path, note: Note) -> Path:
    """Where the log of the note at this path is once it was overwritten: a name of those that are pruned."""
    begun_ns, _, process = path.name.partition(".")[0].partition("-")
    seconds, rest = divmod(int(begun_ns) if begun_ns.isdigit() else 0, 10**9)
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    return runs_folder() / f"{moment}-{Path(note.log).stem}-{process}-{rest}.jsonl"


def _header_of(log: str) -> Header | None:
    try:
        with RunReader(log) as reader:
            return reader.header
    except InputError:
        return None


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


def _learn(path: Path, note: Note | None, learned: set[tuple[str, str, float]]) -> bool:
    """Learn from the log of a note, unless another process does, and forget the note. learned: the runs so far. False
    where the history cannot be used: the note stays."""
    taken = path.with_name(f"{path.name.partition('.json')[0]}.json.{TAKEN}{os.getpid()}")
    try:
        path.rename(taken)  # of several processes one succeeds
        os.utime(taken)
    except OSError:
        return True
    if note is not None:
        kept = _kept(path, note)
        # The place that was named comes first: whoever overwrites it meanwhile has put the log to the other before.
        run = _run_of(Path(note.log), note) or _run_of(kept, note)
        if run is not None:
            seen = (os.path.realpath(note.log), run.header.run_id, run.header.started_at)
            problem = _record(run, note.history) if seen not in learned else None
            if problem is not None:
                taken.rename(taken.with_name(taken.name.partition(f".{TAKEN}")[0]))
                return False
            learned.add(seen)
        kept.unlink(missing_ok=True)
    taken.unlink(missing_ok=True)
    return True


def _run_of(log: Path, note: Note) -> Run | None:
    try:
        run = read_run(log)
    except InputError:
        return None
    return run if note.is_of(run.header) else None


def _record(run: Run, history: str) -> str | None:
    """What was wrong with the history, if something was."""
    store = open_history(history or None)
    store.record(history_from_runlog([run.header, *run.records]))
    store.close()
    return store.problem
