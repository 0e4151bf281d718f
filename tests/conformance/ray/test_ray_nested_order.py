"""GPU tasks that tasks submit on workers, on a real Ray with two GPUs: ordered with their driver's own, by priority and
quota; what waits for them on a GPU cannot keep them out; without the driver they go to Ray; all ends as natively."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, TaskAdded
from egs_ray.control import commands as control
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import LIMIT_S, drivers, end_site
from tests.conformance.ray.scripts import Script, egs_lines

QUEUES = "queues:\n  - {name: shared, nominal: {gpus: 1}}\n"
BEGINNING = """
import os, sys, threading, time
import ray
import egs_core as egs
import egs_ray.install as hook

FOLDER = os.getcwd()                          # the driver's: workers have this by value
LOG = os.path.join(FOLDER, "log")

def note(*words):
    with open(LOG, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def noted():
    return open(LOG).read().split("\\n")[:-1] if os.path.exists(LOG) else []

def until(condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

def signal(name):
    open(os.path.join(FOLDER, name), "w").close()

def until_signal(name):
    until(lambda: os.path.exists(os.path.join(FOLDER, name)))

def known(count):
    "Until the driver's engine has been told of so many tasks; natively at once."
    if hook.interceptor is not None:
        until(lambda: len(hook.interceptor._gate.books.open) >= count)

@ray.remote(num_gpus=2, num_cpus=0, max_calls=0)
def hold(go):
    note("hold")
    until_signal(go)

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def fit(name, hold_s=0.0):
    began = time.time()
    time.sleep(hold_s)
    note(name, began, time.time())
    return name

ray.init(log_to_driver=False, logging_level="ERROR")
"""


@pytest.fixture
def begin(ray_address: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script as a driver; it ends with the test."""
    with drivers(ray_address, tmp_path) as start:
        yield lambda source, **environment: start(BEGINNING + source, "log", **environment)


def ends(process: subprocess.Popen[str]) -> str:
    """What it prints; it ends well, and EGS says nothing but what it did."""
    out, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    said = [line for line in error.splitlines() if line.startswith("egs:") and not line.startswith("egs: ordered")]
    assert said == []
    return "".join(line for line in out.splitlines(keepends=True) if "(raylet)" not in line)


ORDER = """
first, second = (0, 10) if os.environ["URGENT"] == "driver" else (10, 0)

@ray.remote(num_gpus=2, num_cpus=0, max_calls=0)
@egs.task(priority=first)
def nested():
    note("worker")

@ray.remote(num_gpus=2, num_cpus=0, max_calls=0)
@egs.task(priority=second)
def own():
    note("driver")

def submit(name):
    ref = nested.remote()
    signal(name)
    found = ray.get(ref)
    from egs_ray.worker import reach
    if reach._reached is not None:            # nobody asks here what its hints say: a long worker would keep all
        assert not reach._reached._ordering.described
    return found

@ray.remote(num_cpus=0)
def submits():
    return ray.get(between.remote())

@ray.remote(num_cpus=0)
def between():
    return submit("task")

@ray.remote(num_cpus=0)
class Made:
    def call(self):
        return submit("actor")

@ray.remote(num_cpus=0)
class Maker:
    def call(self):
        self.made = Made.remote()
        return ray.get(self.made.call.remote())

@ray.remote(num_cpus=0)
@egs.task(preload=[egs.modules("json")])
def loaded():
    return submit("loaded")

held = hold.remote("go")
until(noted)
maker = Maker.remote()
mine, others = [own.remote() for _ in range(3)], [submits.remote(), maker.call.remote(), loaded.remote()]
for name in ("task", "actor", "loaded"):
    until_signal(name)
known(8)
signal("go")
ray.get([held, *mine, *others])
print(" ".join(noted()[1:]))
"""


@pytest.mark.parametrize("urgent", ["worker", "driver"])
def test_priority(run_script: Script, tmp_path: Path, urgent: str) -> None:
    """Three tasks of the driver, and three that were submitted by a task of a task, by the method of an actor that an
    actor has made, and by a task with `preload`: those with the higher priority run first, on either side. The run log
    has the decision of each, and the line at the end counts them."""
    done = run_script(BEGINNING + ORDER, EGS_MODE="on", URGENT=urgent)
    other = "driver" if urgent == "worker" else "worker"
    assert done.stdout == " ".join([urgent] * 3 + [other] * 3) + "\n", done.stderr
    records = read_run(tmp_path / "log.jsonl").records
    names = {record.task: record.name for record in records if isinstance(record, TaskAdded)}
    granted = [names[record.task] for record in records if isinstance(record, Granted)]
    assert sorted(granted) == ["hold", "loaded", *["nested"] * 3, *["own"] * 3]
    assert egs_lines(done)[0].startswith("egs: ordered 8 GPU tasks")


QUOTA = """
@ray.remote(num_cpus=0)
def submits():
    return sum(ray.get([work.remote() for _ in range(4)]))

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def work():
    return len(ray.get(fit.remote("worker", 0.1)))

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def parent():
    return len(ray.get(fit.remote("parent", 0.1))) + ray.get(through.remote())

@ray.remote(num_cpus=0)
def through():
    return len(ray.get(fit.remote("through", 0.1)))

@ray.remote(num_gpus=1, num_cpus=0)
class Model:
    def call(self):
        return len(ray.get(fit.remote("method", 0.1)))

@ray.remote(num_gpus=1, num_cpus=0)
@egs.task(preload=[egs.modules("json")])
def loaded():
    return len(ray.get(fit.remote("loaded", 0.1)))

refs = [fit.remote("driver", 0.1) for _ in range(4)] + [plain.remote()]
print(ray.get(refs), ray.get(submits.remote()), ray.get(parent.remote()), ray.get(loaded.remote()))
model = Model.remote()
print(ray.get(model.call.remote()))
"""
PLAIN = """
@ray.remote(num_cpus=0)
def plain():
    return ray.get([fit.remote("worker", 0.1) for _ in range(4)])
"""


def test_quota(begin: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """A queue with one of Ray's two GPUs: no two tasks of driver and workers at once. Tasks that hold it while their
    code waits for nested ones, also through a task without a GPU, let those go on their turn, one at a time; so do a
    task with `preload` and an actor."""
    end_site()
    (tmp_path / "queues.yaml").write_text(QUEUES)
    script = begin(PLAIN + QUOTA, EGS_GATE="cluster", EGS_QUEUES=str(tmp_path / "queues.yaml"))
    assert ends(script) == f"{['driver'] * 4 + [['worker'] * 4]} 24 13 6\n6\n"
    end_site()
    rows = sorted(line.split() for line in (tmp_path / "log").read_text().splitlines())
    times = sorted((float(began), float(ended)) for _, began, ended in rows)
    assert len(times) == 16
    assert all(before[1] <= after[0] for before, after in pairwise(times)), rows


NATIVELY = """
from ray.exceptions import TaskCancelledError

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def add(*values, **named):
    return sum(values) + sum(named.values())

@ray.remote(num_gpus=0.5, num_cpus=0, num_returns=2)
def pair(value):
    return value, -value

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def broken(value):
    raise ValueError(f"no {value}")

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0, max_retries=1)
def crash_once(path):
    if not os.path.exists(os.path.join(FOLDER, path)):
        signal(path)
        os._exit(1)
    return "second try"

@ray.remote(num_gpus=1, num_cpus=0)
def stream(value):
    yield value
    yield value + 1

@ray.remote(num_gpus=1, num_cpus=0)
class Model:
    def predict(self, value):
        return ray.get(add.remote(value, 1))

@ray.remote(num_cpus=0)
class Plain:
    def call(self):
        return ray.get(add.remote(20, 2))

@ray.remote(num_cpus=0)
def waits(path):
    until_signal(path)
    return 5

@ray.remote(num_gpus=1, num_cpus=0)
def on_gpu(depth):
    return depth if depth == 2 else ray.get(on_gpu.remote(depth + 1))

@ray.remote(num_cpus=0)
def all_of_it():
    told = [ray.get(add.remote(ray.put(1), add.remote(2, 3), more=add.remote(4)))]
    told.append(ray.get(pair.remote(6)))
    try:
        ray.get(add.remote(broken.remote(7)))
    except ValueError as error:
        told.append((type(error).__name__, str(error.cause)))
    try:
        ray.remote(num_gpus=1)(lambda value: value).remote()
    except TypeError as error:
        told.append(str(error))
    told.append(ray.get(crash_once.remote("crashed")))
    told.append([ray.get(ref) for ref in stream.remote(1)])
    model = Model.remote()
    told.append(ray.get(model.predict.remote(8)))
    ray.kill(model)
    told.append(len(ray.get(fit.remote("x" * 1_000_000))))
    held = hold.remote("go")
    until(lambda: "hold" in noted())
    waiting, late = add.remote(9), add.remote(waits.remote("there"))
    told.append([len(refs) for refs in ray.wait([waiting, held], timeout=0.3)])
    ray.cancel(waiting)
    signal("go")
    try:
        ray.get(waiting)
    except TaskCancelledError:
        told.append("cancelled")
    signal("there")
    told.append(ray.get(late))
    told.append(ray.get(on_gpu.remote(1)))
    return told

for line in ray.get(all_of_it.remote()):
    print(line)
print(ray.get(Plain.remote().call.remote()))
try:
    ray.get(ray.remote(num_cpus=0)(lambda: ray.get(broken.remote(1))).remote())
except ValueError as error:
    print(type(error).__name__, error.cause)
"""


def test_as_natively(run_script: Script, tmp_path: Path) -> None:
    """Values, several returns, errors, retries, generators, actors, time-outs, cancelling, GPU tasks that wait for GPU
    tasks: a task on a worker reads what it reads natively."""
    natively = run_script(BEGINNING + NATIVELY, hook=False)
    assert natively.returncode == 0, natively.stderr
    for name in ("log", "go", "there", "crashed"):
        (tmp_path / name).unlink(missing_ok=True)
    ordered = run_script(BEGINNING + NATIVELY, EGS_MODE="on")
    assert ordered.stdout == natively.stdout, ordered.stderr
    assert len(natively.stdout.splitlines()) == 14
    assert len(egs_lines(ordered)) == 1


OPENS = """
@ray.remote(num_cpus=0)
def submits():
    refs = [fit.remote(number) for number in range(3)]
    signal("submitted")
    until_signal("on")
    return ray.get([*refs, fit.remote(3)])

@ray.remote(num_cpus=0)
def holds():                                      # its own, as Ray has a stopped driver's GPUs for that driver's tasks
    ray.get(hold.remote("go"))

held = holds.remote()
until(noted)
done = submits.remote()
until_signal("submitted")
known(4)
if os.environ.get("CLOSES"):
    desk = hook.interceptor._desk
    desk._server._listener.close()                # nobody listens any more, and the lines that there are end
    for peer in list(desk._workers):
        peer.hang_up()
    until(lambda: not desk._workers)
    signal("on")
else:
    signal("stop")
    until_signal("on")
signal("go")
print(ray.get(done))
"""


def test_a_lost_line_opens_what_waits(begin: Callable[..., subprocess.Popen[str]]) -> None:
    """The driver stops listening while nested tasks wait for their turn: they and the later ones go to Ray."""
    assert ends(begin(OPENS, CLOSES="yes")) == "[0, 1, 2, 3]\n"


def test_a_silent_driver_opens_what_waits(begin: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """The driver's process stands still: nested tasks that wait, and one that its parent submits then, run without it;
    the script ends as natively when it goes on."""
    script = begin(OPENS)
    t.until(lambda: (tmp_path / "stop").exists())
    script.send_signal(signal.SIGSTOP)
    try:
        for name in ("on", "go"):
            (tmp_path / name).touch()
        t.until(lambda: len((tmp_path / "log").read_text().splitlines()) == 5)
    finally:
        script.send_signal(signal.SIGCONT)
    assert ends(script) == "[0, 1, 2, 3]\n"


ABORTED = """
@ray.remote(num_cpus=0)
def submits():
    refs = [fit.remote("long", 600), hold.remote("never")]
    signal("submitted")
    told = []
    for ref in refs:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            told.append(type(error).__name__)
    return told

print(ray.get(submits.remote()))
"""


def listed() -> dict[str, Any]:
    try:
        return {task.name: task for one in control.ps() for task in one.running}
    except InputError:
        return {}


def test_operators(begin: Callable[..., subprocess.Popen[str]]) -> None:
    """`egs ps` lists a nested task; an abort of it, and then of the workload, ends what runs and what waits: its parent
    reads what natively a cancelled task gives."""
    script = begin(ABORTED)
    t.until(lambda: "fit" in listed())
    (workload,) = {one.workload for one in control.ps()}
    assert control.abort(workload, task="fit", actor="ann").tasks
    t.until(lambda: "fit" not in listed())
    control.abort(workload, actor="ann")
    assert set(eval(ends(script))) <= {"TaskCancelledError", "WorkerCrashedError"}
