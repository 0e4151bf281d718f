"""Gangs: tasks that start each of their phases together, or not at all.

    a   |==cpu==|·······|====gpu====|          a waits for b before its second phase: it holds nothing meanwhile
    b   |=====cpu======||====gpu====|

A gang's phases of one index are queued as one entry, under the lowest of them (the leader), once every member has
arrived there. When a member is lost, the others are stopped (recalled) and all start again; when one fails for good,
all end. A task that joins when the others have started runs on its own. Here is who is in the way; what arrives is
kept by `order.gathering.Gathering`.
"""

from __future__ import annotations

from collections.abc import Collection

from egs_core.engine.state.lifecycle import ENDED
from egs_core.engine.state.state import State


def index_of(state: State, phase: int) -> int:
    """Which of its task's phases it is, from 0."""
    return phase - state.first_phase[state.task_of[phase]]


def missing_members(state: State, gang: int, index: int, arrived: Collection[int]) -> list[int]:
    """Members that the phases of this index still wait for."""
    return [task for task in state.gangs[gang].members if _is_missing(state, task, index, arrived)]


def _is_missing(state: State, task: int, index: int, arrived: Collection[int]) -> bool:
    first, end, cursor = state.first_phase[task], state.first_phase[task + 1], state.cursor[task]
    if end - first <= index or (cursor in arrived and cursor - first == index):
        return False
    return state.status[cursor] not in ENDED
