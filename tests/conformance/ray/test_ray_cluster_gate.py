"""One gate for the whole cluster, on real Ray: order across drivers and workers, and whoever dies, every task ends."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, TaskAdded
from tests.conformance.ray.conftest import end_gate
from tests.conformance.ray.run_tasks import until

ROOT = Path(__file__).resolve().parents[3]
Script = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

# Whoever says "go" holds both GPUs until it is told to end: what is submitted meanwhile waits at the gate.
TASKS = """
import os, sys, time
import ray

@ray.remote(num_gpus=2, max_calls=0)
def step(name, *after):
    began = time.time()
    time.sleep(0.3)
    return name, began

@ray.remote(num_gpus=1, max_calls=0, num_cpus=0)
def leaf(name):
    began = time.time()
    time.sleep(0.3)
    return name, began

@ray.remote(num_cpus=0)
def report(name, *after):
    return name, time.time()

@ray.remote(num_gpus=2, max_calls=0)
def hold(path):
    open(path + ".held", "w").close()
    while not os.path.exists(path):
        time.sleep(0.02)
    return "held", time.time()

def held(path, gpus=2):
    path = os.path.abspath(path)   # workers have a folder of their own
    ref = hold.options(num_gpus=gpus).remote(path)
    until(lambda: os.path.exists(path + ".held"))
    return ref

def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)

def chain(*after):
    one = step.remote("one", *after)
    two = step.remote("two", one)
    three = step.remote("three", two)
    return [one, two, three, report.remote("report", three)]

def names(refs):
    return [name for name, _ in sorted(ray.get(refs, timeout=150), key=lambda entry: entry[1])]

def gate():
    return ray.get_actor("egs-gate", namespace="egs")

def gate_pid():
    from ray._private.state import actors
    found = [0]  # what Ray tells of an actor that has no process yet; a signal to 0 is one to the whole group
    until(lambda: found.append(actors(gate()._actor_id.hex())["Pid"]) or found[-1] > 0)
    return found[-1]

def say(*words):
    print(*words, flush=True)

def in_workers():
    from egs_ray import submitting
    from egs_ray.gate import nested
    interceptor = nested.make_interceptor({"EGS_GATE": "cluster"})
    submitting.wrap_submissions(lambda original, target, args, kwargs, options: interceptor.submit(
        original, target, args, kwargs, options))

if not OWN_CLUSTER:
    ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": in_workers} if WORKERS else None)
"""


@pytest.fixture
def start(ray_address: str, tmp_path: Path) -> Iterator[Start]:
    """Start Python source as a driver with the cluster's gate, with pipes; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(
        source: str, name: str = "script", *, workers: bool = False, own_cluster: bool = False, **environment: str
    ) -> subprocess.Popen[str]:
        path = tmp_path / f"{name}.py"
        path.write_text(f"WORKERS, OWN_CLUSTER = {workers}, {own_cluster}\n{TASKS}\n{source}")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
        variables = {
            **os.environ,
            "RAY_ADDRESS": ray_address,
            "PYTHONPATH": paths,
            "RAY_RUNTIME_ENV_HOOK": "egs_ray.hook",
            "EGS_MODE": "on",
            "EGS_GATE": "cluster",
            "EGS_CONTROL": "off",  # one process less to start; test_ray_control_gate has it
            "EGS_RUNLOG": str(tmp_path / f"{name}.jsonl"),
            "EGS_HISTORY": f"sqlite:///{tmp_path}/history.sqlite",
            "PYTHONFAULTHANDLER": "1",
            **environment,
        }
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env=variables,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    end_gate()  # another test's
    yield run
    for process in started:
        process.kill()
        process.communicate()
    end_gate()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that the script itself prints; Ray prints into the same stream."""
    assert process.stdout is not None
    while text := process.stdout.readline():
        if text.startswith("> "):
            return text[2:].strip()
    raise AssertionError(process.communicate()[1])


def tell(process: subprocess.Popen[str]) -> None:
    """Let the script go on from its `sys.stdin.readline()`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_at_gate(passed: int, waiting: int) -> None:
    """Until so many GPU tasks have passed the gate and not ended, and so many wait there."""
    until(lambda: at_gate() == (passed, waiting), "at the gate")


def at_gate() -> tuple[int, int]:
    """How many GPU tasks have passed the gate and not ended, and how many wait there."""
    from ray.exceptions import RayActorError

    from egs_ray.gate.client import tasks_at_gate
    from egs_ray.gate.messages import PASSED

    try:
        passed = [task.state == PASSED for task in tasks_at_gate()]
    except (RayActorError, TimeoutError):  # it is being started again
        return -1, -1
    return sum(passed), len(passed) - sum(passed)


