"""The hosting agent as a holder at a site: an Airflow's work is told, its order and what is to be loaded are asked.

    pool gpu, 3 slots        a node; what DAGs have that EGS does not order is not offered
    |##| train  runs         seen as running, since its start, whether or not it was granted
    |--| fit    scheduled    seen as ready, since it became so
    |··| test   not ready    waits, also where Airflow has yet to look whether its parents have ended

Airflow starts tasks by itself, also others than the site would: so each look says where everything is (`TasksSeen`),
and grants that were not followed are decided anew. A run is told as a whole, with its edges, and again as a whole where
it has grown or was cleared. An agent that takes over needs nothing of the one before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from egs_airflow.agent.declare import ordering, stated_files
from egs_airflow.agent.devices import Devices
from egs_airflow.agent.instances import Instance
from egs_airflow.agent.picture import ACTIVE, Picture, Pool, Run
from egs_airflow.observe.listener import folder
from egs_airflow.observe.progress import Reader
from egs_airflow.order.published import Order, Turn
from egs_airflow.order.weights import guess_s
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.runlog import records as r
from egs_core.site import AnyTold, Asked, Grant, Grown, Joining, connect, connect_server, where_of

READY = "scheduled"
NO_LIMIT = 100_000
MOST_EXPLAINED = 100
MOST_EXPLAINED_THERE = 20
"""At a server: each is a way there and back."""
TOLD_S = 1.0
"""So long grants are waited for that a server has decided and not told yet."""
MOST_TOLD = 100_000
"""A site that was told of so many tasks is left for a new one, which is told what there is: it forgets nothing."""
MOST_TIMES = 4
"""But not before it was told of so many times what there is."""
LIMIT_S = 60.0
SLOT = 1000
ASIDE = " aside"
"""A node for what takes no slot: the parts of a run that are no task, and runs that EGS does not order."""
NO_TIME = ((CPU, Shape(), 0.0),)
READ_RATE = 100e6
"""Bytes a second: what an agent is believed to read of a file that is in no memory."""
UNSEEN_S = 10.0
"""To read files that this host does not have."""
LEAST_S = 0.001
"""To a deadline that is over."""
LATE_S = 4.0
"""Until an agent knows that it is to read: a look of the host's, and one of its own."""

Key = tuple[str, int]
"""A task of a run, and the place in a mapped one."""
Need = tuple[str, int, bool]


@dataclass
class Told:
    """A run as the site knows it. first: of its numbers, of which there are `count`; places: of its instances, behind
    the first; said: where each was seen last; seconds: what is believed of each; needs: see `need_of`."""

    run: Run
    first: Grown
    count: int
    places: dict[Key, int]
    seconds: dict[Key, float]
    needs: dict[Key, Need]
    said: dict[Key, str] = field(default_factory=dict)

    def number(self, key: Key) -> int:
        """That of an instance."""
        return self.first.task + self.places[key]

    def holds(self, run: Run, pools: Mapping[str, Pool]) -> bool:
        """Whether the run is still what was told: nothing has come, or begun again, or has another need."""
        if run.downstream != self.run.downstream or run.is_ordered != self.run.is_ordered:
            return False
        there = [one for one in run.instances if one.pool in pools]
        return all(
            self.said.get(key_of(one), "over") != "over" and self.needs[key_of(one)] == need_of(one, pools)
            for one in there
        )


