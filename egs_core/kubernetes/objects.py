"""Fields of objects as the API server has them. What cannot be read counts as not stated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]
_SUFFIXES = {
    "": 1.0,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
    **{unit: 1000.0**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
LAST_MOMENT = 253_370_764_800.0
"""The beginning of the year 9999: later ones cannot be written."""


def quantity(stated: object) -> float:
    """A quantity of Kubernetes as a number; what is none counts as 0.

    >>> quantity("1500m"), quantity("2Gi"), quantity("1e3"), quantity("?")
    (1.5, 2147483648.0, 1000.0, 0.0)
    """
    found = str(stated if stated is not None else "0").strip()
    unit = found[len(found.rstrip("munkKMGTPEi")) :]
    return max(0.0, (number(found[: len(found) - len(unit)] if unit else found) or 0.0) * _SUFFIXES.get(unit, 0.0))


def seconds_of(stated: object) -> float:
    """The Unix time of a moment as RFC 3339 has it; 0 where it is none, or one that no pod's can be.

    >>> seconds_of("2026-01-01T00:00:00Z"), seconds_of("tomorrow"), seconds_of("0001-01-01T00:00:00Z")
    (1767225600.0, 0.0, 0.0)
    """
    try:
        found = datetime.fromisoformat(stated) if isinstance(stated, str) and stated else None
    except ValueError:
        return 0.0
    at = found.timestamp() if found is not None and found.tzinfo is not None else 0.0
    return at if 0 < at <= LAST_MOMENT else 0.0


def moment(at: float) -> str:
    """A Unix time as RFC 3339, whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")


def object_of(stated: str) -> Object | None:
    """An object of JSON; None where it is none."""
    try:
        found = json.loads(stated)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def length_s(stated: object) -> float | None:
    """Seconds; None where it is no length of time."""
    found = number(stated)
    return found if found is not None and found >= 0 else None


def number(stated: object) -> float | None:
    """A number, or a text of one; None where it is neither, or no sensible one."""
    if isinstance(stated, bool) or not isinstance(stated, str | int | float):
        return None
    try:
        found = float(stated)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and abs(found) < 1e15 else None


def part(raw: Object, name: str) -> Object:
    """A field of an object that is one itself; empty where it is not there."""
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def items(raw: Object, name: str) -> list[Object]:
    """A field that lists objects."""
    found: Iterable[object] = raw.get(name) or ()
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


def text(raw: Object, name: str) -> str:
    """A field as text."""
    found = raw.get(name)
    return "" if found is None else str(found)
