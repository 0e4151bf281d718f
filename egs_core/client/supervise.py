"""A command under a lease: `egs run`. The server starts nothing; this process does, as its user, and stays until no
process of the command is left.

    submit ─► wait ─► claim ─► start ─► beat, forward signals, reap ─► the tree is gone ─► end ─► exit code

Signals are blocked and taken one by one (`signals`), so none is lost between two steps. One thread beside speaks
to the server. A command is never started without a lease that was claimed; without its server this waits.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from egs_core.client import late_ends
from egs_core.client import messages as c
from egs_core.client.arguments import written
from egs_core.client.below import Below
from egs_core.client.error_tail import ErrorTail
from egs_core.client.groups import LeaseGroup, make_group
from egs_core.client.hooked import DEFAULTS
from egs_core.client.http import Refused, SiteClient, Unreachable, where_to_look
from egs_core.client.idle import ACTIVITY, IdleWatch
from egs_core.client.jobs import Job
from egs_core.client.link import AGAIN_S, WAKE, Ended, Link, Say
from egs_core.client.loading import Loading
from egs_core.client.mlflow_loss import loss_of
from egs_core.client.phases import CUDA_VISIBLE, REQUEST
from egs_core.client.places import TOKEN, TOKEN_FILE
from egs_core.client.processes import LEASE_VARIABLE, adopt_orphans, handles, process
from egs_core.client.ready import Ready
from egs_core.client.signals import SignalQueue
from egs_core.client.suspending import Suspension
from egs_core.client.terminal import Terminal
from egs_core.client.told_work import WorkFolder
from egs_core.client.waiting_words import ends_line, why_words
from egs_core.errors import EgsError
from egs_core.out_of_memory import gpu_lack_in
from egs_core.worked import FOLDER

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_S, IDLE_GRACE_S = 1.0, 10.0
NOT_FOUND, NOT_EXECUTABLE, ABORTED = 127, 126, 128 + signal.SIGTERM


class Supervisor:
    """One run. say: tells the user one line on stderr."""

    def __init__(self, client: Callable[[], SiteClient], job: Job, say: Say) -> None:
        self._new_client, self._job, self._command, self._say = client, job, job.command, say
        self._client = client()
        self._mask: set[int] = set()
        self._signals: SignalQueue  # from `run` on
        self._run = ""
        self._terminal: Terminal | None = None
        self._activity = Path()  # a file that the command may touch, with --idle-timeout
        self._work, self._was_idle = WorkFolder(), False
        self._is_to_end = False  # its user, or the server, wants its end: it is not started again
        self._is_evicted = False  # the server wants its end for another: it is started again with another lease
        self._suspension = Suspension(say, partial(self._send, signal.SIGKILL, None), self._wait_for_all)
        self._starts, self._tries = 0, 1
        self._checkpoints = 0  # that it was asked for
        self._group: LeaseGroup | None = None  # of the lease's processes
        self._version = 0  # news of earlier ones is old
        self._mlflow = loss_of(job.mlflow_loss, os.environ, say)
        self._loading: Loading  # from `run` on
        self._below: Below  # of the command's last start
        self._errors: ErrorTail | None = None  # where it may be tried again on another flavor
        self.lack = ""  # of a GPU's memory, by which the command has ended
        self.flavor = ""  # of the GPUs that it had

    def run(self, known: Callable[[c.RunView], None] = lambda _: None) -> int:
        """From the request to the exit code. known: called once the server has the run. Raises EgsError for a request
        that is refused."""
        request = request_of(self._job.request)
        ignored = {one for one in FORWARDED if signal.getsignal(one) is signal.SIG_IGN}
        taken = {*FORWARDED, WAKE, signal.SIGCHLD} - ignored
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, taken))
        self._signals = SignalQueue(taken)
        ask, modules = self._client.view, self._job.preload
        environment = _environment()
        ready: Ready | None = None
        if self._job.keep_ready:
            ready = Ready(self._command, modules, environment, self._mask, self._job.keep_ready, self._say)
            ready.start()
        adopt_orphans()
        self._below = Below(self._signals)
        self._loading = Loading(self._command, modules, environment, self._mask, ask, self._say, ready)
        try:
            view = self._submit(request)
            if view.notice and not self._job.index:  # an array says it once
                self._say(view.notice)
            known(view)
            late_ends.tell_later()
            link = Link(self._new_client(), view, self._say)
            link.told_s, link.progress = self._work.told_s, self._work.progress
            link.start()
            try:
                return self._follow(view, link)
            finally:
                link.close()
        except Ended as ended:
            if str(ended):
                self._say(str(ended))
            return ended.code
        finally:
            if self._suspension:
                self._forget_activity()
            self._suspension.close()
            self._loading.close()
            self._signals.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    # --- before the command ---

    def _submit(self, request: c.RunRequest) -> c.RunView:
        has_told = False
        while True:
            try:
                return self._client.submit(request)
            except Unreachable as error:
                if not has_told:
                    self._say(f"the server does not answer; waiting for it ({error}){where_to_look(error)}")
                    has_told = True
            self._end_on_signal(self._signal(AGAIN_S), None)

    def _follow(self, view: c.RunView, link: Link) -> int:
        has_told = False
        while True:
            self._end_if_over(view)
            if view.lease is not None and not view.stop and (claimed := self._claimed(view, view.lease)) is not None:
                code = self._supervise(claimed, link)
                if not self._is_evicted:
                    return code
                view, has_told = self._evicted(claimed, link, code), False
                if not self._suspension:
                    self._loading.again()
                continue
            if not has_told and view.state in ("waiting", "paused"):
                self._say(f"run {view.id} {why_words(view)}")
                has_told = True
            view = self._next_news(view, link)

    def _next_news(self, view: c.RunView, link: Link) -> c.RunView:
        while True:
            with contextlib.suppress(queue.Empty):
                news = link.news.get_nowait()
                if isinstance(news, Ended):
                    raise news
                if news.version < self._version:
                    continue
                return news
            self._suspension.stay()
            self._end_on_signal(self._signal(self._loading.step(view.id, view.state)), view)

    def _claimed(self, view: c.RunView, lease: c.Lease) -> c.RunView | None:
        """The run with its lease, which nobody takes back now; None where it was given up meanwhile."""
        while True:
            try:
                return self._client.claim(view.id, c.Claim(token=lease.token))
            except Refused as error:
                if error.status == 409:
                    return None
                raise
            except Unreachable:
                self._end_on_signal(self._signal(AGAIN_S), view)

    def _end_on_signal(self, taken: signal.Signals | None, view: c.RunView | None) -> None:
        if taken in ENDING:
            if view is not None:
                with contextlib.suppress(EgsError):  # else the server sees that this process is gone
                    self._client.control(view.id, "abort", c.Control(reason=f"its user sent {taken.name}"))
            raise Ended(128 + taken)

    def _end_if_over(self, view: c.RunView) -> None:
        if view.state == "ended":
            when = "while it was put aside" if self._suspension else "before it started"
            raise Ended(ABORTED, f"run {view.id} has ended {when}: {view.reason or view.outcome}")

    # --- the command ---

    def _supervise(self, view: c.RunView, link: Link) -> int:
        lease = view.lease
        assert lease is not None
        self._run, self._checkpoints, self.flavor = view.id, view.checkpoints, view.flavor
        link.processes = self._suspension.processes  # before its token: the server knows what is the lease's then
        link.token = lease.token
        if not self._suspension:
            if self._job.idle_s is not None:
                handle, name = tempfile.mkstemp(prefix="egs-activity-")
                os.close(handle)
                self._activity = Path(name)
            self._group = make_group(lease.mark)
        child = 0
        try:
            while True:
                child = self._suspension.end(view.id, lease.devices)
                if not child and self._is_to_end:  # a signal came while it could not go on
                    code = ABORTED
                    break
                if not child:
                    child = self._start(lease, view.gang)
                    self._below = Below(self._signals, self._loading.standing)
                link.processes = self._below.processes()
                try:
                    code = self._watch(child, view, link)
                finally:
                    self._close_terminal()
                    self._below.close()
                if self._suspension:
                    return code
                if not self._is_to_end and self._loading.was_in_vain(child):
                    self._starts -= 1
                    continue
                if self._is_to_end or not self._job.tries_again(self._tries, code):
                    break
                self._say(f"run {view.id}: exit code {code}; it is started again, {self._tries} of {self._job.retries}")
                self._tries += 1
        except OSError as error:
            if child:  # it has started: no end is told of what may go on
                raise
            self._close_terminal()
            self._forget_activity()
            self._tell_end(view, "failed", NOT_FOUND)
            self._say(f"{self._command[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        finally:
            if self._group is not None and not self._suspension:
                self._group.close()
        self._forget_activity()
        if self._is_evicted:
            return code
        if self._mlflow is not None:
            self._mlflow.close()
        link.stop()
        if self._errors is not None and code and not self._is_to_end:
            self.lack = gpu_lack_in(self._errors.text())
        self._tell_end(view, "succeeded" if code == 0 or self._was_idle else "failed", code)
        return code

    def _evicted(self, view: c.RunView, link: Link, code: int) -> c.RunView:
        """The run after the server has heard that nothing of it is left; on a signal its user wants its end."""
        assert view.lease is not None
        token, link.token, link.processes = view.lease.token, 0, ()
        self._is_evicted = self._is_to_end = False
        while True:
            end = c.End(token=token, outcome="evicted", exit_code=code, aside=self._suspension.processes or None)
            try:
                try:
                    found = self._client.end(view.id, end)
                except Refused as error:
                    if error.status != 409 and not self._suspension:
                        raise
                    self._suspension.refused()
                    found = self._client.view(view.id)  # it may have heard that already, and the answer was lost
                if found.lease is None or found.lease.token != token:
                    self._version = found.version
                    self._suspension.told()
                    return found
            except Unreachable:
                pass
            self._end_on_signal(self._signal(AGAIN_S), view)

    def _start(self, lease: c.Lease, gang: c.GangView | None) -> int:
        environment = _environment()
        self._starts += 1
        environment |= self._job.variables(self._starts, gang, environment)
        if not self._job.is_split:  # else its GPUs are another run's, and so are hours by which work could be divided
            environment |= (told := self._work.variables())
            if self._mlflow is not None:
                environment |= self._mlflow.begin(told.get(FOLDER, ""), environment)
        else:
            environment[REQUEST] = msgspec.json.encode(self._job.wish(self._run)).decode()
        if self._job.idle_s is not None:
            environment[ACTIVITY] = str(self._activity)
        environment |= {CUDA_VISIBLE: ",".join(lease.devices), LEASE_VARIABLE: lease.mark}
        own_group = os.getpgrp() if self._has_terminal else None
        if (loaded := self._loading.begin(environment, own_group, self._group)) is not None:
            return loaded
        command = written(self._command, lease.devices)
        spawn = partial(os.posix_spawnp, command[0], command, environment, setsigdef=DEFAULTS)
        with self._group.entered() if self._group is not None else contextlib.nullcontext():
            if self._job.has_terminal:
                return self._start_with_terminal(spawn)
            if self._job.or_flavors:
                self._errors = errors = ErrorTail()
                spawn = partial(spawn, file_actions=[(os.POSIX_SPAWN_DUP2, errors.writing, 2)])
            try:
                return spawn(setsigmask=self._mask) if self._has_terminal else spawn(setsigmask=self._mask, setpgroup=0)
            finally:
                if self._errors is not None:
                    self._errors.start()

    def _forget_activity(self) -> None:
        if self._job.idle_s is not None:
            self._activity.unlink(missing_ok=True)

    def _typed(self) -> None:
        if self._job.idle_s is not None:
            with contextlib.suppress(OSError):
                os.utime(self._activity)

    def _close_terminal(self) -> None:
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None

    def _start_with_terminal(self, spawn: Callable[..., int]) -> int:
        """The leader of a session opens a terminal: then it is that session's."""
        self._terminal = terminal = Terminal(self._typed)
        opened = (os.POSIX_SPAWN_OPEN, 0, terminal.slave, os.O_RDWR, 0)
        both = [(os.POSIX_SPAWN_DUP2, 0, number) for number in (1, 2)]
        try:
            return spawn(setsigmask=self._mask, setsid=True, file_actions=[opened, *both])
        finally:
            terminal.start()

    @property
    def _has_terminal(self) -> bool:
        """Whether this is the foreground of a terminal: then the command stays in its group, and hears its keys. Not
        what may be put aside: a shell's `fg` would let all of the group go on."""
        if self._job.suspends:
            return False
        for number in range(3):  # standard input, output, error
            with contextlib.suppress(OSError):
                return os.tcgetpgrp(number) == os.getpgrp()
        return False

    def _watch(self, child: int, view: c.RunView, link: Link) -> int:
        """Until no process of the command is left; the command's own exit code."""
        code: int | None = None
        kill_at: float | None = None
        has_told = False
        idle = self._idle_watch(view)
        while True:
            code, is_empty = self._below.reap(child, code)
            if is_empty and code is not None:
                return code
            if code is not None and not has_told and (left := self._left()):
                has_told = True
                self._say(f"the command has ended; processes that it has left hold its devices: {left}")
            taken = self._signal(LOOK_S)
            if taken in ENDING:
                self._is_to_end, self._is_evicted = True, False
            # of a signal that a terminal sent: the command is of the same group
            has_had_it = self._signals.is_from_terminal and self._has_terminal and self._terminal is None
            if taken in FORWARDED and not has_had_it:
                self._send(taken, child if code is None else None)
            with contextlib.suppress(queue.Empty):
                news = link.news.get_nowait()
                if isinstance(news, c.RunView) and news.ends_at is not None and not news.stop:
                    self._say(ends_line(news, news.ends_at))
                if isinstance(news, c.RunView) and news.checkpoints > self._checkpoints and not news.stop:
                    self._ask_for_checkpoint(news)
                if isinstance(news, c.RunView) and news.stop and kill_at is None:
                    self._is_evicted = news.requeue and not self._is_to_end
                    self._is_to_end = True
                    may_stay = self._is_evicted and self._job.suspends and code is None
                    devices = view.lease.devices if view.lease is not None else ()
                    if may_stay and self._suspension.begin(view.id, news.stop, child, devices):
                        return 0
                    if may_stay and process(child) is None:  # it has ended by itself meanwhile, and is over
                        self._is_evicted = False
                    again = "; it starts again when its turn comes" if self._is_evicted else ""
                    self._say(f"run {view.id} has to end: {news.stop}{again}")
                    self._send(signal.SIGTERM, None)
                    kill_at = time.monotonic() + news.grace_s
            if kill_at is not None and time.monotonic() >= kill_at:
                self._send(signal.SIGKILL, None)
            link.processes = self._below.processes()
            if idle is not None and kill_at is None and self._is_idle(idle, link.processes):
                self._say(f"run {view.id} has to end: idle for {self._job.idle_s:g} s: no work measured, none told")
                self._is_to_end = self._was_idle = True
                self._send(signal.SIGTERM, None)
                kill_at = time.monotonic() + IDLE_GRACE_S

    def _idle_watch(self, view: c.RunView) -> IdleWatch | None:
        if self._job.idle_s is None or view.lease is None:
            return None
        return IdleWatch(view.lease.devices, self._activity, time.monotonic())

    def _is_idle(self, idle: IdleWatch, processes: tuple[c.Process, ...]) -> bool:
        return self._job.idle_s is not None and idle.idle_s(processes, time.monotonic()) >= self._job.idle_s

    def _wait_for_all(self) -> None:
        while not self._below.reap(0, None)[1]:
            self._is_to_end = self._signal(LOOK_S) in ENDING or self._is_to_end

    def _send(self, wanted: signal.Signals, pid: int | None) -> None:
        """To one process, or (None) to all of the command."""
        if pid is None and wanted is signal.SIGKILL and self._group is not None:
            self._group.kill()
        for one in [pid] if pid is not None else [one.pid for one in self._below.processes()]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, wanted)

    def _ask_for_checkpoint(self, view: c.RunView) -> None:
        """Of those processes that would not die of the signal."""
        self._checkpoints, wanted = view.checkpoints, signal.Signals[f"SIG{view.checkpoint_signal}"]
        able = [one.pid for one in self._below.processes() if handles(one.pid, wanted)]
        for pid in able:
            self._send(wanted, pid)
        if not able:
            self._say(f"run {view.id} is asked for a checkpoint, but no process of it handles {wanted.name}")

    def _left(self) -> str:
        return ", ".join(str(one.pid) for one in self._below.processes()[:5])

    def _signal(self, patience_s: float) -> signal.Signals | None:
        """The next signal; None when there is none in time."""
        return self._signals.next(patience_s)

    def _tell_end(self, view: c.RunView, outcome: str, code: int) -> None:
        assert view.lease is not None
        told = {"outcome": outcome, "exit_code": code, "work": self._work.told()}
        end = c.End.model_validate({"token": view.lease.token, **told})
        late_ends.tell(self._client, view, end, self._say, lambda: self._signal(AGAIN_S) in ENDING)


def _environment() -> dict[str, str]:
    """Of a command, but for what it is given with a lease."""
    return {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_FILE, REQUEST)}


def request_of(fields: dict[str, object]) -> c.RunRequest:
    """A request of this process. Raises pydantic's ValidationError."""
    own = process(os.getpid())
    assert own is not None, "this process is there"
    return c.RunRequest.model_validate({**fields, "key": secrets.token_hex(16), "supervisor": own.model_dump()})
