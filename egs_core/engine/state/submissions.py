"""What changes of submissions and their queues' histories: functions that only `State`'s methods call."""

from __future__ import annotations

from egs_core.engine.state.columns import Columns
from egs_core.engine.state.histories import MOST_NAMES, OVER, SLOT_MILLI, UNKNOWN, QueueHistory, Submission, mean_s
from egs_core.engine.state.lifecycle import ENDED
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.graph.columns import Shape


def join_submission(state: Columns, submission: str, name: str, queue: str) -> int:
    """The number of the submission that a new workload belongs to; "" : one of its own."""
    number = state.submission_numbers.get(submission) if submission else None
    if number is None:
        number = len(state.submissions)
        history = queue if queue in state.queue_numbers else ""
        state.submissions.append(Submission(submission, f"{history}/{name}" if name else "", queue, history))
        state.histories.setdefault(history, QueueHistory())
        if submission:
            state.submission_numbers[submission] = number
    return number


def count_block(state: Columns, workload: int, first: int) -> None:
    """Tasks from number `first` on have joined the workload."""
    submission = state.submissions[state.workloads[workload].submission]
    submission.open_tasks += len(state.task_ids) - first
    begin, history = state.first_phase[first], state.histories[submission.history]
    if submission.has_begun and len(state.task_ids) > first:
        submission.has_grown = history.guesses = True
    left_ms = [round(1000 * seconds) for seconds in state.estimate_s[begin:]]
    if state.unknown:
        left_ms = [UNKNOWN if phase in state.unknown else ms for phase, ms in enumerate(left_ms, begin)]
    state.left_ms += left_ms
    known, unknown = dict[int, int](), dict[int, int]()  # by shape: milliseconds, number of phases
    for shape, left in zip(state.shape[begin:], left_ms, strict=True):
        if left == UNKNOWN:
            unknown[shape] = unknown.get(shape, 0) + 1
        else:
            known[shape] = known.get(shape, 0) + left
    history.guesses = history.guesses or bool(unknown)
    for counts in (submission, history):
        for number in {*known, *unknown}:
            _add(counts, state.shapes[number], known.get(number, 0), unknown.get(number, 0))
    if not submission.needs_devices and any(state.shapes[n].gpu_milli for n in {*known, *unknown}):
        submission.needs_devices = True
        if submission.total:
            history.totals.remove(submission.total)
            submission.total = 0


def _add(counts: Submission | QueueHistory, shape: Shape, ms: int, unknown: int) -> None:
    slot, device = shape.cpu_milli or SLOT_MILLI, shape.gpu_milli
    counts.left_slot += slot * ms
    counts.left_device += device * ms
    counts.unknown_slot += slot * unknown
    counts.unknown_device += device * unknown


def recount(state: Columns, phase: int) -> None:
    """Bring what is left of the phase up to date, in its submission and its queue."""
    left = OVER
    if state.status[phase] not in ENDED:
        is_unknown = phase in state.unknown
        left = UNKNOWN if is_unknown else round(1000 * mean_s(state.estimate_s[phase], state.estimate_p95_s[phase]))
    if left != state.left_ms[phase]:
        set_left(state, phase, left)


def set_left(state: Columns, phase: int, left: int) -> None:
    """The phase has so many milliseconds left, or UNKNOWN, or OVER."""
    before, state.left_ms[phase] = state.left_ms[phase], left
    submission = state.submissions[state.submission_of(state.task_of[phase])]
    shape = state.shape_of(phase)
    known = max(left, 0) - max(before, 0)
    unknown = (left == UNKNOWN) - (before == UNKNOWN)
    _add(submission, shape, known, unknown)
    _add(state.histories[submission.history], shape, known, unknown)


def end_phase(state: Columns, phase: int) -> None:
    """The phase has succeeded now: it has nothing left, and what it took is known."""
    submission = state.submissions[state.workloads[state.task_workload[state.task_of[phase]]].submission]
    history, shape = state.histories[submission.history], state.shapes[state.shape[phase]]
    left, state.left_ms[phase] = state.left_ms[phase], OVER
    slot, device = shape.cpu_milli or SLOT_MILLI, shape.gpu_milli
    if left > 0:
        work = slot * left
        submission.left_slot -= work
        history.left_slot -= work
        if device:
            submission.left_device -= device * left
            history.left_device -= device * left
    elif left == UNKNOWN:
        _add(submission, shape, 0, -1)
        _add(history, shape, 0, -1)
    submission.has_begun = True
    started_at = state.started_at[phase]
    if started_at != NOT_STARTED:
        ms = round(1000 * (state.now - started_at)) or 1
        submission.used_slot += slot * ms
        if device:
            submission.used_device += device * ms
            history.gpu_phases.add(ms)
        else:
            history.phases.add(ms)


def close_submission(state: Columns, submission: Submission) -> None:
    """All tasks that it has count as done or have failed for good: its total is learned."""
    totals = state.histories[submission.history].gpu_totals if submission.needs_devices else None
    totals = state.histories[submission.history].totals if totals is None else totals
    if submission.total:
        totals.remove(submission.total)
    submission.total = submission.used_device if submission.needs_devices else submission.used_slot
    if submission.total:
        totals.add(submission.total)
        if submission.has_grown and submission.name:
            _remember(state, submission)


def _remember(state: Columns, submission: Submission) -> None:
    known = state.grown_totals
    known.pop(submission.name, None)
    known[submission.name] = submission.total
    if len(known) > MOST_NAMES:
        del known[next(iter(known))]


def count_anew(state: Columns) -> None:
    """For a snapshot of before there were submissions: each workload is one."""
    for workload in state.workloads:
        workload.submission = join_submission(state, "", workload.name, workload.queue)
        state.submissions[workload.submission].open_tasks = workload.open_tasks
    state.left_ms = [OVER] * len(state.status)
    for phase, shape in enumerate(state.shape):
        submission = state.submissions[state.submission_of(state.task_of[phase])]
        submission.needs_devices = submission.needs_devices or state.shapes[shape].gpu_milli > 0
        submission.has_begun = submission.has_begun or state.status[phase] in ENDED
        recount(state, phase)
