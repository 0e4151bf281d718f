"""Mode `on` on unmodified scripts: the same results as without EGS, GPU tasks in a better order, and nothing breaks."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Granted, Ready, Started, TaskAdded

Script = Callable[..., "subprocess.CompletedProcess[str]"]
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


def egs_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What EGS said to the user."""
    return [line for line in done.stderr.splitlines() if line.startswith("egs:")]


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
    assert line.split()[2] == "25"  # one of them submitted by a worker: `inner`
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
    assert line.startswith("egs: ordered 24 GPU tasks")


ORDER = """
import os, time
import ray

WAITS = os.environ["WAITS"]

@ray.remote(num_gpus=2, max_calls=0)
def step(name, *after):
    began = time.time()
    while name == "leaf 0" and not os.path.exists(WAITS):   # until all are there
        time.sleep(0.02)
    return name, began

@ray.remote
def report(name, *after):
    return name, time.time()

ray.init(log_to_driver=False)
ray.get([step.remote("first"), report.remote("first")])  # both have a process now
leaves = [step.remote(f"leaf {i}") for i in range(6)]
one = step.remote("one")
two = step.remote("two", one)
three = step.remote("three", two)
last = report.remote("report", three)
open(WAITS, "w").close()
done = ray.get([*leaves, one, two, three, last])
print([name for name, _ in sorted(done, key=lambda entry: entry[1])])
"""


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


BOARD_DIES = """
import os, signal, time
import ray
from tests.conformance.ray.killing import kill_board
from egs_ray import install

@ray.remote(num_gpus=1, max_calls=0)
def task(x, path=None):
    while path and not os.path.exists(path):
        time.sleep(0.02)
    return x

ray.init(log_to_driver=False)
print(ray.get(task.remote(0)))
for round in range(2):
    path = os.path.join(os.getcwd(), f"go-{round}")
    refs = [task.remote(i, path) for i in range(10)]
    while len(install.interceptor._gate.tickets._held) < 8:   # two run, eight wait
        time.sleep(0.02)
    kill_board(install.interceptor._gate.tickets._promises)
    more = [task.remote(i) for i in range(10, 15)]
    open(path, "w").close()
    print(ray.get(refs + more, timeout=120))
"""


def test_death_of_the_tickets_actor(run_script: Script, tmp_path: Path) -> None:
    """Its process is killed while tasks wait for their tickets: every task ends well, the order goes on, and the log
    has each task once."""
    done = run_script(BOARD_DIES, EGS_MODE="on")
    own = [line for line in done.stdout.splitlines() if line[:1] in "0["]  # Ray tells of the death there, too
    assert own == ["0", f"{[*range(15)]}", f"{[*range(15)]}"], done.stderr
    assert [line.partition(":")[2].partition(":")[0] for line in egs_lines(done)] == [" ordered 31 GPU tasks"]
    added = [record.name for record in read_run(tmp_path / "log.jsonl").records if isinstance(record, TaskAdded)]
    assert added.count("task") == 31


BROKEN = """
import ray
PREFACE

@ray.remote(num_gpus=1, max_calls=0)
def task(x):
    return x

ray.init(log_to_driver=False)
refs = [task.remote(0)]
for i in range(1, 12):
    refs.append(task.remote(refs[-1]) if i % 2 else task.remote(i))
print(ray.get(refs, timeout=120), ray.get(task.remote(5), timeout=120))
"""

ENGINE_FAILS = """
from egs_core.engine import Engine
handle, calls = Engine.handle, []
def failing(self, event, now):
    calls.append(event)
    if len(calls) > 9:
        raise RuntimeError("broken engine")
    return handle(self, event, now)
Engine.handle = failing
"""
GATE_FAILS = """
from egs_ray.session import tickets
def failing(*args):
    raise RuntimeError("no promises")
tickets.Promises = failing
"""
TELLING_FAILS = """
from egs_ray.session import program
def failing(self, arrival, refs, described=None):
    raise RuntimeError("cannot add")
program.Program.add = failing
"""
PULSE_FAILS = """
from egs_ray.session import program, tickets
def failing(self):
    raise RuntimeError("no pulse")
tickets.Promises.live = failing
program.PULSE_S = 0.01
"""


@pytest.mark.parametrize(
    "preface",
    [
        ENGINE_FAILS,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (GATE_FAILS, TELLING_FAILS, PULSE_FAILS)),
    ],
    ids=["engine", "gate", "telling", "pulse"],
)
def test_failures_leave_ray_as_it_is(run_script: Script, preface: str) -> None:
    """Whatever of the gate breaks, all tasks end as without EGS, with one warning."""
    done = run_script(BROKEN.replace("PREFACE", preface), EGS_MODE="on")
    assert done.stdout == f"{[0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]} 5\n", done.stderr
    warnings = egs_lines(done)
    assert len(warnings) == 2, done.stderr
    assert warnings[0].startswith("egs: no longer ordering, tasks go to Ray as they are submitted: RuntimeError: ")


BARE = """
import ray

@ray.remote(num_gpus=1, max_calls=0)
def task(x, again=0):
    try:
        import egs_ray
    except ImportError:
        return x if not again else ray.get(task.remote(x, again - 1))

def without_egs():
    import sys
    sys.modules["egs_ray"] = sys.modules["egs_core"] = None

ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": without_egs})
print(ray.get([task.remote(i) for i in range(4)]), ray.get(task.remote(7, again=1)))
"""


def test_workers_without_the_package(run_script: Script) -> None:
    """Neither the user's function nor the tickets' actor need EGS where they run, also when a task calls itself."""
    done = run_script(BARE, EGS_MODE="on")
    assert done.stdout == "[0, 1, 2, 3] 7\n", done.stderr
    assert egs_lines(done)[0].startswith("egs: ordered 5 GPU tasks")


def test_tickets_open_when_the_driver_is_silent(ray_address: str) -> None:
    """Nobody says that the driver lives: after the time-out whoever waits gets None, without anyone keeping it."""
    import ray

    from egs_ray.promises import Promises

    assert ray_address
    promises = Promises(patience_s=0.3)
    ray.get(promises.ready())
    kept, forgotten = promises.new("kept"), promises.new("forgotten")
    promises.keep("kept", 5)
    assert ray.get([kept, forgotten], timeout=120) == [5, None]


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


def test_without_the_private_api(run_script: Script, tmp_path: Path) -> None:
    """Without a way to give a task one more argument the hook observes, and says so."""
    done = run_script(ORDER, EGS_MODE="on", EGS_RAY_WITHOUT="wrap", WAITS=str(tmp_path / "all"))
    assert done.returncode == 0, done.stderr
    assert "observing only" in egs_lines(done)[0]
    assert "observed only" in egs_lines(done)[1]


@pytest.mark.slow
def test_public_wait_instead_of_callbacks(run_script: Script, tmp_path: Path) -> None:
    """Without the private callback the gate learns of ends by waiting, and orders as ever."""
    done = run_script(ORDER, EGS_MODE="on", EGS_RAY_WITHOUT="ready", WAITS=str(tmp_path / "all"))
    assert ast.literal_eval(done.stdout).index("three") <= 3, done.stderr
