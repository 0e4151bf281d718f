"""What `rate.py` measures beside the engine: a bare list scheduler, and dask's scheduler state with fake workers.

They do different amounts of work. The list scheduler knows only equal slots and one order: no events, no reasons, no
failures; it is about what a loop and a heap cost. Dask's scheduler also places data and keeps a transition log.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from importlib import import_module
from typing import Any

from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import Graph

Measured = tuple[float, float]  # wall seconds, makespan in virtual seconds


def run_list_scheduler(graph: Graph, slots: int) -> Measured:
    """Highest upward rank first on equal slots; ranks are computed inside the measured time, as for the others."""
    seconds = [d or 0.0 for d in graph.phase_duration_s]
    children = graph.children()
    started = time.perf_counter()
    rank = upward_rank(graph, seconds)
    waiting = [len(parents) for parents in graph.parents]
    ready = [(-rank[t], t) for t in range(graph.n_tasks) if not waiting[t]]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now, free = 0.0, slots
    while ready or running:
        while ready and free:
            task = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + seconds[task], task))
            free -= 1
        now, task = heapq.heappop(running)
        free += 1
        for child in children[task]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, (-rank[child], child))
    return time.perf_counter() - started, now


def run_dask(graph: Graph, slots: int) -> Measured:
    """`distributed.SchedulerState`, one fake worker of one thread a slot; no network, no stealing, virtual time.

    Raises ImportError without distributed.
    """
    return _DaskRun(graph, slots).run()


class _DaskRun:
    """Private API of distributed, the same that its own scheduler calls: `new_task`, `_transition`, `_transitions`."""

    def __init__(self, graph: Graph, slots: int) -> None:
        self.seconds = {f"t-{i}": d or 0.0 for i, d in enumerate(graph.phase_duration_s)}
        self.state = _dask_state(slots)
        self.queues: dict[str, deque[str]] = {address: deque() for address in self.state.workers}
        self.busy: set[str] = set()
        self.ends: list[tuple[float, int, str, str]] = []  # time, sequence, worker, task
        self.sequence = 0
        self._add_tasks(graph)

    def _add_tasks(self, graph: Graph) -> None:
        order = import_module("dask.order").order
        task_type = import_module("dask._task_spec").Task
        keys = list(self.seconds)
        priority = order({keys[t]: (_work, *(keys[p] for p in graph.parents[t])) for t in range(graph.n_tasks)})
        has_children = {p for parents in graph.parents for p in parents}
        client = self.state.clients["fire-and-forget"]
        for t, key in enumerate(keys):
            task = self.state.new_task(key, None, "released")
            task.run_spec, task.priority = task_type(key, _work), (0, 0, priority[key])
            for parent in graph.parents[t]:
                task.add_dependency(self.state.tasks[keys[parent]])
            if t not in has_children:
                task.who_wants = {client}
                client.wants_what.add(task)

    def run(self) -> Measured:
        started = time.perf_counter()
        now = 0.0
        first = {key: "waiting" for key, task in self.state.tasks.items() if not task.dependencies}
        first |= {key: "waiting" for key in self.state.tasks if key not in first}
        self._settle(first, {}, {}, now)
        while self.ends:
            now, _, worker, key = heapq.heappop(self.ends)
            self.busy.discard(worker)
            recommended, to_clients, to_workers = self.state._transition(
                key, "memory", "bench", worker=worker, nbytes=8, type=b"", typename="int", startstops=[]
            )
            self._settle(recommended, to_clients, to_workers, now)
            self._start(worker, now)
        wall = time.perf_counter() - started
        if self.sequence != len(self.seconds):
            raise RuntimeError(f"dask ran {self.sequence} of {len(self.seconds)} tasks")
        return wall, now

    def _settle(self, recommended: Any, to_clients: Any, to_workers: Any, now: float) -> None:
        """Transitions until nothing is recommended, then the queue, as the scheduler does after a finished task."""
        self.state._transitions(recommended, to_clients, to_workers, "bench")
        while self.state.queued and self.state.idle_task_count:
            task = self.state.queued.peek()
            self.state._transitions({task.key: "processing"}, to_clients, to_workers, "bench")
            if task.state == "queued":
                break
        for worker, messages in to_workers.items():
            for message in messages:
                if message["op"] == "compute-task":
                    self.queues[worker].append(message["key"])
            self._start(worker, now)

    def _start(self, worker: str, now: float) -> None:
        if worker not in self.busy and self.queues[worker]:
            key = self.queues[worker].popleft()
            self.busy.add(worker)
            self.sequence += 1
            heapq.heappush(self.ends, (now + self.seconds[key], self.sequence, worker, key))


def _dask_state(slots: int) -> Any:
    dask = import_module("distributed.scheduler")  # untyped on purpose: its types are partial
    bases = {"log_event": _ignore}  # what `Scheduler` adds to its state, as far as it is asked for
    state_type = type("FakeWorkersOnly", (dask.SchedulerState,), bases)
    logging.getLogger("distributed.scheduler").setLevel(logging.WARNING)
    state = state_type(
        aliases={},
        clients={},
        workers=dask.SortedDict(),
        host_info={},
        resources={},
        tasks={},
        unrunnable={},
        queued=dask.HeapSet(key=lambda task: task.priority),
        validate=False,
    )
    for i in range(slots):
        address = f"tcp://127.0.0.1:{10_000 + i}"
        worker = dask.WorkerState(
            address=address,
            status=dask.Status.running,
            pid=0,
            name=i,
            nthreads=1,
            memory_limit=2**33,
            local_directory="",
            nanny=None,
            server_id=f"worker-{i}",
            scheduler=state,
        )
        state.workers[address] = worker
        state.running.add(worker)
        state.total_nthreads += 1
        state.check_idle_saturated(worker)
    return state


def _ignore(*_args: Any) -> None:
    """Nobody listens to events."""


def _work(*_parents: Any) -> None:
    """Stands in dask's graph for a task's function; never called."""
