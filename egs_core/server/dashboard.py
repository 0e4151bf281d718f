"""The dashboard's process: started when somebody first asks for it, started again when it has ended, and gone when the
server is, however that ends.

    request for /dashboard ─► is it there? ─ no ─► start it (not sooner than its pause is over) ─► connect
    server ends, or is killed ─► the pipe that is the dashboard's stdin ends ─► so does the dashboard

The server makes its listening socket and keeps it: who connects while the process starts waits there. The socket's file
is in the data folder, which is the server's user's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

LOG = logging.getLogger("uvicorn.error")
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # before it is started again, by how often it has ended early
LASTING_S = 60.0  # who has lived so long has not ended early
END_S = 5.0
SECRET = (
    "EGS_TOKEN",
    "EGS_TOKEN_FILE",
    "EGS_DATABASE",
)  # of the server's environment: what the dashboard has no use for


class Away(Exception):
    """There is no dashboard now. wait_s: in so long it may be asked for again."""

    def __init__(self, problem: str, wait_s: float) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


class Dashboard:
    """See the module. site: the server's own Unix socket; is_secure: browsers reach it over TLS only; behind_proxy:
    one that says under what name; prices: file with those of GPUs, None for none."""

    def __init__(
        self,
        folder: Path,
        port: int,
        site: Path,
        *,
        is_secure: bool = False,
        behind_proxy: bool = False,
        prices: Path | None = None,
    ) -> None:
        self._folder, self._name = folder.absolute(), f"dashboard-{port}.sock"
        self._site, self._port = site.absolute(), port
        self._options = ["--secure"] * is_secure + ["--behind-proxy"] * behind_proxy
        self._options += [f"--prices={prices.absolute()}"] if prices is not None else []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: socket.socket | None = None
        self._handle = -1  # of the folder: a socket's path has little room, and this way is short
        self._started_at, self._early, self._is_closed = 0.0, 0, False

    @property
    def is_there(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the process, which may still be about to start. Raises Away, and OSError."""
        path = await asyncio.to_thread(self._started)
        return await asyncio.open_unix_connection(path)

    def end_soon(self) -> None:
        """Its streams end, and with them what waits for those."""
        self._is_closed = True
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()

    def close(self) -> None:
        """When this returns it is gone."""
        self.end_soon()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._listening is not None:
            self._listening.close()
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._handle)
            self._listening = None

    def _started(self) -> str:
        with self._lock:
            if self._is_closed:
                raise Away("the server ends", 5.0)
            if not self.is_there:
                self._check_pause(time.monotonic())
                self._start(self._listen())
            return self._path

    def _check_pause(self, now: float) -> None:
        if self._process is None:
            return
        ended = self._process
        if ended.stdin is not None:
            ended.stdin.close()
        lived_s = now - self._started_at
        self._early = min(self._early, len(PAUSES_S) - 1) if lived_s < LASTING_S else 0
        left_s = PAUSES_S[self._early] - lived_s
        if left_s > 0:
            raise Away(f"its process has ended ({ended.returncode}), and is started again in a moment", left_s)
        self._early += 1

    def _start(self, listening: socket.socket) -> None:
        handle = listening.fileno()
        command = [sys.executable, "-P", "-m", "egs_core.dashboard", str(handle), str(self._site), str(self._port)]
        command += self._options
        environment = {name: value for name, value in os.environ.items() if name not in SECRET}
        self._started_at = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=self._folder,
                pass_fds=(handle,),
                start_new_session=True,  # Ctrl-C is for the server, which then ends it
            )
        except OSError as error:
            raise Away(f"its process cannot be started: {error.strerror}", PAUSES_S[-1]) from None

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._handle}/{self._name}"

    def _listen(self) -> socket.socket:
        if self._listening is None:
            try:
                self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
                (self._folder / self._name).unlink(missing_ok=True)
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listening.bind(self._path)
                listening.listen(512)
            except OSError as error:
                LOG.warning("no socket can be made for the dashboard in %s: %s", self._folder, error.strerror)
                raise Away(f"no socket can be made for it: {error.strerror}", PAUSES_S[-1]) from None
            self._listening = listening
        return self._listening
