"""Mode `on` on unmodified scripts: the same results as without EGS, GPU tasks in a better order, and nothing breaks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Granted, Ready, Started, TaskAdded
from tests.conformance.ray.scripts import ORDER, Script, egs_lines

OWN = re.compile(
    r"(values|pair|error|call|large|stream|crash|retry|env|nested|gather|actor|nothing|wait|cancelled|others|too|34$|\()"
)


# Everything here prints the same with and without EGS; the last lines are what Ray itself knows about each task.
USES = """
import os, time
import ray
from ray.exceptions import TaskCancelledError

@ray.remote
def load(n):
    return n

@ray.remote(num_gpus=1, max_calls=0, memory=1000)
def fit(x, *more, scale=1, **named):
    "Fits."
    return x * scale + sum(more) + sum(named.values())

@ray.remote(num_gpus=0.5, num_returns=2)
def pair(x, y=2):
    return x, y

@ray.remote(num_gpus=1)
def broken(x):
    raise ValueError(f"no {x}")

@ray.remote(num_gpus=1, max_calls=0)
def size(data):
    return len(data)

@ray.remote(num_gpus=1)
def stream(x):
    yield x
    yield x + 1

@ray.remote(num_gpus=1, max_calls=0, max_retries=1)
def crash_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(1)
    return "second try"

@ray.remote(num_gpus=1, max_calls=0, max_retries=2, retry_exceptions=[KeyError])
def fail_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        raise KeyError("first")
    return "again"

@ray.remote(num_gpus=1, max_calls=0)
def variable():
    return os.environ.get("COLOUR"), ray.get_runtime_context().get_task_name()

@ray.remote(num_gpus=1, max_calls=0)
def outer(x):
    return ray.get(load.remote(x)) + ray.get(inner.remote(x))

@ray.remote(num_gpus=1, max_calls=0)
def inner(x):
    return x

@ray.remote(num_gpus=1, max_calls=0)
def gather(refs, extra):
    return sum(ray.get(refs)) + sum(ray.get(list(extra.values())))

@ray.remote(num_gpus=1)
class Model:
    def predict(self, x):
        return x + 1

@ray.remote(num_gpus=2, max_calls=0)
def hold(path):
    open(path + ".held", "w").close()
    while not os.path.exists(path):
        time.sleep(0.02)
    return "held"

if __name__ == "__main__":
    ray.init(log_to_driver=False)
    data = ray.put(10)
    one = load.remote(1)
    two = fit.options(num_cpus=2, name="second").remote(one, data, scale=3, more=load.remote(4))
    print("values", ray.get([two, fit.remote(1), fit.remote(x=2)]))
    left, right = pair.remote(two)
    print("pair", ray.get([left, right, load.remote(right)]), ray.get(pair.remote(1, y=5)))
    try:
        ray.get(load.remote(fit.remote(broken.remote(7))))
    except ValueError as error:
        print("error", type(error).__name__, error.cause, isinstance(error, ray.exceptions.RayTaskError))
    try:
        fit.remote()
    except TypeError as error:
        print("call", error)
    print("large", ray.get(size.remote(b"x" * 5_000_000)), ray.get(size.remote(ray.put(b"y" * 3_000_000))))
    print("stream", [ray.get(ref) for ref in stream.remote(1)])
    print("crash", ray.get(crash_once.remote(os.path.join(os.getcwd(), f"crashed-{os.getpid()}"))))
    print("retry", ray.get(fail_once.remote(os.path.join(os.getcwd(), f"failed-{os.getpid()}"))))
    print("env", ray.get(variable.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()))
    print("nested", ray.get(outer.remote(4)))
    print("gather", ray.get(gather.remote([one, fit.remote(1), left], {"k": fit.remote(2)})))
    model = Model.remote()
    print("actor", ray.get(fit.remote(model.predict.remote(fit.remote(1)))))
    ray.kill(model)
    print("nothing", fit.options(num_returns=0).remote(1))

    path = os.path.join(os.getcwd(), f"go-{os.getpid()}")
    held = hold.remote(path)
    while not os.path.exists(path + ".held"):
        time.sleep(0.02)
    waiting, after = fit.remote(5), fit.remote(6)
    dependent = fit.remote(waiting)
    print("wait", [len(refs) for refs in ray.wait([held, waiting, after], timeout=0.5)])
    ray.cancel(waiting)
    open(path, "w").close()
    for ref in (waiting, dependent):
        try:
            print(ray.get(ref))
        except ray.exceptions.RayError as error:
            print("cancelled", isinstance(error, TaskCancelledError))
    print("others", ray.get([held, after]), [len(refs) for refs in ray.wait([held, after], num_returns=2)])
    del data, one, two, left, right, held, waiting, after, dependent
    print("too large", len(ray.wait([fit.options(num_gpus=8).remote(1)], timeout=0.2)[0]), ray.get(fit.remote(9)))

    from ray._private.state import state
    def specs():
        rows = []
        for task in state._get_all_task_events():
            info = task.task_info
            if task.job_id.hex() == ray.get_runtime_context().get_job_id() and info.type == 0:
                needs = dict(sorted(info.required_resources.items()))
                rows.append((info.name, info.func_or_class_name, needs, info.runtime_env_info.serialized_runtime_env,
                             task.attempt_number))
        return sorted(rows, key=str)
    deadline = time.monotonic() + 120
    while len(specs()) < 34 and time.monotonic() < deadline:
        time.sleep(0.1)
    print(len(specs()), *specs(), sep="\\n")
