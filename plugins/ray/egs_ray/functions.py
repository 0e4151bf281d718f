"""What stands behind Ray's functions, references and graphs. Part of `compat`: private Ray API, used by its probes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import ray

CREATION = "f" * 16
"""So begins the id of a task that creates an actor; the actor's own id follows."""


def submit_classes() -> list[type]:
    """Those whose `_remote` is a submission."""
    from ray.actor import ActorClass, ActorMethod
    from ray.remote_function import RemoteFunction

    return [RemoteFunction, ActorClass, ActorMethod]


def function_behind(target: Any) -> Callable[..., Any] | None:
    """The plain Python function of a RemoteFunction; None for anything whose call is more than a call of it."""
    return _function_of(target) if not getattr(target, "_is_generator", False) else None


def generator_behind(target: Any) -> Callable[..., Any] | None:
    """The generator function of a RemoteFunction of the script's; None for anything else, and for those of Ray's own
    libraries, which place their tasks themselves."""
    function = _function_of(target)
    is_own = inspect.isgeneratorfunction(function) and str(function.__module__).partition(".")[0] != "ray"
    return function if is_own else None


def _function_of(target: Any) -> Callable[..., Any] | None:
    from ray.remote_function import RemoteFunction
    from ray.util.tracing.tracing_helper import _is_tracing_enabled

    if not isinstance(target, RemoteFunction) or target._is_cross_language:
        return None
    if target._decorator is not None or _is_tracing_enabled():
        return None
    return cast(Callable[..., Any], target._function)


def rewrapped(remote_function: Any, function: Callable[..., Any]) -> Any:
    """A RemoteFunction of another function, or an ActorClass of another class, with the same defaults; what `.options`
    has set comes with each call."""
    defaults = dict(remote_function._default_options)
    return ray.remote(**defaults)(function) if defaults else ray.remote(function)


def remade(remote_function: Any, function: Callable[..., Any], *, max_calls: int, without: Iterable[str]) -> Any:
    """A RemoteFunction of another function with the same defaults, but those named."""
    left_out = frozenset(without)
    defaults = {name: value for name, value in remote_function._default_options.items() if name not in left_out}
    return ray.remote(max_calls=max_calls, **defaults)(function)


def declared_options(remote_function: Any) -> dict[str, Any]:
    """What `ray.remote(...)` was given, without what `.options()` adds."""
    return dict(remote_function._default_options)


def name_of(target: Any) -> str:
    """The name Ray itself shows: `f`, `Actor.__init__`, `Actor.method`."""
    try:
        if hasattr(target, "_function_name"):
            return cast(str, target._function_name).rpartition(".")[2]
        if hasattr(target, "__ray_metadata__"):
            return f"{target.__ray_metadata__.class_name}.__init__"
        actor = target._actor._ray_actor_creation_function_descriptor.class_name
        return f"{actor.rpartition('.')[2]}.{target._method_name}"
    except AttributeError:
        return str(getattr(target.remote, "__name__", type(target).__name__))


def task_id_of(result: Any) -> str:
    """The task behind what a submission returned (reference, list, generator, actor handle); "" when nothing tells."""
    if isinstance(result, list):
        result = result[0] if result else None
    if isinstance(result, ray.actor.ActorHandle):
        return f"{CREATION}{result._actor_id.hex()}"
    result = getattr(result, "_generator_ref", result)
    return result.task_id().hex() if isinstance(result, ray.ObjectRef) else ""


def actor_id_of(target: Any) -> str:
    """The actor that a method belongs to; "" for anything else."""
    actor_id = getattr(getattr(target, "_actor", None), "_actor_id", None)
    return "" if actor_id is None else str(actor_id.hex())


def function_of(node: Any) -> Callable[..., Any]:
    """The plain function that a FunctionNode was bound from."""
    return cast(Callable[..., Any], node._body)


def upstream_of(node: Any) -> list[Any]:
    """The nodes that Ray found in a node's arguments, wherever they hide; with duplicates."""
    return list(node._upstream_nodes)


def named_like(twin: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The twin with the names of its function."""
    # Ray names a task after its function. No `__wrapped__`: Ray would check calls against the inner signature.
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(twin, attribute, getattr(function, attribute, getattr(twin, attribute)))
    return twin


def running_task() -> str:
    """The task whose code runs here, or the creation of the actor that it is a method of; "" where Ray does not say."""
    context = ray.get_runtime_context()
    with suppress(Exception):
        if actor := context.get_actor_id():
            return f"{CREATION}{actor}"
        return str(context.get_task_id() or "")
    return ""
