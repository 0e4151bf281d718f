"""The keeper of processes that stand ready between runs of `egs run --keep-ready`: `python -m egs_core.client.keeper
SOCKET`, which such a run starts where there is none. It learns when runs of a line come and how long they take, has as
many processes stand as `egs_core.demand` says that are worth it, by what `stock` allows and as long as the host's
memory has room for them, hands them to runs, and ends when there is nothing to wait for. What stands ready ends with
it.

    keeper ─ fork ─► holder (`holder`) ─ spawn ─► the command's Python, which imports and waits
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from egs_core.client.holder import hold
from egs_core.client.hooked import Hook
from egs_core.client.places import has_listener
from egs_core.client.ready import ANSWER_S, MOST_BYTES, PREFIX, SOCKET, Answer, Ask, Line, Shown, check_peer, connected
from egs_core.client.signals import SignalQueue
from egs_core.client.sockets import by_turns, leave_socket
from egs_core.client.stock import Allowance, Learned
from egs_core.demand import LEAD_S, how_many, last_s, next_s

FIRST_LOAD_S = 5.0
"""What loading is taken to need before it was seen."""
MOST_LINES, MOST_TAKEN = 12, 64
"""Lines of which is known when runs come, and runs at once of which the keeper sees how long they take."""
UNFIT_S, CHANGED_S = 600.0, 5.0
"""So long nothing is loaded for a line for which something could not be; or where that has only changed meanwhile."""
LOADING_S = 600.0
"""What has not loaded in so long never will."""
IDLE_S, ALONE_S = 3600.0, 120.0
"""So long after the last run a keeper ends for which nothing stands, and no window is to come; and one that may serve
one run alone."""
LOOK_S, SELDOM_S, AGAIN_S = 1.0, 60.0, 0.1
SPARE = 0.1
"""Of the host's memory, or of the control group's: none is loaded where less would be left; where half of that is left
all that stand end."""
FIRST_BYTES = 1 << 29
"""What one is taken to need before one was seen."""
PAGE = os.sysconf("SC_PAGE_SIZE")
GROUPS = Path("/sys/fs/cgroup")
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stands:
    """One process, with what holds it. hook, pid: once it has begun; loaded_s: once it has loaded."""

    def __init__(self, line: Line) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.began_s, self.pid = time.monotonic(), 0
        self.loaded_s: float | None = None
        self.hook: Hook | None = None
        self.why, self.is_over = "", False
        self.holder = os.fork()
        if self.holder == 0:
            hold(line, theirs)
        theirs.close()

    def look(self) -> None:
        """What was said meanwhile."""
        while True:
            try:
                message, handles, _, _ = socket.recv_fds(self.control, MOST_BYTES, 1)
            except BlockingIOError:
                break
            except OSError:
                message, handles = b"", []
            kind, _, rest = message.decode(errors="replace").partition(" ")
            if kind == "pid":
                self.pid, self.hook = int(rest), Hook(socket.socket(fileno=handles[0]))
            elif kind == "not":
                self.why = rest
            if kind != "pid":  # it has ended, in one way or another
                self.is_over = True
                break
        if self.hook is not None:
            loaded = next((line for line in self.hook.said() if line.startswith("loaded ")), "")
            self.loaded_s = float(loaded.split()[1]) if loaded else None
            self.why = self.why or self.hook.why_not()
            self.is_over = self.is_over or self.hook.is_gone
        self.is_over = self.is_over or bool(self.why) or (self.loaded_s is None and self._has_taken_too_long())

    def close(self) -> None:
        """It ends, unless somebody else has its sockets now."""
        self.control.close()
        if self.hook is not None:
            self.hook.close()

    def size_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def _has_taken_too_long(self) -> bool:
        return time.monotonic() - self.began_s > LOADING_S


class Taken(NamedTuple):
    """A process that is a run's, pid, since its turn. ended: readable once its holder has ended."""

    known: Known
    pid: int
    since_s: float
    ended: int