"""


def own_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script printed, without what Ray prints into it: messages of its processes, with ids and tracebacks."""
    return [line for line in done.stdout.splitlines() if OWN.match(line)]


def test_same_as_native(run_script: Script, tmp_path: Path) -> None:
    """Values, errors, cancelling, retries, waiting and the tasks' specifications are those of Ray alone."""
    native = run_script(USES, hook=False)
    assert native.returncode == 0, native.stderr
    ordered = run_script(USES, EGS_MODE="on")
    assert ordered.returncode == 0, ordered.stderr
    assert own_lines(ordered) == own_lines(native)
    assert len(own_lines(native)) == 18 + 1 + 34, native.stdout
    assert own_lines(native).count("cancelled True") == 2
    (line,) = egs_lines(ordered)
    assert line.startswith("egs: ordered ")
    assert line.split()[2] == "26"  # one of them submitted by a worker: `inner`
    run = read_run(tmp_path / "log.jsonl")
    assert (run.header.policy, run.header.mode) == ("egs", "on")
    names = {record.name for record in run.records if isinstance(record, TaskAdded)}
    assert not {name for name in names if "egs" in name.lower()}


@pytest.mark.long
def test_same_as_native_with_the_clusters_gate(run_script: Script) -> None:
    """Ordered by the actor, too, everything is as with Ray alone."""
    native, ordered = run_script(USES, hook=False), run_script(USES, EGS_MODE="on", EGS_GATE="cluster")
    assert (native.returncode, ordered.returncode) == (0, 0), ordered.stderr
    both = [[line for line in own_lines(done) if not line.startswith("(")] for done in (native, ordered)]
    assert both[0] == both[1]
    assert len(both[0]) == 18 + 1
    (line,) = egs_lines(ordered)
    assert line.startswith("egs: ordered 26 GPU tasks")  # one of them submitted by a worker: `inner`


def test_order(run_script: Script, tmp_path: Path) -> None:
    """One GPU task at a time: a chain of three behind six leaves goes before all leaves but the one that runs."""
    native = run_script(ORDER, hook=False, WAITS=str(tmp_path / "native"))
    ordered = run_script(ORDER, EGS_MODE="on", WAITS=str(tmp_path / "ordered"))
    leaves, chain = [f"leaf {i}" for i in range(6)], ["one", "two", "three", "report"]
    assert ast.literal_eval(native.stdout) == [*leaves, *chain]
    names = ast.literal_eval(ordered.stdout)
    assert [name for name in names if name in leaves] == leaves, ordered.stderr
    assert [name for name in names if name in chain] == chain
    assert names.index("three") <= 3
    run = read_run(tmp_path / "log.jsonl")
    granted = {record.task: record for record in run.records if isinstance(record, Granted)}
    ready = {record.task: record.t for record in run.records if isinstance(record, Ready)}
    started = {record.task: record.t for record in run.records if isinstance(record, Started)}
    ended = {record.task: record.t for record in run.records if isinstance(record, Ended)}
    name = {record.task: record.name for record in run.records if isinstance(record, TaskAdded)}
    assert [name[task] for task in granted] == ["step"] * 10
    times = [(ready[task], granted[task].t, started[task]) for task in granted]
    # What may pass at once is with Ray before that is noted: on a busy machine it has started then.
    assert [each for each in times if each[0] > each[1] or each[0] != each[2] < each[1]] == []
    waited = [task for task in granted if any(ready[task] < ended[other] <= granted[task].t for other in granted)]
    assert len(waited) >= 5
    assert "remaining_path" in {record.reason for record in granted.values()}


