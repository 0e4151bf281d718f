"""Which private or version-dependent Ray API is there: `FEATURES` has each with probe, fallback and what is lost.

The uses are in files of their own: `functions`, `submitting` (submit, auto_init, auto_start), `waiting` (ready,
disconnect), `events` (task_events, actors), `actors` (actor_handles), `own_values`, `groups`, `worker.waits` (waits),
`launch` (uv), `ready.raylets` (prestart) and `autoscaler`.

`available(feature)` is asked where a feature is used, never at import. Naming features in the environment variable
EGS_RAY_WITHOUT (comma separated) makes their probes fail: for tests, and for users of a broken Ray build.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import ray

from egs_core.compat import Feature, Features
from egs_ray.functions import (
    function_behind,
    function_of,
    rewrapped,
    submit_classes,
    upstream_of,
)

KNOWN_VERSIONS = ("2.59", "2.60")
WITHOUT = "EGS_RAY_WITHOUT"
GROUP_ROUTE = "_egs_{}"  # the global of Ray's module by which a function of placement groups reaches its handler


def supported(version: str) -> bool:
    """Whether EGS was tried with this minor version of Ray; elsewhere it only observes."""
    return FEATURES.knows(version, KNOWN_VERSIONS)


def available(feature: str) -> bool:
    """Whether the private API behind a feature is there, and not forbidden by EGS_RAY_WITHOUT."""
    return FEATURES.has(feature)


def _probe_submit() -> bool:
    return all(callable(vars(cls).get("_remote")) for cls in submit_classes())


def _probe_wrap() -> bool:
    def function(x: int) -> int:
        return x

    remote = ray.remote(num_gpus=1)(function)
    return function_behind(remote) is function and rewrapped(remote, function)._default_options["max_calls"] == 1


def _probe_auto_init() -> bool:
    return all(
        cls._remote.__code__.co_freevars == ("fn",)  # type: ignore[attr-defined]  # a `type` here, to mypy
        for cls in submit_classes()
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


def _probe_actor_handles() -> bool:
    known = all(hasattr(ray._raylet.CoreWorker, name) for name in ("get_local_actor_state", "kill_actor"))
    return known and callable(ray.actor.ActorHandle._serialization_helper)


def _probe_own_values() -> bool:
    names = ("serialize_object_ref", "deserialize_and_register_object_ref")
    return all(hasattr(ray._raylet.CoreWorker, name) for name in names)


def group_function(name: str) -> Any:
    """Ray's function of placement groups, without what stands around it for Ray Client."""
    return inspect.unwrap(getattr(_groups_of_ray(), name))


def _groups_of_ray() -> Any:
    return importlib.import_module("ray.util.placement_group")  # whose name in `ray.util` is a function's


def _probe_groups() -> bool:
    """Whether Ray's two functions are what `groups` gives other code, or has given it."""
    calls = (("placement_group", "create_placement_group"), ("remove_placement_group", "remove_placement_group"))
    known = all(
        (called in code.co_names or GROUP_ROUTE.format(name) in group_function(name).__globals__)
        and not code.co_freevars
        for name, called in calls
        for code in (group_function(name).__code__,)
    )
    names = ("_call_placement_group_ready", "_call_placement_group_ready_async")
    return known and all(callable(getattr(_groups_of_ray(), name)) for name in names) and _probe_own_values()


def _probe_disconnect() -> bool:
    return callable(ray._private.worker.disconnect)


def _probe_dag() -> bool:
    from ray.dag import FunctionNode

    node = FunctionNode(_probe_dag, (), {}, {})
    return function_of(node) is _probe_dag and upstream_of(node) == []


def _probe_uv() -> bool:
    from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline, hook

    _get_uv_run_cmdline()  # raises where it is another one
    return callable(hook)


def _probe_autoscaler() -> bool:
    from ray._private import ray_constants
    from ray.autoscaler.v2 import sdk
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental import internal_kv

    names = ("AUTOSCALER_RESOURCE_REQUEST_CHANNEL", "DEBUG_AUTOSCALING_STATUS")
    calls = (is_autoscaler_v2, sdk.get_cluster_status, internal_kv._internal_kv_get)
    return all(hasattr(ray_constants, name) for name in names) and all(callable(call) for call in calls)


def _probe_idle() -> bool:
    from ray._private import state

    return callable(state.available_resources_per_node)


def _probe_waits() -> bool:
    import inspect

    from ray._private import profiling, worker

    named = all("profile" in inspect.unwrap(call).__code__.co_names for call in (ray.get, ray.wait))
    return named and worker.profiling is profiling and callable(worker.Worker.deserialize_objects)


def _probe_prestart() -> bool:
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    asked, fields = node_manager_pb2.PrestartWorkersRequest, ("language", "runtime_env_info", "num_workers")
    known = {*fields, "keep_alive_duration_secs"} <= set(asked.DESCRIPTOR.fields_by_name)
    calls = (init_grpc_channel, ray._raylet.GcsClient, node_manager_pb2_grpc.NodeManagerServiceStub)
    return known and all(callable(call) for call in calls)


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
        "actor_handles",
        "ActorHandle._serialization_helper, CoreWorker.get_local_actor_state",
        _probe_actor_handles,
        "none: actors go to Ray as they are submitted",
        "GPU actors are neither ordered nor limited, and operators do not see them",
    ),
    Feature(
        "own_values",
        "CoreWorker.deserialize_and_register_object_ref with a value",
        _probe_own_values,
        "an actor keeps the values",
        "a script whose GPU tasks wait has a process more, and a task waits some milliseconds longer",
    ),
    Feature(
        "groups",
        "the code of ray.util.placement_group.placement_group and .remove_placement_group, own_values",
        _probe_groups,
        "none: placement groups are made as they are asked for",
        "placement groups with GPUs, so trials of Tune and workers of Train, have no turn",
    ),
    Feature(
        "idle",
        "ray._private.state.available_resources_per_node",
        _probe_idle,
        "ray.available_resources, for all nodes together",
        "where EGS believes that a task is on another node than Ray, a group over several nodes may wait longer",
    ),
    Feature(
        "waits",
        "ray._private.profiling.profile around ray.get and ray.wait, Worker.deserialize_objects",
        _probe_waits,
        "none: a task with hints holds its CPUs to its end",
        "tasks with hints keep their CPUs while their code waits in Ray",
    ),
    Feature(
        "disconnect",
        "ray._private.worker.disconnect",
        _probe_disconnect,
        "ray.shutdown is replaced",
        "the end of a session is seen in ray.shutdown only",
    ),
    Feature(
        "uv",
        "ray._private.runtime_env.uv_runtime_env_hook",
        _probe_uv,
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
        "prestart",
        "the raylet's RPCs PrestartWorkers and GetNodeStats, GcsClient",
        _probe_prestart,
        "none: Ray alone starts processes",
        "`egs ray keep-ready` cannot have processes stand ready between drivers",
    ),
    Feature(
        "autoscaler",
        "the autoscaler's status and request in Ray's KV",
        _probe_autoscaler,
        "EGS_SCALING=on says that there is one",
        "an autoscaler is not seen; EGS_SCALING=on says that there is one",
    ),
)
