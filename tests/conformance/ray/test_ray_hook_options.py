"""Mode `observe` changes nothing: one script with every option Ray has, natively and observed, seen below Ray's Python.

The script replaces the core worker of its driver and of its workers by one that notes what each submission hands to
Ray's C++ core: resources, strategies, labels, retries, runtime environments, arguments, in the order of submission.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.ray.conftest import end_control

Script = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = '''
import json, os, sys, time
import psutil, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import (
    In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, PlacementGroupSchedulingStrategy,
)

CALLS = ("submit_task", "create_actor", "submit_actor_task", "create_placement_group")
CALLERS = ("ray.remote_function", "ray.actor", "ray.util.placement_group")
FOLDER = os.environ["SEEN_FOLDER"]


class Spy:
    """The core worker, with a note of each call that submits something."""

    def __init__(self, worker):
        self.worker, self.known, self.lines = worker, {}, []

    def __getattr__(self, name):
        found = getattr(vars(self.worker)["core_worker"], name)
        if name not in CALLS:
            return found
        def call(*args, **kwargs):
            self.lines.append(json.dumps([name, self.plain(args), self.plain(kwargs)]))
            with open(f"{FOLDER}/{os.getpid()}.jsonl", "a") as out:
                print(self.lines[-1], file=out)
            return found(*args, **kwargs)
        return call

    def plain(self, value):
        if isinstance(value, dict):
            return {str(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(item) for item in value]
        if isinstance(value, (ray.ObjectRef, ray.ActorID, ray.PlacementGroupID, bytes)):
            return f"{type(value).__name__} {self.known.setdefault(value, len(self.known))}"
        if isinstance(value, PlacementGroupSchedulingStrategy):
            pg = value.placement_group.id
            return ["group", self.plain(pg), value.placement_group_bundle_index,
                    value.placement_group_capture_child_tasks]
        if isinstance(value, (NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy)):
            return [type(value).__name__, self.plain({k: v for k, v in vars(value).items() if k != "node_id"})]
        if type(value).__name__.endswith("FunctionDescriptor"):
            return [value.module_name, value.class_name, value.function_name]
        if type(value).__module__ in ("ray._raylet", "ray.includes"):
            return type(value).__name__
        if type(value).__repr__ is object.__repr__:
            return [type(value).__name__, self.plain(vars(value))]
        return repr(value)


def put_spy():
    """For Ray's Python code that submits; its C++ side insists on the real one."""
    worker = ray._private.worker.global_worker
    spy = Spy(worker)
    def chosen(_):
        caller = sys._getframe().f_back  # None: a thread of the C++ side
        submits = caller is not None and caller.f_globals.get("__name__") in CALLERS
        return spy if submits else vars(worker)["core_worker"]
    def forget(_):
        del type(worker).core_worker, vars(worker)["core_worker"]
    type(worker).core_worker = property(chosen, None, forget)
    return spy


@ray.remote
def plain(*args, **kwargs):
    return len(args)

@ray.remote(num_cpus=0.5, max_calls=3, max_retries=2, retry_exceptions=[ValueError], memory=1000, name="stated")
def stated(x):
    return x

@ray.remote
def stream(n):
    for i in range(n):
        yield i

@ray.remote
def nested(x):
    again = plain.options(num_cpus=0.1, name="inner", _labels={"a": "b"}).remote(x)
    return ray.get([again, *[stated.options(memory=500).remote(i) for i in range(2)]])

@ray.remote(concurrency_groups={"io": 2})
class Actor:
    def __init__(self, *args):
        ray.init(ignore_reinit_error=True)
    @ray.method(num_returns=2, concurrency_group="io")
    def two(self, x):
        return x, x
    def one(self, x):
        return ray.get(plain.remote(x))
    def many(self, n):
        for i in range(n):
            yield i


