"""A real `egs serve` and real `egs run` processes, in a folder of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from egs_core.cli import app
from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import Address
from egs_core.client.processes import descendants, is_stopped
from tests.unit.server.forked import Forked, python_words

PATIENCE_S = 240.0
EGS = (sys.executable, "-m", "egs_core.cli.app")
ASK = frozenset(
    (
        "abort",
        "cost",
        "drain",
        "pause",
        "ps",
        "queue",
        "resume",
        "server",
        "slo",
        "token",
        "undrain",
        "update",
        "watch",
        "why",
    )
)
"""Commands that ask the server and end. A test has their functions called here, with a site's environment: as processes
they would spend their time on imports, half a second of a processor each."""


def wait_for(what: Callable[[], Any], text: str) -> Any:
    """The first value that is true. Fails when none comes in minutes."""
    until = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < until, f"{text}: it did not happen in {PATIENCE_S:g} s"
        time.sleep(0.05)
    return found


class RealSite:
    """One folder, its server (which may be killed and started again) and commands that speak to it. gpus: emulated
    ones; None: those that NVML finds. as_programs: each process begins as a shell would start it, and imports EGS; else
    it is forked from one that has (`forked.py`), if Python has not to begin in another way."""

    def __init__(self, folder: Path, gpus: int | str | None = 2, *, as_programs: bool = False) -> None:
        self.folder, self.gpus, self.as_programs = folder, gpus, as_programs
        self.ready: dict[str, Any] = {}
        self.server: subprocess.Popen[str] | None = None
        self._begun: list[subprocess.Popen[str]] = []
        (folder / "run").mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EGS_")} | {
            "EGS_RUNTIME_DIR": str(folder / "run"),
            "XDG_DATA_HOME": str(folder / "home"),
            "PYTHONWARNINGS": "ignore",
        }
        self.environment.pop("COLUMNS", None)  # which pytest's own processes have: rows would be folded

    def start(self, *more: str) -> None:
        port = self.ready.get("url", ":0").rpartition(":")[2]
        emulated = () if self.gpus is None else ("--emulated-gpus", str(self.gpus))
        arguments = ("serve", *emulated, "--data", str(self.folder / "data"), "--port", port)
        self.server = self._begin([*EGS, *arguments, "--json", *more])
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, self.server.communicate()[1]
        self.ready = json.loads(line)

    def kill(self) -> None:
        """`kill -9`, as when its machine's memory is full."""
        assert self.server is not None
        self.server.kill()
        self.server.wait(PATIENCE_S)

    def close(self) -> None:
        """End all that was begun, and what it has left, also detached."""
        if self.server is not None and self.server.poll() is None:
            for run in self.client.runs().runs:
                with contextlib.suppress(Refused):  # it has ended with its gang
                    self.client.control(run.id, "abort", c.Control(grace_s=0))
            wait_for(lambda: not self.open(), "all runs end")
        for untold in (self.folder / "home" / "egs" / "ends").glob("*.json"):
            untold.unlink(missing_ok=True)  # else a process goes on that wants to tell it
        for one in reversed(self._begun):
            if one.poll() is None:
                one.send_signal(signal.SIGTERM if one is self.server else signal.SIGKILL)
                one.wait(PATIENCE_S)
            for pipe in (one.stdout, one.stderr):
                if pipe is not None:
                    pipe.close()

    def run(self, *arguments: str, folder: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        """`egs run ARGUMENTS`, which goes on beside."""
        return self._begin([*EGS, "run", *arguments], environment, folder)

    def egs(self, *arguments: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        if arguments[0] in ASK and folder is None:
            return _called(arguments, self.environment | environment)
        begun = self._begin([*EGS, *arguments], environment, folder)
        out, err = begun.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(arguments, begun.returncode, out, err)

    def told(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        done = self.egs(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def detached(self, *arguments: str) -> dict[str, Any]:
        """What `egs run --detach ARGUMENTS` tells."""
        done = self.egs("run", "--detach", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def client(self) -> SiteClient:
        """A client in this process: quicker than a command."""
        path = Path(self.ready["socket"])
        return SiteClient(Address(f"unix://{path}", path), trusted_owners())

    def devices(self) -> dict[str, str]:
        """Of each device the run that holds it."""
        return {device.id: device.run for device in self.client.runs().devices}

    def queued(self) -> dict[str, str]:
        """Ids of what waits, by name."""
        return {run.name: run.id for run in self.client.queue().runs}

    def open(self) -> dict[str, str]:
        """Ids of what has not ended, by name."""
        return {run.name: run.id for run in self.client.runs().runs}

    def standing(self) -> str:
        """For a failure: its processes, with what they have said and nobody has read, and what the server says."""
        lines = [f"{_process_words(one)}: {_unread(one.stderr)!r}" for one in self._begun]
        try:
            lines += [
                f"run {run.id} {run.name}: {run.state}, lease {run.lease}, {run.reason}"
                for run in self.client.runs().runs
            ]
        except (Refused, Unreachable, KeyError) as error:  # KeyError: no server has begun
            lines.append(f"the server: {error!r}")
        return "\n".join(lines)

    def _begin(
        self, command: list[str], environment: dict[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.Popen[str]:
        whole = self.environment | (environment or {})
        is_as_usual = {name: value for name, value in whole.items() if name.startswith("PYTHON")} == python_words()
        is_forked = not self.as_programs and is_as_usual and tuple(command[: len(EGS)]) == EGS
        begun = (Forked if is_forked else subprocess.Popen[str])(
            command[len(EGS) :] if is_forked else command,
            cwd=folder,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(begun)
        return begun


def _process_words(one: subprocess.Popen[str]) -> str:
    """Its number and words, how it has ended or what the kernel says of it, and which numbers below it are stopped."""
    try:
        lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
        found = ", ".join(line for line in lines if line.startswith(("State", "PPid", "Sig", "ShdPnd")))
        found += f"; below it: {[(below.pid, is_stopped(below.pid)) for below in descendants(one.pid)]}"
    except OSError:
        found = "gone"
    return f"{one.pid} {' '.join(map(str, one.args))[:300]} ({one.poll()}; {found})"  # type: ignore[arg-type]


def _unread(pipe: IO[str] | None) -> str:
    if pipe is None or pipe.closed:
        return ""
    os.set_blocking(pipe.fileno(), False)
    try:
        return os.read(pipe.fileno(), 1 << 16).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.set_blocking(pipe.fileno(), True)


def _called(arguments: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a process of `egs ARGUMENTS` would have ended with and printed."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        code = app.run(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
