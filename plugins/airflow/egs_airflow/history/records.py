"""What Airflow tells of its past, in the core's words; a workload is a DAG run, a node is a pool.

    scheduled ────────────► queued ───────────► running ─────────────► user's code ──► ended
       Ready     pool, limits  Held: executor     Started  ColdStart                    Ended
                 Held: reservation, while EGS kept open slots of the pool for another

A task holds slots of its pool, and of nothing else: GPUs where the pool is named as one of GPUs, else CPUs, which in
these records are slots. Nothing else that a task may use is known, and nothing is guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from graphlib import TopologicalSorter

from egs_airflow.history.kept import held_back
from egs_airflow.history.seen import ASLEEP, OUTCOMES, Dag, Run, Seen, Try, TryKey
from egs_core.runlog.past import Attempt, Needs, Offer, Past, PastRun, PastTask

EXECUTOR = "executor"
QUEUED = "queued: it has its slots, and waits for its executor to start it"
MOST_EDGES = 100_000  # between the instances of two mapped tasks; of more only those from the instance that ended last


def past_of(
    seen: Seen,
    gpu_pools: Collection[str] = (),
    full_names: bool = False,
    code_s: Mapping[TryKey, float] | None = None,
    label: str = "",
    work: Mapping[TryKey, dict[str, float]] | None = None,
) -> Past:
    """What was seen in the core's words. gpu_pools: whose slots are GPUs. full_names: tasks are called `dag.task`.

    code_s: when the user's code began, of tries for which a listener noted it; before that it was a cold start; work:
    what these have told of their work.
    """
    tries: dict[tuple[str, str], list[Try]] = defaultdict(list)
    for one in seen.tries:
        tries[one.dag_id, one.run_id].append(one)
    runs = [
        _past_run(seen, run, tries[run.dag_id, run.run_id], gpu_pools, full_names, code_s or {}, work or {})
        for run in seen.runs
    ]
    past = Past("airflow", seen.now_s, label, runs, cpu_name="slot", pinned=True)
    past.edges_known = all(dag.parents is not None for dag in seen.dags.values())
    for pool, slots in pool_sizes(seen).items():
        is_gpu = pool in gpu_pools
        past.offers.append(Offer(0.0, pool, 0.0 if is_gpu else float(slots), slots if is_gpu else 0))
    return past


def _past_run(
    seen: Seen,
    run: Run,
    tries: list[Try],
    gpu_pools: Collection[str],
    full_names: bool,
    code_s: Mapping[TryKey, float],
    work: Mapping[TryKey, dict[str, float]],
) -> PastRun:
    dag = seen.dags.get(run.dag_id, Dag(run.dag_id))
    past = PastRun(run.workload, run.dag_id, run.submitted_s, tenant=dag.owner)
    if run.ended_s is not None:
        past.ended_s = max([run.ended_s, *(one.ended_s for one in tries if one.ended_s and one.held_slots)])
        past.outcome, past.cut_off_s = OUTCOMES.get(run.state, "aborted"), run.ended_s
    parents = parents_of(tries, dag)
    for one in {one.task: one for one in tries}.values():
        name = f"{one.dag_id}.{one.task_id}" if full_names else one.task_id
        past.tasks.append(PastTask(one.task, name, _needs(one, gpu_pools), parents[one.task]))
    for one in tries:
        if one.state in ASLEEP and not _keeps(seen, one):
            continue  # it holds nothing, and waits for no slot
        if one.held_slots or one.state != "success":  # an operator that does nothing leaves no record
            past.attempts.append(_attempt(seen, one, _needs(one, gpu_pools), code_s.get(one.key)))
            past.attempts[-1].work = work.get(one.key, {})
    return past


def _needs(one: Try, gpu_pools: Collection[str]) -> Needs:
    slots = float(one.slots) if one.held_slots or one.scheduled_s is not None else 0.0
    return Needs(gpus=slots) if one.pool in gpu_pools else Needs(cpus=slots)


def _keeps(seen: Seen, one: Try) -> bool:
    """Whether a task that sleeps keeps its slots."""
    return one.pool in seen.pools and seen.pools[one.pool].keeps_deferred


def _attempt(seen: Seen, one: Try, needs: Needs, code_s: float | None) -> Attempt:
    """One try: waiting, running, over, or over without a slot."""
    past = Attempt(one.task, max(1, one.number), one.scheduled_s, ended_s=one.ended_s, needs=needs)
    past.outcome = OUTCOMES.get(one.state, "aborted")
    queued_s = one.queued_s
    if one.held_slots and one.started_s is not None and queued_s is not None:
        has_slept = one.was_deferred and not _keeps(seen, one)
        started_s = queued_s if has_slept else one.started_s  # what it held before it first slept is not known
        queued_s = min(queued_s, started_s)
        past.ready_s = queued_s if one.scheduled_s is None else min(one.scheduled_s, queued_s)
        past.started_s, past.code_s = started_s, None if one.was_deferred else code_s
        past.node, past.framework_id, past.pid = one.pool, one.host, one.pid
    if past.ready_s is not None:
        until_s = next(time for time in (queued_s, one.ended_s, seen.now_s) if time is not None)
        past.held = tuple(held_back(one, past.ready_s, until_s, seen.kept))
        if queued_s is not None:
            past.held += ((max(queued_s, past.ready_s), EXECUTOR, QUEUED),)
    return past


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
