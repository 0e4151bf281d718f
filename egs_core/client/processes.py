"""Which processes belong to a lease, as Linux's `/proc` tells it.

A process belongs to a lease when the lease's client has named it, when its environment carries the lease's mark, or
when its parent belongs to it. The first and the last hold for every user's processes; environments can be read by the
same user and by root only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from egs_core.client.messages import MOST_PROCESSES, Process

LEASE_VARIABLE = "EGS_LEASE"
PROC = Path("/proc")
ZOMBIE = "Z"
PR_SET_CHILD_SUBREAPER = 36


def lease_mark(run: str, token: int, site: str) -> str:
    """The value of `EGS_LEASE` in the environment of a lease's processes."""
    return f"{site}.{run}.{token}"


def process(pid: int) -> Process | None:
    """The process with this number; None where there is none, or nothing but its exit code."""
    found = _stat(pid)
    return None if found is None else Process(pid=pid, started=found[1])


def is_alive(one: Process) -> bool:
    return process(one.pid) == one


def descendants(pid: int) -> list[Process]:
    """All processes below this one, parents first."""
    return _below({pid}, _table())[:MOST_PROCESSES]


def living(named: Iterable[Process], mark: str, but: Process | None = None) -> list[Process]:
    """The processes that live and belong to a lease, see the module. but: its supervisor, which does not count."""
    table = _table()
    here = {pid: Process(pid=pid, started=started) for pid, (_, started) in table.items()}
    roots = {one.pid for one in named if here.get(one.pid) == one}
    wanted = f"{LEASE_VARIABLE}={mark}".encode()
    roots |= {pid for pid in table if pid not in roots and wanted in _environment(pid)}
    roots.discard(but.pid if but is not None else 0)
    own = [here[pid] for pid in sorted(roots)]
    return own + [one for one in _below(roots, table) if one.pid not in roots and one != but]


def adopt_orphans() -> None:
    """Let the processes whose parents end become this process's children (`PR_SET_CHILD_SUBREAPER`), so that none of a
    command's leaves its tree. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphaned processes")


def _table() -> dict[int, tuple[int, int]]:
    """Of each process its parent and its start, in ticks."""
    pids = [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    return {pid: found for pid in pids if (found := _stat(pid)) is not None}


def _stat(pid: int) -> tuple[int, int] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may have spaces and brackets
    return None if fields[0] == ZOMBIE else (int(fields[1]), int(fields[19]))


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _below(roots: set[int], table: dict[int, tuple[int, int]]) -> list[Process]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: list[Process] = []
    pending, seen = sorted(roots), set(roots)
    while pending:
        for child in children.get(pending.pop(0), ()):
            if child not in seen:
                seen.add(child)
                pending.append(child)
                found.append(Process(pid=child, started=table[child][1]))
    return found