def use_everything(node):
    refs, pending = [], []
    data = ray.put([1, 2])
    refs += [plain.remote(), plain.remote(data, [data], k={"d": data}), stated.remote(1), nested.remote(3)]
    for options in (
        {"num_cpus": 2}, {"num_gpus": 0.5}, {"num_gpus": 1}, {"num_cpus": 0, "memory": 1 << 20},
        {"name": "n"}, {"max_retries": 0}, {"max_retries": -1, "retry_exceptions": True},
        {"retry_exceptions": [KeyError, ValueError]}, {"num_returns": 1}, {"enable_task_events": False},
        {"_labels": {"x": "y"}}, {"scheduling_strategy": "SPREAD"}, {"scheduling_strategy": "DEFAULT"},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)},
        {"runtime_env": {"env_vars": {"MARK": "task"}}}, {"object_store_memory": None},
        {"label_selector": {"ray.io/node-id": node}}, {"placement_group": None},
        {"label_selector": {"no": "such"}, "fallback_strategy": [{"label_selector": {"ray.io/node-id": node}}]},
    ):
        refs.append(plain.options(**options).remote(1))
    for options in (
        {"resources": {"custom": 1}}, {"accelerator_type": "T4"}, {"num_gpus": 7},
        {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"no": In("such")})},
    ):
        pending.append(plain.options(**options).remote(1))
    plain.options(num_returns=0).remote(1)
    group = placement_group([{"CPU": 1}, {"CPU": 1, "GPU": 1}], strategy="PACK", name="group")
    ray.get(group.ready())
    inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
    refs.append(plain.options(num_gpus=1, scheduling_strategy=inside).remote(2))
    old = {"placement_group": group, "placement_group_bundle_index": 0, "placement_group_capture_child_tasks": True}
    refs.append(plain.options(**old).remote(2))
    print("stream", [ray.get(ref) for ref in stream.remote(2)])
    print("stream", [ray.get(ref) for ref in stream.options(_generator_backpressure_num_objects=1).remote(2)])
    one = stream.options(_num_objects_per_yield=1, num_returns="streaming").remote(1)
    print("stream", [ray.get(ref) for ref in one])
    print("dynamic", len(list(ray.get(stream.options(num_returns="dynamic").remote(2)))))
    actors = [Actor.options(num_cpus=0).remote(data)]
    for options in (
        {"num_cpus": 0.1, "num_gpus": 0.1, "memory": 1000, "name": "named", "namespace": "space"},
        {"num_cpus": 0.1, "name": "named", "namespace": "space", "get_if_exists": True},
        {"num_cpus": 0, "max_concurrency": 2, "max_restarts": 1, "max_task_retries": 2, "max_pending_calls": 9},
        {"num_cpus": 0, "runtime_env": {"env_vars": {"MARK": "actor"}}, "_labels": {"p": "q"}},
        {"num_cpus": 0.1, "scheduling_strategy": inside, "lifetime": "non_detached", "enable_task_events": False,
         "resources": None},
        {"num_cpus": 0, "scheduling_strategy": "SPREAD", "allow_out_of_order_execution": True,
         "_actor_generator_backpressure_num_objects": 4},
        {"num_cpus": 0.1, "resources": None, **old}, {"num_cpus": 0, "label_selector": {"ray.io/node-id": node},
         "fallback_strategy": [{"label_selector": {"a": "b"}}], "enable_tensor_transport": False},
        {"num_cpus": 0, "name": "lasting", "lifetime": "detached", "namespace": "space",
         "object_store_memory": 80_000_000},
    ):
        # Nothing has that resource: what is submitted is seen all the same, and no process is started for it.
        actors.append(Actor.options(**{"resources": {"custom": 1}, **options}).remote(1))
    pending.append(Actor.options(resources={"custom": 1}, accelerator_type="T4").remote())
    refs += actors[0].two.remote(1) + actors[0].two.options(name="m", enable_task_events=False).remote(data)
    refs.append(actors[0].one.remote(2))
    pending.append(actors[1].one.options(max_task_retries=3, retry_exceptions=True).remote(2))
    pending.append(actors[4].two.options(num_returns=1, concurrency_group="io", _labels={"l": "m"}).remote((1,)))
    print("many", [ray.get(ref) for ref in actors[0].many.options(_generator_backpressure_num_objects=1).remote(2)])
    print("values", ray.get(refs))
    named = sorted((row["namespace"], row["name"]) for row in ray.util.list_named_actors(all_namespaces=True))
    ray.kill(ray.get_actor("lasting", namespace="space"))
    deadline_s = time.monotonic() + 120
    while "lasting" in str(ray.util.list_named_actors(all_namespaces=True)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    ray.util.remove_placement_group(group)
    return named


if __name__ == "__main__":
    env = {"env_vars": {"MARK": "job"}, "worker_process_setup_hook": put_spy, "config": {"setup_timeout_seconds": 90}}
    given = json.dumps({**env, "worker_process_setup_hook": "spy"})
    ray.init(runtime_env=env, log_to_driver=False)
    spy = put_spy()
    node = ray.get_runtime_context().get_node_id()
    named = use_everything(node)
    job = ray.get_runtime_context().get_job_id()
    job_env = json.loads(ray.get_runtime_context().get_runtime_env_string())
    job_env["env_vars"].pop("__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR")  # has the job's number
    actors = [row for row in ray._private.state.actors(job_id=ray.JobID.from_hex(job)).values()]
    told = {
        "submissions": spy.lines,
        "job": job_env,
        "named": named,
        "actors": sorted(row["ActorClassName"] for row in actors),
        "children": len(psutil.Process().children(recursive=True)),
        "given": given == json.dumps({**json.loads(given)}),
    }
    with open(f"{FOLDER}/driver.json", "w") as out:
        json.dump(told, out)
'''


def all_seen(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the driver submitted, in order, with what its job looked like; and what all workers submitted, sorted."""
    driver: dict[str, Any] = json.loads((folder / "driver.json").read_text())
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    for line in driver["submissions"]:
        lines.remove(line)
    return driver, sorted(lines)


def test_every_option_of_every_submission(run_script: Script, tmp_path: Path) -> None:
    """Native and observed: Ray's core gets the same calls with the same options; same job, actors and processes."""
    end_control()  # of tests before: it may go at any moment
    seen = {}
    outputs = []
    for name, hook in (("native", False), ("observed", True)):
        (tmp_path / name).mkdir()
        done = run_script(SCRIPT, hook=hook, EGS_MODE="observe", SEEN_FOLDER=str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert ("egs: observed only" in done.stderr) is hook
        outputs.append(done.stdout)
        seen[name] = all_seen(tmp_path / name)
    assert outputs[0] == outputs[1]
    (native, native_workers), (observed, observed_workers) = seen["native"], seen["observed"]
    assert observed["submissions"] == native["submissions"]
    assert observed == native
    assert observed_workers == native_workers
    assert len(native["submissions"]) > 50
    assert len(native_workers) == 4  # of `nested`: three; of Actor.one: one


@pytest.mark.parametrize("table", ["task_options", "actor_options"])
def test_script_uses_every_option(table: str) -> None:
    """An option that a new Ray adds to its own tables must be added to the script."""
    from ray._common import ray_option_utils

    unused = [
        name for name in getattr(ray_option_utils, table) if f'"{name}":' not in SCRIPT and f"{name}=" not in SCRIPT
    ]
    assert unused == []