def wait_for_pulses(count: int) -> None:
    """Until the gate has so often compared what it has let go with Ray's books: if it were to err, it would by then."""
    import ray

    gate, seen = ray.get_actor("egs-gate", namespace="egs"), set[float]()

    def beat() -> bool:
        seen.add(ray.get(gate.__ray_call__.remote(lambda self: self._desk._beat_s), timeout=150))
        return len(seen) > count

    until(beat, "pulses")


def in_steps(order: list[str]) -> list[str]:
    """The tasks that need GPUs, in their order; with `report`, which needs none, behind what it takes."""
    if "report" in order:
        assert order.index("report") > order.index("three"), order
    return [name for name in order if name not in ("report", "inside")]


def end(process: subprocess.Popen[str]) -> list[str]:
    """What EGS has said to the user until the script's end, which must be a good one."""
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    return [text for text in stderr.splitlines() if text.startswith("egs:")]


@pytest.mark.proves("ray cluster", "order")
def test_order_across_drivers(start: Start, tmp_path: Path) -> None:
    """One task at a time: a chain of three of one driver goes before six leaves that another had submitted earlier."""
    first = start(
        'running = held("go")\nrefs = [step.remote(f"leaf {i}") for i in range(6)]\n'
        'say(">", "in")\nsys.stdin.readline()\nsay(">", ray.get(refs))',
        "first",
    )
    assert line(first) == "in"
    second = start('refs = chain()\nsay(">", "in")\nsys.stdin.readline()\nsay(">", ray.get(refs))', "second")
    assert line(second) == "in"
    wait_at_gate(1, 6 + 3)
    (tmp_path / "go").touch()
    tell(first)
    tell(second)
    done = [*ast.literal_eval(line(first)), *ast.literal_eval(line(second))]
    order = [name for name, _ in sorted(done, key=lambda entry: entry[1])]
    assert in_steps(order) == ["one", "two", "three", *(f"leaf {i}" for i in range(6))]
    assert [len(end(process)) for process in (first, second)] == [1, 1]
    run = read_run(tmp_path / "second.jsonl")
    assert sum(isinstance(record, Granted) for record in run.records) == 3


NESTED = """
@ray.remote(num_cpus=0)
def outer():
    refs = chain()
    inside = [report.remote("inside", [refs[0]])]
    return ray.get(refs + inside)

@ray.remote(num_gpus=1)
def parent(path):
    open(path + ".held", "w").close()
    until(lambda: os.path.exists(path))
    return ray.get(leaf.remote("child"))

ray.get([step.remote("warm"), outer.remote()])
running = held("go")
refs = [step.remote(f"leaf {i}") for i in range(6)]
nested = outer.remote()
say(">", "in")
done = [*ray.get(refs, timeout=150), *ray.get(nested, timeout=150)]
say(">", [name for name, _ in sorted(done, key=lambda entry: entry[1])])

# A parent holds one GPU and waits for its child; for the other GPU leaves were submitted before the child.
running = held("other", gpus=1)
path = os.path.abspath("family")
family = parent.remote(path)
until(lambda: os.path.exists(path + ".held"))
more = [leaf.remote(f"more {i}") for i in range(4)]
say(">", "in")
say(">", names([family, *more])[0])
say(">", ray.get(step.remote("both are free"), timeout=150)[0])   # the parent's process has ended, with max_calls=1
"""


def test_nested_tasks_are_ordered(start: Start, tmp_path: Path) -> None:
    """What a worker submits goes by the same order, a child of who holds a GPU before equal leaves; the driver's run
    log has the edges between nested tasks."""
    process = start(NESTED, workers=True)
    assert line(process) == "in"
    wait_at_gate(1, 6 + 3)
    (tmp_path / "go").touch()
    order = ast.literal_eval(line(process))
    assert in_steps(order) == ["one", "two", "three", *(f"leaf {i}" for i in range(6))]
    assert line(process) == "in"
    wait_at_gate(2, 4)
    (tmp_path / "family").touch()
    wait_at_gate(2, 4 + 1)
    (tmp_path / "other").touch()
    assert (line(process), line(process)) == ("child", "both are free")
    assert [text[:12] for text in end(process)] == ["egs: ordered"]
    tasks = [record for record in read_run(tmp_path / "script.jsonl").records if isinstance(record, TaskAdded)]
    name = {task.task: task.name for task in tasks}
    assert not [own for own in name.values() if "egs" in own.lower()]
    edges = [sorted(name[parent] for parent in task.parents) for task in tasks if task.name in ("step", "report")]
    # Two after one, three after two, report, inside. The first `outer` may run before the gate is there: then the log
    # has its tasks by Ray's own word, which knows no edges.
    assert edges.count(["step"]) in (4, 8), edges


