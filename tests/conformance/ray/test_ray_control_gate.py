"""Control of GPU tasks at the cluster's gate, from another process: the script's own and those of its workers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.adapter import RunningTask
from egs_core.cli.app import run as egs
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended
from egs_ray.control import commands as control
from egs_ray.gate.messages import PASSED, PAUSED, READY
from tests.conformance.ray import control_tasks as c
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import end_gate

pytestmark = pytest.mark.usefixtures("ray_address")
NESTED = (f"{PASSED} (nested)", f"{READY} (nested)", f"{PAUSED} (nested)")

CANCELLED = "1 RayTaskError(TaskCancelledError)"
"""How the driver sees the end of the task whose own tasks were cancelled."""


@pytest.fixture
def script(ray_address: str, tmp_path: Path) -> Iterator[Any]:
    """A script whose task `own` has one GPU, and whose worker has submitted two: one has the other GPU, one waits."""
    end_gate()
    process = c.start("gate", tmp_path, ray_address)
    yield process
    print((tmp_path / "out.txt").read_text())  # shown when the test fails
    process.kill()
    process.wait()
    end_gate()
    t.until(t.is_idle)


def ready(folder: Path) -> str:
    """Wait until all three are where they should be; the script's workload."""
    t.until(lambda: c.starts(folder, "own") and len(nested_that_run(folder)) == 1)
    t.until(lambda: [task.state for task in listed()] == [PASSED, *NESTED[:2]])
    (workload,) = [one.workload for one in control.ps()]
    return workload


def nested_that_run(folder: Path) -> list[int]:
    """The numbers of the nested tasks that have started."""
    return [number for number in range(2) if c.starts(folder, f"nested{number}")]


def listed() -> list[RunningTask]:
    """What `egs ps` shows of scripts, by state."""
    try:
        tasks = [task for one in control.ps() for task in one.running]
    except InputError:
        return []  # nobody has reported yet
    return sorted(tasks, key=lambda task: (PASSED, *NESTED).index(task.state))


def state_of(label: str) -> str:
    """A task's; "" when it is not there (any more)."""
    return next((task.state for task in listed() if task.task == label), "")


@pytest.mark.proves("ray cluster", "abort")
def test_each_task_at_the_gate(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of workers, too, are listed while they wait and run, paused, resumed and aborted, each for itself; what
    cannot be done is said in one line; nothing is tried again, and the run log has who and why."""
    workload = ready(tmp_path)
    own, runs, waits = listed()
    assert [task.name for task in (own, runs, waits)] == ["plain"] * 3
    assert egs(["ps", "--on", "ray", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["workloads"]
    assert {task["task"] for task in shown["running"]} == {task.task for task in (own, runs, waits)}
    assert egs(["preempt", "--on", "ray", workload, "--task", runs.task]) == 2
    assert egs(["abort", "--on", "ray", workload, "--stage", "fit"]) == 2
    assert egs(["abort", "--on", "ray", workload, "--task", "nosuch"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{workload}: ")[2].partition(" (")[0] for line in said] == [
        "the tasks of a script cannot be started again for it",
        "the tasks of a script have no stages",
        "has no task 'nosuch'",
    ]
    assert control.pause(workload, task=waits.task).tasks == (waits.task,)
    t.until(lambda: state_of(waits.task) == NESTED[2])
    (first,) = nested_that_run(tmp_path)
    t.signal_to(str(tmp_path), f"nested{first}.end")
    t.until(lambda: t.free("GPU") == 1 and not state_of(runs.task))
    assert nested_that_run(tmp_path) == [first]
    control.resume(workload, task=waits.task)
    second = 1 - first
    (pid,) = t.until(lambda: c.starts(tmp_path, f"nested{second}"))
    assert control.abort(workload, task=waits.task, actor="ann", reason="enough").tasks == (waits.task,)
    t.until(lambda: c.is_dead(pid))
    assert not c.is_dead(c.starts(tmp_path, "own")[0])
    control.abort(workload, task="plain", actor="ben")
    t.until(lambda: c.is_dead(c.starts(tmp_path, "own")[0]))
    assert script.wait(t.LIMIT_S) == 0
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [line for line in lines if line[:2] in ("0 ", "1 ")] == ["0 TaskCancelledError", CANCELLED]
    assert [len(c.starts(tmp_path, name)) for name in ("own", "nested0", "nested1")] == [1, 1, 1]
    reasons = {r.reason for r in read_run(tmp_path / "run.jsonl").records if isinstance(r, Ended)}
    assert reasons >= {"aborted by ann: enough", "aborted by ben"}


def test_a_whole_script(script: Any, tmp_path: Path) -> None:
    """Paused, nothing of it passes the gate; aborted, all of it ends, also what waits, and what comes is cancelled."""
    workload = ready(tmp_path)
    control.pause(workload, reason="maintenance")
    t.until(lambda: [one.state for one in control.ps()] == ["paused"])
    (first,) = nested_that_run(tmp_path)
    for name in ("own", f"nested{first}"):
        t.signal_to(str(tmp_path), f"{name}.end")
    t.until(lambda: t.free("GPU") == 2 and [task.state for task in listed()] == [NESTED[2]])
    assert nested_that_run(tmp_path) == [first]
    assert len(control.abort(workload, actor="ann").tasks) == 1
    assert script.wait(t.LIMIT_S) == 0
    assert nested_that_run(tmp_path) == [first]
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [line for line in lines if line[:2] in ("0 ", "1 ")] == ["0 own", CANCELLED]


def test_while_the_driver_hangs(script: Any, tmp_path: Path) -> None:
    """A pause is the gate's alone; an abort ends the driver's tasks where they run, and its workers end theirs."""
    workload = ready(tmp_path)
    (first,) = nested_that_run(tmp_path)
    pids = [c.starts(tmp_path, name)[0] for name in ("own", f"nested{first}")]
    script.send_signal(signal.SIGSTOP)
    paused = control.pause(workload)
    assert (paused.hangs, len(paused.tasks)) == (False, 3)
    assert [task.state for task in listed()] == [PASSED, NESTED[0], NESTED[2]]
    aborted = control.abort(workload, reason="hangs")
    assert (aborted.hangs, len(aborted.tasks)) == (True, 3)
    t.until(lambda: all(c.is_dead(pid) for pid in pids))
    script.send_signal(signal.SIGCONT)
    assert script.wait(t.LIMIT_S) == 0
    assert nested_that_run(tmp_path) == [first]
    assert len(c.starts(tmp_path, "own")) == 1
