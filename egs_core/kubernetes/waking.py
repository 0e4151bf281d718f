"""When the controller's loop looks again: at once for what comes while it waits, after a rest for what has come before.

event            │        │ │││ ││││││ │
look         ────█────────██··███··████··──      ·· a fifth of the time on a busy cluster
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST, LEAST_S, MOST_S = 0.25, 0.02, 0.25
"""It rests for so much of the time that the last look took, but for that long at least and no longer than that."""


class Waking:
    """Set by any thread; one waits. clock: any that never goes back, in seconds; sleep: for so many seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._woken = threading.Event()
        self._looks_since = clock()

    def set(self) -> None:
        self._woken.set()

    def wait(self, most_s: float) -> None:
        """Until it is set, for most_s at the most. Where it is set already, all that comes in a rest is one look."""
        if self._woken.is_set():
            self._sleep(min(max(REST * (self._clock() - self._looks_since), LEAST_S), MOST_S))
        else:
            self._woken.wait(most_s)
        self._woken.clear()
        self._looks_since = self._clock()
