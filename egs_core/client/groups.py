"""A lease's processes in a control group (cgroup v2) of their own, where this user may make one.

    CGROUP OF `egs run`/egs-MARK        MARK: of the lease, see `processes.lease_mark`

Without one a process belongs to a lease by its environment or its parents. One that has cleared its environment, or is
of another user, and whose supervisor was killed, is known by its group alone; and a group ends at once, while processes
that end one by one may start others meanwhile. A group without controllers may stand beside processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "egs-"
SELF = Path("/proc/self")
SYSTEMD = Path("/run/systemd/system")
EMPTY_S = 60.0  # a group that is as old as this and empty is not about to be entered
DELEGATED = ("user.delegate", "trusted.delegate")


class LeaseGroup:
    """One group. home: the group of this process, below which it is."""

    def __init__(self, home: Path, mark: str) -> None:
        self._home, self.path = home, home / (PREFIX + mark)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What is started inside is in the group from its first instruction; this process is so meanwhile, too. Where
        the group is gone it is started without."""
        with contextlib.suppress(OSError):
            _move_to(self.path)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                _move_to(self._home)

    def take(self, pid: int) -> None:
        """Have a process in it that was started without. Where the group is gone it stays where it is."""
        with contextlib.suppress(OSError):
            _move_to(self.path, pid)

    def kill(self) -> None:
        """All that is in it, also what they start meanwhile (Linux 5.14; before, nothing)."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def close(self) -> None:
        """Take it away, if nothing is in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_group(mark: str) -> LeaseGroup | None:
    """None where there is no cgroup v2, or this user may not change it. Takes away what killed ones have left."""
    home = own_group()
    if home is None or not may_change(home):
        return None
    with contextlib.suppress(OSError):
        for left in home.glob(f"{PREFIX}*"):
            if time.time() - left.stat().st_mtime > EMPTY_S:
                LeaseGroup(home, left.name.removeprefix(PREFIX)).close()
    group = LeaseGroup(home, mark)
    try:
        group.path.mkdir(mode=0o755, exist_ok=True)
        _move_to(group.path)  # a folder that one may write to may be a group that one may not
        _move_to(home)
    except OSError:
        group.close()
        return None
    return group


def own_group() -> Path | None:
    """Of this process, as a folder; None where no cgroup v2 is mounted, or it lies outside of what is."""
    try:
        found = (SELF / "cgroup").read_text().splitlines()
        mounts = (SELF / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in found if line.startswith("0::")), None)
    if own is None:
        return None
    for line in mounts:
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = fields.split()[3:5]
            if own == root or own.startswith(root.rstrip("/") + "/"):
                path = Path(point) / own.removeprefix(root.rstrip("/")).lstrip("/")
                return path if path.is_dir() else None
    return None


def may_change(home: Path) -> bool:
    """Whether it is this user's to change. Under systemd it is root's only where a unit has it delegated: all other
    groups are systemd's own."""
    if os.getuid() == 0 and SYSTEMD.is_dir():
        return any(_is_set(home, name) for name in DELEGATED)
    return os.access(home, os.W_OK) and os.access(home / "cgroup.procs", os.W_OK)


def mark_in(groups: str) -> str:
    """The lease's mark in the text of a process's `cgroup` file; "" where it is in no group of a lease.

    >>> mark_in("1:cpu:/\\n0::/user.slice/egs-site.7.2/inner\\n")
    'site.7.2'
    """
    own = next((line for line in groups.splitlines() if line.startswith("0::")), "")
    found = [part for part in own.split("/") if part.startswith(PREFIX)]
    return found[-1].removeprefix(PREFIX) if found else ""


def _move_to(group: Path, pid: int = 0) -> None:
    """pid: 0 for who writes."""
    (group / "cgroup.procs").write_text(str(pid))


def _is_set(path: Path, name: str) -> bool:
    try:
        return os.getxattr(path, name) == b"1"
    except OSError:
        return False