WAITS = """
import os, time
import ray

@ray.remote(num_cpus=0)
class Switch:
    def __init__(self):
        self.is_on = False
    def turn_on(self):
        self.is_on = True
    def state(self):
        return self.is_on

@ray.remote(num_gpus=2, max_calls=0)
def quick(*args):
    return time.time()

@ray.remote(num_gpus=1, max_calls=0, num_cpus=0)
def light():
    return time.time()

@ray.remote(num_gpus=1, max_calls=0, num_cpus=4)
def heavy():
    return time.time()

@ray.remote(num_cpus=0)
def waits(path):
    while not os.path.exists(path):
        time.sleep(0.02)

@ray.remote(num_cpus=0)
def until(switch):
    while not ray.get(switch.state.remote()):
        time.sleep(0.02)
    return time.time()

@ray.remote(num_gpus=2, max_calls=0)
def turn_on(switch, refs):
    ray.get(switch.turn_on.remote())
    return ray.get(refs)[0]

@ray.remote(num_cpus=1)
def busy(folder):
    open(os.path.join(folder, "busy"), "w").close()
    while not os.path.exists(os.path.join(folder, "idle")):   # in ray.get it would give its CPU back
        time.sleep(0.02)

ray.init(log_to_driver=False)
ray.get(quick.remote())

go = os.path.join(os.getcwd(), "go")
late = quick.remote(waits.remote(go))        # waits for a task that passed ungated: it must not take the GPUs
soon = quick.remote()
print("free GPUs", len(ray.wait([soon], timeout=120)[0]))
open(go, "w").close()
ray.get(late)

switch = Switch.remote()                     # waits inside of its arguments for what itself must set off
first = quick.remote()
print("signal", ray.get(turn_on.remote(switch, [until.remote(switch)]), timeout=120) > 0, ray.get(first) > 0)

blocker = busy.remote(os.getcwd())           # those let through wait for CPUs, one at the gate needs none
while not os.path.exists("busy"):
    time.sleep(0.02)
needy = [heavy.remote(), heavy.remote()]
print("idle GPUs", len(ray.wait([light.remote()], timeout=120)[0]), len(ray.wait(needy, timeout=0)[0]))
open("idle", "w").close()
ray.get([blocker, *needy])
"""


def test_no_gpu_idles_and_nothing_waits_for_ever(run_script: Script) -> None:
    """A task that waits for something the gate does not rule keeps no GPU from one that could run."""
    done = run_script(WAITS, EGS_MODE="on")
    assert done.stdout == "free GPUs 1\nsignal True True\nidle GPUs 1 0\n", done.stderr


SESSIONS = """
import ray

@ray.remote(num_gpus=1, max_calls=0)
def task(x):
    return x + 1

@ray.remote
def plain(x):
    return x

for cycle in range(2):
    ray.init(log_to_driver=False)
    from egs_ray import install
    ray.get(plain.remote(plain.remote(1)))
    gates = [install.interceptor and install.interceptor._gate]
    print(ray.get(task.remote(task.remote(cycle))), gates)
    ray.shutdown()
raise SystemExit(3)
"""


def test_several_sessions(run_script: Script) -> None:
    """Each Ray session has a gate of its own, from its first GPU task on; the exit code is the script's."""
    done = run_script(SESSIONS, EGS_MODE="on")
    assert (done.returncode, done.stdout) == (3, "2 [None]\n3 [None]\n"), done.stderr
    assert [line.partition(":")[2][:22] for line in egs_lines(done)] == [" ordered 4 GPU tasks: "]


