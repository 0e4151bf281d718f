"""Moments of a site's clock, for people: what a server tells is read long after the second in which its clock was 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from egs_core.engine.messages import in_seconds


def wall_clock(epoch: float) -> Callable[[float], str]:
    """How moments are written of a clock that was 0 at this second since 1970: in UTC, since who reads may be in
    another time zone than the server; never as "so long ago", which would be another text each second.

    >>> wall_clock(1_700_000_000.0)(370.574)
    '2023-11-14 22:19:30 UTC'
    """

    def written(at: float) -> str:
        try:
            return datetime.fromtimestamp(epoch + at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        except (OverflowError, ValueError, OSError):
            return in_seconds(at)  # a deadline in a year that no calendar has

    return written
