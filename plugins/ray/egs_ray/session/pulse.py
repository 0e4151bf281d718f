"""Once a second, in a thread of its own, because asking Ray may block: signs of life, what Ray's books say of the room
for tasks with tickets, and what an autoscaler is told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import ray

from egs_ray import submitting
from egs_ray.compat import available
from egs_ray.demand import DEMAND, bundles_of_tasks, cluster_grows, may_ask
from egs_ray.session.grown import Grown
from egs_ray.session.line import Line
from egs_ray.session.room import SOMEWHERE, Room, Wanted
from egs_ray.session.session import Session
from egs_ray.session.tasks import WITH_TICKET, Job
from egs_ray.session.tickets import Tickets
from egs_ray.submission import Needs

PULSE_S = 1.0
HOPE_S = 120.0  # that an autoscaler has to add a node for a task that fits nowhere
STARTING_S = 3.0  # for a worker's process and Ray's own news


class Pulse:
    """See the module. `review` runs on the holder's thread.

    look: at the loans, on that thread. is_awaited: whether the end of any task is waited for. went: tasks, by index,
    went to Ray without a turn. fail: from any thread, nothing can be decided any more.
    """

    def __init__(
        self,
        session: Session,
        books: Grown,
        tickets: Tickets,
        room: Room,
        line: Line,
        *,
        look: Callable[[], None],
        is_awaited: Callable[[], bool],
        went: Callable[[Iterable[int]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._session, self._site = session, session.site
        self._books, self._tickets, self._room, self._line = books, tickets, room, line
        self._look, self._is_awaited, self._went, self._fail = look, is_awaited, went, fail
        self._demand: list[dict[str, float]] = []  # what the autoscaler is told
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="egs-pulse", daemon=True).start()

    def close(self) -> None:
        """Ray is about to disconnect."""
        self._closing.set()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def _run(self) -> None:
        submitting.submit_directly()
        while not self._closing.wait(PULSE_S):
            if self._tickets.are_open or not self._site.is_alive:
                return
            try:
                self._site.do(self._look)
                self._site.do(self._tickets.live)  # by the holder's thread: its life is what the tickets depend on
                self._tickets.open_if_silent()
                if self._is_awaited() or self._demand:
                    nodes, idle_at = ray.nodes(), idle_gpus()
                    self._site.do(partial(self.review, nodes, idle_at))
                self._tell_autoscaler()
            except Exception as error:
                self._fail(error)
                return

    def review(self, nodes: list[dict[str, Any]], idle_at: Mapping[str, float]) -> None:
        """What Ray's books say now. What a ticket was given for a moment ago is not idle but starting."""
        if self._room.is_exact and not self._room.grows:  # there is nothing to find out that needs the site
            self._room.review(nodes)
            self._session.offer()
            return
        now, jobs = self._site.now(), [job for job in self._books.unfinished if job.ticket]
        waits = [job for job in jobs if job not in self._line and job.way in WITH_TICKET]
        statuses = dict(zip(waits, self._site.tasks([job.number for job in waits]), strict=True))
        # what is held, as by a pause, takes no GPU that idles: it wants neither a ticket nor a node for it
        ready = [job for job in waits if statuses[job].status == "ready"]
        since = {job: self._line.since(job) for job in jobs}
        starting = sum(job.gpus for job, at_s in since.items() if at_s is not None and now - at_s < STARTING_S)
        self._room.review(nodes, self._wanted(ready), idle_at, starting)
        self._session.offer()
        if self._room.grows:
            for job in ready:
                needs = self._needs(job)
                fits = self._room.fits_now(needs.cpus, needs.gpus, needs.memory_bytes)
                if now - statuses[job].since > HOPE_S and not fits:
                    self._went(self._tickets.open(job.ticket))  # Ray says why no node can run it
            open_ = [self._needs(job) for job in jobs if job in self._line]
            there = sum(row["Resources"].get("GPU", 0.0) for row in nodes if row["Alive"])
            others = there - sum(idle_at.values()) - sum(needs.gpus for needs in open_)
            self._demand = bundles_of_tasks([*open_, *map(self._needs, ready)], others)

    def _wanted(self, ready: Iterable[Job]) -> Iterator[Wanted]:
        """By each task, and by each group as a whole."""
        groups: dict[str, list[Job]] = {}
        for job in ready:
            if job.gang:
                groups.setdefault(job.gang, []).append(job)
            else:
                yield Wanted((job.gpus,))
        for members in groups.values():
            options = self._books.converted.graph.options_of(members[0].index)
            sizes = tuple(job.gpus for job in members)
            yield Wanted((sum(sizes),) if options.gang_same else sizes, bool(options.gang_apart), is_group=True)

    def _needs(self, job: Job) -> Needs:
        return self._tickets.needs_of(job.ticket, job.gpus)

    def _tell_autoscaler(self) -> None:
        """An autoscaler shows itself some seconds after its cluster."""
        if not self._room.grows:
            self._room.grows = cluster_grows() and may_ask()
        if self._room.grows:
            DEMAND.want("gate", self._demand)
            if DEMAND.is_refused:
                raise RuntimeError("no nodes for tasks with tickets: another program sends requests to the autoscaler")


def idle_gpus() -> dict[str, float]:
    """GPUs that nobody holds in Ray's books, by node."""
    if not available("idle"):
        return {SOMEWHERE: ray.available_resources().get("GPU", 0.0)}
    from ray._private.state import available_resources_per_node

    return {name: free["GPU"] for name, free in available_resources_per_node().items() if free.get("GPU")}
