"""Why a task of a DAG run waits, in one sentence. Pure: everything that is asked is among the arguments.

not ready ─ dependency │ scheduled ─ pause, pool, kept slot, limit, order │ queued ─ executor
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

ACTIVE = ("running", "queued", "restarting")
"""States in which a task has its slots."""

DONE = ("success", "skipped")
MOST_NAMED = 3


class Task(msgspec.Struct, frozen=True):
    """A task instance as it is now."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    state: str = ""
    pool: str = ""
    slots: int = 1
    weight: int = 0
    id: str = ""

    @property
    def label(self) -> str:
        """Its name in its run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class Pool(msgspec.Struct, frozen=True):
    """slots, open: -1 for no limit."""

    name: str
    slots: int
    open: int


class Dag(msgspec.Struct, frozen=True):
    """What holds for all tasks of the run. most_active: `max_active_tasks`; keeps: slots may be kept for its tasks."""

    dag_id: str
    is_paused: bool
    most_active: int
    run_state: str
    parents: Mapping[str, Sequence[str]]
    keeps: bool = False


def why(task: Task, dag: Dag, own: Sequence[Task], pools: Mapping[str, Pool], others: Sequence[Task]) -> str:
    """Why the task does not run; "" for one that does. own: all tasks of its run; others: who holds or waits for slots
    of its pool, of all runs."""
    if task.state in ("running", "restarting"):
        return ""
    if task.state == "scheduled":
        return _for_a_slot(task, dag, own, pools.get(task.pool), [one for one in others if one.pool == task.pool])
    if task.state in FIXED:
        return FIXED[task.state]
    if dag.run_state == "queued":
        return "the run has not begun: limit of active runs (max_active_runs)"
    return _for_others(task, dag, own)


FIXED = {
    "queued": "has its slots, and waits for its executor to start it (parallelism, or busy workers)",
    "up_for_retry": "has failed, and waits for its next try (retry_delay)",
    "up_for_reschedule": "looks again later whether what it watches has happened",
    "deferred": "waits for what it watches; the triggerer wakes it up",
}
"""Where the state says it all."""


def _for_others(task: Task, dag: Dag, own: Sequence[Task]) -> str:
    above = set(dag.parents.get(task.task_id, ()))
    waiting = [one for one in own if one.task_id in above and one.state not in DONE]
    if not waiting:
        return "nothing stands before it: the scheduler looks at this run again soon"
    return "dependency: waits for " + _named(f"{one.label} ({one.state or 'not ready'})" for one in waiting)


def _for_a_slot(task: Task, dag: Dag, own: Sequence[Task], pool: Pool | None, others: Sequence[Task]) -> str:
    if dag.is_paused:
        return "the DAG is paused"
    if pool is not None and 0 <= pool.slots < task.slots:
        return f"it will never start: it needs {task.slots} slots, pool {pool.name} has {pool.slots}"
    if pool is not None and 0 <= pool.open < task.slots:
        return _full(task, pool, others)
    active = sum(one.state in ACTIVE for one in own)
    if active >= dag.most_active:
        return f"limit: {active} tasks of this run are active, max_active_tasks is {dag.most_active}"
    return _behind(task, dag, pool, others)


def _full(task: Task, pool: Pool, others: Sequence[Task]) -> str:
    """More slots are needed than are open."""
    holders = [one for one in others if one.state in ACTIVE or one.state == "deferred"]
    needs = f"pool {pool.name}: needs {task.slots} of {pool.slots} slots, {pool.open} open"
    if not holders:
        return f"{needs}; held by tasks that you may not see, or that have just ended"
    return f"{needs}; held by {_named(f'{place(one, task)} ({one.slots})' for one in holders)}"


def _behind(task: Task, dag: Dag, pool: Pool | None, others: Sequence[Task]) -> str:
    """There is room: who goes first, or for whom it is kept."""
    ahead = sorted(
        (o for o in others if o.state == "scheduled" and o.weight > task.weight), key=lambda one: -one.weight
    )
    large = [one for one in ahead if dag.keeps and one.dag_id == dag.dag_id and pool and one.slots > pool.open >= 0]
    if large and pool is not None:
        first = large[0]
        kept_for = f"{place(first, task)}, which weighs {first.weight} and needs {first.slots}"
        return f"pool {pool.name}: {pool.open} open, kept for {kept_for}"
    if ahead:
        return f"order: {len(ahead)} heavier in its pool, {_named(place(one, task) for one in ahead)}"
    return "has room in its pool: goes in the scheduler's next pass, or when parallelism allows"


def place(one: Task, seen_from: Task) -> str:
    """A task as another one calls it: with its DAG, where that is not its own, and with its run, where that is not."""
    if one.dag_id != seen_from.dag_id:
        return f"{one.dag_id}.{one.label}"
    return one.label if one.run_id == seen_from.run_id else f"{one.label} of {one.run_id}"


def _named(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return ", ".join(known[:MOST_NAMED]) + more