class Session:
    """See the module; a `Holder`. Used by one thread. url: of the server that its site is at, "" for a site of its own;
    joining: as whom it joins there. Raises EgsError where that server does not take it."""

    def __init__(self, url: str = "", joining: Joining | None = None) -> None:
        self.asks: list[Asked] = []
        self._heard, self._devices = Reader(folder()), Devices()
        self._has: dict[int, tuple[str, ...]] = {}  # the GPUs that the server knows of
        self.lost: BaseException | None = None
        self._pools: dict[str, Pool] = {}
        self._offered: dict[str, m.NodeAdded] = {}
        self._told: dict[str, Told] = {}
        self._times: dict[str, int] = {}  # run -> how often it was told
        self._instances: dict[int, Instance] = {}  # that wait and are ordered, by the site's numbers
        self._granted: dict[int, Grant] = {}  # the latest of each
        self._loads: dict[int, None] = {}  # in the order of the decisions
        self._waiting: list[tuple[int, Instance]] = []
        self._count = 0
        if joining is not None:
            self.site = connect_server(url, self, joining)
        else:
            self.site = connect(EngineConfig(search_placements=0), self, logs_waits=False)
        self.site.start()

    @property
    def is_full(self) -> bool:
        """Whether the site was told of so much that a new one is better."""
        return self._count > max(MOST_TOLD, MOST_TIMES * sum(told.count for told in self._told.values()))

    def order(self, picture: Picture, now_s: float) -> Order:
        """What of all that waits goes first, what may start now, and for what slots are kept, with reasons; and what is
        to be loaded ahead. now_s: Unix time. Raises what the site raises."""
        if self.lost is not None:
            raise ConnectionError(f"the site is lost: {type(self.lost).__name__}: {self.lost}")
        self.site.call(lambda: self._tell(picture, now_s), LIMIT_S)
        ready, found = self._instances, self.site.order()
        statuses = {one.task: one.status for one in self.site.tasks(tuple(ready))}
        may_start = [task for task in ready if statuses[task] == "granted"]
        granted, loads = self._told_of(may_start)
        may_start.sort(key=lambda task: granted[task].id if task in granted else 0)
        why = {task: f"would start now, by {granted[task].reason}" for task in may_start if task in granted}
        queued = [one.task for one in found.ready if one.task in ready and statuses[one.task] != "granted"]
        why |= {
            task: _in_words(self.site.why(task))
            for task in queued[: MOST_EXPLAINED_THERE if self.site.is_shared else MOST_EXPLAINED]
        }
        kept = {one.task for one in found.kept}
        turns = [
            Turn(ready[task].id, statuses[task] == "granted", task in kept, why.get(task, ""))
            for task in [*may_start, *queued]
        ]
        waiting = dict(self._waiting)
        places = [(one.dag_id, one.run_id, one.task_id) for task in loads if (one := waiting.get(task))]
        return Order(tuple(turns), loads=tuple(places))

    def take_asks(self) -> list[Asked]:
        """What operators want, by the site; each once."""
        asks, self.asks = self.asks, []
        return asks

    def _told_of(self, wanted: Iterable[int]) -> tuple[dict[int, Grant], list[int]]:
        """The grants and what is to be loaded: of a site in this process all has been told by now, of a server's these
        grants are waited for."""
        until = time.monotonic() + TOLD_S
        while True:
            granted, loads = self.site.call(lambda: (dict(self._granted), list(self._loads)), LIMIT_S)
            if all(task in granted for task in wanted) or not self.site.is_shared or time.monotonic() > until:
                return granted, loads
            time.sleep(0.01)

    def close(self) -> None:
        """Ask and tell nothing more."""
        self._devices.close()
        self.site.close()

    # --- the site's word ---

    def perform(self, decision: AnyTold, now: float) -> None:  # noqa: ARG002 - a moment of the site's clock
        """Airflow performs: here is noted what the next order says."""
        if isinstance(decision, Grant):
            self._granted[decision.task] = decision
        elif isinstance(decision, m.Preload):
            self._loads[decision.task] = None
            self.site.report(m.PreloadReady(decision.task, decision.id))  # nothing waits for files: they are read
        elif isinstance(decision, m.DropPreload):
            self._loads.pop(decision.task, None)

    def record(self, record: r.Record) -> None:
        """The run log of an Airflow is written where its tasks run."""

    def asked(self, request: Asked) -> None:
        """The host carries it out with its next look."""
        self.asks.append(request)

    def site_lost(self, error: BaseException) -> None:
        """The next `order` says so."""
        self.lost = error

    # --- what is told, on the holder's thread ---

    def _tell(self, picture: Picture, now_s: float) -> None:
        self._pools = {pool.name: pool for pool in picture.pools}
        self._offer(picture)
        runs = {run.workload: run for run in sorted(picture.runs, key=lambda run: (run.started_s, run.workload))}
        sights = [one for name in self._told.keys() - runs for one in self._all(self._told.pop(name), "over")]
        self._instances, self._waiting = {}, []
        for name, run in runs.items():
            told = self._told.get(name)
            if told is None or not told.holds(run, self._pools):
                if told is not None:  # as never begun: what it has used counts once
                    self.site.report(m.TasksSeen(tuple(self._all(told, "waiting"))))
                    self.site.report(m.TasksSeen(tuple(self._all(told, "over"))))
                told = self._told[name] = self._begin(picture, run, now_s)
                sights.append(m.Sight(told.first.task, "running", ASIDE))
            else:
                self._estimate(picture, told, run)
            sights += self._see(told, run, now_s)
        self._granted.clear()
        waiting = dict(self._waiting)
        self._loads = {task: None for task in self._loads if task in waiting}
        self.site.report(m.TasksSeen(tuple(sorted(sights, key=lambda one: -one.since_s))))
        if self.site.is_shared:
            self._tell_of_running(now_s)

    def _tell_of_running(self, now_s: float) -> None:
        """How far tasks are whose folders this host has, and which GPUs those have that run here."""
        running = [
            (one.id, told.number(key), told.needs[key])
            for told in self._told.values()
            for one in told.run.instances
            if told.said.get(key := key_of(one)) == "running"
        ]
        numbers = {name: number for name, number, _ in running}
        for name, found in self._heard.look(numbers).items():
            self.site.progressed(where_of(numbers[name], found, max(0.0, now_s - found.at)))
        has = self._devices.look(name for name, _, (_, _, has_gpus) in running if has_gpus)
        before, self._has = self._has, {numbers[name]: devices for name, devices in has.items()}
        for number, devices in self._has.items():
            if before.get(number) != devices:
                self.site.has_devices(number, devices)

    def _offer(self, picture: Picture) -> None:
        """The pools: what is there for the runs that EGS orders, and never less than they have."""
        held = dict.fromkeys(self._pools, 0)
        for run in picture.runs:
            for one in run.instances if run.is_ordered else ():
                if self._has_slots(one):
                    held[one.pool] += one.slots
        wanted = [_node(ASIDE, NO_LIMIT)]
        for pool in picture.pools:
            most = max(pool.slots - pool.taken, held[pool.name]) if pool.slots >= 0 else NO_LIMIT
            wanted.append(_node(pool.name, most, has_gpus=pool.has_gpus))
        for node in wanted:
            if self._offered.get(node.node) != node:
                self._offered[node.node] = node
                self.site.report(node)
        for name in self._offered.keys() - {node.node for node in wanted}:
            del self._offered[name]
            self.site.report(m.NodeLost(name))

    def _has_slots(self, one: Instance) -> bool:
        pool = self._pools.get(one.pool)
        return pool is not None and (one.state in ACTIVE or (one.state == "deferred" and pool.keeps_deferred))

    def _status(self, run: Run, one: Instance) -> str:
        if self._has_slots(one):
            return "running"
        return "ready" if one.state == READY and run.is_ordered else "waiting"

    def _all(self, told: Told, status: str) -> list[m.Sight]:
        return [m.Sight(told.first.task + place, status) for place in range(told.count)]

    def _see(self, told: Told, run: Run, now_s: float) -> list[m.Sight]:
        """What has changed, and all that is ready."""
        sights, there = [], set[Key]()
        for one in run.instances:
            key = key_of(one)
            if key not in told.places:
                continue  # its pool is not there
            there.add(key)
            status, number = self._status(run, one), told.number(key)
            if status != "running":
                self._waiting.append((number, one))
            if status == "ready":
                self._instances[number] = one
            if status == told.said.get(key) != "ready":
                continue
            told.said[key] = status
            since = (one.started_s or one.ready_s) if status == "running" else one.ready_s
            since_s = max(0.0, now_s - since) if since and status != "waiting" else 0.0
            sights.append(m.Sight(number, status, one.pool if run.is_ordered else ASIDE, since_s))
        for key in told.said.keys() - there:
            if told.said[key] != "over":
                told.said[key] = "over"
                sights.append(m.Sight(told.number(key), "over"))
        told.run = run
        return sights

    def _estimate(self, picture: Picture, told: Told, run: Run) -> None:
        """Say what is believed now, where that has changed."""
        if (run.known_s, run.p95_s) == (told.run.known_s, told.run.p95_s):
            return
        usual = guess_s(run.downstream, run.known_s, picture.usual_s)
        values = []
        for key, place in told.places.items():
            seconds = run.known_s.get(key[0], usual)
            p95 = max(seconds, run.p95_s.get(key[0], 0.0))
            if seconds != told.seconds[key] or p95 != max(seconds, told.run.p95_s.get(key[0], 0.0)):
                told.seconds[key] = seconds
                values.append((told.first.phase + place, seconds, p95))
        if values:
            self.site.report(m.Estimates(tuple(values)))

    def _begin(self, picture: Picture, run: Run, now_s: float) -> Told:
        """Tell of a run: its open instances, each behind those of its parents."""
        name = run.workload
        self._times[name] = times = self._times.get(name, 0) + 1
        block = Block(run, picture, self._pools, now_s)
        for one in run.instances:
            block.by_task.setdefault(one.task_id, []).append((one, self._status(run, one) == "waiting"))
        block.build()
        workload = name if times == 1 else f"{name}#{times}"
        self.site.submit(m.WorkloadSubmitted(workload, run.dag_id, submission=name))
        grown = self.site.grow(workload, 0, block.graph)
        self._count += block.graph.n_tasks
        values = [
            (grown.phase + place, block.seconds[key], p95)
            for key, place in block.places.items()
            if (p95 := run.p95_s.get(key[0], 0.0)) > block.seconds[key]
        ]
        if values:  # the graph has medians alone
            self.site.report(m.Estimates(tuple(values)))
        return Told(run, grown, block.graph.n_tasks, block.places, block.seconds, block.needs)


