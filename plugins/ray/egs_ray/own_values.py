"""References of this driver's without a value so far: `ref = values.new()`, later `keep(ref, value)`. No process stands
behind them, as one does behind `promises`. Part of `compat` (feature own_values): private Ray API.

    new      a reference whose owner is said to be this process, which Ray therefore asks nobody for
    keep     the reference once more, as another process would hand it over: together with its value

Ray itself does the second when a reference to a small value comes out of a message. What waits for it goes on then, and
gets the value with its arguments. When this process ends, what waits ends with it, as its tasks do anyway.
"""

from __future__ import annotations

import os
from typing import Any

import ray

from egs_ray.compat import available

ANSWER_S = 5.0
UNIQUE = 8  # bytes of an id before those that name the job


class OwnValues:
    """From any thread while Ray is connected; one for each Ray session. Raises RuntimeError where this build of Ray
    does not do what is said above; it is tried once, with a value of its own."""

    def __init__(self) -> None:
        from ray.core.generated.core_worker_pb2 import GetObjectStatusReply

        self._reply = GetObjectStatusReply
        some = ray.put(None)
        _, self._owner, _ = _core().serialize_object_ref(some)
        self._id_after = some.binary()[UNIQUE:]
        self._of_none = self._status(None)
        self._try()

    def new(self) -> ray.ObjectRef:
        """A reference without a value. For one task each: a driver's Ray fails a check when of several tasks that wait
        for one reference one is cancelled."""
        ref = ray.ObjectRef(os.urandom(UNIQUE) + self._id_after)
        self._hand_over(ref, b"")
        return ref

    def keep(self, ref: ray.ObjectRef, value: Any) -> None:
        """Give it its value, plain data without references; nothing happens where it has one."""
        self._hand_over(ref, self._of_none if value is None else self._status(value))

    def _hand_over(self, ref: ray.ObjectRef, status: bytes) -> None:
        _core().deserialize_and_register_object_ref(ref.binary(), ray.ObjectRef.nil(), self._owner, status)

    def _status(self, value: Any) -> bytes:
        """What an owner answers who has the value."""
        written = ray._private.worker.global_worker.get_serialization_context().serialize(value)
        reply = self._reply()
        reply.object.data, reply.object.metadata = written.to_bytes(), written.metadata
        reply.object_size = len(reply.object.data)
        return bytes(reply.SerializeToString())

    def _try(self) -> None:
        tried, kept = self.new(), {"is": ["kept"]}
        is_there = bool(ray.wait([tried], timeout=0)[0])
        self.keep(tried, kept)
        if is_there or ray.get(tried, timeout=ANSWER_S) != kept:
            raise RuntimeError("this Ray does not take values of a driver's own")


def make_own_values() -> OwnValues | None:
    """None where this Ray has nothing of the kind, or says otherwise when it is tried."""
    if not available("own_values"):
        return None
    try:
        return OwnValues()
    except Exception:  # whatever it is: `promises` need only what Ray promises
        return None


def _core() -> Any:
    worker = ray._private.worker.global_worker
    worker.check_connected()  # Ray ends a process that asks for a core which is no more
    return worker.core_worker
