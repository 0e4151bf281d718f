"""GPU actors of an unmodified `.remote()` script under the hook, on a real Ray: they are as natively, and have their
turn, their limits and their place in `egs ps` with the tasks."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Granted, TaskAdded

if TYPE_CHECKING:
    import subprocess

Script = Callable[..., "subprocess.CompletedProcess[str]"]

USES = """
import asyncio, os, time
import ray

class Base:
    def __init__(self, value=0, *, more=0):
        self.value = value + more
    @classmethod
    def kind(cls):
        return cls.__name__

@ray.remote(num_gpus=1, num_cpus=0)
class Model(Base):
    def __init__(self, value=0, **named):
        super().__init__(value, **named)
        if value == "bad":
            raise ValueError("no such model")
    def get(self):
        return self.value, self.kind(), type(self).__name__, len(ray.get_gpu_ids())
    def leave(self):
        ray.actor.exit_actor()
    def die(self):
        os._exit(1)
    def pid(self):
        return os.getpid()

@ray.remote(num_gpus=1, num_cpus=0)
class Async:
    def __init__(self):
        self.event = asyncio.Event()
    async def wait(self):
        await self.event.wait()
        return "woken"
    async def wake(self):
        self.event.set()

@ray.remote(num_gpus=1, num_cpus=0)
class Plain:
    def get(self):
        return "plain"

@ray.remote(num_cpus=0)
def use(handle):
    return ray.get(handle.get.remote())

@ray.remote(num_cpus=0)
def value():
    return 5

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def task(handle):
    return ray.get(handle[0].get.remote())

def failure(ref):
    try:
        return ray.get(ref)
    except Exception as error:
        return type(error).__name__

ray.init(log_to_driver=False, namespace=os.environ["SPACE"])
first, second = Model.remote(1), Model.remote(2, more=1)
print("two", ray.get([first.get.remote(), second.get.remote()]))
third = Model.remote(value.remote())                        # waits: both GPUs are held
waiting = third.get.remote()
print("waits", ray.wait([waiting], timeout=1.0)[0], str(third)[:11])
ray.kill(first)
print("killed", ray.get(waiting), failure(first.get.remote()))
fourth = Model.remote(4)
used = use.remote(fourth)                                   # its handle is handed on while it waits
failure(second.leave.remote())
print("left", ray.get(used))
named = Model.options(name="model").remote(6)               # others may look for it
found = ray.get_actor("model").get.remote()
failure(third.die.remote())
print("named", ray.get(found))
again = Model.options(name="model", get_if_exists=True).remote(7)
print("again", ray.get(again.get.remote()))
try:
    Model.options(name="model").remote(8)
except ValueError as error:
    print("taken", type(error).__name__)
dropped = Model.remote(9)                                   # dropped while it waits: it never holds anything
del dropped
ray.kill(fourth)                                            # a worker may keep what it was handed
bad = Model.remote("bad")
print("bad", failure(bad.get.remote()))
try:
    Model.remote(1, 2, 3)
except TypeError as error:
    print("arguments", error)
both = Async.remote()
sleeps = both.wait.remote()
both.wake.remote()
print("async", ray.get(sleeps))
ray.kill(both)
restarts = Model.options(max_restarts=1, max_task_retries=-1).remote(10)
before = ray.get(restarts.pid.remote())
restarts.die.options(max_task_retries=0).remote()
print("restarts", ray.get(restarts.get.remote()), ray.get(restarts.pid.remote()) != before)
ray.kill(restarts)
threads = Plain.options(max_concurrency=4).remote()
print("threads", ray.get([threads.get.remote() for _ in range(4)]))
ray.kill(threads)
stays = Model.options(name="stays", lifetime="detached").remote(11)
print("detached", ray.get(stays.get.remote()))
ray.kill(stays)
ray.kill(named)
held = [Model.remote(12), Model.remote(13)]
ray.get([one.get.remote() for one in held])
server = Plain.remote()                                     # waits, and a task that needs it is submitted: with two
asks = [task.remote([server])]                              # of these Ray alone may give them all GPUs, for ever
del held
print("served", ray.get(asks))
"""

WORDS = tuple(line.split('"')[1] for line in USES.splitlines() if "print(" in line)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(WORDS)]


def test_actors_are_as_natively(run_script: Script) -> None:
    """Values, names, errors, restarts, kills, exits and scopes of GPU actors, three at a time on two GPUs, are those of
    Ray alone; so are actors that others wait for while those still wait for a GPU. EGS says its one line."""
    native = run_script(USES, hook=False, SPACE="native")
    assert native.returncode == 0, native.stderr
    with_egs = run_script(USES, EGS_MODE="on", SPACE="egs")
    assert with_egs.returncode == 0, with_egs.stderr
    assert lines(with_egs) == lines(native), with_egs.stderr
    assert len(lines(native)) == len(WORDS), native.stdout
    said = [line for line in with_egs.stderr.splitlines() if line.startswith("egs:")]
    assert len(said) == 1, said
    assert "constructor arguments" not in with_egs.stderr  # Ray's own error line about tickets that are restarted with


ORDER = """
import os, time
import ray
import egs_core as egs

