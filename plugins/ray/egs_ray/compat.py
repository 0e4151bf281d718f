"""Every use of private or version-dependent Ray API, each with its reason, its probe and its fallback.

    feature      private API                                        fallback
    submit       RemoteFunction/ActorClass/ActorMethod._remote      none: submissions stay native; events tell of them
    wrap         RemoteFunction._function, ._default_options        none: tasks cannot be ordered, EGS observes
    auto_init    closure of the wrapper that calls ray.init         the script's first call is known from events alone
    ready        ObjectRef._on_ready                                one thread in ray.wait
    kv           ray.experimental.internal_kv: the GCS's table       the gate's journal is a file of its node
    task_events  ray._private.state: task events                    ray.timeline(): run times and failures only
    actors       ray._private.state.actors: when actors died        an actor counts as alive to the session's end
    disconnect   ray._private.worker.disconnect                     ray.shutdown replaced
    job_config   local variable of ray.init                         nested GPU tasks are not ordered
    uv           ray._private.runtime_env.uv_runtime_env_hook       none: uv_hook does what hook does
    dag          FunctionNode._body, DAGNode._upstream_nodes        none: the conversion says so
    auto_start   ray._private.auto_init_hook.auto_init_ray          EGS may start a Ray just after a shutdown
    autoscaler   the autoscaler's status and request in Ray's KV    no autoscaler is seen; EGS_SCALING=on says there is

`available(feature)` is asked where a feature is used, never at import. Naming features in the environment variable
EGS_RAY_WITHOUT (comma separated) makes their probes fail: for tests, and for users of a broken Ray build.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import ray

Feature = Literal[
    "submit",
    "wrap",
    "auto_init",
    "auto_start",
    "ready",
    "task_events",
    "actors",
    "disconnect",
    "job_config",
    "uv",
    "dag",
    "kv",
    "autoscaler",
]
KNOWN_VERSIONS = ("2.59", "2.60")
WITHOUT = "EGS_RAY_WITHOUT"
STOP_S = 5.0


def supported(version: str) -> bool:
    """Whether EGS was tried with this minor version of Ray; elsewhere it only observes."""
    return re.match(r"\d+\.\d+(?=\D|$)", version) is not None and ".".join(version.split(".")[:2]) in KNOWN_VERSIONS


def available(feature: Feature) -> bool:
    """Whether the private API behind a feature is there, and not forbidden by EGS_RAY_WITHOUT."""
    if feature in os.environ.get(WITHOUT, "").replace(" ", "").split(","):
        return False
    try:
        return _PROBES[feature]()
    except Exception:  # a probe looks into modules that may have moved or changed shape
        return False


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
        cls._remote = _wrapper(original, handler)  # type: ignore[attr-defined]
        undo.append((cls, original))
        if catch_pending:
            _catch_pending_call(original, handler)

    def unwrap() -> None:
        for cls, original in undo:
            cls._remote = original  # type: ignore[attr-defined]

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
        frame = frame.f_back  # type: ignore[assignment]
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


# --- kv: what has to outlive a node cannot be an object or a file -----------------------------------------------------

_KV_NAMESPACE = b"egs"


def kv_put(key: bytes, value: bytes) -> None:
    """Write a value into the GCS."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_KV_NAMESPACE)


def kv_get(key: bytes) -> bytes | None:
    """A value of the GCS, if it is there."""
    from ray.experimental import internal_kv

    return cast("bytes | None", internal_kv._internal_kv_get(key, namespace=_KV_NAMESPACE))


def kv_keys(prefix: bytes) -> list[bytes]:
    """The keys that begin so."""
    from ray.experimental import internal_kv

    return list(internal_kv._internal_kv_list(prefix, namespace=_KV_NAMESPACE))


def kv_delete(key: bytes, *, is_prefix: bool = False) -> None:
    """Remove a value from the GCS, or all whose keys begin so."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(key, del_by_prefix=is_prefix, namespace=_KV_NAMESPACE)


# --- disconnect: the last moment at which this session's events can be read -------------------------------------------


def before_disconnect(callback: Callable[[], None]) -> Callable[[], None]:
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


# --- job_config: a hook's answer takes the place of what ray.init was given in there, and the hook is not told of it --

SETUP_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""In env_vars: Ray has exported the setup hook of this runtime_env. Ray's name for it, which is no public one."""


def runtime_env_of_job_config() -> Any:
    """The runtime_env in the `job_config` argument of the ray.init that is on the calling thread's stack, or None."""
    if not available("job_config"):
        raise RuntimeError("this build of Ray hides the job_config of ray.init")
    code, frame = _init_code(), sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else getattr(frame.f_locals.get("job_config"), "runtime_env", None)


def _init_code() -> Any:
    return inspect.unwrap(ray.init).__code__


# --- uv: under `uv run` Ray calls a hook of its own in place of the user's, and only its source says how to have both -


def runs_under_uv() -> bool:
    """Whether this process was started by `uv run`."""
    from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline

    return bool(_get_uv_run_cmdline())


