"""Mode `on` on unmodified scripts where something of EGS breaks or is missing: Ray does as it does alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import TaskAdded
from tests.conformance.ray.scripts import ORDER, Script, egs_lines

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
    done = run_script(BOARD_DIES, EGS_MODE="on", EGS_RAY_WITHOUT="own_values")
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
from egs_ray.session import pulse, tickets
def failing(self):
    raise RuntimeError("no pulse")
tickets.Tickets.live = failing
pulse.PULSE_S = 0.01
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
