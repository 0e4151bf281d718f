"""What uses the GPUs of a test's site, as a script: the command of an `egs run`, or a client of the protocol itself.

    gpu_user.py command FOLDER NAME PART LENGTH_S CODE      holds what `egs run` has given it for so long
    gpu_user.py client FOLDER NAME SEED                     asks over HTTP and holds what it gets, again and again

Both hold a lock of the kernel's for each device or half of it as long as they use it, and write a line at each step
into `FOLDER/log`; a client also what it was told, into `FOLDER/NAME.told`. So what has happened is known after any
`kill -9`, from others than the server.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egs_core.client import messages as c

HALVES = (0, 1)
WAIT_S = 5.0


def note(folder: Path, what: str, name: str, mark: str, devices: str, part: str) -> None:
    """One whole line: what is appended by one `write` is not mixed with what others write."""
    _append(folder / "log", f"{what} {name} {mark} {devices} {part} {os.getpid()} {time.time():.6f}\n")


def _append(path: Path, line: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, line.encode())
    os.close(log)


def lock(folder: Path, devices: str, part: str) -> list[IO[str]] | None:
    """The locks of both halves of each device, or of any one half of the one device; None where somebody has them."""
    found: list[IO[str]] = []
    for device in devices.split(","):
        halves = [open(folder / f"device-{device}.{half}", "a") for half in HALVES]  # noqa: SIM115  # held until the end
        free = [half for half in halves if _is_locked(half)]
        if len(free) < (1 if part == "0.5" else len(HALVES)):
            return None
        found += free[:1] if part == "0.5" else free
        for half in free[1:] if part == "0.5" else ():
            half.close()
    return found


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def hold(folder: Path, name: str, mark: str, devices: str, part: str, length_s: float) -> bool:
    """Use the devices for so long, or until SIGTERM, which must be blocked: then False."""
    held = lock(folder, devices, part)
    if held is None:
        note(folder, "collision", name, mark, devices, part)
    note(folder, "begin", name, mark, devices, part)
    taken = signal.sigtimedwait({signal.SIGTERM}, length_s)
    note(folder, "end", name, mark, devices, part)
    return taken is None


def command(folder: Path, name: str, part: str, length_s: float, code: int) -> int:
    """What `egs run` starts; its exit code."""
    devices, mark = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["EGS_LEASE"]
    return code if hold(folder, name, mark, devices, part, length_s) else 128 + signal.SIGTERM


class Client:
    """Runs whose supervisor and process it is itself, one after the other, until `FOLDER/stop` is there."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        from egs_core.client.http import SiteClient, trusted_owners
        from egs_core.client.places import parse_url

        self.folder, self.name = folder, name
        self.random = random.Random(seed)
        self.client = SiteClient(parse_url(os.environ["EGS_URL"]), trusted_owners())

    def serve(self) -> None:
        number = 0
        while not (self.folder / "stop").exists():
            self.run(f"{self.name}-{number}")
            number += 1

    def run(self, name: str) -> None:
        from egs_core.client import messages as c
        from egs_core.client.supervise import request_of

        queue, gpus = self.random.choice((("common", 1), ("common", 0.5), ("lone", 1), ("fixed", 0.5)))
        request = request_of({"name": name, "queue": queue, "gpus": gpus})
        self._told(name, "asks")
        view: c.RunView = self._patiently(lambda: self.client.submit(request))
        self._told(name, "has", view.id)
        while (lease := self._claimed(view)) is None:
            if view.state == "ended":
                self._told(name, "over", view.outcome)
                return
            beat = c.Beat(seen=view.version, wait_s=WAIT_S)
            view = self._patiently(lambda beat=beat, run=view.id: self.client.beat(run, beat))
        hold(self.folder, name, lease.mark, ",".join(lease.devices), str(gpus), self.random.uniform(0.05, 0.8))
        ends = c.End(token=lease.token, outcome="succeeded", exit_code=0)
        self._patiently(lambda: self.client.end(view.id, ends))
        self._told(name, "done")

    def _claimed(self, view: c.RunView) -> c.Lease | None:
        """Its lease, which nobody takes back now; None where it has none, or none any more."""
        from egs_core.client import messages as c
        from egs_core.client.http import Refused

        lease = view.lease
        if lease is None or view.stop:
            return None
        try:
            self._patiently(lambda: self.client.claim(view.id, c.Claim(token=lease.token)))
        except Refused as refused:
            if refused.status != 409:
                raise
            return None
        return lease

    def _patiently(self, ask: Any) -> Any:
        """The answer, however often it takes a server that is there."""
        from egs_core.client.http import Refused, Unreachable

        while True:
            try:
                return ask()
            except Unreachable:
                pass
            except Refused as refused:  # the one that has become active has just written another token
                if refused.status != 401:
                    raise
            time.sleep(0.2)

    def _told(self, run: str, what: str, more: str = "-") -> None:
        _append(self.folder / f"{self.name}.told", f"{run} {what} {more}\n")


def main(what: str, folder: str, name: str, *more: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if what == "command":
        return command(Path(folder), name, more[0], float(more[1]), int(more[2]))
    Client(Path(folder), name, int(more[0])).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
