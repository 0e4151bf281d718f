"""A PostgreSQL server of a test's own, on a free port of this machine; nothing of it is left."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

DEBIAN = Path("/usr/lib/postgresql")
DRIVER = "psycopg"
PATIENCE_S = 240.0


class Postgres:
    """A server in a folder. user: of the database, who is trusted without a password."""

    def __init__(self, folder: Path, programs: Path, user: str) -> None:
        self._programs, self._user, self._folder = programs, user, folder
        self._shared: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        self._shared |= _runs_as(folder)
        self._numbers = itertools.count()
        self._server: subprocess.Popen[Any] | None = None
        self.port = _free_port()
        init = [f"--username={user}", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        subprocess.run([programs / "initdb", f"--pgdata={folder / 'data'}", *init], check=True, **self._shared)

    def start(self) -> None:
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder), "-F"]
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options]
        self._server = server = subprocess.Popen(command, **self._shared)
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        until = time.monotonic() + PATIENCE_S
        while subprocess.run(ready, check=False, **self._shared).returncode != 0:
            assert server.poll() is None, "PostgreSQL has ended"
            assert time.monotonic() < until, f"PostgreSQL was not ready in {PATIENCE_S:g} s"
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Without waiting for who is still connected. how: SIGQUIT is `pg_ctl stop -m immediate`: as after a crash, its
        next start recovers from its log."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait(PATIENCE_S)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+{DRIVER}://{self._user}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty one."""
        name = f"test{next(self._numbers)}"
        created = [str(self._programs / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", self._user, name]
        subprocess.run(created, check=True, **self._shared)
        return self.url(name)


@contextmanager
def postgres(user: str = "egs") -> Iterator[Postgres]:
    """A server that runs, and is gone at the end; skips where there is none, or no driver for it."""
    programs = _programs()
    if find_spec(DRIVER) is None:
        pytest.skip(f"{DRIVER} is not installed")
    with tempfile.TemporaryDirectory(prefix="egs-postgres-") as name:
        server = Postgres(Path(name), programs, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def is_installed() -> bool:
    """Whether there is a server, and a driver for it."""
    return find_spec(DRIVER) is not None and _found() is not None


def _programs() -> Path:
    """Where the newest server's programs are."""
    found = _found()
    if found is None:
        pytest.skip("no PostgreSQL server is installed")
    return found.parent


def _found() -> Path | None:
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1] if found else Path(on_path) if on_path else None


def _runs_as(folder: Path) -> dict[str, Any]:
    """Whom the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return {}
    names = {one.pw_name: one for one in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
