"""A site that outlives its server: while that is away the holder has an engine of its own, then it joins again.

    at the server ── lost ──► at home: an embedded site ── the server answers again ──► at the server
                                (grants after PAUSE_S)      (with all that is open: `books`)

Moving is the same both ways: nodes, workloads and their open tasks are told anew, with what runs (`TasksAdded.begun`).
The holder notices nothing of it: its numbers are its own (`numbers`), and its thread and clock go on.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.notices import warn
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site.books import Books, Task, Work
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.holder_thread import HolderThread
from egs_core.site.numbers import Numbers
from egs_core.site.protocol import Control, Holder
from egs_core.site.remote import RemoteSite

T = TypeVar("T")
LOST = "the site is lost"
PAUSE_S = 2.0  # at home nothing new starts before: a server that was started again is there by then
MOVE_S = 30.0
QUIET_S = 2.0  # a shorter absence is not worth a word
FIRST_S, MOST_S = 0.2, 30.0  # between two tries to join
STEADY_S = 30.0  # a server that was there for so long is tried at once when it is lost

Join = Callable[[Holder, HolderThread, bool], RemoteSite]
"""Joins the pool for a holder whose thread that is; the last says whether it comes back. Raises where it cannot."""


class ReturningSite:
    """A `Site`, see the module. config: of the engine at home; place: what the server is called."""

    def __init__(
        self, join: Join, config: EngineConfig, holder: Holder, place: str, *, logs_waits: bool = True
    ) -> None:
        self._join, self._config, self._holder, self._place = join, config, holder, place
        self._logs_waits = logs_waits
        self._own = HolderThread(lambda: self._is_lost, self._fail)
        self._is_lost = self._is_closed = False
        self.books, self._numbers = Books(), Numbers()
        self._preloads: dict[int, int] = {}  # task with a process under way for it -> the Preload's id
        self._places: dict[str, dict[int, int]] = {}  # workload -> place there of each of its tasks that is there
        self._mine: dict[int, r.Record] = {}  # lines of the holder's own that are on their way, by identity
        self._wait_s, self._joined_at = FIRST_S, time.monotonic()
        self._closing = threading.Event()
        inner = _Inner(self)
        self._site: RemoteSite | EmbeddedSite = join(inner, self._own, False)
        inner.site = self._site
        self._origin = time.monotonic() - self._site.now()
        self._numbers.begin(0.0)

    # --- the holder's thread ---

    def start(self) -> None:
        self._own.start()
        self._site.start()

    @property
    def is_alive(self) -> bool:
        return self._own.is_alive and not self._is_lost

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def is_home(self) -> bool:
        """Whether the server is away."""
        return isinstance(self._site, EmbeddedSite)

    def now(self) -> float:
        return time.monotonic() - self._origin

    def do(self, action: Callable[[], None]) -> None:
        self._own.do(action)

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        return self._own.call(action, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """What was given before is told; then the server is told that the holder has gone."""
        until = time.monotonic() + timeout_s
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            self.call(lambda: None, timeout_s)
        self._site.close(max(0.1, until - time.monotonic()))
        self._own.do(self._end)
        self._own.close(max(0.1, until - time.monotonic()))

    def _end(self) -> None:
        self._is_closed = True

    def _fail(self, error: BaseException) -> None:
        """On the holder's thread: an error of the holder's own, or of the engine at home."""
        if not (self._is_lost or self._is_closed):
            self._is_lost = True
            self._closing.set()
            self._retire(self._site)
            for record in self._mine.values():
                self._holder.record(record)
            self._mine.clear()
            self._holder.site_lost(error)

    # --- work ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        self.report(workload)

    def control(self, *requests: Control) -> None:
        self.report(*requests)

    def report(self, *events: m.Event) -> None:
        if not self._own.is_here:
            self._own.do(lambda: self.report(*events))
            return
        for event in events if not self._is_lost else ():
            there, works = self._numbers.event_there(event), self.books.works
            if isinstance(event, m.WorkloadSubmitted):
                there = None if event.workload in works else event
                self._places.setdefault(event.workload, {})
            self.books.hear(event, self.now())
            if there is not None:
                self._site.report(there)

    def note(self, *notes: s.Note | r.Record) -> None:
        if not self._own.is_here:
            self._own.do(lambda: self.note(*notes))
            return
        for note in notes:
            if not isinstance(note, r.Record):
                if not self._is_lost and (there := self._numbers.note_there(note)) is not None:
                    self._site.note(there)
            elif self._is_lost:
                self._holder.record(note)
            else:
                self._mine[id(note)] = note
                self._site.note(note)

    def progressed(self, where: s.Where) -> None:
        if not self._own.is_here:
            self._own.do(lambda: self.progressed(where))
        elif not self._is_lost:
            self.books.progressed(where, self.now())
            self._tell_progress(where)

    def has_devices(self, task: int, devices: tuple[str, ...]) -> None:
        if not self._own.is_here:
            self._own.do(lambda: self.has_devices(task, devices))
        elif not self._is_lost:
            self.books.has_devices(task, devices)
            if (there := self._numbers.task_there(task)) is not None:
                self._site.has_devices(there, devices)

    def _tell_progress(self, where: s.Where) -> None:
        if (there := self._numbers.task_there(where.task)) is not None:
            self._site.progressed(msgspec.structs.replace(where, task=there))

    def grow(self, workload: str, at: int, graph: Graph) -> s.Grown:
        if self._is_lost:
            raise ConnectionError(LOST)
        work = self.books.works.get(workload)
        if work is None:
            raise ValueError(f"tasks for the unknown workload {workload!r}")
        if at > len(work.numbers):
            raise ValueError(f"workload {workload!r} has {len(work.numbers)} tasks, so none can follow task {at}")
        if at < len(work.numbers):
            return s.Grown(work.numbers[at], work.firsts[at])
        grown = self.books.next_numbers()
        tasks = self.books.grown(workload, graph)
        try:
            self._tell_block(work, tasks, graph)
        except ConnectionError as error:
            self._go_home(error)  # which tells these, too
        except ValueError:
            self.books.forget(workload, tasks)
            raise
        return grown

    def _tell_block(self, work: Work, tasks: Sequence[Task], graph: Graph, begun: tuple[m.Begun, ...] = ()) -> None:
        """A block of tasks with numbers: the site has them, under its own. Raises ConnectionError, and ValueError for
        a block that is no graph."""
        workload, site = work.event.workload, self._site
        if workload not in self._places:  # it had nothing open when the holder moved here
            site.report(_later(work, self.now()))
        places = self._places.setdefault(workload, {})
        size = len(places)
        for place, task in enumerate(tasks, size):
            places[task.number] = place
        parents = [tuple([places[parent] for parent in task.parents if parent in places]) for task in tasks]
        if parents != graph.parents:
            graph = msgspec.structs.replace(graph, parents=parents, inputs={}, outputs={})
        try:
            if isinstance(site, EmbeddedSite):
                grown = site.call(lambda: site.grow(workload, size, graph, begun), MOVE_S)
            else:
                grown = site.grow(workload, size, graph, begun)
        except ValueError:
            for task in tasks:
                del places[task.number]
            raise
        phase = grown.phase
        for number, task in enumerate(tasks, grown.task):
            self._numbers.add(task.number, task.phases, number, phase)
            phase += len(task.phases)
            if task.is_dropped:
                site.report(m.AbortRequested("task", str(number), "site", "what it waits for has failed"))

    # --- questions ---

    def why(self, task: int) -> m.Reason:
        return self._asked(lambda: self._site.why(self._there(task)))

    def tasks(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        return self._asked(lambda: self._statuses(numbers))

    def _statuses(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        there = [self._numbers.task_there(number) for number in numbers]
        found = self._site.tasks([number for number in there if number is not None])
        known = {one.task: one for one in map(self._numbers.status_here, found)}
        return tuple([known.get(number) or s.TaskStatus(number, "succeeded", 0, 1, 0.0) for number in numbers])

    def workload(self, workload: str) -> s.WorkloadStatus:
        work = self.books.works.get(workload)
        if work is not None and workload not in self._places:
            return s.WorkloadStatus(workload, 0, failed=work.failed)
        return self._asked(lambda: self._site.workload(workload))

    def order(self) -> s.Order:
        return self._asked(lambda: self._numbers.order_here(self._site.order()))

    def _there(self, task: int) -> int:
        number = self._numbers.task_there(task)
        if number is None:
            raise ValueError(f"task {task} has ended, or there is no such task")
        return number

    def _asked(self, question: Callable[[], T]) -> T:
        """The answer; where the server is lost with the question, that of the engine at home."""
        if self._is_lost:
            raise TimeoutError(LOST)
        self._own.call(lambda: None, MOVE_S)  # behind what was reported before
        try:
            return question()
        except TimeoutError as error:
            if not self._own.is_here or self.is_home:
                raise
            self._go_home(error)
            return question()

    # --- from one site to another; on the holder's thread ---

    def site_lost(self, site: RemoteSite | EmbeddedSite | None, error: BaseException) -> None:
        """The present site is lost, or one of before."""
        if site is self._site and not (self._is_closed or self._is_lost):
            if isinstance(site, EmbeddedSite):
                self._fail(error)
            else:
                self._go_home(error)

    def _go_home(self, error: BaseException) -> None:
        is_steady = time.monotonic() - self._joined_at > STEADY_S
        self._wait_s = FIRST_S if is_steady else min(MOST_S, 2 * self._wait_s)
        inner = _Inner(self)
        inner.site = home = EmbeddedSite(self._config, inner, logs_waits=self._logs_waits)
        home.start()
        home.report(m.GrantsHeld(PAUSE_S))
        try:
            self._move(home)
        except Exception as own_error:  # of the engine at home: the holder goes on without any
            self._fail(own_error)
            return
        threading.Thread(target=self._seek, args=(str(error),), name="egs-seek", daemon=True).start()

    def _come_back(self, site: RemoteSite, is_told: bool) -> None:
        if self._is_lost or self._is_closed or self._closing.is_set():
            self._retire(site)
            return
        site.start()
        self._joined_at = time.monotonic()
        try:
            self._move(site)
        except Exception as error:
            self._go_home(error)
            return
        site.here()
        if is_told:
            warn(f"{self._place} is back: this process's work is ordered with that of others again")

    def _move(self, site: RemoteSite | EmbeddedSite) -> None:
        """Tell another site all that is open. Raises ConnectionError where that is lost, too."""
        before, self._site = self._site, site
        self._retire(before)
        for record in self._mine.values():  # whose way back may be lost
            self._holder.record(record)
        self._mine.clear()
        for task in self._preloads:
            self._numbers.told_id += 1
            self._tell(m.DropPreload(self._numbers.told_id, task))
        self._preloads.clear()
        self._numbers.begin(self.now() - site.now())
        self._places.clear()
        for node in self.books.nodes.values():
            site.report(node)
        for work in self.books.works.values():
            self._move_work(work)
        for pause in self.books.pauses.values():
            if pause.scope == "task" and (there := self._numbers.event_there(pause)) is not None:
                site.report(there)
        if self.books.estimates:
            values = tuple([(phase, p50, p95) for phase, (p50, p95) in self.books.estimates.items()])
            if (estimates := self._numbers.event_there(m.Estimates(values))) is not None:
                site.report(estimates)
        for where in self.books.told_of(self.now()):
            self._tell_progress(where)
        for number, devices in self.books.known_devices():
            if (place := self._numbers.task_there(number)) is not None:
                site.has_devices(place, devices)

    def _move_work(self, work: Work) -> None:
        workload = work.event.workload
        tasks, graph, begun = self.books.block(workload, self.now())
        if not tasks:
            if work.numbers and not work.settled:
                self._tell(s.Settled(workload, work.failed))
            return
        self._site.report(_later(work, self.now()))
        self._places[workload] = {}
        for pause in self.books.pauses.values():
            if pause.scope != "task" and pause.target.partition("/")[0] == workload:
                self._site.report(pause)
        self._tell_block(work, tasks, graph, begun)

    def _tell(self, told: s.AnyTold) -> None:
        self.books.told(told, self.now())
        self._own.do(lambda: self._holder.perform(told, self.now()))

    def _retire(self, site: RemoteSite | EmbeddedSite) -> None:
        """End a site that is not asked any more, without waiting for it."""
        if isinstance(site, RemoteSite):
            site.retire()
        else:
            threading.Thread(target=site.close, name="egs-retire", daemon=True).start()

    # --- a thread of its own, while the server is away ---

    def _seek(self, reason: str) -> None:
        """Join again, as soon as the server answers."""
        since, is_told = time.monotonic(), False
        while not self._closing.wait(self._wait_s * random.uniform(0.7, 1.3)):
            inner = _Inner(self)
            try:
                site = self._join(inner, self._own, True)
            except Exception as error:
                self._wait_s = min(MOST_S, 1.5 * self._wait_s)
                if not is_told and time.monotonic() - since > QUIET_S:
                    is_told, said = True, f"{error}".partition("\n")[0] or reason
                    warn(f"{said}: this process orders its own work until {self._place} is back")
                continue
            inner.site = site
            self._own.do(partial(self._come_back, site, is_told))
            return

    # --- what a site tells ---

    def perform(self, site: RemoteSite | EmbeddedSite | None, told: s.AnyTold, now: float) -> None:
        """On the holder's thread."""
        if site is not self._site or self._is_lost or self._is_closed:
            return
        here = self._numbers.told_here(told)
        if isinstance(here, m.Preload):
            self._preloads[here.task] = here.id
        elif isinstance(here, s.Grant | m.DropPreload):
            self._preloads.pop(here.task, None)
        elif isinstance(here, s.Settled):
            work = self.books.works[here.workload]
            here = s.Settled(here.workload, here.failed or work.failed)
        self.books.told(here, self.now())
        self._holder.perform(here, self._numbers.time_here(now))

    def record(self, site: RemoteSite | EmbeddedSite | None, record: r.Record) -> None:
        """On the holder's thread."""
        if self._mine.pop(id(record), None) is not None:
            self._holder.record(record)
        elif site is self._site:
            self._holder.record(self._numbers.record_here(record))

    def asked(self, request: s.Asked) -> None:
        self._holder.asked(request)


class _Inner:
    """The holder that a site sees: it passes everything on, to the holder's own thread."""

    def __init__(self, outer: ReturningSite) -> None:
        self._outer = outer
        self.site: RemoteSite | EmbeddedSite | None = None

    def _do(self, action: Callable[[], None]) -> None:
        if isinstance(self.site, EmbeddedSite):
            self._outer.do(action)
        else:
            action()

    def perform(self, decision: s.AnyTold, now: float) -> None:
        self._do(lambda: self._outer.perform(self.site, decision, now))

    def record(self, record: r.Record) -> None:
        self._do(lambda: self._outer.record(self.site, record))

    def asked(self, request: s.Asked) -> None:
        self._do(lambda: self._outer.asked(request))

    def site_lost(self, error: BaseException) -> None:
        self._do(lambda: self._outer.site_lost(self.site, error))


def _later(work: Work, now: float) -> m.WorkloadSubmitted:
    """The workload for another site: what is left of its deadline."""
    deadline_s = work.event.deadline_s
    left = None if deadline_s is None else deadline_s - (now - work.at)
    return msgspec.structs.replace(work.event, deadline_s=left)
