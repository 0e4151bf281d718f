"""What stands for a reference where its holder tells of the end, and Ray does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray


class ToldRef:
    """Stands where a task has the reference to its result. name: a task's id. kill: ends what it stands for, with the
    words that say why."""

    def __init__(self, name: str, kill: Callable[[str], None]) -> None:
        self.name, self.kill = name, kill
        self._lock = threading.Lock()
        self._is_over = False
        self._told: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether nothing has been told of its end."""
        return not self._is_over

    def task_id(self) -> Any:
        """The task behind it."""
        return ray.TaskID(bytes.fromhex(self.name))

    def on_over(self, callback: Callable[[], None]) -> None:
        """Call `callback` when there is a value or an error; at once where it is there."""
        with self._lock:
            if not self._is_over:
                self._told.append(callback)
                return
        callback()

    def over(self) -> None:
        """It is there, or nobody will hear of it."""
        with self._lock:
            self._is_over, told, self._told = True, self._told, []
        for callback in told:
            callback()