GATE_DIES = """
import signal
for round in range(2):
    running = held(f"go-{round}")
    leaves = [step.remote(f"leaf {i}") for i in range(3)]
    say(">", "in")
    sys.stdin.readline()
    os.kill(gate_pid(), signal.SIGKILL)
    more = [step.remote(f"leaf {i}") for i in range(3, 5)]     # while there is none
    steps = chain()
    say(">", "in")
    say(">", names([*leaves, *more, *steps]))
say(">", ray.get(step.remote("after"), timeout=150)[0])
"""


def test_death_of_the_gate(start: Start, tmp_path: Path) -> None:
    """Its process is killed under load, twice: every task ends, the order goes on, and the GPUs that were given out
    count: nothing slips in before the chain."""
    process = start(GATE_DIES)
    for number in range(2):
        assert line(process) == "in"
        wait_at_gate(1, 3)
        tell(process)
        assert line(process) == "in"
        wait_at_gate(1, 5 + 3)
        wait_for_pulses(2)
        assert at_gate() == (1, 5 + 3)
        (tmp_path / f"go-{number}").touch()
        order = ast.literal_eval(line(process))
        assert in_steps(order) == ["one", "two", "three", *(f"leaf {i}" for i in range(5))]
    assert line(process) == "after"
    assert [text[:12] for text in end(process)] == ["egs: ordered"]


def native_step() -> Any:
    """A task of a driver without EGS, which this process is; it runs when it has passed Ray's queue."""
    import ray

    def native() -> str:
        return "native"

    report = ray.remote(native).options(num_cpus=0)
    assert ray.get(report.remote(), timeout=150) == "native"
    return ray.remote(native).options(num_gpus=2).remote()


def test_death_of_a_driver(start: Start) -> None:
    """A driver is killed with tasks running and waiting: its turns are free for another, and a driver without EGS
    beside them both is served all the time."""
    import ray

    first = start('running = held("go")\nrefs = chain()\nsay(">", "in")\nray.get(refs)', "first")
    assert line(first) == "in"
    second = start('ref = step.remote("mine")\nsay(">", "in")\nsay(">", ray.get(ref, timeout=150)[0])', "second")
    assert line(second) == "in"
    native = native_step()
    first.send_signal(signal.SIGKILL)
    assert line(second) == "mine"
    assert len(end(second)) == 1
    assert ray.get(native, timeout=150) == "native"


FROZEN = """
import signal
from egs_ray.gate import client as gate_client
gate_client.PATIENCE_S = 2.0
running = held("go")
leaves = [step.remote(f"leaf {i}") for i in range(3)]
os.kill(gate_pid(), signal.SIGSTOP)
steps = chain()
open("go", "w").close()
say(">", len(names([*leaves, *steps])))
say(">", ray.get(step.remote("after"), timeout=150)[0])
"""


@pytest.mark.long
def test_frozen_gate(start: Start) -> None:
    """Its process is stopped and answers nothing: after the time-out it is ended, and every task ends all the same."""
    process = start(FROZEN)
    assert (line(process), line(process)) == ("7", "after")
    assert end(process)[-1].startswith("egs: ordered")


HANGS = """
import functools
from egs_ray.gate import client as gate_client
gate_client.make_gate = functools.partial(gate_client.make_gate, patience_s=1.5)
running = held("go")
leaves = [step.remote(f"leaf {i}") for i in range(3)]
ray.get(gate().__ray_call__.remote(lambda self: self._desk._driver.do(lambda: time.sleep(30))))
steps = chain()
open("go", "w").close()
say(">", len(names([*leaves, *steps])))
say(">", ray.get(step.remote("after"), timeout=150)[0])
"""


def test_hanging_engine(start: Start) -> None:
    """The gate's engine gives no sign of life: the tickets open after the time-out, with one warning. Of the gate only
    what the script itself asks it is in the log."""
    process = start(HANGS)
    assert (line(process), line(process)) == ("7", "after")
    said = end(process)
    assert [text[:31] for text in said] == ["egs: no longer ordering, tasks ", "egs: ordered 7 GPU tasks: 10 ta"], said
    assert "has not been heard of for 2 s" in said[0]