def with_uv(runtime_env: Any) -> Any:
    """The runtime environment by which workers run under the driver's `uv run`; the argument itself outside of one."""
    if not (available("uv") and runs_under_uv()):
        return runtime_env
    from ray._private.runtime_env.uv_runtime_env_hook import hook

    return hook(runtime_env)


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


# --- autoscaler: no public API tells whether there is one, nor which request for nodes is in force --------------------


def has_autoscaler() -> bool:
    """Whether an autoscaler adds nodes to this cluster: its nodes then have types, where each is its own type else."""
    if not available("autoscaler"):
        return False
    try:
        types = _node_types_v2() if _is_autoscaler_v2() else _node_types_v1()
    except Exception:  # no status yet, or another shape
        return False
    return any(re.fullmatch("node_[0-9a-f]{20,}", name) is None for name in types if name)


def requested_nodes() -> str:
    """The request for nodes that is in force, by whomever, in words of Ray's; "" for none."""
    if not available("autoscaler"):
        return ""
    if _is_autoscaler_v2():
        constraints = _cluster_status_v2().resource_demands.cluster_constraint_demand
        return str(constraints) if any(constraint.bundles_by_count for constraint in constraints) else ""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    found = (_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"").decode()
    return "" if found == "[]" else found


def sign_request(text: str) -> None:
    """Note that the request in force is this driver's: should it be killed, another may replace it."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_SIGNED, json.dumps([ray.get_runtime_context().get_job_id(), text]).encode(), overwrite=True)


def is_leftover(text: str) -> bool:
    """Whether this request is one of EGS's, of a driver that is gone."""
    from ray._private.state import jobs
    from ray.experimental.internal_kv import _internal_kv_get

    job, signed = json.loads(_internal_kv_get(_SIGNED) or b'["", ""]')
    return signed == text and any(row["JobID"] == job and row["IsDead"] for row in jobs())


def request_nodes(bundles: list[dict[str, float]]) -> None:
    """Ask the autoscaler for a cluster in which all of these fit; replaces what was asked for before. Public API."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


_SIGNED = b"egs_requested_nodes"


def _is_autoscaler_v2() -> bool:
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2())


def _node_types_v1() -> list[str]:
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report", {})
    return [*(report.get("active_nodes") or {}), *(report.get("idle_nodes") or {})]


def _node_types_v2() -> list[str]:
    status = _cluster_status_v2()
    return [node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)]


def _cluster_status_v2() -> Any:
    from ray.autoscaler.v2.sdk import get_cluster_status

    return get_cluster_status(ray.get_runtime_context().gcs_address)


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
        cls._remote.__code__.co_freevars == ("fn",)  # type: ignore[attr-defined]
        for cls in _submit_classes()
    )


def _probe_auto_start() -> bool:
    from ray._private import auto_init_hook

    return callable(auto_init_hook.auto_init_ray) and "auto_init_ray" in ray.get.__code__.co_names


def _probe_ready() -> bool:
    return hasattr(ray.ObjectRef, "_on_ready")


def _probe_kv() -> bool:
    from ray.experimental import internal_kv

    return all(callable(getattr(internal_kv, f"_internal_kv_{name}")) for name in ("put", "get", "list", "del"))


def _probe_task_events() -> bool:
    from ray._private.state import state

    return hasattr(state, "_get_all_task_events")


def _probe_actors() -> bool:
    from ray._private import state

    return callable(state.actors)


def _probe_disconnect() -> bool:
    return callable(ray._private.worker.disconnect)


def _probe_job_config() -> bool:
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

    return "job_config" in _init_code().co_varnames and WORKER_PROCESS_SETUP_HOOK_ENV_VAR == SETUP_HOOK_VARIABLE


def _probe_uv() -> bool:
    from ray._private.runtime_env.uv_runtime_env_hook import hook

    return callable(hook) and runs_under_uv() in (True, False)


def _probe_autoscaler() -> bool:
    from ray._private import ray_constants
    from ray.autoscaler.v2 import sdk
    from ray.experimental import internal_kv

    names = ("AUTOSCALER_RESOURCE_REQUEST_CHANNEL", "DEBUG_AUTOSCALING_STATUS")
    calls = (_is_autoscaler_v2, sdk.get_cluster_status, internal_kv._internal_kv_get)
    return all(hasattr(ray_constants, name) for name in names) and all(callable(call) for call in calls)


def _probe_dag() -> bool:
    from ray.dag import FunctionNode

    node = FunctionNode(_probe_dag, (), {}, {})
    return function_of(node) is _probe_dag and upstream_of(node) == []


_PROBES: dict[Feature, Callable[[], bool]] = {
    "submit": _probe_submit,
    "wrap": _probe_wrap,
    "auto_init": _probe_auto_init,
    "auto_start": _probe_auto_start,
    "ready": _probe_ready,
    "kv": _probe_kv,
    "task_events": _probe_task_events,
    "actors": _probe_actors,
    "disconnect": _probe_disconnect,
    "job_config": _probe_job_config,
    "uv": _probe_uv,
    "dag": _probe_dag,
    "autoscaler": _probe_autoscaler,
}