folder = os.environ["FOLDER"]

def began(name):
    with open(folder + "/began", "a") as file:
        file.write(name + chr(10))

@ray.remote(num_gpus=2, num_cpus=0, max_calls=0)
def blocker(number):
    while not os.path.exists(f"{folder}/go{number}"):
        time.sleep(0.02)

def actor(**hints):
    @ray.remote(num_gpus=2, num_cpus=0)
    @egs.task(**hints)
    class Holds:
        def __init__(self, name):
            began(name)
            self.name = name
        def leave(self):
            ray.actor.exit_actor()
        def pid(self):
            return os.getpid()
        def sleep(self):
            time.sleep(600)
    return Holds

@ray.remote(num_gpus=2, num_cpus=0, max_calls=0)
@egs.task(expect=0.5)
def step(name, *after):
    began(name)

def held(number, *made, wait_s=0.0):
    # Both GPUs are busy until all of them wait for their turn; each actor leaves once it has had it.
    block = blocker.remote(number)
    time.sleep(0.5)
    all_of = [one() for one in made]
    ends = [one if isinstance(one, ray.ObjectRef) else one.leave.remote() for one in all_of]
    time.sleep(wait_s)
    open(f"{folder}/go{number}", "w").close()
    ray.wait([block, *ends], num_returns=1 + len(ends))

def error_of(ref):
    try:
        ray.get(ref)
    except ray.exceptions.RayError as error:
        return type(error).__name__

os.makedirs(folder)
ray.init(log_to_driver=False)
held(0, lambda: step.remote("task"), lambda: actor().remote("plain"), lambda: step.remote("later"),
     lambda: actor(priority=10).remote("urgent"))
held(1, lambda: step.remote("before"), lambda: actor(max_wait=0.5).remote("overdue"), wait_s=1.5)
held(2, lambda: actor(expect="1h").remote("no deadline"), lambda: actor(expect="1h", deadline="2h").remote("soon"))
errors = []
for hints in ({"max_runtime": 1.0}, {"max_gpu_time": 1.5}):
    errors.append(error_of(actor(**hints).remote("limit").sleep.remote()))
from egs_ray.control import commands as control
holds = actor().remote("aborted")
pid, sleeps = ray.get(holds.pid.remote()), holds.sleep.remote()
def listed():
    try:
        return [task for one in control.ps() for task in one.running if task.name == "Holds" and task.pid == pid]
    except egs.InputError:
        return []
while not (there := listed()):
    time.sleep(0.1)
(workload,) = [one.workload for one in control.ps() if there[0] in one.running]
control.abort(workload, task=there[0].task, actor="ann", reason="enough")
errors.append(error_of(sleeps))
ray.get(step.remote("last"))                                # what the three held is free
print([line.strip() for line in open(folder + "/began")], errors, [there[0].gpus])
"""


@pytest.mark.proves("ray hinted script", "order", "priority", "max_wait", "deadline", "expect")
@pytest.mark.proves("ray hinted script", "limits", "abort", "max_runtime", "max_gpu_time")
def test_order_limits_and_abort_of_actors(run_script: Script, tmp_path: Path) -> None:
    """An actor goes behind the tasks before it; with `priority`, `max_wait` or `deadline` it goes before them. One past
    `max_runtime` or `max_gpu_time`, and one that `egs abort` names as `egs ps` lists it, ends as by `ray.kill`, says
    why on stderr and in the run log, and what it held is free for the next."""
    done = run_script(ORDER, EGS_MODE="on", FOLDER=str(tmp_path / "marks"))
    assert done.returncode == 0, done.stderr
    began, errors, gpus = ast.literal_eval("[" + done.stdout.strip().replace("] [", "], [") + "]")
    assert began[:4] == ["urgent", "task", "later", "plain"], began
    assert began[4:8] == ["overdue", "before", "soon", "no deadline"], began
    assert errors == ["ActorDiedError"] * 3, errors
    assert (began[-1], gpus) == ("last", [2.0])
    records = read_run(tmp_path / "log.jsonl").records
    reasons = [record.reason for record in records if isinstance(record, Ended) and record.outcome == "aborted"]
    expected = ["over its limit of 1 s", "over its limit of 1.5 s of GPU time", "aborted by ann: enough"]
    assert reasons == expected, reasons
    for reason in expected[:2]:
        assert [line for line in done.stderr.splitlines() if "Holds-" in line and f"ended: {reason}" in line]
    added = [record for record in records if isinstance(record, TaskAdded)]
    creations = {record.task for record in added if record.name.endswith("Holds.__init__")}
    granted = {record.task for record in records if isinstance(record, Granted)}
    assert creations
    assert creations <= granted
