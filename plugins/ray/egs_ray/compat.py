"""Every use of private or version-dependent Ray API; `FEATURES` has each with its probe, its fallback and what is lost.

Parts of it in files of their own: `events`, `gcs` (kv), `launch` (job_config, uv) and `autoscaler`.

`available(feature)` is asked where a feature is used, never at import. Naming features in the environment variable
EGS_RAY_WITHOUT (comma separated) makes their probes fail: for tests, and for users of a broken Ray build.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

import ray

from egs_core.compat import Feature, Features

KNOWN_VERSIONS = ("2.59", "2.60")
WITHOUT = "EGS_RAY_WITHOUT"
STOP_S = 5.0
ANSWER_S = 1.0


def supported(version: str) -> bool:
    """Whether EGS was tried with this minor version of Ray; elsewhere it only observes."""
    return FEATURES.knows(version, KNOWN_VERSIONS)


def available(feature: str) -> bool:
    """Whether the private API behind a feature is there, and not forbidden by EGS_RAY_WITHOUT."""
    return FEATURES.has(feature)


# --- submit: no public hook sees a submission of code that is already decorated ---------------------------------------


class SubmitHandler(Protocol):
    """What stands between a call of `.remote()` and Ray; `original(target, args, kwargs, **options)` is Ray's own."""

    def __call__(
        self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any], /
    ) -> Any: ...


_inside = threading.local()


def _submit_classes() -> list[type]:
    from ray.actor import ActorClass, ActorMethod
    from ray.remote_function import RemoteFunction

    return [RemoteFunction, ActorClass, ActorMethod]


def wrap_submissions(handler: SubmitHandler) -> Callable[[], None]:
    """Let `handler` make every submission of this process, also one that waits in an automatic ray.init.

    What the handler itself submits goes to Ray directly. Returns the function that undoes it.
    """
    undo: list[tuple[type, Any]] = []
    catch_pending = available("auto_init")
    for cls in _submit_classes():
        original = vars(cls)["_remote"]
        cls._remote = _wrapper(original, handler)  # type: ignore[attr-defined]  # a `type` here, to mypy
        undo.append((cls, original))
        if catch_pending:
            _catch_pending_call(original, handler)

    def unwrap() -> None:
        for cls, original in undo:
            cls._remote = original  # type: ignore[attr-defined]  # a `type` here, to mypy

    return unwrap


def _wrapper(original: Callable[..., Any], handler: SubmitHandler) -> Callable[..., Any]:
    # No functools.wraps: with __wrapped__ set, Ray would check calls against the inner signature.
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if more or getattr(_inside, "handler", False):
            return original(self, args, kwargs, *more, **options)
        _inside.handler = True
        try:
            return handler(original, self, args, kwargs, options)
        finally:
            _inside.handler = False

    return _remote


