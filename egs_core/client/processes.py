"""Which processes belong to a lease, as Linux's `/proc` tells it.

A process belongs to a lease when the lease's client has named it, when its environment or its control group carries the
lease's mark, or when its parent belongs to it. Environments can be read by the same user and by root only; all else
holds for every user's processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from egs_core.client.groups import mark_in
from egs_core.client.messages import MOST_PROCESSES, Process

LEASE_VARIABLE = "EGS_LEASE"
UNGIVEN = "none-yet"
"""What the mark begins with of a process that is to get a lease's, written over it: see `site_hook`."""
_VARIABLE = f"\0{LEASE_VARIABLE}=".encode()
PROC = "/proc"
PIECE = 16 * 1024  # most environments are read at once
ZOMBIE, STOPPED = b"Z", b"T"
PR_SET_CHILD_SUBREAPER = 36
STACK, ARGUMENTS = 25, slice(45, 49)  # in `stat`, from the state on: where a program begins its stack, its arguments
THREADS = 17  # there: one that is called a zombie and has others has ended in its first thread alone
_Stat = tuple[int, int, bytes]  # parent; start, in ticks; where stack, arguments and environment of its program are


def lease_mark(run: str, token: int, site: str) -> str:
    """The value of `EGS_LEASE` in the environment of a lease's processes."""
    return f"{site}.{run}.{token}"


def process(pid: int) -> Process | None:
    """The process with this number; None where there is none, or nothing but its exit code."""
    found = _stat(pid)
    return None if found is None else Process(pid=pid, started=found[1])


def is_alive(one: Process) -> bool:
    return process(one.pid) == one


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for this signal, which else might end it."""
    try:
        lines = _read(pid, "status").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def is_stopped(pid: int) -> bool:
    """By a signal, SIGSTOP as a rule."""
    return _state_in(_stat_text(pid)) == STOPPED


def descendants(pid: int) -> list[Process]:
    """All processes below this one, parents first."""
    return _below({pid}, _table())[:MOST_PROCESSES]


def parents(pid: int) -> Iterator[int]:
    """All processes above this one, the nearest first."""
    seen = {pid}
    while (found := _stat(pid)) is not None and (pid := found[0]) not in seen | {0}:  # numbers may be taken meanwhile
        seen.add(pid)
        yield pid


class _Seen(NamedTuple):
    """A process: what `/proc` said of it in `stat`, what of that counts, and the mark that it carries."""

    text: bytes
    stat: _Stat
    mark: str


class Snapshot:
    """All processes of the host at one moment, with the marks that they carry. before: of an earlier moment: what has
    done nothing since then is known, and what runs the same program carries the same mark, which is not read again."""

    def __init__(self, before: Snapshot | None = None) -> None:
        known = {} if before is None else before._seen
        self._seen: dict[int, _Seen] = {}
        for pid in _pids():
            seen, text = known.get(pid), _stat_text(pid)
            if seen is None or seen.text != text or seen.mark.startswith(UNGIVEN):
                stat = _stat_in(text)
                if stat is None:
                    continue
                # another program has other places
                is_known = seen is not None and seen.stat[1:] == stat[1:] and not seen.mark.startswith(UNGIVEN)
                mark = seen.mark if seen is not None and is_known else _mark(pid)
                seen = _Seen(text, stat, mark)
            self._seen[pid] = seen
        self._table = {pid: seen.stat for pid, seen in self._seen.items()}
        self._marks = {pid: seen.mark for pid, seen in self._seen.items() if seen.mark}

    def living(self, named: Iterable[Process], mark: str, but: Process | None = None) -> list[Process]:
        """The processes that live and belong to a lease, see the module. but: its supervisor, which does not count."""
        table = self._table
        roots = {one.pid for one in named if one.pid in table and table[one.pid][1] == one.started}
        roots |= {pid for pid, found in self._marks.items() if found == mark}
        roots.discard(but.pid if but is not None else 0)
        own = [Process(pid=pid, started=table[pid][1]) for pid in sorted(roots)]
        return own + [one for one in _below(roots, table) if one.pid not in roots and one != but]

    def running(self, found: Iterable[Process], aside: Iterable[Process]) -> list[Process]:
        """Without those that are said to be aside, and are stopped."""
        said = {(one.pid, one.started) for one in aside}
        return [
            one for one in found if (one.pid, one.started) not in said or _state_in(self._seen[one.pid].text) != STOPPED
        ]


def living(named: Iterable[Process], mark: str, but: Process | None = None) -> list[Process]:
    """See `Snapshot.living`: as it is now."""
    return Snapshot().living(named, mark, but)


def adopt_orphans() -> None:
    """Let the processes whose parents end become this process's children (`PR_SET_CHILD_SUBREAPER`), so that none of a
    command's leaves its tree. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphaned processes")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def _table() -> dict[int, _Stat]:
    return {pid: found for pid in _pids() if (found := _stat(pid)) is not None}


def _stat(pid: int) -> _Stat | None:
    return _stat_in(_stat_text(pid))


def _stat_text(pid: int) -> bytes:
    """b"" where there is no such process."""
    try:
        return _read(pid, "stat")
    except OSError:
        return b""


def _state_in(text: bytes) -> bytes:
    """One letter of it; b"" for none."""
    return text.rpartition(b")")[2].lstrip()[:1]


def _stat_in(text: bytes) -> _Stat | None:
    """None for what is gone, or has left nothing but its exit code."""
    fields = text.rpartition(b")")[2].split()  # the name before may have spaces and brackets
    if not fields or (fields[0] == ZOMBIE and int(fields[THREADS]) <= 1):
        return None
    return int(fields[1]), int(fields[19]), b" ".join([fields[STACK], *fields[ARGUMENTS]])


def _read(pid: int, name: str) -> bytes:
    """A file of the process's, without `Path` and buffers: a look at a host is hundreds of these. What is shorter than
    was asked for is the end of it."""
    handle = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        piece = found = os.read(handle, PIECE)
        while len(piece) == PIECE:
            piece = os.read(handle, PIECE)
            found += piece
        return found
    finally:
        os.close(handle)


def _mark(pid: int) -> str:
    """Of its environment, else of its control group; "" where there is none, or neither can be read. One that was
    forked before a mark was written over UNGIVEN shows that for ever, and may be in a lease's group."""
    found = ""
    with contextlib.suppress(OSError):
        environment = _read(pid, "environ")
        begin = (b"\0" + environment).find(_VARIABLE)
        if begin >= 0:
            found = environment[begin + len(_VARIABLE) - 1 :].partition(b"\0")[0].decode(errors="replace")
            if not found.startswith(UNGIVEN):
                return found
    with contextlib.suppress(OSError):
        return mark_in(_read(pid, "cgroup").decode(errors="replace")) or found
    return found


def _below(roots: set[int], table: dict[int, _Stat]) -> list[Process]:
    if not roots:
        return []
    children: dict[int, list[int]] = {}
    for pid, (parent, *_) in table.items():
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