class Block:
    """The tasks of a run for `Site.grow`. by_task: its instances, each with whether it waits for Airflow's word."""

    def __init__(self, run: Run, picture: Picture, pools: dict[str, Pool], now_s: float) -> None:
        self._run, self._picture, self._pools = run, picture, pools
        self._age_s = max(0.0, now_s - run.started_s)
        self._usual_s = guess_s(run.downstream, run.known_s, picture.usual_s)
        self._ends: dict[str, list[int]] = {}
        self.by_task: dict[str, list[tuple[Instance, bool]]] = {}
        self.graph = Graph()
        self.places: dict[Key, int] = {}
        self.seconds: dict[Key, float] = {}
        self.needs: dict[Key, Need] = {}

    def build(self) -> None:
        """The first stands for the run itself: it is there as long as the run is, and what Airflow has not said to be
        ready comes after it."""
        self._aside(())
        above: dict[str, set[str]] = {task: set() for task in self._run.downstream}
        for task, after in self._run.downstream.items():
            for child in after:
                above.setdefault(child, set()).add(task)
        for task in [*TopologicalSorter(above).static_order(), *(self.by_task.keys() - above)]:
            parents = [self._end_of(parent) for parent in sorted(above.get(task, ())) if parent in self._ends]
            is_guessed = any(parent not in self._run.known_s for parent in above.get(task, ()))
            for one, waits in self.by_task.get(task, ()):
                if one.pool in self._pools:
                    self._add(one, (0, *parents) if waits else tuple(parents), is_guessed=is_guessed)

    def _aside(self, parents: tuple[int, ...]) -> int:
        number = self.graph.n_tasks
        return self.graph.add_task(f" {number}", parents, NO_TIME, options=TaskOptions(flavors=(ASIDE,)))

    def _end_of(self, task: str) -> int:
        """What has ended when all instances of a task have: one of them, or a join, so that edges stay few."""
        if len(self._ends[task]) > 1:
            self._ends[task] = [self._aside(tuple(self._ends[task]))]
        return self._ends[task][0]

    def _add(self, one: Instance, parents: tuple[int, ...], *, is_guessed: bool) -> None:
        """is_guessed: nobody knows how long what is before it takes: its files are then loaded as soon as that runs."""
        run, need = self._run, need_of(one, self._pools)
        seconds = run.known_s.get(one.task_id, self._usual_s)
        is_gpu = need[2] and run.is_ordered
        shape = Shape(0, SLOT * one.slots) if is_gpu else Shape(SLOT * one.slots)
        files = stated_files(one.config) if one.map_index < 0 else ()
        hinted = ordering(one.config, f"{one.dag_id}.{one.task_id}")
        waits = [] if hinted.max_wait_s is None else [hinted.max_wait_s]
        waits += [self._picture.reserve_after_s] if one.slots > 1 else []
        options = TaskOptions(
            flavors=(one.pool if run.is_ordered else ASIDE,),
            priority=hinted.priority,
            max_wait_s=min(waits, default=None),
            deadline_s=None if hinted.deadline_s is None else max(LEAST_S, hinted.deadline_s - self._age_s),
            warm_key="\n".join(files),
            warmup_s=read_s(files) + LATE_S + is_guessed * self._usual_s if files else 0.0,
            warm_cpu_milli=0,
        )
        phase = (GPU if is_gpu else CPU, shape, seconds)
        place = self.graph.add_task(f"{one.dag_id}.{one.name}", parents, (phase,), options=options)
        self.places[key_of(one)] = place
        self.seconds[key_of(one)], self.needs[key_of(one)] = seconds, need
        self._ends.setdefault(one.task_id, []).append(place)


def key_of(one: Instance) -> Key:
    """What stays of an instance from try to try."""
    return one.task_id, one.map_index


def need_of(one: Instance, pools: Mapping[str, Pool]) -> Need:
    """Pool, slots, and whether these are GPUs."""
    return one.pool, one.slots, pools[one.pool].has_gpus


def _node(name: str, slots: int, *, has_gpus: bool = False) -> m.NodeAdded:
    """A flavor of its own; as many files may be loaded ahead as the site likes."""
    cpus, gpus = (0, slots) if has_gpus else (slots, 0)
    return m.NodeAdded(name, float(cpus), gpus, preload_slots=NO_LIMIT, process_slots=NO_LIMIT, flavor=name)


def read_s(paths: Iterable[str]) -> float:
    """How long an agent will read these files, by what this host sees of them."""
    sizes = [os.path.getsize(path) for path in paths if os.path.isfile(path)]
    return sum(sizes) / READ_RATE if sizes else UNSEEN_S


def _in_words(reason: m.Reason) -> str:
    """Why it waits. Without moments: those change with each look, and what is published is not to."""
    if reason.kind == "reservation" and reason.waiting_for:
        return f"slots are kept for {reason.waiting_for[0]}"
    return reason.text.replace("CPUs", "slots")
