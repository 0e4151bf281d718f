"""When the holder's thread takes in what has come: at once, or once for all that comes in some milliseconds.

what can let something go  ─► wake(may_rest=False) ─► a turn now
what cannot                ─► wake(may_rest=True)  ─► a turn REST_S later, for all that came meanwhile
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST_S = 0.01


class Pace:
    """See the module. do: runs an action on the holder's thread; turn: the action, which calls `begun` first."""

    def __init__(self, do: Callable[[Callable[[], None]], None], turn: Callable[[], None]) -> None:
        self._do, self._turn = do, turn
        self._is_woken = self._is_closed = False
        self._rests = threading.Event()
        threading.Thread(target=self._run, name="egs-pace", daemon=True).start()

    def wake(self, may_rest: bool) -> None:
        """From any thread. may_rest: nothing can be let go because of what has come."""
        if may_rest:
            if not self._rests.is_set():
                self._rests.set()
        elif not self._is_woken:
            self._is_woken = True
            self._do(self._turn)

    def begun(self) -> None:
        """A turn begins: what comes from now on needs another one."""
        self._is_woken = False

    def close(self) -> None:
        """No turn follows from here on but those that are asked for at once."""
        self._is_closed = True
        self._rests.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._rests.wait()
            time.sleep(REST_S)
            self._rests.clear()
            self.wake(may_rest=False)
