"""Ends of runs that no server took: kept in files of their user, and told by a process of its own once one answers.

    egs run ── nobody answers ─► ends/SITE-RUN.json ── two minutes, or a signal ─► its exit code is returned
                                        │
                                        └─ a process of the same user tells it, then the file goes

There is one such process a user; it ends when nothing is left to tell, or after a day. What it has not told then, the
next `egs run` of this user tells in the same way.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import CA, TOKEN_FILE, Address, parse_url
from egs_core.client.processes import LEASE_VARIABLE
from egs_core.described import describe
from egs_core.errors import EgsError
from egs_core.places import data_folder

TELL_END_S = 120.0
AGAIN_S, REFUSED_AGAIN_S = 2.0, 60.0  # a server that is back waits a few seconds for an end before it counts as lost
PATIENCE_S = 86400.0
KEPT_S = 30 * 86400.0  # no server keeps a run that has ended for longer
PATHS = ("XDG_DATA_HOME", TOKEN_FILE, CA)  # of the environment: in a folder of its own they must not be relative


class Untold(msgspec.Struct, frozen=True):
    """url: as `EGS_URL`; site: the server's, whose numbers these are; end: fields of `messages.End`."""

    url: str
    site: str
    run: str
    end: dict[str, Any]


describe(Untold)


def tell(
    client: SiteClient, view: c.RunView, end: c.End, say: Callable[[str], None], is_interrupted: Callable[[], bool]
) -> None:
    """Until the server has taken it, for a while, or until a signal: then it is kept, for a process that tells it
    later. is_interrupted: waits a moment for a signal; whether one has come that ends it."""
    until = time.monotonic() + TELL_END_S
    is_kept = False
    while True:
        try:
            client.end(view.id, end)
            forget(view)
            return
        except Refused as error:
            problem: EgsError = error
            if error.status != 409:
                break
        except Unreachable as error:
            problem = error
            is_kept = is_kept or _is_kept(client.address, view, end)
        if time.monotonic() > until or is_interrupted():
            break
    later = "; it is kept, and told as soon as the server answers" if is_kept else ""
    say(f"the end of run {view.id} could not be told{later} ({problem})")
    tell_later()


def _is_kept(address: Address, view: c.RunView, end: c.End) -> bool:
    with suppress(OSError):
        keep(address, view, end)
        return True
    return False


def keep(address: Address, view: c.RunView, end: c.End) -> None:
    """Write it down, for this user alone to read. Raises OSError."""
    url = ",".join(one.url for one in (address, *address.others))
    path = _file(view)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(Untold(url, view.site, view.id, end.model_dump(mode="json"))))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def forget(view: c.RunView) -> None:
    """It was told."""
    with suppress(OSError):
        _file(view).unlink(missing_ok=True)


def tell_later() -> None:
    """Start the process that tells, where there is something to tell. A command of a lease starts none: that would be
    one more process of the lease."""
    if LEASE_VARIABLE in os.environ or not _kept():
        return
    paths = {name: str(Path(os.environ[name]).absolute()) for name in PATHS if os.environ.get(name)}
    command = [sys.executable, "-m", __name__]
    nothing = subprocess.DEVNULL
    with suppress(OSError):  # else the next `egs run` does it
        subprocess.Popen(
            command,
            cwd="/",
            env={**os.environ, **paths},
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )


def main() -> None:
    """Tell what is kept, unless another process does so already."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `egs run` has blocked those that it takes one by one
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and _kept():  # again: something may have come just before the lock was given back
        with _lock() as is_own:
            if not is_own:
                return
            later: dict[Path, float] = {}
            while time.monotonic() < until and (paths := _kept()):
                _tell(paths, later)
                time.sleep(AGAIN_S if _kept() else 0.0)


def _tell(paths: list[Path], later: dict[Path, float]) -> None:
    """Each of them once. later: what was refused is tried from then on."""
    away = set[str]()
    for path in paths:
        if time.monotonic() < later.get(path, 0.0):
            continue
        try:
            untold = msgspec.json.decode(path.read_bytes(), type=Untold)
            if path.stat().st_mtime < time.time() - KEPT_S:
                path.unlink()
            elif untold.url not in away and _is_told(untold):
                path.unlink(missing_ok=True)
        except (msgspec.MsgspecError, ValidationError):
            path.unlink(missing_ok=True)  # of another version: nobody can tell it
        except Unreachable:
            away.add(untold.url)
        except (EgsError, OSError):
            later[path] = time.monotonic() + REFUSED_AGAIN_S


def _is_told(untold: Untold) -> bool:
    """Whether nothing more is to be said: it is told now, or the run is not there, or no longer this one's. Raises
    EgsError."""
    end = c.End.model_validate(untold.end)
    with closing(SiteClient(parse_url(untold.url), trusted_owners())) as client:
        try:
            view = client.view(untold.run)
            if view.site == untold.site and (view.lease is None or view.lease.token == end.token):
                client.end(untold.run, end)
        except Refused as error:
            if error.status != 404:
                raise
    return True


def _kept() -> list[Path]:
    return sorted((data_folder() / "ends").glob("*.json"))


def _file(view: c.RunView) -> Path:
    return data_folder() / "ends" / f"{view.site}-{view.id}.json"


@contextmanager
def _lock() -> Iterator[bool]:
    """Whether this process is the one that tells."""
    handle = os.open(data_folder() / "ends" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
