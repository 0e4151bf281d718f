"""Sizes and durations as people write them, turned into bytes and seconds. Standard library only: workers import it.

A size without a unit is bytes, a duration without one is seconds. `KiB` is 1024 bytes and `kB` 1000; single letters
(`512m`) are refused, because tools disagree about what they mean.
"""

from __future__ import annotations

import math
import re

from egs_core.errors import InputError

_BYTE_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtpe", start=1):
    _BYTE_UNITS[_letter + "b"] = 1000**_power
    _BYTE_UNITS[_letter + "ib"] = _BYTE_UNITS[_letter + "i"] = 1024**_power

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3}
for _power, _letter in enumerate("KMGTPE", start=1):
    _SUFFIXES[_letter + "i"] = 1024.0**_power
    if _letter != "K":
        _SUFFIXES[_letter] = 1000.0**_power

_SECOND_UNITS = {
    unit: seconds
    for units, seconds in (
        ("us microsecond microseconds", 1e-6),
        ("ms millisecond milliseconds", 1e-3),
        ("s sec secs second seconds", 1.0),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
        ("d day days", 86400.0),
    )
    for unit in units.split()
}

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]*)\s*", re.ASCII)
_SPAN = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*", re.ASCII)
_SIZE_HINT = 'write a number of bytes, or for example "20GiB" or "512 MB"'
_SPAN_HINT = 'write a number of seconds, as 90 or 0.003, or for example "3ms", "90s", "1.5 min" or "2h"'
MAX_BYTES = 2**63 - 1
_MAX_SHOWN = 40


def parse_bytes(value: object, place: str = "size") -> int:
    """`value` (a whole number, or text like "20GiB", "512 MB") in bytes; InputError names `place`.

    >>> parse_bytes("1.5 KiB"), parse_bytes(512)
    (1536, 512)
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        factor = _BYTE_UNITS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise InputError(place, f"{_shown(value)} is not a size", _SIZE_HINT)
        # Whole numbers stay exact; a length guard keeps int() from refusing thousands of digits with its own error.
        exact = match[1].isdigit() and len(match[1]) <= 20
        size: int | float = int(match[1]) * factor if exact else float(match[1]) * factor
        return _checked_bytes(round(size) if math.isfinite(size) else size, value, place)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(place, f"{_shown(value)} is not a size", _SIZE_HINT)
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        raise InputError(place, f"{_shown(value)} is not a whole number of bytes", _SIZE_HINT)
    return _checked_bytes(value, value, place)


def shown_s(seconds: float) -> str:
    """Seconds for people, without the unit: one decimal, and three digits that count where they are few.

    >>> [shown_s(one) for one in (1234.56, 42.0, 1.0426, 0.042, 0.00001234, 0.0, 1e-16)]
    ['1,234.6', '42.0', '1.04', '0.042', '0.0000123', '0.0', '0.0']
    """
    size = abs(seconds)
    if not 1e-9 <= size < 10:
        return f"{seconds if size >= 10 else 0.0:,.1f}"
    text = f"{seconds:.{2 - math.floor(math.log10(size))}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def format_bytes(size_bytes: int) -> str:
    """A size for people, in the largest binary unit that keeps it above one.

    >>> format_bytes(1536), format_bytes(20)
    ('1.5 KiB', '20 B')
    """
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def two_places(amount: float) -> str:
    """Money or hours with two places; what is less than half of the last one is not shown as nothing.

    >>> two_places(1234.5), two_places(0.004), two_places(0), two_places(-0.001)
    ('1,234.50', '<0.01', '0.00', '>-0.01')
    """
    if amount and abs(amount) < 0.005:
        return "<0.01" if amount > 0 else ">-0.01"
    return f"{amount:,.2f}"


def parse_quantity(text: str, place: str = "quantity") -> float:
    """A quantity as Kubernetes writes them, in whole units (CPUs, bytes, GPUs); InputError names `place`.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity

    >>> parse_quantity("500m"), parse_quantity("1.5Gi") == 1.5 * 2**30, parse_quantity("2e3")
    (0.5, True, 2000.0)
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        hint = 'for example "2", "500m" or "16Gi"'
        raise InputError(place, f"{_shown(text)} is no quantity of Kubernetes", hint)
    number, exponent, suffix = match.groups()
    amount = float(f"{number}e{exponent}") if exponent else float(number) * _SUFFIXES[suffix or ""]
    if not 0 <= amount < math.inf:
        raise InputError(place, f"{_shown(text)} is no amount of zero or more")
    return amount


def parse_seconds(value: object, place: str = "duration") -> float:
    """`value` (a number, a timedelta, or text like "2h", "90s", "1h 30m") in seconds; InputError names `place`.

    >>> parse_seconds("1.5 min"), parse_seconds("1h30m"), parse_seconds(3)
    (90.0, 5400.0, 3.0)
    """
    if isinstance(value, str):
        return _checked_seconds(_spans(value, place), value, place)
    total_seconds = getattr(value, "total_seconds", None)  # a timedelta, without importing datetime
    if callable(total_seconds):
        return _checked_seconds(total_seconds(), value, place)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(place, f"{_shown(value)} is not a duration", _SPAN_HINT)
    return _checked_seconds(value, value, place)


def _spans(text: str, place: str) -> float:
    if re.fullmatch(rf"\s*{_NUMBER}\s*", text, re.ASCII):
        return float(text)
    total, position = 0.0, 0
    while match := _SPAN.match(text, position):
        factor = _SECOND_UNITS.get(match[2].lower())
        if factor is None:
            break
        total, position = total + float(match[1]) * factor, match.end()
    if not text or position != len(text):
        raise InputError(place, f"{_shown(text)} is not a duration", _SPAN_HINT)
    return total


def _checked_bytes(size: float, value: object, place: str) -> int:
    if not size >= 0:  # also NaN
        raise InputError(place, f"{_shown(value)} is not a size of zero or more", _SIZE_HINT)
    if size > MAX_BYTES:
        raise InputError(place, f"{_shown(value)} is too large", f"at most {MAX_BYTES} bytes")
    return int(size)


def _checked_seconds(seconds: float, value: object, place: str) -> float:
    try:
        seconds = float(seconds)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise InputError(place, f"{_shown(value)} is not a finite duration of zero or more", _SPAN_HINT)
    return seconds


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python will print
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