def test_gate_of_another_version(start: Start, ray_address: str) -> None:
    """A gate that another version of EGS has left on the cluster is not used: the script's own orders, with one
    warning; what it answers beside is not asked."""
    import ray

    assert ray_address

    class Old:
        def hello(self, version: int) -> dict[str, Any]:
            return {"version": version - 1, "off": ""}

    old = ray.remote(Old).options(name="egs-gate", namespace="egs", num_cpus=0).remote()
    process = start('say(">", names([step.remote("leaf"), *chain()]))')
    whole = ["one", "two", "three", "report"]
    # The leaf may have its turn before the chain is there, but not between its links.
    assert line(process) in [str([*whole[:n], "leaf", *whole[n:]]) for n in (0, 3, 4)]
    said = end(process)
    del old
    assert [text[:64] for text in said[:-1]] == ["egs: no gate for the whole cluster, this script's tasks are orde"]
    assert said[0].endswith("the gate on this cluster is of version 1, not 2")
    assert said[1].startswith("egs: ordered 4 GPU tasks")


BARE = """
def without_egs():
    import sys
    sys.modules["egs_ray"] = sys.modules["egs_core"] = None
ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": without_egs})
say(">", sorted(names([step.remote("leaf"), *chain()])))
"""


def test_workers_without_the_package(start: Start) -> None:
    """Where the gate's process cannot import EGS there is no such gate: the script's own orders, with one warning."""
    process = start(BARE, own_cluster=True)  # it connects by itself
    assert line(process) == "['leaf', 'one', 'report', 'three', 'two']"
    said = end(process)
    assert [text[:12] for text in said] == ["egs: no gate", "egs: ordered"], said


def test_a_gate_that_nobody_needs_ends_itself(ray_address: str) -> None:
    """Nobody is heard of: the actor is gone after a while, and its journal; its name can be taken again."""
    import ray

    from egs_ray import gcs
    from egs_ray.gate.actor import gate_class
    from egs_ray.gate.kv_storage import PREFIX
    from egs_ray.gate.messages import VERSION

    assert ray_address
    for _ in range(2):
        options = {"name": "egs-gate", "namespace": "egs", "lifetime": "detached", "num_cpus": 0, "max_restarts": -1}
        gate = ray.remote(gate_class()).options(**options).remote(5.0, 0.5)
        assert ray.get(gate.hello.remote(VERSION), timeout=150) == {"version": VERSION, "off": ""}
        assert gcs.keys(PREFIX.encode())
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(gate.watch.remote(), timeout=150)
        assert gcs.keys(PREFIX.encode()) == []


NODE_DIES = """
import functools, shutil, tempfile
from ray._private.state import actors
from ray.cluster_utils import Cluster
from egs_ray.gate import client as gate_client
from egs_ray.gate.client import tasks_at_gate

LONG_S = 200

def at_gate():
    try:
        return len(tasks_at_gate())
    except Exception:                   # it is being started again
        return -1

def gate_node():
    return actors(gate()._actor_id.hex())["Address"]["NodeID"]

folder = tempfile.mkdtemp(prefix="egs-")
os.environ.pop("RAY_ADDRESS")
try:
    some = dict(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False)
    noticed = dict(health_check_period_ms=200)  # so often it asks a node before the node counts as dead
    cluster = Cluster(initialize_head=True, head_node_args=dict(
        **some, num_gpus=2, temp_dir=folder, _system_config=noticed))
    second = cluster.add_node(**some, resources={"gate": 1})
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    # The gate's place is certain: the only node with this resource, and after that one's death the next one.
    gate_client.make_gate = functools.partial(gate_client.make_gate, resources={"gate": 1})
    gate_client.PATIENCE_S = LONG_S     # how fast Ray starts it elsewhere is Ray's; test_frozen_gate has a silent one

    ray.get(step.remote("warm"))
    running = held("go")
    refs = [step.remote(f"leaf {i}") for i in range(4)]
    until(lambda: at_gate() == 1 + 4, LONG_S)
    assert gate_node() == second.node_id
    third = cluster.add_node(**some, resources={"gate": 1})
    cluster.remove_node(second, allow_graceful=False)
    steps = chain()
    until(lambda: gate_node() == third.node_id, LONG_S)
    until(lambda: at_gate() == 1 + 4 + 3, LONG_S)
    open("go", "w").close()
    say(">", names([*refs, *steps]))
finally:
    ray.shutdown()
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
"""


@pytest.mark.long
def test_death_of_the_gates_node(start: Start) -> None:
    """The node is gone with the gate: it starts on another one, knows what it had let go, and the order goes on."""
    process = start(NODE_DIES, own_cluster=True)
    order = ast.literal_eval(line(process))
    assert in_steps(order) == ["one", "two", "three", *(f"leaf {i}" for i in range(4))]
    assert [text[:12] for text in end(process)] == ["egs: ordered"]