class Known(Learned):
    """What is known of a line. has_loaded: one of its processes has; why: the last one that was begun could not be
    loaded, or has ended by itself, which runs are told until one has loaded; has_changed: as something had changed on
    the disk, which passes."""

    def __init__(self, line: Line) -> None:
        super().__init__(FIRST_LOAD_S)
        self.line, self.most = line, 0
        self.has_loaded = False
        self.stands: list[Stands] = []
        self.unfit_until_s, self.why, self.has_changed = 0.0, "", False
        self.size_bytes = FIRST_BYTES

    @property
    def standing(self) -> int:
        return len(self.stands)

    def look(self, now_s: float) -> None:
        for one in self.stands:
            was_loaded = one.loaded_s
            one.look()
            if one.loaded_s is not None and was_loaded is None:
                self.load_s, self.size_bytes = one.loaded_s, one.size_bytes() or self.size_bytes
                self.why, self.has_loaded = "", True
            if one.is_over:
                one.close()
                self.why, self.has_changed = one.why or "its process has ended", "has changed" in one.why
                self.unfit_until_s = now_s + (CHANGED_S if self.has_changed else UNFIT_S)
        self.stands = [one for one in self.stands if not one.is_over]

    def wanted(self, now_s: float, worth_s: float) -> int:
        """How many should stand. What loads is left to it as long as none has: else what takes longer than
        `FIRST_LOAD_S` would be ended before it has loaded, again and again, and nobody would learn how long it
        takes."""
        should = how_many(self, now_s, self.most, worth_s)
        return should if self.has_loaded else max(should, min(1, self.standing))

    def loading_bytes(self) -> int:
        """Of memory, which those that load are still to take."""
        return self.size_bytes * sum(one.loaded_s is None for one in self.stands)

    def have(self, wanted: int, room_bytes: int) -> int:
        """So many stand, if there is room. The room that is left."""
        while len(self.stands) > wanted:
            self.stands.pop().close()
        while len(self.stands) < wanted and self.size_bytes <= room_bytes:
            self.stands.append(Stands(self.line))
            room_bytes -= self.size_bytes
        return room_bytes

    def taken(self) -> Stands | None:
        """The one that has stood longest. It may still load: a run that began to load itself would be later; but not
        where none has loaded yet, as the keeper would not hear why it cannot."""
        found = next((one for one in self.stands if one.loaded_s is not None), None)
        if found is None and self.has_loaded:
            found = next((one for one in self.stands if one.hook is not None), None)
        if found is not None:
            self.stands.remove(found)
        return found


class Keeper:
    """path: of its socket; listener: that, see `listening`."""

    def __init__(self, path: Path, listener: socket.socket) -> None:
        self._path, self._lines = path, dict[bytes, Known]()
        self._listener, self._made, self._asked_s = listener, path.stat(), time.monotonic()
        self._came, self._is_in_session = 0, is_session(_group())
        self._allowance, self._looked_s = Allowance(), time.monotonic()
        self._taken = dict[int, Taken]()  # by the number of its holder

    def run(self, ends: SignalQueue) -> None:
        """Until there is nothing to wait for, or one of these signals comes."""
        try:
            while self._is_needed():
                look_s, stands = self.look(), [one for known in self._lines.values() for one in known.stands]
                heard = [one.control.fileno() for one in stands]
                heard += [one.hook.fileno() for one in stands if one.hook is not None]
                heard += [one.ended for one in self._taken.values()]
                ready = select.select([self._listener.fileno(), ends.fileno(), *heard], [], [], look_s)[0]
                if ends.fileno() in ready:
                    break
                if self._listener.fileno() in ready:
                    to, _ = self._listener.accept()
                    with to:
                        self._answer(to)
                for holder in _reaped():
                    self._has_ended(holder)
        finally:
            leave_socket(self._path, self._made)
            self._listener.close()
            for known in self._lines.values():
                known.have(0, 0)

    def first(self, ask: Ask) -> None:
        """Of the run that has started it."""
        known = self._heard(ask)
        self._learn(ask, known, time.monotonic(), None)

    def look(self) -> float:
        """Have as many stand as should. After how long to look again."""
        now_s, room = time.monotonic(), room_bytes()
        self._allowance.add((self._looked_s - now_s) * sum(known.standing for known in self._lines.values()))
        self._looked_s = now_s
        for known in self._lines.values():
            known.look(now_s)
        left = room - sum(known.loading_bytes() for known in self._lines.values())
        for known in self._lines.values():
            is_fit = now_s >= known.unfit_until_s and room > -1 and not self._may_be_alone()
            wanted = known.wanted(now_s, self._allowance.worth_s) if is_fit else 0
            left = known.have(wanted, left)
        if any(known.stands for known in self._lines.values()):
            return LOOK_S
        return max(LOOK_S, next_s(self._lines.values(), now_s, SELDOM_S) - now_s)

    def _is_needed(self) -> bool:
        now_s = time.monotonic()
        try:
            if self._path.stat().st_ino != self._made.st_ino:
                return False
        except OSError:  # its folder is gone
            return False
        is_worth_it = any(known.stands or now_s < last_s(known) + LEAD_S for known in self._lines.values())
        return is_worth_it or now_s < self._asked_s + (ALONE_S if self._may_be_alone() else IDLE_S)

    def _may_be_alone(self) -> bool:
        """Whether the one run that has come may be the only one of its control group."""
        return self._is_in_session and self._came < 2

    def _answer(self, to: socket.socket) -> None:
        to.settimeout(ANSWER_S)
        try:
            check_peer(to)
            ask = msgspec.json.decode(to.recv(MOST_BYTES), type=Ask)
            if ask.line is None:
                to.send(msgspec.json.encode(Answer(os.getpid(), standing=self._shown())))
                return
            known, now_s = self._heard(ask), time.monotonic()
            known.look(now_s)
            one = known.taken() if ask.wants else None
            self._learn(ask, known, now_s, one)
            if one is None or one.hook is None:
                is_told = not known.has_changed or now_s < known.unfit_until_s
                why = known.why if is_told else ""
                to.send(msgspec.json.encode(Answer(os.getpid(), why=why, is_short=known.is_short)))
                return
            handles = [one.control.fileno(), one.hook.fileno()]
            socket.send_fds(to, [msgspec.json.encode(Answer(os.getpid(), one.pid, one.holder))], handles)
            one.close()
        except (OSError, msgspec.MsgspecError):
            pass

    def _learn(self, ask: Ask, known: Known, now_s: float, one: Stands | None) -> None:
        """Of a run that comes, or has its turn. one: that it takes."""
        if ask.comes:
            known.came(now_s)
        if one is not None and len(self._taken) < MOST_TAKEN:
            with contextlib.suppress(OSError):  # then it is not known how long it takes
                self._taken[one.holder] = Taken(known, one.pid, now_s, os.pidfd_open(one.holder))
        if ask.waited_s is not None:
            is_cold = one is None and not ask.pid
            known.begins(now_s - ask.came_ago_s, ask.waited_s, self._allowance, is_cold=is_cold)
            for holder, taken in self._taken.items():
                if taken.pid == ask.pid:  # before, it has only waited
                    self._taken[holder] = taken._replace(since_s=now_s)

    def _has_ended(self, holder: int) -> None:
        taken = self._taken.pop(holder, None)
        if taken is not None:
            os.close(taken.ended)
            taken.known.ended(time.monotonic() - taken.since_s)

    def _heard(self, ask: Ask) -> Known:
        assert ask.line is not None
        self._asked_s = time.monotonic()
        self._came += ask.waited_s is not None
        key = msgspec.json.encode(ask.line)
        known = self._lines.pop(key, None) or Known(ask.line)
        self._lines[key] = known  # the newest last
        known.most = ask.most
        while len(self._lines) > MOST_LINES:
            self._lines.pop(next(iter(self._lines))).have(0, 0)
        return known

    def _shown(self) -> list[Shown]:
        return [
            Shown(one.pid, " ".join(known.line.command), ",".join(known.line.modules), one.loaded_s, one.size_bytes())
            for known in self._lines.values()
            for one in known.stands
        ]


