"""The checks of single hints: each takes the value and its place, and gives the value in plain units.

Raises InputError that names the place. Runs inside workers: standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from egs_core.errors import InputError
from egs_core.preload import PreloadItem
from egs_core.units import parse_seconds


def check_count(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise InputError(place, f"{value!r} is not a number of zero or more")
    return float(value)


def check_gpus(value: object, place: str) -> float:
    count = check_count(value, place)
    if count > 1 and not count.is_integer():
        raise InputError(place, f"{value!r} GPUs cannot be given", "a share of one (below 1) or a whole number")
    return count


def check_positive(value: object, place: str) -> float:
    amount = check_count(value, place)
    if amount == 0:
        raise InputError(place, "must be more than 0", "leave it out for no limit")
    return amount


def check_limit(value: object, place: str) -> float:
    """A span that is a limit: nothing can run for no time."""
    seconds = parse_seconds(value, place)
    if seconds == 0:
        raise InputError(place, "must be more than 0 seconds", "leave it out for no limit")
    return seconds


def check_int(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(place, f"{value!r} is not a whole number")
    return value


def check_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(place, f"{value!r} is not text")
    return value


def check_bool(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(place, f"{value!r} is not True, False or None")
    return value


def check_expect(value: object, place: str) -> tuple[float, ...]:
    spans = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(parse_seconds(span, f"{place}[{i}]") for i, span in enumerate(spans))


def check_flavors(value: object, place: str) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}[{i}]", f"{name!r} is not the name of a flavor", 'a name as in flavors=["a100"]')
    return names


def check_preload(value: object, place: str) -> tuple[PreloadItem, ...]:
    items = (value,) if isinstance(value, PreloadItem | str) or not isinstance(value, Iterable) else tuple(value)
    for i, item in enumerate(items):
        if not isinstance(item, PreloadItem):
            hint = "use egs.modules(...), egs.files(...) or egs.call(...)"
            raise InputError(f"{place}[{i}]", f"{item!r} is not a preload item", hint)
    return items
