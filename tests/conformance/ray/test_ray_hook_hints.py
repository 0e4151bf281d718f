"""Hints on the functions of an unmodified `.remote()` script under the hook: each one that is kept there, on a real
Ray, and what stays as Ray has it. Split, preload, limits and abort are scenarios of the conformance suite."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Granted, Record, Started, TaskAdded

if TYPE_CHECKING:
    import subprocess

Script = Callable[..., "subprocess.CompletedProcess[str]"]

USES = """
import os, sys, textwrap, time
import ray
import egs_core as egs

def hinted(gpus=1, remote={}, **hints):
    return lambda function: ray.remote(num_gpus=gpus, max_calls=0, **remote)(egs.task(gpus=gpus, **hints)(function))

class Mine(Exception):
    pass

@hinted(preload=[egs.modules("json")])
def add(a, b=0, *, c=0):
    with egs.gpu():
        return a + b + c

@hinted(preload=[egs.modules("json")], remote=dict(num_returns=2))
def two(a):
    with egs.gpu():
        return a, -a

counted = []

@ray.remote(num_gpus=1)
@egs.task(priority=1)
def fresh():
    counted.append(1)
    with egs.gpu():
        return len(counted)

@hinted()
def failing(text):
    with egs.gpu():
        raise Mine(text)

@hinted(remote=dict(max_retries=2))
def dies_once(path):
    with egs.gpu():
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(3)
        return "again"

@hinted(remote=dict(retry_exceptions=[Mine], max_retries=2))
def raises_once(path):
    with egs.gpu():
        if not os.path.exists(path):
            open(path, "w").close()
            raise Mine("first")
        return "second"

@hinted()
def endless(path):
    with egs.gpu():
        open(path, "w").close()
        while True:
            time.sleep(0.05)

@hinted()
def nesting(n):
    inner = ray.get([plain.remote(i) for i in range(n)])
    with egs.gpu():
        return sum(inner)

@ray.remote
def plain(n):
    return n

@hinted(priority=5)
def whole(refs):
    return ray.get(refs[0])

def shown(error):
    return type(error).__name__, isinstance(error, Mine), "Mine" in str(error)

@hinted(remote=dict(num_cpus=0.1))
def crowded(number):
    with egs.gpu():
        return number

ray.init(log_to_driver=False)
folder = sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"]
os.makedirs(folder)
first = add.remote(1, 2)
print("value", ray.get(first), ray.get(add.remote(first, b=add.remote(5), c=ray.put(10))))
print("two", ray.get(two.remote(3)), [ray.get(ref) for ref in two.remote(add.remote(1))])
print("fresh", [ray.get(fresh.remote()) for _ in range(3)])
modules_own = ray.remote(num_gpus=1, max_calls=0)(egs.task(preload=[egs.modules("json")])(textwrap.dedent))
print("module's", ray.get(modules_own.remote("  text")))   # workers get it by its name, without these hints
print("options", ray.get(add.options(name="other").remote(4)))
for ref in (failing.remote("mine"), add.remote(failing.remote("deeper"), 1)):
    try:
        ray.get(ref)
    except Exception as error:
        print("error", *shown(error))
print("retries", ray.get(dies_once.remote(folder + "/died")), ray.get(raises_once.remote(folder + "/raised")))
print("nested", ray.get(nesting.remote(3)), ray.get(whole.remote([add.remote(7)])))
running = endless.remote(folder + "/runs")
while not os.path.exists(folder + "/runs"):
    time.sleep(0.02)
try:
    ray.get(running, timeout=0.1)
except ray.exceptions.GetTimeoutError:
    print("timeout")
others = [endless.remote(folder + f"/other{i}") for i in range(3)]   # some of them wait
print("ready", ray.wait([running], timeout=0)[0])
for ref in (*others, running):
    ray.cancel(ref, force=True)
for ref in (*others, running):
    try:
        ray.get(ref)
    except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
        print("cancelled")
print("after", ray.get(add.remote(1)))
print("fan", ray.get([crowded.remote(number) for number in range(24)]))
try:
    add.remote()
except TypeError as error:
    print("arguments", error)
"""


WORDS = (
    "value",
    "two",
    "module's",
    "options",
    "error",
    "retries",
    "nested",
    "timeout",
    "ready",
    "cancelled",
    "after",
    "fan",
    "arguments",
)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script printed; Ray prints there, too, what it tries again."""
    return [line for line in done.stdout.splitlines() if line.startswith(WORDS)]


