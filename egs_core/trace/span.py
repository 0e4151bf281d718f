"""A span, as OpenTelemetry has them, and ids that are the same each time: what is sent twice is there once."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

Value = str | bool | int | float | tuple[str, ...] | tuple[int, ...]
Attributes = dict[str, Value]


class Event(msgspec.Struct, frozen=True):
    """Something that was at a moment. at_s: in seconds since 1970."""

    name: str
    at_s: float
    attributes: Attributes = {}


class Span(msgspec.Struct, frozen=True):
    """One span. trace: 32, id, parent: 16 hex digits, parent "" for the first of a trace; times in seconds since 1970;
    links: ids of spans of the same trace. error: what went wrong, None where nothing did."""

    trace: str
    id: str
    parent: str
    name: str
    start_s: float
    end_s: float
    attributes: Attributes = {}
    events: tuple[Event, ...] = ()
    links: tuple[str, ...] = ()
    error: str | None = None


def trace_id(*names: object) -> str:
    """Of what these names say."""
    return _digits(names, 32)


def span_id(*names: object) -> str:
    """The same, of a span."""
    return _digits(names, 16)


def stated(values: Mapping[str, Value | None]) -> Attributes:
    """Attributes without those that nobody knows."""
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def _digits(names: tuple[object, ...], count: int) -> str:
    return sha256("\0".join(map(str, names)).encode()).hexdigest()[:count]
