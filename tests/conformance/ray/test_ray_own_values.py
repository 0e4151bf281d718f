"""Values of a driver's own, on a real Ray: what waits for one goes on with it, and nothing of it stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.conformance.ray.scripts import egs_lines

Script = Callable[..., "subprocess.CompletedProcess[str]"]

VALUES = """
import os, time
import ray
from egs_ray.own_values import make_own_values

ray.init(log_to_driver=False)
core = ray._private.worker.global_worker.core_worker
values = make_own_values()

@ray.remote(num_cpus=0.1)
def told(value, path=None):
    if path and not os.path.exists(path):
        open(path, "w").close()
        os._exit(1)
    return value

@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, value):
        self.value = value

    def told(self):
        return self.value

def error_of(ref):
    try:
        ray.get(ref, timeout=120)
    except Exception as error:
        return type(error).__name__

ray.get(told.remote(0))
promised = [values.new() for _ in range(6)]
refs = [told.remote(promised[0]), told.remote(promised[1]), told.remote(promised[2], os.path.abspath("once"))]
kept_by, killed = Actor.remote(promised[3]), Actor.remote(promised[4])
refs += [kept_by.told.remote(), killed.told.remote()]
ready = []
promised[5]._on_ready(ready.append)
print("before", ray.wait(refs, num_returns=5, timeout=0.5)[0], ready)
ray.cancel(refs[0])
print("ended", error_of(refs[0]))
ray.kill(killed)
print("ended", error_of(refs[4]))
for number, ref in enumerate(promised):
    values.keep(ref, {"number": [number]})
values.keep(promised[1], "another")          # it has one
del ref, promised
print("told", ray.get(refs[1:4], timeout=120))
many = [values.new() for _ in range(200)]
refs = [told.remote(ref) for ref in many]
for ref in many:
    values.keep(ref, None)
print("many", set(ray.get(refs, timeout=120)))
dropped = values.new()
refs, many, ref = [told.remote(dropped)], [], None
values.keep(dropped, 7)
del dropped
print("dropped", ray.get(refs, timeout=120))
del refs, kept_by, killed
deadline = time.monotonic() + 60
while (left := core.get_all_reference_counts()) and time.monotonic() < deadline:
    time.sleep(0.05)
print("left", left, core.get_memory_store_size())
"""


def test_what_waits_goes_on_with_the_value(run_script: Script) -> None:
    """Tasks, a task whose process dies once, an actor: none starts before, each gets its value; of what was cancelled
    or killed meanwhile the errors are Ray's. Afterwards Ray has no reference and no value of it."""
    done = run_script(VALUES, EGS_MODE="off")
    assert done.stdout.splitlines() == [
        "before [] []",
        "ended TaskCancelledError",
        "ended ActorDiedError",
        "told [{'number': [1]}, {'number': [2]}, {'number': [3]}]",
        "many {None}",
        "dropped [7]",
        "left {} 0",
    ], done.stderr


WAITS = """
import os, time
import ray
from ray._private.state import actors
from egs_ray import install
from egs_ray.session import tickets

tickets.PATIENCE_S = float(os.environ["PATIENCE"])

@ray.remote(num_gpus=2, max_calls=0)
def task(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return path

@ray.remote(num_gpus=2)
class Actor:
    def __init__(self, value):
        self.value = value

    def told(self):
        return self.value

ray.init(log_to_driver=False)
first, second = os.path.abspath("first"), os.path.abspath("second")
refs = [task.remote(first), task.remote(first), task.remote(second)]
gate = install.interceptor._gate
deadline = time.monotonic() + 120
while len(gate.books.jobs) < 3 and time.monotonic() < deadline:   # the site knows them
    time.sleep(0.01)
waiting = lambda: [ticket.name for ticket in gate.tickets._held.values() if not ticket.is_open]
print("waiting", waiting())
BETWEEN
open(first, "w").close()
print(len(ray.get(refs[:2], timeout=120)))
open(second, "w").close()
ray.get(refs[2:], timeout=120)
actor = Actor.remote(5)
print(ray.get(actor.told.remote(), timeout=120))
print([one["ActorClassName"] for one in actors(job_id=ray.get_runtime_context().get_job_id()).values()])
"""
JOB = ("job_id=ray.get_runtime_context().get_job_id()", "job_id=ray.get_runtime_context().job_id")


def test_a_script_whose_tasks_wait_has_no_process_more(run_script: Script) -> None:
    """Two tasks wait for the GPUs of a third: they are let go one after the other, and the only actor is the script's
    own, also after some seconds."""
    script = WAITS.replace("BETWEEN", "time.sleep(2.5)   # the first sign of life is given after a second")
    done = run_script(script.replace(*JOB), EGS_MODE="on", PATIENCE="20")
    assert done.stdout.splitlines() == ["waiting ['2', '3']", "2", "5", "['Actor']"], done.stderr
    assert egs_lines(done)[0].startswith("egs: ordered 4 GPU tasks")


SILENT = """
gate.site.do(lambda: time.sleep(20))     # the holder's thread hangs
began = time.monotonic()
while gate.tickets._own_refs and time.monotonic() - began < 15:
    time.sleep(0.05)
print("opened", time.monotonic() - began < 15)
"""


def test_tickets_open_where_the_thread_that_opens_them_hangs(run_script: Script) -> None:
    """What waits goes to Ray in the order in which it came there, as without EGS; the script ends well."""
    done = run_script(WAITS.replace("BETWEEN", SILENT).replace(*JOB), EGS_MODE="on", PATIENCE="1.5")
    assert done.stdout.splitlines()[:3] == ["waiting ['2', '3']", "opened True", "2"], done.stderr
    assert done.returncode == 0
