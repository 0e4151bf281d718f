"""What stands behind Ray's actors. Part of `compat` (feature actor_handles): private Ray API.

An actor lives for as long as somebody has a handle that counts, so nothing here keeps one: an actor is known by its id.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, cast

import ray

from egs_ray import functions
from egs_ray.compat import available

TRAINS = ("ray.train.v2._internal.execution.controller.controller", "TrainController")
LAST_CALLS = {
    ("ray.train.v2._internal.execution.worker_group.worker", "RayTrainWorker"): "shutdown",
    ("ray.tune.trainable.trainable", "Trainable"): "stop",
}
"""Classes of Ray's libraries whose methods run what the script has given them, each with what is called of it last."""
PENDING, ALIVE, RESTARTING, DEAD = 0, 2, 3, 4
"""What Ray's driver knows of an actor, by Ray's numbers; other numbers: it is being created."""


class ActorRef:
    """Stands for an actor where a task has the reference to its result."""

    def __init__(self, handle: Any) -> None:
        self._id = handle._actor_id
        self.id = str(self._id.hex())

    def task_id(self) -> Any:
        """The task that creates it."""
        return ray.TaskID.for_actor_creation_task(self._id)

    def state(self) -> int | None:
        """One of the module's, as this process has heard of it: that costs no message. None: it knows nothing of it."""
        return cast("int | None", ray._private.worker.global_worker.core_worker.get_local_actor_state(self._id))

    @property
    def is_open(self) -> bool:
        """Whether it has not been created yet, as this process has heard."""
        return self.state() not in (None, ALIVE, RESTARTING, DEAD)

    def kill(self) -> None:
        """End it for good, whether it waits or runs, as `ray.kill` does."""
        with contextlib.suppress(Exception):  # it has ended, and nobody has a handle any more
            ray._private.worker.global_worker.core_worker.kill_actor(self._id, True)


def end(ref: Any, why: str) -> None:
    """End what a reference, the first of a list, an ActorRef or a ToldRef stands for. why: for what Ray knows not."""
    first = ref[0] if isinstance(ref, list) else ref
    if isinstance(first, ray.ObjectRef):
        ray.cancel(first, force=True)
    elif isinstance(first, ActorRef):
        first.kill()
    else:
        first.kill(why)


def class_behind(target: Any) -> type | None:
    """The Python class of an ActorClass, with what Ray has added to it; None for anything else, and where Ray would
    do more than to call it."""
    if not isinstance(target, ray.actor.ActorClass):
        return None
    from ray.util.tracing.tracing_helper import _is_tracing_enabled

    if _is_tracing_enabled():
        return None
    described = cast(Any, target).__ray_metadata__
    return None if described.is_cross_language else cast(type, described.modified_class)


def is_of_library(target: Any) -> bool:
    """Whether an ActorClass is one of Ray's own libraries, which place their actors and wait for them themselves."""
    return str(cast(Any, target).__ray_metadata__.modified_class.__module__).partition(".")[0] == "ray"


def asks_for_groups(made: Any) -> bool:
    """Whether a class is the one of Ray Train that asks for the placement groups of its workers."""
    return available("groups") and isinstance(made, type) and (made.__module__, made.__name__) == TRAINS


def runs_scripts_code(made: Any) -> bool:
    """Whether a class is, or follows from, one of LAST_CALLS: a worker of Train, a trial of Tune."""
    return isinstance(made, type) and bool(_last_call_of(made))


def _last_call_of(made: type) -> str:
    names = ((one.__module__, one.__name__) for one in made.__mro__)
    return next((LAST_CALLS[name] for name in names if name in LAST_CALLS), "")


def signature_of(target: Any) -> inspect.Signature:
    """How an ActorClass is called."""
    return inspect.Signature(cast(Any, target).__ray_metadata__.method_meta.signatures["__init__"])


def with_ticket(made: type, of_function: Callable[[Callable[..., Any]], Callable[..., Any]]) -> type:
    """The class with an argument before those of its own `__init__`, which goes by of_function's twin. It needs nothing
    of this package where it runs. Ray has modified the class already, and takes what follows from it as it is."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        made.__init__(self, *args, **kwargs)  # type: ignore[misc]  # that class's own, whoever has called this one

    twin = of_function(begin)

    def __init__(self: Any, _ticket: Any, /, *args: Any, **kwargs: Any) -> None:
        twin(_ticket, self, *args, **kwargs)

    body = {"__init__": __init__, "__module__": made.__module__, "__qualname__": made.__qualname__}
    if last := _last_call_of(made):
        body[last] = _with_last_words(getattr(made, last))
    return type(made)(made.__name__, (made,), {**body, "__doc__": made.__doc__})


def _with_last_words(last: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The method, which its library calls before it ends the process."""

    def saying(self: Any) -> Any:
        try:
            from egs_ray.worker.working import say_last_words
        except Exception:  # an environment without this package, or with another one
            return last(self)
        say_last_words()
        return last(self)

    return functions.named_like(saying, last)


_private_to: dict[str, Callable[[], None]] = {}  # by the id of an actor that nobody but this process can know


def before_handed_on(ref: ActorRef, callback: Callable[[], None]) -> None:
    """Call `callback` once, before a handle of the actor first leaves this process, in whatever: an argument, a
    function that uses it, an object that was put. From any thread, in the middle of a submission: it must not block.
    """
    _private_to[ref.id] = callback
    original = ray.actor.ActorHandle._serialization_helper
    if not hasattr(original, "egs_watches"):

        def serialized(self: Any) -> Any:
            if _private_to and (told := _private_to.pop(self._actor_id.hex(), None)) is not None:
                told()
            return original(self)

        serialized.egs_watches = True  # type: ignore[attr-defined]  # functions may have attributes
        ray.actor.ActorHandle._serialization_helper = serialized


def no_longer_watched(ref: ActorRef) -> None:
    """Nobody asks any more whether a handle leaves this process: it waits no longer."""
    _private_to.pop(ref.id, None)


def is_dead(ref: ActorRef) -> bool:
    """Whether the cluster knows it to be dead: of one whose handles went while it waited this process hears nothing."""
    return bool(_row(ref).get("State") == "DEAD")


def process_of(ref: ActorRef) -> tuple[str, int]:
    """Where it lives: node and process id; ("", 0) where Ray does not tell."""
    row = _row(ref)
    return (str(row["Address"]["NodeID"]), int(row["Pid"])) if row else ("", 0)


def _row(ref: ActorRef) -> dict[str, Any]:
    if not available("actors"):
        return {}
    from ray._private.state import actors

    return dict(actors(actor_id=ref.id) or {})