def test_hinted_tasks_are_as_natively(run_script: Script, tmp_path: Path) -> None:
    """Values, several returns, errors, retries, nesting, time-outs and cancelling of tasks with hints, split and
    preloaded, are those of Ray alone with the same functions; and a fan of them has a bounded number of processes."""
    native = run_script(USES, hook=False, FOLDER=str(tmp_path / "native"))
    assert native.returncode == 0, native.stderr
    with_egs = run_script(USES, EGS_MODE="on", FOLDER=str(tmp_path / "egs"))
    assert with_egs.returncode == 0, with_egs.stderr
    assert lines(with_egs) == lines(native), with_egs.stderr
    assert lines(native).count("cancelled") == 4
    said = [line for line in with_egs.stderr.splitlines() if line.startswith("egs:")]
    assert len(said) == 1, said
    run = read_run(tmp_path / "log.jsonl")
    phases = {record.task: len(record.phases) for record in run.records if isinstance(record, TaskAdded)}
    assert max(phases.values()) == 3  # CPU, GPU, CPU
    names = {record.name for record in run.records if isinstance(record, TaskAdded)}
    assert {"add", "failing", "nesting", "plain", "whole"} <= {name.rpartition(".")[2] for name in names}, names
    ends = {record.task for record in run.records if isinstance(record, Ended)}
    assert {record.task for record in run.records if isinstance(record, Started)} <= ends
    assert 2 <= most_at_once(run.records, "crowded") <= 8, "processes on 4 CPUs and 2 GPUs"


def most_at_once(records: list[Record], name: str) -> int:
    """The most tasks of a function that had been granted their first phase and had not ended their last."""
    phases = {r.task: len(r.phases) for r in records if isinstance(r, TaskAdded) and r.name.endswith(name)}
    at_once, most = set[str](), 0
    for record in records:
        if isinstance(record, Granted) and record.task in phases:
            at_once.add(record.task)
        elif isinstance(record, Ended) and record.phase + 1 == phases.get(record.task):
            at_once.discard(record.task)
        most = max(most, len(at_once))
    return most


ORDER = """
import os, time
import ray
import egs_core as egs

folder = os.environ["FOLDER"]

def began(name):
    with open(folder + "/began", "a") as file:
        file.write(name + chr(10))
    time.sleep(0.3)   # shorter tasks may go to Ray ahead of their turn
    return name

@ray.remote(num_gpus=2, max_calls=0)
def blocker(number):
    while not os.path.exists(f"{folder}/go{number}"):
        time.sleep(0.02)

def step(**hints):
    @ray.remote(num_gpus=2, max_calls=0)
    @egs.task(**{"expect": 0.5, **hints})
    def run(name, *after):
        return began(name)
    return run

@ray.remote
def report(*after):
    return 0

@ray.remote
@egs.task(gpus=2, cpus=0.5, memory=1000, flavors=["nosuch"], priority=20, expect=0.5)
def told(name):   # all that it needs is said by hints, and where it would rather run
    return began(name)

def held(number, *made, wait_s=0.0):
    # Both GPUs are busy until all of them wait for their turn.
    block = blocker.remote(number)
    time.sleep(0.5)
    refs = [one() for one in made]
    time.sleep(wait_s)
    open(f"{folder}/go{number}", "w").close()
    ray.get([block, *refs])

def chain(name):
    def made():
        trunk = step().remote(name)
        return report.remote(step().remote(name + ".next", trunk))
    return made

os.makedirs(folder)
ray.init(log_to_driver=False)
ray.get(step().remote("warm"))
held(0, *(lambda: step().remote("low"), lambda: step(priority=10).remote("high"), lambda: told.remote("first")))
without, late, soon = (step(expect="1h", deadline=when) for when in (None, "3h", "2h"))  # "soon" is urgent for an hour
held(1, lambda: without.remote("no deadline"), lambda: late.remote("late"), lambda: soon.remote("soon"))
held(2, chain("trunk"), lambda: step(max_wait=0.5).remote("overdue"), wait_s=2.0)
held(3, chain("trunk2"), lambda: step().remote("leaf"))
print([line.strip() for line in open(folder + "/began")])
"""


@pytest.mark.proves(
    "ray hinted script", "order", "priority", "max_wait", "deadline", "expect", "gpus", "cpus", "memory"
)
def test_hints_on_the_order(run_script: Script, tmp_path: Path) -> None:
    """`priority`, `deadline` and `max_wait` of tasks that a script submits order them, on two GPUs that are busy until
    all wait: the later submission goes first. Without the hint the leaf goes after a chain, as rule 2 has it."""
    done = run_script(ORDER, EGS_MODE="on", FOLDER=str(tmp_path / "marks"))
    assert done.returncode == 0, done.stderr
    began = ast.literal_eval(done.stdout)
    place = {name: number for number, name in enumerate(began)}
    assert place["first"] < place["high"] < place["low"], began
    tasks = [record for record in read_run(tmp_path / "log.jsonl").records if isinstance(record, TaskAdded)]
    assert [task.phases for task in tasks if task.name == "told"] == [(("gpu", 0.5, 2.0, 1000),)]
    assert place["soon"] < place["no deadline"] < place["late"], began
    assert place["overdue"] < place["trunk"], began
    assert place["trunk2"] < place["leaf"], began