IMPLICIT = """
import ray

@ray.remote(num_gpus=1, max_calls=0)
def task(x):
    return x + 1

print(ray.get(task.remote(task.remote(1))))
"""


@pytest.mark.slow
def test_script_without_ray_init(run_script: Script) -> None:
    """The call that starts Ray by itself is ordered like every other."""
    done = run_script(IMPLICIT, EGS_MODE="on")
    assert done.stdout == "3\n", done.stderr
    assert egs_lines(done)[0].startswith("egs: ordered 2 GPU tasks")


LETS_GO = """
import os, time
import ray
from egs_ray.control import controller

MAY_END = os.environ["MAY_END"]

@ray.remote(num_cpus=0)
def part():
    return b"x" * 1_000_000

@ray.remote(num_gpus=1)
def parts(*before):
    while MAY_END and not os.path.exists(MAY_END):
        time.sleep(0.02)
    return [part.remote()]

@ray.remote(num_gpus=1)
class Model:
    def predict(self):
        return 1

def within(seconds, is_so):
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)

ray.init(log_to_driver=False)
refs = [parts.remote()]
refs.append(parts.remote(refs[0]))
ids = [ref.hex() for ref in refs]
model = Model.remote()
if MAY_END:
    control = controller.get_or_make()  # a driver joins it, and tells what runs by now
    within(60, lambda: any(row["name"] == "parts" for one in ray.get(control.table.remote()) for row in one["tasks"]))
    open(MAY_END, "w").close()
print(len(ray.get(refs)), ray.get(model.predict.remote()))
del refs, model
known = ray._private.worker.global_worker.core_worker.get_all_reference_counts
within(30, lambda: not [one for one in ids if one.encode() in known()])
print("kept", len([one for one in ids if one.encode() in known()]))
"""


@pytest.mark.parametrize("is_controlled", [False, True])
def test_values_go_with_the_script(run_script: Script, tmp_path: Path, is_controlled: bool) -> None:
    """A GPU task's value goes when the script lets go of it: nothing of EGS's keeps it in Ray's memory, or the process
    that owns a part of it alive; also where the task was told to a controller, by which operators reach it."""
    done = run_script(LETS_GO, EGS_MODE="on", MAY_END=str(tmp_path / "may-end") if is_controlled else "")
    assert done.stdout == "2 1\nkept 0\n", done.stderr


NOTHING_COMPETES = """
import sys
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_cpus=0.1)
def child(x):
    return x

@ray.remote(num_cpus=0.1)
def parent(x):
    return ray.get(child.remote(x))

@ray.remote(num_cpus=0, num_gpus=1)
class Actor:
    def one(self):
        return 1

ray.init(log_to_driver=False)
print(ray.get([parent.remote(1), child.remote(2)], timeout=120))
group = placement_group([{"CPU": 1}])
inside = PlacementGroupSchedulingStrategy(group, 0)
actor = Actor.options(num_gpus=0, num_cpus=1, scheduling_strategy=inside).remote()
print(ray.get(actor.one.remote(), timeout=120))
remove_placement_group(group)
engine = ("egs_core.engine", "egs_core.site", "egs_ray.session.session", "egs_ray.convert")
print([name for name in engine if name in sys.modules])
print(sorted(one["ActorClassName"] for one in ray._private.state.actors(job_id=JOB).values()))
print(ray.get(Actor.remote().one.remote(), timeout=120), "egs_core.engine" in sys.modules)
""".replace("JOB", "ray.get_runtime_context().job_id")


def test_a_script_in_which_nothing_competes_has_no_engine(run_script: Script) -> None:
    """CPU tasks, tasks of tasks and CPUs that a placement group has set apart: no engine is imported and no actor made.
    The first actor that asks for a GPU brings the engine."""
    done = run_script(NOTHING_COMPETES, EGS_MODE="on")
    assert done.stdout.splitlines() == ["[1, 2]", "1", "[]", "['Actor']", "1 True"], done.stderr
    assert egs_lines(done)[0].startswith("egs: ordered 1 GPU tasks")