def room_bytes() -> int:
    """Of memory that may be used for what stands ready; -1 where all that stand should end."""
    found = []
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
        found.append((total, free))
        group = GROUPS / _group()
        for one in (group, *[above for above in group.parents if above.is_relative_to(GROUPS)]):
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                limit = int((one / "memory.max").read_text())
                found.append((limit, limit - int((one / "memory.current").read_text())))
    except (OSError, KeyError, ValueError):
        pass
    if any(free < total * SPARE / 2 for total, free in found):
        return -1
    return max(0, min((free - int(total * SPARE) for total, free in found), default=0))


def _group() -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next((line[4:] for line in lines if line.startswith("0::/")), "")


def is_session(group: str) -> bool:
    """Whether it is of one login alone, which each of cron's jobs has under `pam_systemd`.

    >>> is_session("user.slice/user-0.slice/session-12.scope"), is_session("system.slice/cron.service")
    (True, False)
    """
    return any(part.startswith("session-") and part.endswith(".scope") for part in group.split("/"))


def _reaped() -> list[int]:
    """The numbers of children that have ended."""
    found: list[int] = []
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            found.append(pid)
    return found


def listening(path: Path) -> socket.socket | None:
    """At this place; None where another keeper is there. What keepers have left that were killed, for whatever
    surroundings, is taken away. Raises OSError."""
    with by_turns(path.parent):
        for one in path.parent.glob(f"{PREFIX}*{SOCKET}"):
            if not has_listener(one, socket.SOCK_SEQPACKET):
                one.unlink(missing_ok=True)
        if path.exists():
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(str(path))
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        return listener


def main(words: list[str]) -> None:
    path = Path(words[0])
    ask = sys.stdin.buffer.read()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # else so it is for what stands ready
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    ends = [one for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    os.chdir("/")
    until = time.monotonic() + 10 * ANSWER_S
    while (listener := listening(path)) is None:  # another one has begun meanwhile; or it ends, and one is needed
        if _has_heard(path, ask) or time.monotonic() > until:
            return
        time.sleep(AGAIN_S)
    keeper = Keeper(path, listener)
    keeper.first(msgspec.json.decode(ask, type=Ask))
    gc.collect()
    gc.freeze()
    keeper.run(SignalQueue(ends))


def _has_heard(path: Path, ask: bytes) -> bool:
    """Whether the keeper there has been asked."""
    try:
        with connected(path) as to:
            to.send(ask)
            return bool(to.recv(MOST_BYTES))
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
