"""A PostgreSQL server of a test's own, on a free port of this machine; nothing of it is left."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.airflow.live import free_ports, wait_until

DEBIAN = Path("/usr/lib/postgresql")
DRIVER = "psycopg"


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database, which is gone at the end; skips where there is no server or no driver."""
    programs = _programs()
    if find_spec(DRIVER) is None:
        pytest.skip(f"{DRIVER} is not installed")
    with tempfile.TemporaryDirectory(prefix="egs-postgres-") as name:
        folder, (port,), user = Path(name), free_ports(1), _user(Path(name))
        shared: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **user}
        init = ["--username=airflow", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        subprocess.run([programs / "initdb", f"--pgdata={folder / 'data'}", *init], check=True, **shared)
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
        server = subprocess.Popen([programs / "postgres", "-D", str(folder / "data"), *options], **shared)
        try:
            ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
            wait_until(lambda: subprocess.run(ready, **shared).returncode == 0, "a PostgreSQL server")
            yield f"postgresql+{DRIVER}://airflow@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # ends it without waiting for who is still connected
            server.wait(timeout=120)


def metadata_in(url: str) -> dict[str, str]:
    """The variables of an Airflow that keeps its metadata there."""
    return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url}


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


def _user(folder: Path) -> dict[str, Any]:
    """Whom the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return {}
    names = {one.pw_name: one for one in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
