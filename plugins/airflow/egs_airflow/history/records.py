"""Run log records from what Airflow tells of its past; a workload is a DAG run, a node is a pool.

    scheduled ────────────► queued ───────────► running ─────────────► user's code ──► ended
       Ready     pool, limits  Held: executor     Started  ColdStart                    Ended
                 Held: reservation, while EGS kept open slots of the pool for another

A task holds slots of its pool, and of nothing else: GPUs where the pool is named as one of GPUs, else CPUs, which in
these records are slots. Nothing else that a task may use is known, and nothing is guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from egs_airflow.history.kept import held_back
from egs_airflow.history.seen import OUTCOMES, Dag, Run, Seen, Try, TryKey
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    WorkloadEnded,
    WorkloadSubmitted,
)

EXECUTOR = "executor"
QUEUED = "queued: it has its slots, and waits for its executor to start it"
MOST_EDGES = 100_000  # between the instances of two mapped tasks; of more only those from the instance that ended last


class HistoryRecords:
    """Records of what was seen. gpu_pools: whose slots are GPUs. full_names: tasks are called `dag.task`.

    code_s: when the user's code began, of tries for which a listener noted it; before that it was a cold start.
    """

    def __init__(
        self,
        seen: Seen,
        gpu_pools: Collection[str] = (),
        full_names: bool = False,
        code_s: Mapping[TryKey, float] | None = None,
    ) -> None:
        self._seen, self._gpu_pools, self._full_names = seen, frozenset(gpu_pools), full_names
        self._code_s = code_s or {}
        self._tries: dict[tuple[str, str], list[Try]] = defaultdict(list)
        for one in seen.tries:
            self._tries[one.dag_id, one.run_id].append(one)
        self._begin_s = min((run.submitted_s for run in seen.runs), default=seen.now_s)

    def header(self, run_id: str, label: str = "") -> Header:
        """The header whose times the records are relative to."""
        return Header(
            run_id=run_id,
            driver="airflow",
            policy="native",
            mode="off",
            started_at=self._begin_s,
            label=label,
            edges_known=all(dag.parents is not None for dag in self._seen.dags.values()),
            cpu_name="slot",
            pinned=True,
        )

    def records(self) -> list[Record]:
        """All of it in the order of time."""
        made = [record for run in self._seen.runs for record in self._run(run)]
        made.extend(self._capacity())
        return sorted(made, key=lambda record: getattr(record, "t", 0.0))

    def _capacity(self) -> Iterator[Record]:
        """What the pools offer; repeated at the end, so that what is still open is measured up to then."""
        is_open = any(run.ended_s is None for run in self._seen.runs)
        end_s = self._seen.now_s if is_open else max((run.ended_s or 0.0 for run in self._seen.runs), default=0.0)
        for pool, slots in pool_sizes(self._seen).items():
            is_gpu = pool in self._gpu_pools
            for t in (0.0, self._t(end_s)):
                yield Capacity(t, pool, 0.0 if is_gpu else float(slots), slots if is_gpu else 0)

    def _run(self, run: Run) -> Iterator[Record]:
        tries, dag = self._tries[run.dag_id, run.run_id], self._seen.dags.get(run.dag_id, Dag(run.dag_id))
        yield WorkloadSubmitted(self._t(run.submitted_s), run.workload, run.dag_id, dag.owner)
        parents = parents_of(tries, dag)
        for one in {one.task: one for one in tries}.values():
            name = f"{one.dag_id}.{one.task_id}" if self._full_names else one.task_id
            t = self._t(run.submitted_s)
            yield TaskAdded(t, run.workload, one.task, name, parents[one.task], (self._needs(one),))
        for one in tries:
            yield from self._try(run, one)
        if run.ended_s is not None:
            ended_s = max([run.ended_s, *(one.ended_s for one in tries if one.ended_s and one.held_slots)])
            yield WorkloadEnded(self._t(ended_s), run.workload, OUTCOMES.get(run.state, "aborted"))

    def _needs(self, one: Try) -> tuple[str, float, float, int]:
        slots = float(one.slots) if one.held_slots or one.scheduled_s is not None else 0.0
        if one.pool in self._gpu_pools:
            return "gpu", 0.0, slots, 0
        return "cpu", slots, 0.0, 0

    def _try(self, run: Run, one: Try) -> Iterator[Record]:
        if one.queued_s is None or one.started_s is None:
            yield from self._not_started(run, one)
            return
        place, attempt, started_s = (run.workload, one.task), max(1, one.number), one.started_s
        queued_s = min(one.queued_s, started_s)
        ready_s = queued_s if one.scheduled_s is None else min(one.scheduled_s, queued_s)
        yield Ready(self._t(ready_s), *place, 0, attempt)
        yield from self._held_back(run, one, ready_s, queued_s)
        yield Held(self._t(queued_s), *place, 0, EXECUTOR, QUEUED)
        _, cpus, gpus, _ = self._needs(one)
        yield Started(
            self._t(started_s), *place, 0, attempt, one.pool, (), cpus, gpus, framework_id=one.host, pid=one.pid
        )
        ended_s = one.ended_s if one.ended_s is not None else run.ended_s
        code_s = self._code_s.get(one.key, started_s)
        if started_s < code_s and not one.was_deferred:
            cold_end_s = min(code_s, ended_s) if ended_s is not None else code_s
            yield ColdStart(self._t(started_s), self._t(cold_end_s), *place, 0, attempt)
        if ended_s is not None:
            yield Ended(self._t(max(ended_s, started_s)), *place, 0, attempt, OUTCOMES.get(one.state, "aborted"))

    def _not_started(self, run: Run, one: Try) -> Iterator[Record]:
        """Waiting, or over without a slot: skipped; an operator that does nothing leaves no record."""
        place, attempt = (run.workload, one.task), max(1, one.number)
        if one.state == "success":
            return
        if one.scheduled_s is not None:
            yield Ready(self._t(one.scheduled_s), *place, 0, attempt)
            until_s = one.queued_s if one.queued_s is not None else one.ended_s
            yield from self._held_back(run, one, one.scheduled_s, self._seen.now_s if until_s is None else until_s)
            if one.queued_s is not None:
                yield Held(self._t(max(one.queued_s, one.scheduled_s)), *place, 0, EXECUTOR, QUEUED)
        ended_s = run.ended_s if one.ended_s is None else one.ended_s
        if ended_s is not None:
            yield Ended(self._t(ended_s), *place, 0, attempt, "skipped")

    def _held_back(self, run: Run, one: Try, ready_s: float, until_s: float) -> Iterator[Held]:
        for at_s, kind, reason in held_back(one, ready_s, until_s, self._seen.kept):
            yield Held(self._t(at_s), run.workload, one.task, 0, kind, reason)

    def _t(self, at_s: float) -> float:
        return round(max(0.0, at_s - self._begin_s), 6)


def pool_sizes(seen: Seen) -> dict[str, int]:
    """Slots of each pool; of one without a limit, or that is gone, as many as were taken at once."""
    sizes = {pool.name: pool.slots for pool in seen.pools.values()}
    for name in {one.pool for one in seen.tries}:
        if sizes.get(name, -1) < 0:
            sizes[name] = most_at_once(one for one in seen.tries if one.pool == name)
    return {name: slots for name, slots in sorted(sizes.items()) if slots >= 0}


def most_at_once(tries: Iterable[Try]) -> int:
    """The most slots that these held at one moment."""
    held_slots = [one for one in tries if one.held_slots]
    changes = [(one.started_s or 0.0, one.slots) for one in held_slots]
    changes += [(one.ended_s, -one.slots) for one in held_slots if one.ended_s is not None]
    held = most = 0
    for _, by in sorted(changes):
        held += by
        most = max(most, held)
    return most


# --- edges ------------------------------------------------------------------------------------------------------------


def parents_of(tries: Iterable[Try], dag: Dag) -> dict[str, tuple[str, ...]]:
    """What each task instance of one run waited for; what had no slot passes on what it waited for itself."""
    by_id: dict[str, list[Try]] = defaultdict(list)
    for one in {one.task: one for one in tries}.values():
        by_id[one.task_id].append(one)
    above = {name: ups for name, ups in (dag.parents or {}).items() if name in by_id}
    known: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter({**dict.fromkeys(by_id, ()), **above}).static_order():
        for one in by_id.get(name, ()):
            direct = [up for upstream in above.get(name, ()) for up in _upstream(one, by_id, upstream)]
            passed = [earlier for up in direct if not up.held_slots for earlier in known[up.task]]
            known[one.task] = tuple(dict.fromkeys([*(up.task for up in direct), *passed]))
    return known


def _upstream(one: Try, by_id: dict[str, list[Try]], name: str) -> list[Try]:
    """The instances of one upstream task that an instance waited for."""
    above, own = by_id.get(name, []), by_id[one.task_id]
    if len(above) < 2:
        return above
    same = [up for up in above if up.map_index == one.map_index]
    if same and _side_by_side(own, above):
        return same
    if len(above) * len(own) > MOST_EDGES:
        return [max(above, key=lambda up: up.ended_s or 0.0)]
    return above


def _side_by_side(own: list[Try], above: list[Try]) -> bool:
    """Both are in one mapped group: somebody was scheduled before all of the instances above had ended."""
    if {one.map_index for one in own} != {up.map_index for up in above}:
        return False
    last_s = max((up.ended_s or float("inf") for up in above), default=0.0)
    return any(one.scheduled_s is not None and one.scheduled_s < last_s for one in own)
