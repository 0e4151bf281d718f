"""The claims: what must be true after every event, at every recovery and at the end. To add one, write a function and
put it into its list; what happens at the outside itself (devices, attempts, order) is checked by the `Ledger`.
"""

from __future__ import annotations

from collections.abc import Callable

from egs_core.engine import Engine
from egs_core.engine.state.lifecycle import ENDED, SKIPPED, STATUS_NAMES, SUCCEEDED
from egs_core.engine.state.metering import is_over_limit
from egs_core.errors import InputError
from egs_core.testing.engine_bench import canonical
from egs_core.testing.fault_sim.ledger import ClaimBroken
from egs_core.testing.fault_sim.shell import Shell
from egs_core.testing.fault_sim.surroundings import Surroundings

VALID, LOST, ENDS, TRUE = "the state is valid", "nothing is lost", "every workload ends", "success is real"


# --- after every event ------------------------------------------------------------------------------------------------


def state_is_valid(_world: Surroundings, engine: Engine) -> None:
    """All invariants of the engine; quotas and gangs are among them where the engine has them."""
    try:
        engine.validate_state()
    except AssertionError as error:
        raise ClaimBroken(VALID, str(error)) from error


# --- after every recovery ---------------------------------------------------------------------------------------------


def what_was_written_is_back(world: Surroundings, dead: Shell, recovered: Shell) -> None:
    """A driver that died outside a write is recovered to exactly the state it was in."""
    if dead.is_written and canonical(dead.state) != canonical(recovered.state):
        raise ClaimBroken(LOST, f"the state recovered at {world.now:.3f} is not the one that was written")


# --- at the end -------------------------------------------------------------------------------------------------------


def every_task_has_ended(_world: Surroundings, engine: Engine) -> None:
    """Every workload is closed and every phase of every task is in a final state."""
    state = engine.state
    for task in range(len(state.task_ids)):
        if any(state.status[p] not in ENDED for p in state.phases_of(task)):
            raise ClaimBroken(ENDS, f"{state.task_ids[task]} has not: {engine.explain(task)}")
    still_open = [workload.id for workload in state.workloads if workload.open_tasks]
    if still_open:
        raise ClaimBroken(ENDS, f"all tasks have ended but {', '.join(still_open)}")


def every_submission_is_there(world: Surroundings, engine: Engine) -> None:
    """No block of tasks got lost or was taken twice."""
    for workload in engine.state.workloads:
        expected = sum(s.graph.n_tasks for s in world.plan.submissions if s.workload == workload.id)
        if expected and len(workload.numbers) != expected:
            raise ClaimBroken(LOST, f"{workload.id} has {len(workload.numbers)} tasks of {expected}")
    missing = {s.workload for s in world.plan.submissions} - set(engine.state.workload_numbers)
    if missing:
        raise ClaimBroken(LOST, f"{', '.join(sorted(missing))} was submitted and is not known")


def success_is_real(world: Surroundings, engine: Engine) -> None:
    """What the engine calls succeeded ran at the outside, each phase of its last attempt; and the other way round,
    nothing was given up without a failure, an abort or a parent that did not succeed."""
    state = engine.state
    for task, name in enumerate(state.task_ids):
        if name in world.history:
            continue
        if task in state.over_limit:
            limit_was_reached(world, engine, task)
            continue
        statuses = {state.status[p] for p in state.phases_of(task)}
        count = state.first_phase[task + 1] - state.first_phase[task]
        if statuses == {SUCCEEDED}:
            if not world.ledger.ran_whole(name, state.attempt[task], count):
                raise ClaimBroken(TRUE, f"{name} attempt {state.attempt[task]} succeeded, but not at the outside")
        elif SKIPPED in statuses:
            if name not in world.ledger.skipped:
                raise ClaimBroken(LOST, f"{name} was skipped, and nobody asked for that")
        elif not _has_reason(world, engine, task):
            labels = ", ".join(sorted(STATUS_NAMES[s] for s in statuses))
            raise ClaimBroken(LOST, f"{name} was given up ({labels}) without a reason")


def limit_was_reached(world: Surroundings, engine: Engine, task: int) -> None:
    """What a limit has ended, or another of its gang, had a limit and ran at the outside in that attempt."""
    state = engine.state
    members = state.gangs[state.gang_of[task]].members if task in state.gang_of else [task]
    ran = {(name, attempt) for name, attempt, _ in world.ledger.outcomes}
    if not any(not state.options_of(t).is_none and (state.task_ids[t], state.attempt[t]) in ran for t in members):
        raise ClaimBroken(TRUE, f"{state.task_ids[task]} was ended without reason: {state.over_limit[task]}")


def _has_reason(world: Surroundings, engine: Engine, task: int) -> bool:
    """Its own, or that of another member of its gang."""
    state = engine.state
    members = state.gangs[state.gang_of[task]].members if task in state.gang_of else [task]
    return any(_has_own_reason(world, engine, member) for member in members)


def _has_own_reason(world: Surroundings, engine: Engine, task: int) -> bool:
    state, ledger = engine.state, world.ledger
    name, workload = state.task_ids[task], state.workloads[state.task_workload[task]].id
    if name in ledger.abort_asked or workload in ledger.closed or is_over_limit(state, task):
        return True
    if any(not state.is_done(parent) for parent in state.parents[task]):
        return True
    ends = [o for (t, attempt, _), o in ledger.outcomes.items() if (t, attempt) == (name, state.attempt[task])]
    return "failed" in ends


def nothing_runs_on(world: Surroundings, _engine: Engine) -> None:
    """When the engine is done, so is the world: no process was forgotten."""
    if world.ledger.live:
        names = ", ".join(live.job.name for live in world.ledger.live.values())
        raise ClaimBroken(LOST, f"still running at the end: {names}")
    for worker in world.workers.values():
        if worker.living:
            raise ClaimBroken(LOST, f"processes left on {worker.name}: (task, attempt) {worker.living}")


def the_entries_lead_here(world: Surroundings, engine: Engine) -> None:
    """Recovering once more gives the final state."""
    try:
        found = world.store.state()
    except InputError as error:
        raise ClaimBroken(LOST, f"the store cannot be read: {error}") from error
    if canonical(found) != canonical(engine.state):
        raise ClaimBroken(LOST, "the entries do not lead to the final state")


AFTER_EVENT: list[Callable[[Surroundings, Engine], None]] = [state_is_valid]
AFTER_RECOVERY: list[Callable[[Surroundings, Shell, Shell], None]] = [what_was_written_is_back]
AT_END: list[Callable[[Surroundings, Engine], None]] = [
    every_task_has_ended,
    every_submission_is_there,
    success_is_real,
    nothing_runs_on,
    the_entries_lead_here,
]
