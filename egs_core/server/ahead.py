"""Tasks of a driver as its pool's engine has them, and what is planned for them: see `egs_core.client.ahead`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from egs_core.client.ahead import Planned, TaskOutline
from egs_core.engine.state.lifecycle import HOLDS_LEASE, STATUS_NAMES, WARM
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.engine.state.state import State
from egs_core.runlog.labels import task_called
from egs_core.server.forecast import expected_starts
from egs_core.site.pooled import Driver, Pool

MOST_PLANNED = 100  # of each kind and pool
STATES = {"held": "waiting", "ready": "waiting", "granted": "running", "aborted": "stopped", "skipped": "stopped"}
"""Of the engine's words; others are the same in a run log, but for what has been preempted, which waits."""


def task_outlines(driver: Driver, tasks: Sequence[int], why: Mapping[int, str], epoch: float) -> list[TaskOutline]:
    """Some of its tasks, by the engine's numbers. why: some of them wait; epoch: second since
    1970 at which the engine's clock is 0."""
    return [_task(driver, task, why, epoch) for task in tasks]


def _task(driver: Driver, task: int, why: Mapping[int, str], epoch: float) -> TaskOutline:
    state, found = driver.pool.engine.state, driver.whereabouts.of(task)
    phase = state.cursor[task]
    status = STATUS_NAMES[state.status[phase]]
    told = "succeeded" if state.is_done(task) else STATES.get(status, "waiting" if status == "preempted" else status)
    lease = state.leases.get(phase)
    started, ready = state.started_at[phase], state.ready_at[phase]
    since = started if state.status[phase] in HOLDS_LEASE and started != NOT_STARTED else ready
    phases = state.phases_of(task)
    home = state.home.get(task)
    return TaskOutline(
        number=task,
        id=state.task_ids[task],
        name=state.task_names[task] or state.task_ids[task],
        workload=state.workloads[state.task_workload[task]].name,
        state=told,
        parents=tuple(state.parents[task]),
        since=epoch + since if told in ("waiting", "running") else None,
        seconds=None if any(one in state.unknown for one in phases) else sum(state.estimate_s[one] for one in phases),
        node=state.nodes[lease.node].name if lease is not None else state.nodes[home].name if home is not None else "",
        devices=lease.devices if lease is not None else (),
        gpus=state.shape_of(phase).gpu_milli / 1000,
        is_warm=state.warmth[task] == WARM,
        why=why.get(task, "") if told == "waiting" else "",
        progress="" if found is None else found.where.words,
        told_at=None if found is None else epoch + found.at,
    )


def called_task(state: State, task: int) -> str:
    """Its id, after its name where that is a long number."""
    return task_called(state.task_names[task], state.task_ids[task])


def loaded(pool: Pool, _epoch: float, shown: Callable[[Driver], bool]) -> list[Planned]:
    """What is loaded ahead, or is about to be."""
    state = pool.engine.state
    found = []
    for task in list(state.parked)[: 10 * MOST_PLANNED]:
        driver = _driver_of(pool, task)
        if driver is not None and shown(driver):
            words = "warm" if state.warmth[task] == WARM else "loading"
            found.append(_planned(state, driver, task, state.nodes[state.home[task]].name, None, words))
    return found[:MOST_PLANNED]


def kept(pool: Pool, epoch: float, shown: Callable[[Driver], bool]) -> list[Planned]:
    """Room that is kept for tasks, from when on."""
    state = pool.engine.state
    places = [(phase, node, one.at) for one in state.reservations.values() for phase, node in one.places]
    found = []
    for phase, node, at in places[: 10 * MOST_PLANNED]:
        driver = _driver_of(pool, state.task_of[phase])
        if driver is not None and shown(driver):
            found.append(_planned(state, driver, state.task_of[phase], state.nodes[node].name, epoch + at))
    return found[:MOST_PLANNED]


def starts(pool: Pool, epoch: float, shown: Callable[[Driver], bool]) -> list[Planned]:
    """Tasks that should start next, where that is known."""
    state = pool.engine.state
    found = []
    known = [one for one in expected_starts(pool.engine).items() if one[1]]  # at once: it waits for something else
    for phase, in_s in sorted(known, key=lambda one: one[1])[: 10 * MOST_PLANNED]:
        driver = _driver_of(pool, state.task_of[phase])
        if driver is not None and shown(driver):
            found.append(_planned(state, driver, state.task_of[phase], "", epoch + state.now + in_s))
    return found[:MOST_PLANNED]


def _planned(state: State, driver: Driver, task: int, node: str, at: float | None, words: str = "") -> Planned:
    workload, called = state.workloads[state.task_workload[task]], called_task(state, task)
    gpus = state.shape_of(state.cursor[task]).gpu_milli / 1000
    return Planned(driver.id, called, workload.name, driver.user, workload.queue, node, gpus, at, words)


def _driver_of(pool: Pool, task: int) -> Driver | None:
    """None for one that has left."""
    seat = pool.shared.owner(task)
    return next((one for one in pool.drivers.values() if one.seat is seat), None)