GPU_TIME = """
import os, time
import ray
import egs_core as egs

@ray.remote(num_gpus=1, max_calls=0, max_retries=0)
@egs.task(max_gpu_time=1.0, gang="pair", idle_timeout=5, cpus=1, gpu_cpus=0.5)
def holds(path):
    with egs.gpu():
        while not os.path.exists(path):
            time.sleep(0.02)
    return "ended by itself"

@ray.remote
@egs.task(priority=7)
def plain():
    return "plain"

@ray.remote(num_gpus=1, num_cpus=0.25, max_calls=0)
@egs.task(memory="1000TiB", priority=3)
def large():
    return "large"

ray.init(log_to_driver=False)
print(ray.get(plain.remote()))
print(ray.get([large.remote(), large.remote()]))
try:
    print(ray.get(holds.remote("never")))
except ray.exceptions.RayError as error:
    print(type(error).__name__)
"""


@pytest.mark.proves("ray hinted script", "limits", "max_gpu_time", "gpu_cpus")
def test_limits_and_what_is_not_kept(run_script: Script, tmp_path: Path) -> None:
    """A task that holds a GPU for longer than `max_gpu_time` ends and says why, in the run log too. Hints that nothing
    keeps here are named, once each: `gang`, `idle_timeout`, `priority` of a task that needs no GPU, and all of one that
    needs more memory than a node has; that one runs as Ray was told."""
    done = run_script(GPU_TIME, EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    plain, large, error = done.stdout.splitlines()
    assert (plain, large) == ("plain", "['large', 'large']")
    assert error in ("TaskCancelledError", "WorkerCrashedError")
    said = [line for line in done.stderr.splitlines() if line.startswith("egs:")]
    for hint in ("gang", "idle_timeout", "priority"):
        assert len([line for line in said if hint in line]) == 1, said
    assert len([line for line in said if "large: no node has 1 GPU, 0.25 CPUs and 1.024e+06 GiB" in line]) == 1, said
    assert [line for line in said if "over its limit of 1 s of GPU time" in line and "holds" in line], said
    records = read_run(tmp_path / "log.jsonl").records
    ended = [record for record in records if isinstance(record, Ended)]
    assert "over its limit of 1 s of GPU time" in {record.reason for record in ended}, ended
    held = {(record.gpus, record.cpus) for record in records if isinstance(record, Started)}
    assert held == {(0.0, 1.0), (1.0, 0.5), (1.0, 0.25)}, held


FIRST_RUN = """
import os, sys, time
import ray
import egs_core as egs

def load():
    open("called", "w").close()
    return os.getpid()

@ray.remote
def slow():
    while not os.path.exists("called"):
        time.sleep(0.02)
    return 1

@ray.remote
def then(value):
    return value + 1

@ray.remote(num_gpus=1, max_calls=0)
@egs.task(preload=[egs.modules("wave"), egs.files("data.bin"), egs.call(load)])
def train(value):
    was_there = "wave" in sys.modules
    return was_there, egs.loaded(load) == os.getpid(), value

with open("data.bin", "wb") as file:
    file.write(b"x" * 1000)
ray.init(log_to_driver=False, runtime_env={"env_vars": {"HERE": os.getcwd()}})
print(ray.get(train.remote(then.remote(slow.remote())), timeout=150))
"""


@pytest.mark.proves("ray hinted script", "preload")
def test_a_first_run_preloads_as_soon_as_there_is_room(run_script: Script, tmp_path: Path) -> None:
    """Modules, files and calls are loaded before the argument is there, though nothing is known of any duration: the
    task two steps before it ends only once the load function has been called. The task runs in that process."""
    done = run_script(FIRST_RUN.replace('"called"', repr(str(tmp_path / "called"))), EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == (True, True, 2)


NO_HINTS = """
import ray
import egs_core as egs

@ray.remote(num_gpus=1, max_calls=0)
def train(n):
    n += 1
    with egs.gpu():
        n *= 10
    return n

ray.init(log_to_driver=False)
print(ray.get([train.remote(n) for n in range(3)]))
"""


def test_split_without_hints_is_asked_for(run_script: Script, tmp_path: Path) -> None:
    """A function without hints whose code says when it needs the GPU is split with EGS_SPLIT=auto, and stays whole
    without it; a value that is none is said once."""
    for number, (split, phases) in enumerate({"auto": 3, "": 1, "banana": 1}.items()):
        log = tmp_path / f"{number}.jsonl"
        done = run_script(NO_HINTS, EGS_MODE="on", EGS_SPLIT=split, EGS_RUNLOG=str(log))
        assert (done.returncode, done.stdout.splitlines()) == (0, ["[10, 20, 30]"]), done.stderr
        tasks = [record for record in read_run(log).records if isinstance(record, TaskAdded)]
        assert [len(task.phases) for task in tasks] == [phases] * 3
        assert done.stderr.count("EGS_SPLIT='banana' is none of hints, auto: hints") == (split == "banana")
