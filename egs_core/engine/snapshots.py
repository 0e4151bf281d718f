"""Snapshots of the state: one JSON text with a format version."""

from __future__ import annotations

import msgspec

from egs_core.engine.capacity import NOT_STARTED
from egs_core.engine.columns import STATE_VERSION
from egs_core.engine.lifecycle import GRANTED, HELD, PENDING, READY, SKIPPED
from egs_core.engine.state import State


def decode_state(data: bytes) -> State:
    """The state of a snapshot. Raises ValueError for another format version or damaged data."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != STATE_VERSION:
            raise ValueError(f"snapshot: format version {version}, this engine reads {STATE_VERSION}")
        return _with_starts(msgspec.json.decode(data, type=State))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"snapshot: {error}") from error


def _with_starts(state: State) -> State:
    """Snapshots once said 0.0 for a phase that has not started."""
    for phase, status in enumerate(state.status):
        is_old = status in (PENDING, READY, HELD, GRANTED, SKIPPED) or state.ready_at[phase] > 0.0
        if state.started_at[phase] == 0.0 and is_old:
            state.started_at[phase] = NOT_STARTED
    return state


class _Versioned(msgspec.Struct):
    version: int
