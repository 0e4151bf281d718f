"""What must hold after every event. Run at the end of every engine test, and in production on demand."""

from __future__ import annotations

from collections import Counter

from egs_core.engine.meters import COST, GPU_TIME, TIME
from egs_core.engine.specs import KINDS, NO_QUEUE, REQUEUE, UNLIMITED
from egs_core.engine.state.histories import OVER, SLOT_MILLI, UNKNOWN, Submission
from egs_core.engine.state.lifecycle import (
    COLD,
    ENDED,
    HELD,
    HOLDS_LEASE,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    WARMING,
)
from egs_core.engine.state.metering import limits_of, task_reaches, workload_reaches
from egs_core.engine.state.nodes import ELSEWHERE, UNTRACKED, WHOLE_DEVICE
from egs_core.engine.state.records import amounts_of
from egs_core.engine.state.state import State


def validate_state(state: State) -> None:
    """Raise AssertionError, naming what is wrong, when an invariant of the state does not hold."""
    _check_leases(state)
    _check_resources(state)
    _check_processes(state)
    _check_tasks(state)
    _check_quotas(state)
    _check_gangs(state)
    _check_files(state)
    _check_meters(state)
    _check_limits(state)
    _check_work(state)


def _check_leases(state: State) -> None:
    """No lease without holder, no phase without its lease; no more attempts have failed than there were."""
    holders = {p for p, status in enumerate(state.status) if status in HOLDS_LEASE}
    assert holders == set(state.leases), f"leases {sorted(state.leases)} against holders {sorted(holders)}"
    for phase, lease in state.leases.items():
        assert state.nodes[lease.node].alive, f"phase {phase} runs on {state.nodes[lease.node].name}, which is lost"
    on_nodes = {(node, phase) for node, phases in state.leased_on.items() for phase in phases}
    assert on_nodes == {(lease.node, p) for p, lease in state.leases.items()}, f"leases by node: {state.leased_on}"
    for decision, subject in state.decisions.items():
        known = state.parked.get(-1 - subject) if subject < 0 else state.leases[subject].decision
        assert known == decision, f"decision {decision} is open for nothing"
    held = {p for p, status in enumerate(state.status) if status == HELD}
    known_held = set(state.retry_at) | state.paused
    assert held == known_held, f"held {sorted(held)}, to be tried again or paused {sorted(known_held)}"
    assert all(state.pause_of(state.task_of[p]) for p in state.paused), "held for a pause that is over"
    for task, failed in state.failures.items():
        assert 0 < failed <= state.attempt[task], f"task {task}: {failed} of {state.attempt[task]} attempts have failed"


def _check_resources(state: State) -> None:
    """Used plus free is the total; no device over its capacity, but by what runs that another engine has granted."""
    for number, node in enumerate(state.nodes):
        held = [lease for lease in state.leases.values() if lease.node == number]
        cpu = sum(lease.cpu_milli for lease in held)
        assert cpu + node.free_cpu == node.cpu_milli, f"{node.name}: {cpu} + {node.free_cpu} of {node.cpu_milli} CPU"
        if node.memory_bytes != UNTRACKED:
            memory = sum(lease.memory_bytes for lease in held)
            assert memory + node.free_memory == node.memory_bytes, f"{node.name}: memory"
        assert len(node.devices) >= node.gpus, f"{node.name}: {len(node.devices)} devices of {node.gpus}"
        for device, free in enumerate(node.devices):
            used = sum(lease.gpu_milli for lease in held if device in lease.devices)
            offered = 0 if device in node.shut else WHOLE_DEVICE
            beyond = sum(one.gpu_milli for one in held if device in one.devices and one.decision == ELSEWHERE)
            assert offered - WHOLE_DEVICE - beyond <= free <= offered, f"{node.name}: device {device} has {free} free"
            assert used + free == offered, f"{node.name}: device {device}: {used} used, {free} free"
            if node.gpu_memory_bytes != UNTRACKED:
                memory = sum(lease.gpu_memory_bytes for lease in held if device in lease.devices)
                left = node.device_memory[device]
                assert memory + left == node.memory_of(device), f"{node.name}: device {device}: {left} bytes free"
            slices = [lease.positions for lease in held if device in lease.devices]
            assert sum(slices) == node.positions.get(device, 0), f"{node.name}: device {device}: slices {slices}"


def most_processes(state: State, number: int) -> int:
    """How many may have a slot of the node: as many as it has, and all of a gang that took one (`rules.processes`)."""
    started = [t for t, n in state.home.items() if n == number and t not in state.parked and state.needs_slot(t)]
    gangs = Counter([state.gang_of[t] for t in started if t in state.gang_of])
    return state.nodes[number].process_slots + max([0, *(count - 1 for count in gangs.values())])


