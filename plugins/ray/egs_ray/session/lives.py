"""The lives of a script's actors: a thread that looks how each fares, for as long as there is one.

Ray tells this process of its actors as it is; to ask what is known here costs less than a microsecond. A waiting actor
whose handles have gone dies without a word to it, so of those the cluster is asked, once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from egs_ray import actors, submitting
from egs_ray.actors import ActorRef

LOOK_S = 0.05
ASK_S = 1.0


class Lives:
    """See the module. on_alive(index, node, pid): its `__init__` has returned; on_end(index): it is dead for good. Both
    are called on the thread; `on_failure` with what ends that."""

    def __init__(
        self,
        on_alive: Callable[[int, str, int], None],
        on_end: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._on_alive, self._on_end, self._on_failure = on_alive, on_end, on_failure
        self._lock = threading.Lock()
        self._watched: dict[int, ActorRef] = {}
        self._alive: set[int] = set()
        self._runs = self._closed = False
        self._asked_s = 0.0

    def watch(self, index: int, ref: ActorRef) -> None:
        """From any thread."""
        with self._lock:
            self._watched[index] = ref
            if not (self._runs or self._closed):
                self._runs = True
                threading.Thread(target=self._run, name="egs-actors", daemon=True).start()

    def close(self) -> None:
        """Nobody asks any more."""
        with self._lock:
            self._closed = True
            self._watched.clear()

    def _run(self) -> None:
        submitting.submit_directly()
        try:
            while self._watches():
                self._look()
                time.sleep(LOOK_S)
        except Exception as error:
            if not self._closed:
                self._on_failure(error)

    def _watches(self) -> bool:
        with self._lock:
            self._runs = bool(self._watched)
            return self._runs

    def _look(self) -> None:
        now = time.monotonic()
        if asks := now - self._asked_s >= ASK_S:
            self._asked_s = now
        for index, ref in list(self._watched.items()):
            state = ref.state()
            waits = state is None or state == actors.PENDING
            if state == actors.DEAD or (asks and waits and actors.is_dead(ref)):
                with self._lock:
                    self._watched.pop(index, None)
                self._alive.discard(index)
                self._on_end(index)
            elif state == actors.ALIVE and index not in self._alive:
                self._alive.add(index)
                self._on_alive(index, *actors.process_of(ref))
