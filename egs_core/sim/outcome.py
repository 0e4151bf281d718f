"""What a simulated run did about limits and deadlines."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.engine.state.state import State


def over_limit(state: State) -> dict[str, str]:
    """The limit that each workload, and each task as workload/task, has reached."""
    found = {workload.id: workload.over_limit for workload in state.workloads if workload.over_limit}
    for task, over in sorted(state.over_limit.items()):
        found[task_name(state, task)] = over.text
    return found


def late_s(
    state: State, workload_ended_at: Callable[[int], float], task_ended_at: Callable[[int], float]
) -> dict[str, float]:
    """By how much the deadlines of workloads, and those that tasks state themselves, were missed."""
    found: dict[str, float] = {}
    if not state.has_deadlines:
        return found
    for number, workload in enumerate(state.workloads):
        stated_s = state.workload_deadline_s(workload.numbers[0]) if workload.numbers else None
        passed_s = workload_ended_at(number) - workload.submitted_at
        if stated_s is not None and passed_s > stated_s:
            found[workload.id] = passed_s - stated_s
    for task, options in state.options.items():
        passed_s = task_ended_at(task) - state.workloads[state.task_workload[task]].submitted_at
        if options.deadline_s is not None and passed_s > options.deadline_s:
            found[task_name(state, task)] = passed_s - options.deadline_s
    return found


def task_name(state: State, task: int) -> str:
    return f"{state.workloads[state.task_workload[task]].id}/{state.task_ids[task]}"
