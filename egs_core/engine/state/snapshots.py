"""Snapshots of the state: one JSON text with a format version."""

from __future__ import annotations

import msgspec

from egs_core.described import describe
from egs_core.engine.state.columns import STATE_VERSION
from egs_core.engine.state.invariants import most_processes
from egs_core.engine.state.lifecycle import GRANTED, HELD, PENDING, READY, SKIPPED
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.engine.state.state import State
from egs_core.engine.state.submissions import count_anew


def decode_state(data: bytes) -> State:
    """The state of a snapshot. Raises ValueError for another format version or damaged data."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != STATE_VERSION:
            raise ValueError(f"snapshot: format version {version}, this engine reads {STATE_VERSION}")
        return _with_slots(_with_submissions(_with_starts(_with_leased_on(msgspec.json.decode(data, type=State)))))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"snapshot: {error}") from error


def _with_leased_on(state: State) -> State:
    """Snapshots once did not say which phases have leases on a node."""
    if not state.leased_on:
        for phase, lease in state.leases.items():
            state.leased_on.setdefault(lease.node, set()).add(phase)
    return state


def _with_starts(state: State) -> State:
    """Snapshots once said 0.0 for a phase that has not started."""
    for phase, status in enumerate(state.status):
        is_old = status in (PENDING, READY, HELD, GRANTED, SKIPPED) or state.ready_at[phase] > 0.0
        if state.started_at[phase] == 0.0 and is_old:
            state.started_at[phase] = NOT_STARTED
    return state


def _with_submissions(state: State) -> State:
    """Snapshots once knew no submissions."""
    if state.workloads and not state.submissions:
        count_anew(state)
    return state


def _with_slots(state: State) -> State:
    """Snapshots once counted a slot for tasks with a warm key only."""
    for number, node in enumerate(state.nodes):
        started = [t for t, n in state.home.items() if n == number and t not in state.parked and state.needs_slot(t)]
        if node.started != len(started):
            node.started = len(started)
            node.process_slots = max(node.process_slots, node.processes)
        node.started_bytes = sum(map(state.memory_of, started))
    return state


def with_slots_for_all(state: State) -> State:
    """What engines had started that counted fewer processes than this one keeps its slots: the end of a journal of
    theirs is a valid state. A journal of this engine's is left as it is."""
    for number, node in enumerate(state.nodes):
        node.process_slots += max(0, node.processes - most_processes(state, number))
    return state


class _Versioned(msgspec.Struct):
    version: int


describe(_Versioned, State)