def _catch_pending_call(original: Any, handler: SubmitHandler) -> None:
    """A script's first `.remote()` may itself call ray.init: then Ray's wrapper of `_remote` is on this stack already.

    It calls the function in its closure when ray.init returns, so that cell gets the handler, for this one call.
    """
    if getattr(_inside, "handler", False) or not _waits_in_init(original):
        return
    cell = original.__closure__[0]
    inner, thread = cell.cell_contents, threading.get_ident()

    def once(self: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return inner(self, *args, **options)
        cell.cell_contents = inner
        return _wrapper(inner, handler)(self, *args, **options)

    cell.cell_contents = once


def _waits_in_init(original: Any) -> bool:
    """Whether a call of this very wrapper (they share code, not closures) is on the calling thread's stack."""
    inner, frame = original.__closure__[0].cell_contents, sys._getframe()
    while frame is not None:
        if frame.f_code is original.__code__ and frame.f_locals.get("fn") is inner:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return False


def submit_directly() -> None:
    """What the calling thread submits from now on goes to Ray directly: for EGS's own threads."""
    _inside.handler = True
    never_start_ray()


# --- auto_start: a call of Ray without a Ray starts one, and the script's own ray.init then fails ---------------------


def never_start_ray() -> None:
    """On the calling thread, calls of Ray raise RuntimeError from now on when there is none (any more): for EGS's own
    threads, which may be about to ask something just as the script shuts Ray down."""
    _inside.starts_no_ray = True
    if not available("auto_start"):
        return
    from ray._private import auto_init_hook

    original = auto_init_hook.auto_init_ray
    if hasattr(original, "egs_guards"):
        return

    def auto_init_ray() -> None:
        if not getattr(_inside, "starts_no_ray", False):
            original()
        elif not ray.is_initialized():
            raise RuntimeError("Ray was shut down")

    auto_init_ray.egs_guards = True  # type: ignore[attr-defined]  # functions may have attributes
    auto_init_hook.auto_init_ray = auto_init_ray


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
        return f"{'f' * 16}{result._actor_id.hex()}"
    result = getattr(result, "_generator_ref", result)
    return result.task_id().hex() if isinstance(result, ray.ObjectRef) else ""


def actor_id_of(target: Any) -> str:
    """The actor that a method belongs to; "" for anything else."""
    actor_id = getattr(getattr(target, "_actor", None), "_actor_id", None)
    return "" if actor_id is None else str(actor_id.hex())


# --- wrap: a task that is to wait needs one more argument than its function takes ------------------------------------


def function_behind(target: Any) -> Callable[..., Any] | None:
    """The plain Python function of a RemoteFunction; None for anything whose call is more than a call of it."""
    from ray.remote_function import RemoteFunction
    from ray.util.tracing.tracing_helper import _is_tracing_enabled

    if not isinstance(target, RemoteFunction) or target._is_generator or target._is_cross_language:
        return None
    if target._decorator is not None or _is_tracing_enabled():
        return None
    return cast(Callable[..., Any], target._function)


def rewrapped(remote_function: Any, function: Callable[..., Any]) -> Any:
    """A RemoteFunction of another function with the same defaults; what `.options()` set comes with each call."""
    defaults = dict(remote_function._default_options)
    return ray.remote(**defaults)(function) if defaults else ray.remote(function)


def declared_options(remote_function: Any) -> dict[str, Any]:
    """What `ray.remote(...)` was given, without what `.options()` adds."""
    return dict(remote_function._default_options)


def is_plain_driver() -> bool:
    """Whether this process is a driver with a core of its own: no worker, no Ray Client, no local mode."""
    return bool(ray._private.worker.global_worker.mode == ray.SCRIPT_MODE)


def has_core() -> bool:
    """Whether this process is a driver or a worker with a core of its own: no Ray Client, no local mode."""
    mode = ray._private.worker.global_worker.mode
    return bool(mode in (ray.SCRIPT_MODE, ray.WORKER_MODE))


# --- ready: a public wait costs a thread, polls, and keeps every reference alive --------------------------------------


def on_ready(ref: ray.ObjectRef, callback: Callable[[], None]) -> None:
    """Call `callback` once from some thread when the object exists (value or error), without fetching it."""
    if available("ready"):
        cast(Any, ref)._on_ready(lambda _error: callback())
    else:
        _WAITER.add(ref, callback)


class _Waiter:
    """The fallback of `on_ready`: a daemon thread that waits for all references, and ends when none is left.

    Ray ends a process, with exit code 1, in which a thread waits for a reference while it disconnects.
    """

    def __init__(self) -> None:
        self._is_guarded = False
        self._lock = threading.Lock()
        self._waiting: dict[ray.ObjectRef, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def add(self, ref: ray.ObjectRef, callback: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.setdefault(ref, []).append(callback)
            if not self._is_guarded:
                self._is_guarded = True
                before_disconnect(self.stop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="egs-ready", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        never_start_ray()
        while refs := self._references():
            try:
                # The time-out lets references that came meanwhile join the wait.
                ready, _ = ray.wait(refs, num_returns=1, timeout=0.05, fetch_local=False)
            except Exception:  # Ray disconnected during the wait
                time.sleep(0.05)
                continue
            for ref in ready:
                with self._lock:
                    callbacks = self._waiting.pop(ref, [])
                for callback in callbacks:
                    callback()

    def stop(self) -> None:
        """Forget all references; the thread is not inside of Ray any more when this returns."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=STOP_S)

    def _references(self) -> list[ray.ObjectRef]:
        with self._lock:
            if not ray.is_initialized():  # ray.wait would start a Ray
                self._waiting.clear()
            if not self._waiting:
                self._thread = None
            return list(self._waiting)


_WAITER = _Waiter()


# --- disconnect: the last moment at which this session's events can be read -------------------------------------------


def before_disconnect(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` before Ray disconnects, as often as that happens. Returns the function that undoes it."""
    owner, name = (ray._private.worker, "disconnect") if available("disconnect") else (ray, "shutdown")
    original = getattr(owner, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if ray.is_initialized():
            callback()
        _WAITER.stop()  # again: of several callbacks, each its own replacement, a later one may have asked for more
        return original(*args, **kwargs)

    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)


RAYS_ALARM_S = 3.0


def has_time_to_ask() -> bool:
    """Whether there is a Ray to ask at the end of this process, and time for it.

    At a SIGTERM Ray sets an alarm of three seconds, after which it aborts the process with another exit code than its
    own. The time is needed for Ray's own end; what EGS would still have been told is given up.
    """
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]  # a longer one is the user's own
    if 0 < left_s <= RAYS_ALARM_S or not ray.is_initialized():
        return False
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, ValueError):  # its Ray has ended before it: a question would wait for long
        return False
    return True


# --- task_events, actors: the public state API needs a dashboard ------------------------------------------------------


def raw_task_events() -> list[Any]:
    """Ray's TaskEvents messages of all jobs. Reads what ray.timeline() reads, without its second of sleep."""
    from ray._private.state import state

    return list(cast(Any, state)._get_all_task_events())


def raw_actors(job_id: str) -> dict[str, dict[str, Any]]:
    """Ray's rows of the dead actors of a job, by actor id."""
    from ray._private.state import actors

    return dict(actors(job_id=ray.JobID.from_hex(job_id), actor_state_name="DEAD"))


# --- dag --------------------------------------------------------------------------------------------------------------


def function_of(node: Any) -> Callable[..., Any]:
    """The plain function that a FunctionNode was bound from."""
    return cast(Callable[..., Any], node._body)


def upstream_of(node: Any) -> list[Any]:
    """The nodes that Ray found in a node's arguments, wherever they hide; with duplicates."""
    return list(node._upstream_nodes)


# --- probes -----------------------------------------------------------------------------------------------------------


def _probe_submit() -> bool:
    return all(callable(vars(cls).get("_remote")) for cls in _submit_classes())


def _probe_wrap() -> bool:
    def function(x: int) -> int:
        return x

    remote = ray.remote(num_gpus=1)(function)
    return function_behind(remote) is function and rewrapped(remote, function)._default_options["max_calls"] == 1


def _probe_auto_init() -> bool:
    return all(
        cls._remote.__code__.co_freevars == ("fn",)  # type: ignore[attr-defined]  # a `type` here, to mypy
        for cls in _submit_classes()
    )


def _probe_auto_start() -> bool:
    from ray._private import auto_init_hook

    return callable(auto_init_hook.auto_init_ray) and "auto_init_ray" in ray.get.__code__.co_names


def _probe_ready() -> bool:
    return hasattr(ray.ObjectRef, "_on_ready")


def _probe_task_events() -> bool:
    from ray._private.state import state

    return hasattr(state, "_get_all_task_events")


def _probe_actors() -> bool:
    from ray._private import state

    return callable(state.actors)


def _probe_disconnect() -> bool:
    return callable(ray._private.worker.disconnect)


def _probe_dag() -> bool:
    from ray.dag import FunctionNode

    node = FunctionNode(_probe_dag, (), {}, {})
    return function_of(node) is _probe_dag and upstream_of(node) == []


def _probe_in(module: str, name: str = "probe") -> Callable[[], bool]:
    """The probe of a part of this module that stands in a file of its own."""
    return lambda: bool(getattr(import_module(f"egs_ray.{module}"), name)())


FEATURES = Features(
    WITHOUT,
    Feature(
        "submit",
        "RemoteFunction, ActorClass, ActorMethod: ._remote",
        _probe_submit,
        "none: submissions stay native; events tell of them",
        "what a script submits is not seen: the hook can only observe, without edges",
    ),
    Feature(
        "wrap",
        "RemoteFunction._function, ._default_options",
        _probe_wrap,
        "none: tasks cannot be ordered",
        "GPU tasks are not ordered: mode on observes only",
    ),
    Feature(
        "auto_init",
        "closure of the wrapper that calls ray.init",
        _probe_auto_init,
        "the script's first call is known from events alone",
        "the first task of a script without ray.init is not seen",
    ),
    Feature(
        "auto_start",
        "ray._private.auto_init_hook.auto_init_ray",
        _probe_auto_start,
        "none",
        "a ray.init just after a ray.shutdown may find a Ray that EGS has started",
    ),
    Feature(
        "ready", "ObjectRef._on_ready", _probe_ready, "one thread in ray.wait", "ends of tasks are found by polling"
    ),
    Feature(
        "kv",
        "ray.experimental.internal_kv: the GCS's table",
        _probe_in("gcs"),
        "the gate's journal is a file of its node",
        "the cluster's gate survives its process, not its node",
    ),
    Feature(
        "task_events",
        "ray._private.state: task events",
        _probe_task_events,
        "ray.timeline()",
        "the hook sees run times and failures only",
    ),
    Feature(
        "actors",
        "ray._private.state.actors: when actors died",
        _probe_actors,
        "none",
        "an actor counts as alive until its session ends",
    ),
    Feature(
        "disconnect",
        "ray._private.worker.disconnect",
        _probe_disconnect,
        "ray.shutdown is replaced",
        "the end of a session is seen in ray.shutdown only",
    ),
    Feature(
        "job_config",
        "local variable of ray.init",
        _probe_in("launch", "probe_job_config"),
        "none",
        "GPU tasks that workers submit are not ordered",
    ),
    Feature(
        "uv",
        "ray._private.runtime_env.uv_runtime_env_hook",
        _probe_in("launch", "probe_uv"),
        "uv_hook does what hook does",
        "egs_ray.uv_hook does not hand the environment of `uv run` to workers",
    ),
    Feature(
        "dag",
        "FunctionNode._body, DAGNode._upstream_nodes",
        _probe_dag,
        "none: the conversion says so",
        "egs_ray.run cannot read graphs: use the hook",
    ),
    Feature(
        "autoscaler",
        "the autoscaler's status and request in Ray's KV",
        _probe_in("autoscaler"),
        "EGS_SCALING=on says that there is one",
        "an autoscaler is not seen; EGS_SCALING=on says that there is one",
    ),
)
