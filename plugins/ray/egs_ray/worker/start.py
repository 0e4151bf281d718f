"""EGS's part in a worker: what its own tasks submit goes through the gate's client (`egs_ray.gate.nested`).

Ray runs this in every worker of the job before the first task, so it imports next to nothing. Most workers never submit
a task; the client is made when one does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from egs_core.notices import warn
from egs_ray import compat, submitting, waiting

if TYPE_CHECKING:
    from egs_ray.gate.nested import Nested


def start(settings: dict[str, str]) -> None:
    """Send the submissions of this worker through the interceptor of workers; settings: see `settings.for_workers`.

    A driver that this worker starts as a process of its own belongs to the same script, and has the hook too.
    """
    for name, value in {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", **settings}.items():
        os.environ.setdefault(name, value)
    if compat.available("submit") and compat.available("wrap"):
        submitting.wrap_submissions(FirstUse(settings))


class FirstUse:
    """Makes the interceptor at the first submission, from whichever thread; without one every submission is native."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._is_made = False
        self._interceptor: Nested | None = None

    def __call__(
        self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]
    ) -> Any:
        """Make a submission."""
        if not self._is_made:
            self._make()
        if self._interceptor is None:
            return original(target, args, kwargs, **options)
        return self._interceptor.submit(original, target, args, kwargs, options)

    def _make(self) -> None:
        with self._lock:
            if self._is_made:
                return
            try:
                from egs_ray.gate.nested import make_interceptor

                made = make_interceptor(self._settings)
                made.session_starts()
                waiting.before_disconnect(made.session_ends)
                self._interceptor = made
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warn(f"tasks of this worker go to Ray as they are submitted: {reason}")
            self._is_made = True
