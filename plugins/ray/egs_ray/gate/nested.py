"""Mode `on` inside workers, with the cluster's gate: the GPU tasks of tasks and actors are ordered, too.

    task on a worker ─► .remote() ─► ticket of the cluster's gate ─► Ray

What is not for the gate passes untouched, and so does everything where there is no gate. A worker makes none: its
driver has. The driver's run log is told what its workers have submitted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import ray

from egs_core.notices import warn
from egs_ray.gate.client import ClusterGate
from egs_ray.gate.ordering import Ordering
from egs_ray.gate.ticketing import note_of
from egs_ray.submission import Needs, Submission

MOST_NOTES = 10_000  # of a worker that has not submitted a GPU task yet


def make_interceptor(settings: Mapping[str, str] | None = None) -> Nested:
    """The interceptor of this worker; settings: the EGS variables of its driver."""
    return Nested((os.environ if settings is None else settings).get("EGS_GATE", "").strip().lower() == "cluster")


class Nested:
    """The `Interceptor` of a worker."""

    def __init__(self, is_ordering: bool) -> None:
        self._ordering = Ordering(self._make_gate, _unknown, self._switch_off, _running_task)
        self._notes: deque[Submission] = deque(maxlen=MOST_NOTES)
        self._is_off = not is_ordering

    def submit(
        self,
        original: Callable[..., Any],
        remote_function: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        """The submission, ordered where it can be."""
        if self._is_off or ray.util.get_current_placement_group() is not None:
            return original(remote_function, args, kwargs, **options)
        at_s = time.time()
        result = self._ordering.submit(original, remote_function, args, kwargs, options)
        try:
            self._note(note_of(at_s, remote_function, args, kwargs, options, result))
        except Exception as error:
            self._switch_off(error)
        return result

    def session_starts(self) -> None:
        """A worker is connected from its start to its end."""

    def session_ends(self) -> None:
        """The gate goes with the connection."""
        self._ordering.end_session()

    def close(self) -> None:
        """The process ends."""

    def _note(self, submission: Submission) -> None:
        gate = self._ordering.gate
        if not isinstance(gate, ClusterGate):
            self._notes.append(submission)
            return
        while self._notes:
            gate.note(self._notes.popleft())
        gate.note(submission)

    def _make_gate(self) -> ClusterGate:
        return ClusterGate(_unknown, _ignore, self._switch_off, _ignore, is_driver=False)

    def _switch_off(self, error: BaseException) -> None:
        if self._ordering.switch_off():
            self._is_off = True
            if not isinstance(error, ValueError):  # no actor of that name: this driver has a gate of its own
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                warn(f"tasks of this worker go to Ray as they are submitted: {reason}")


def _unknown(needs: Needs) -> float | None:  # noqa: ARG001  # a worker knows no history
    return None


def _ignore(told: Any) -> None:
    """Run logs are the driver's."""


def _running_task() -> str:
    """The task whose code submits; "" where that is not known, as on a thread of the user's."""
    if threading.current_thread() is not threading.main_thread():
        return ""
    return str(ray.get_runtime_context().get_task_id() or "")
