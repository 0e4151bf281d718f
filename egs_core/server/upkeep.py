"""A site's database as a file: a copy of it while its server runs, whether it is sound, and a copy in its place.

    site.db ─ SQLite's own backup ─► a copy ─ sound? ─► FILE       backup, with or without a server
    FILE ─ a copy ─ sound? ─► site.db, the one before ─► site.db.replaced      restore, without a server

A check looks at a copy, too: what a server writes meanwhile is in it wholly or not at all, and nothing is changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa

from egs_core.client.processes import Snapshot, is_alive, lease_mark
from egs_core.errors import EgsError, InputError, listed
from egs_core.server.database import FILE_NAME
from egs_core.server.serving import folder_lock
from egs_core.server.store import Kept, SqlStore, StoreError

REPLACED = f"{FILE_NAME}.replaced"
BUSY_S = 30.0


class Unsound(EgsError):
    """A database that no server could go on from, and why."""


class Found(msgspec.Struct, frozen=True):
    """What a sound database has. size_bytes: of the copy that was looked at, or of PostgreSQL's database; open: runs
    that have not ended; held: those of them with a lease; entries: of the journal since its last snapshot."""

    site: str
    size_bytes: int
    runs: int
    open: int
    held: int
    entries: int


def backup(folder: Path, file: Path) -> Found:
    """Write a sound copy of the site's database, for its owner alone. Raises Unsound, and InputError where it cannot
    be read, or the file is there."""
    with _copied(_database(folder), file.absolute().parent) as copy:
        found = _check(copy)
        try:
            os.link(copy, file)  # unlike a rename it replaces nothing
        except FileExistsError:
            raise InputError(str(file), "already exists", "choose another name") from None
        _sync_folder(file.absolute().parent)
        return found


def check(path: Path) -> Found:
    """Whether SQLite finds the file whole, its journal folds, and its runs and its engine agree. path: of a database,
    or a folder that has one, whose server may run. Raises Unsound; InputError where there is none."""
    with tempfile.TemporaryDirectory() as there, _copied(_database(path), Path(there)) as copy:
        return _check(copy)


def check_postgresql(url: sa.URL) -> Found:
    """Whether the journal in a PostgreSQL folds, and its runs and its engine agree, as they are at one moment. Raises
    Unsound; InputError where it cannot be reached."""
    try:
        with contextlib.closing(SqlStore(url, time.time())) as store, store.begin() as connection:
            size_bytes = connection.scalar(sa.select(sa.func.pg_database_size(sa.func.current_database())))
            kept = store.load()
    except StoreError as error:
        raise InputError("--database", str(error)) from None
    return _found(kept, size_bytes or 0)


def restore(folder: Path, file: Path, *, force: bool = False) -> Found:
    """Put a sound copy of the file in the place of the site's database, which becomes `site.db.replaced`. Raises
    Unsound; InputError while a server runs there, or while a process lives that belongs to a run of the present
    database: its devices would be given to others. force: also where that cannot be read, so that nobody knows."""
    lock = folder_lock(folder)
    try:
        with _copied(_database(file), folder) as copy:
            found = _check(copy)
            present = folder / FILE_NAME
            if present.exists():
                _check_that_nobody_lives(folder, force)
                _put_aside(present)
            os.replace(copy, present)
            _sync_folder(folder)
        return found
    finally:
        os.close(lock)


def _database(path: Path) -> Path:
    found = path / FILE_NAME if path.is_dir() else path
    if not found.is_file():
        raise InputError(str(found), "there is no site's database")
    return found


@contextlib.contextmanager
def _copied(database: Path, there: Path) -> Iterator[Path]:
    """A copy of the database at one moment, in a folder of its own below `there`; whole on disk, mode 600, one file."""
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".egs-") as place:
            copy = Path(place) / FILE_NAME
            copy.touch(mode=0o600)
            with (
                contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.execute(f"PRAGMA busy_timeout={BUSY_S * 1000:.0f}")
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")
            yield copy
    except sqlite3.Error as error:
        raise Unsound(f"{database}: {error}") from None
    except OSError as error:
        raise InputError(str(error.filename or there), f"cannot be used: {error.strerror}") from None


def _check(copy: Path) -> Found:
    """Of a copy, which stays as it is."""
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if problems != ["ok"]:
            raise Unsound(f"SQLite finds it damaged: {'; '.join(problems)}")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            raise Unsound("it is a database of something else than a site server")
        if not connection.execute("SELECT 1 FROM meta WHERE name = 'version'").fetchone():
            raise Unsound("it has no site: no server has written it to the end")
    with tempfile.TemporaryDirectory(dir=copy.parent) as place:
        looked_at = Path(place) / FILE_NAME
        with contextlib.closing(sqlite3.connect(copy)) as source, contextlib.closing(sqlite3.connect(looked_at)) as to:
            source.backup(to)
        try:
            store = SqlStore(looked_at.parent, time.time())
            with contextlib.closing(store):
                kept = store.load()
        except (StoreError, InputError) as error:
            raise Unsound(str(error)) from None
    return _found(kept, copy.stat().st_size)


def _found(kept: Kept, size_bytes: int) -> Found:
    """Raises Unsound."""
    try:
        logic = kept.logic("the journal")
        logic.validate()
    except InputError as error:
        raise Unsound(str(error)) from None
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise Unsound(f"its runs and its engine do not agree: {error}") from None
    runs = logic.open_runs()
    held = sum(run.lease is not None for run in runs)
    return Found(kept.facts.id, size_bytes, len(kept.runs), len(runs), held, len(kept.entries))


def _check_that_nobody_lives(folder: Path, force: bool) -> None:
    """Also of runs that have ended, and of those that wait: a client that lives would go on with a number that after
    this is another run's."""
    try:
        store = SqlStore(folder, time.time())
        with contextlib.closing(store):
            kept = store.load()
    except (StoreError, InputError) as error:
        if force:
            return
        hint = "end every `egs run`, then add --force"
        raise InputError(str(folder), f"nobody knows which runs live, for it cannot be read: {error}", hint) from None
    now = Snapshot()
    living: list[str] = []
    for run in kept.runs:
        if run.host and run.is_open:
            living.append(f"run {run.id} (on host {run.host}, where nobody can look from here)")
        token = run.lease.token if run.lease else 0
        is_there = not run.is_request and is_alive(run.supervisor.asked())
        found = [run.supervisor.asked()] if is_there else []
        found += now.living([one.asked() for one in run.named], lease_mark(run.id, token, kept.facts.id))
        if found:
            living.append(f"run {run.id} (process {found[0].pid})")
    if living:
        raise InputError(str(folder), f"processes of its runs live: {listed(living, 5)}", "end them, or wait for them")


def _put_aside(present: Path) -> None:
    """Its own log, which SQLite leaves where nobody could read it, must not be taken for that of the next one."""
    aside = present.with_name(REPLACED)
    for suffix in ("-wal", "-shm"):
        aside.with_name(aside.name + suffix).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{present}{suffix}", f"{aside}{suffix}")
    aside.unlink(missing_ok=True)
    os.link(present, aside)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