def _check_processes(state: State) -> None:
    """Every process is counted once: with a started task, parked for a task, or idle."""
    for number, node in enumerate(state.nodes):
        parked = [t for t in state.parked if state.home[t] == number]
        started = [t for t, n in state.home.items() if n == number and t not in state.parked and state.needs_slot(t)]
        assert node.parked == len(parked), f"{node.name}: {node.parked} parked, {len(parked)} found"
        assert node.started == len(started), f"{node.name}: {node.started} started, {len(started)} found"
        assert node.started_bytes == sum(map(state.memory_of, started)), f"{node.name}: memory of what has started"
        warming = sum(state.warmth[t] == WARMING for t in parked)
        assert node.warming == warming, f"{node.name}: {node.warming} warming, {warming} found"
        assert all(count > 0 for count in node.idle_warm.values()), f"{node.name}: an empty count of idle processes"
        assert node.processes <= most_processes(state, number), f"{node.name}: {node.processes} processes"
        assert node.alive or not node.processes, f"{node.name} is lost and has processes"
    for task in state.parked:
        assert state.warmth[task] != COLD, f"task {task} has a process kept for it but is cold"
        assert state.status[state.cursor[task]] not in HOLDS_LEASE, f"task {task} runs but its process is parked"


def _check_quotas(state: State) -> None:
    """Usage is what the leases hold, and no cohort uses more than its queues' nominal quotas together."""
    used = [[0, 0, 0] for _ in state.queues]
    for phase in state.leases:
        number = state.queue_of(state.task_of[phase])
        if number != NO_QUEUE:
            amounts = amounts_of(state.shape_of(phase))
            used[number] = [a + b for a, b in zip(used[number], amounts, strict=True)]
    for number, queue in enumerate(state.queues):
        assert queue.used == used[number], f"queue {queue.spec.name}: counted {queue.used}, leases hold {used[number]}"
    for cohort in {queue.cohort for queue in state.queues if queue.cohort}:
        _check_cohort(state, cohort)


def _check_cohort(state: State, cohort: tuple[int, ...]) -> None:
    """No more of any kind than the nominal quotas together, but for what was granted under an older configuration, or
    by another engine."""
    for kind, name in enumerate(KINDS):
        nominal = [state.queues[number].spec.nominal[kind] for number in cohort]
        used = sum(state.queues[number].used[kind] for number in cohort) - _taken_over(state, cohort, kind)
        if UNLIMITED in nominal or used <= sum(nominal):
            continue
        for phase, lease in state.leases.items():
            asks = amounts_of(state.shape_of(phase))[kind]
            is_member = state.queue_of(state.task_of[phase]) in cohort
            is_new = lease.decision >= state.queues_since
            names = [state.queues[number].spec.name for number in cohort]
            assert not (asks and is_member and is_new), f"cohort of {names}: {used} {name} used of {sum(nominal)}"


def _taken_over(state: State, cohort: tuple[int, ...], kind: int) -> int:
    """What the cohort uses that another engine has granted."""
    taken = [phase for phase, lease in state.leases.items() if lease.decision == ELSEWHERE]
    own = [phase for phase in taken if state.queue_of(state.task_of[phase]) in cohort]
    return sum(amounts_of(state.shape_of(phase))[kind] for phase in own)


def _check_gangs(state: State) -> None:
    """A gang starts whole: while a member's phase runs, no other member has yet to start the same one of its phases,
    but while all of them are about to start again."""
    for gang in state.gangs:
        if any(t in state.recalled or t in state.stopping for t in gang.members):
            continue
        at = {t: state.cursor[t] - state.first_phase[t] for t in gang.members}
        runs = [at[t] for t in gang.members if state.status[state.cursor[t]] in HOLDS_LEASE]
        for task in gang.members:
            waits = state.status[state.cursor[task]] in (PENDING, READY, HELD)
            has_it = max(runs, default=-1) < len(state.phases_of(task))
            assert not (waits and has_it and at[task] <= max(runs, default=-1)), f"gang {gang.name} runs without {task}"
    for task in state.recalled:
        assert state.status[state.cursor[task]] in HOLDS_LEASE, f"task {task} is recalled and holds nothing"
    for owner, kept in state.reservations.items():
        assert kept.places, f"phase {owner} has reserved nothing"


def _check_files(state: State) -> None:
    """A task reads files of its parents only, and what has been written lies on a node."""
    for task, reads in state.reads.items():
        assert {parent for parent, _ in reads} <= set(state.parents[task]), f"task {task} reads of a stranger"
        assert all(size > 0 for _, size in reads), f"task {task} reads nothing"
    assert set(state.written_on.values()) <= set(range(len(state.nodes))), "files on an unknown node"


