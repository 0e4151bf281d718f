"""Numbers as people read them."""

from __future__ import annotations

NBSP = "\u00a0"
NONE = "–"  # noqa: RUF001  (an en dash is how a table says "no figure")


def seconds(value: float | None) -> str:
    """`0.25 s`, `12.3 s`, `4 min 05 s`, `3 h 20 min`."""
    if value is None:
        return NONE
    if value < 300:
        return number(value) + NBSP + "s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes}{NBSP}min{NBSP}{rest:02d}{NBSP}s"
    return f"{minutes // 60:,}{NBSP}h{NBSP}{minutes % 60:02d}{NBSP}min"


def amount(value: float | None, unit: str) -> str:
    """A number with a unit, `41.5 GPU·s`."""
    return NONE if value is None else number(value) + NBSP + unit


def number(value: float | None) -> str:
    """About three digits, thousands apart: `0.25`, `12.3`, `1,234`."""
    if value is None:
        return NONE
    digits = 0 if abs(value) >= 100 or value == round(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A ratio as a percentage, `4.2 %`."""
    return NONE if value is None else f"{value * 100:.{0 if value >= 0.995 or value == 0 else 1}f}{NBSP}%"


def short(text: str, most: int = 40) -> str:
    """At most `most` characters; what is left out in the middle is an ellipsis, for names often differ at the end."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"
