"""The API server's clock, as its answers tell it: moments that one process writes are read by another one elsewhere.

    asked ──────────── answered           by our clock
           ▲ Date: 12:00:07               by the server's: between 12:00:07 and 12:00:08

So it is ahead of ours by at least 12:00:07 less `answered`, and at most 12:00:08 less `asked`. What is believed moves
no further than that asks for: clocks that agree stay as they are, however long answers take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

RESOLUTION_S = 1.0
"""An answer's `Date` has whole seconds."""


class ServerClock:
    """See the module. local: this machine's clock, Unix time; any thread may ask and tell."""

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self.local = local
        self._ahead_s = 0.0

    def now(self) -> float:
        """Unix time, as the server has it; ours before anything was heard."""
        return self.local() + self._ahead_s

    def heard(self, date: str, asked_at: float) -> None:
        """An answer has come just now. date: of it; asked_at: by the local clock. What is no date says nothing."""
        try:
            at = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        least, most = at - self.local(), at + RESOLUTION_S - asked_at
        self._ahead_s = min(max(self._ahead_s, least), most)