def _check_meters(state: State) -> None:
    """A meter runs for what runs and is limited, as fast as that uses; nothing that has ended is metered."""
    for phase in state.charges:
        assert state.status[phase] == RUNNING, f"phase {phase} is charged and does not run"
    for task, meter in state.meters.items():
        phase = state.cursor[task]
        rates = state.charges.get(phase) if state.status[phase] == RUNNING else None
        assert tuple(meter.rates) == (rates or (0.0, 0.0, 0.0)), f"task {task} is metered at {meter.rates}, not {rates}"
        assert meter.limits == limits_of(state, task), f"task {task} is held to {meter.limits}"
        assert min(meter.used) >= 0.0, f"task {task} has used {meter.used} at {meter.at}"
        assert any(state.status[p] not in ENDED for p in state.phases_of(task)), f"task {task} has ended and is metered"
    for number, meter in state.workload_meters.items():
        charges = [state.charges[p] for p in state.workload_charges if state.task_workload[state.task_of[p]] == number]
        assert meter.running == len(charges), f"workload {number}: {meter.running} charged, {len(charges)} found"
        for kind in (GPU_TIME, COST):
            error = abs(meter.rates[kind] - sum(rates[kind] for rates in charges))
            assert error < 1e-6, f"workload {number} is metered at {meter.rates}, its phases use {charges}"
        is_paused = f"workload:{state.workloads[number].id}" in state.pauses
        assert meter.rates[TIME] == (0.0 if is_paused else 1.0), f"workload {number}: its clock is wrong"


def _check_limits(state: State) -> None:
    """What has reached a limit is being stopped, or has ended."""
    for task in state.meters:
        reached = task_reaches(state, task)
        assert reached is None or reached[0] > state.now, f"task {task} has reached a limit at {reached} and runs on"
    for number in state.workload_meters:
        reached = workload_reaches(state, number)
        assert reached is None or reached[0] > state.now, f"workload {number} has reached a limit at {reached}"
    for task, over in state.over_limit.items():
        stops = task in (state.recalled if over.then == REQUEUE else state.stopping)
        has_ended = all(state.status[p] in ENDED for p in state.phases_of(task))
        assert stops or has_ended, f"task {task} is {over.text}, and nothing stops it"


def _check_tasks(state: State) -> None:
    """Nothing is ready before what it waits for is done; a task's phases go in order."""
    for task in range(len(state.task_ids)):
        open_parents = sum(not state.is_done(parent) for parent in state.parents[task])
        assert state.waiting[task] == open_parents, f"task {task} waits for {state.waiting[task]}, not {open_parents}"
        if open_parents:
            for p in state.phases_of(task):
                assert state.status[p] not in {READY, SUCCEEDED} | HOLDS_LEASE, f"task {task} runs before its parents"
        for p in range(state.first_phase[task], state.cursor[task]):
            assert state.status[p] in (SUCCEEDED, SKIPPED), f"phase {p} of task {task} was passed over"
        for p in range(state.cursor[task] + 1, state.first_phase[task + 1]):
            later_runs = state.status[p] in {READY, SUCCEEDED} | HOLDS_LEASE
            assert not later_runs, f"phase {p} of task {task} is ahead of its turn"
    for number, workload in enumerate(state.workloads):
        still_open = sum(
            any(state.status[p] not in ENDED for p in state.phases_of(t))
            for t in workload.numbers
            if state.task_workload[t] == number
        )
        assert workload.open_tasks == still_open, f"{workload.id}: {workload.open_tasks} open, {still_open} found"


def _check_work(state: State) -> None:
    """What submissions and queues have left is the sum over their phases."""
    found = [Submission() for _ in state.submissions]
    by_queue = {name: Submission() for name in state.histories}
    for phase, left in enumerate(state.left_ms):
        assert (left == OVER) == (state.status[phase] in ENDED), f"phase {phase} counts {left} ms"
        number = state.submission_of(state.task_of[phase])
        for sums in (found[number], by_queue[state.submissions[number].history]):
            shape, known, unknown = state.shape_of(phase), max(left, 0), left == UNKNOWN
            sums.left_slot += known * (shape.cpu_milli or SLOT_MILLI)
            sums.left_device += known * shape.gpu_milli
            sums.unknown_slot += unknown * (shape.cpu_milli or SLOT_MILLI)
            sums.unknown_device += unknown * shape.gpu_milli
    pairs = [*zip(found, state.submissions, strict=True), *((by_queue[n], h) for n, h in state.histories.items())]
    for sums, counted in pairs:
        for name in ("left_slot", "left_device", "unknown_slot", "unknown_device"):
            assert getattr(sums, name) == getattr(counted, name), f"{name} of {counted}"
    for number, submission in enumerate(state.submissions):
        tasks = sum(workload.open_tasks for workload in state.workloads if workload.submission == number)
        assert tasks == submission.open_tasks, f"submission {number}: {submission.open_tasks} open tasks, {tasks}"
