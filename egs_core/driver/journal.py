"""A journal's entries: what went into an engine and what that changed, so that its state can be had again.

    {"j":"entry","now":1.5,"event":{"e":"ended",…},"transitions":[["clock",[1.5]],["end",[7,5]],…]}

Whoever keeps them has each durable before anything that the engine decided is told or carried out (`barrier`).
Recovery folds transitions and never decides again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from egs_core.engine.messages import AnyEvent, Event
from egs_core.engine.state.journal import Transition, fold
from egs_core.engine.state.snapshots import decode_state, with_slots_for_all
from egs_core.engine.state.state import State
from egs_core.errors import InputError


class Entry(msgspec.Struct, frozen=True, tag_field="j", tag="entry"):
    """One event, and the transitions of the state that it caused, each (name, arguments)."""

    now: float
    event: AnyEvent
    transitions: list[tuple[str, tuple[Any, ...]]]


def encode_entry(event: Event, now: float, transitions: list[Transition]) -> bytes:
    """One entry, as JSON."""
    return _encoder.encode({"j": "entry", "now": now, "event": event, "transitions": transitions})


def folded(snapshot: bytes, entries: Iterable[bytes], place: str) -> State:
    """The state that a snapshot (b"": none) and the entries after it lead to. Raises InputError that names `place`, and
    which entry is damaged."""
    state = _snapshot_state(snapshot, place) if snapshot else State()
    for number, entry in enumerate(entries, start=1):
        _fold(state, entry, f"{place} entry {number}")
    return with_slots_for_all(state)


def _snapshot_state(snapshot: bytes, place: str) -> State:
    try:
        return decode_state(snapshot)
    except ValueError as error:
        raise InputError(place, str(error)) from None


def _fold(state: State, data: bytes, place: str) -> None:
    try:
        entry = _decoder.decode(data)
    except RecursionError:
        raise InputError(place, "nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(place, f"is not a journal entry: {error}") from None
    try:
        fold(state, entry.event, entry.transitions)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"does not follow from the entries before it: {type(error).__name__}: {error}"
        raise InputError(place, problem, "the journal is damaged") from None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)
