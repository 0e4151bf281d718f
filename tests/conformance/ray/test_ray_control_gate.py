"""Control of a script whose GPU tasks are ordered with those of all drivers by the actor, from another process."""

from __future__ import annotations

import json
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
from egs_ray.session.operations import EARLY, PASSED, WAITS
from tests.conformance.ray import control_tasks as c
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import end_site

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture
def script(ray_address: str, tmp_path: Path) -> Iterator[Any]:
    """A script with three tasks for two GPUs, and one that takes the last one's result."""
    end_site()
    process = c.start("gate", tmp_path, ray_address)
    yield process
    print((tmp_path / "out.txt").read_text())  # shown when the test fails
    process.kill()
    process.wait()
    end_site()
    t.until(t.is_idle)


def ready(folder: Path) -> str:
    """Wait until all four are where they should be; the script's workload."""
    t.until(lambda: len(that_run(folder)) == 2)
    t.until(lambda: [task.state for task in listed()] == [PASSED, PASSED, WAITS, EARLY])
    (workload,) = [one.workload for one in control.ps()]
    return workload


def that_run(folder: Path) -> list[str]:
    """The tasks that have started."""
    return [name for name in ("plain0", "plain1", "plain2", "last") if c.starts(folder, name)]


def listed() -> list[RunningTask]:
    """What `egs ps` shows of scripts, by state."""
    try:
        tasks = [task for one in control.ps() for task in one.running]
    except InputError:
        return []  # nobody has reported yet
    return sorted(tasks, key=lambda task: (PASSED, WAITS, EARLY, "stopping").index(task.state))


def own_lines(text: str) -> list[str]:
    """Without Ray's word on how many processes it has, of all tests."""
    return [line for line in text.splitlines() if "(raylet)" not in line]


@pytest.mark.proves("ray cluster", "abort")
def test_each_task_at_the_gate(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks are listed while they wait and run, paused, resumed and aborted, each for itself; what cannot be done is
    said in one line; nothing is tried again, and the run log has who and why."""
    workload = ready(tmp_path)
    first, second, waits, _ = listed()
    assert [task.gpus for task in (first, second, waits)] == [1.0, 1.0, 0.0]
    assert egs(["ps", "--on", "ray", "--json"]) == 0
    (shown,) = json.loads("".join(own_lines(capsys.readouterr().out)))["workloads"]
    assert {first.task, second.task, waits.task} < {task["task"] for task in shown["running"]}
    assert egs(["preempt", "--on", "ray", workload, "--task", first.task]) == 2
    assert egs(["abort", "--on", "ray", workload, "--task", "nosuch"]) == 2
    said = own_lines(capsys.readouterr().err)
    assert [line.partition(f"{workload}: ")[2].partition(" (")[0] for line in said] == [
        "nothing of it can be started again",
        "has no task 'nosuch'",
    ]
    assert control.pause(workload, task=waits.task).tasks == (waits.task,)
    begun = that_run(tmp_path)
    t.signal_to(str(tmp_path), f"{begun[0]}.end")
    t.until(lambda: t.free("GPU") == 1 and [task.state for task in listed()].count(PASSED) == 1)
    assert that_run(tmp_path) == begun
    control.resume(workload, task=waits.task)
    (third,) = t.until(lambda: [name for name in that_run(tmp_path) if name not in begun])
    (pid,) = c.starts(tmp_path, third)
    assert control.abort(workload, task=waits.task, actor="ann", reason="enough").tasks == (waits.task,)
    t.until(lambda: c.is_dead(pid))
    (other,) = c.starts(tmp_path, begun[1])
    assert not c.is_dead(other)
    control.abort(workload, task="plain", actor="ben")
    t.until(lambda: c.is_dead(other))
    assert script.wait(t.LIMIT_S) == 0
    assert [len(c.starts(tmp_path, name)) for name in ("plain0", "plain1", "plain2")] == [1, 1, 1]
    reasons = {r.reason for r in read_run(tmp_path / "run.jsonl").records if isinstance(r, Ended)}
    assert reasons >= {"aborted by ann: enough", "aborted by ben"}


def test_a_whole_script(script: Any, tmp_path: Path) -> None:
    """Paused, nothing of it passes the gate; aborted, all of it ends, also what waits."""
    workload = ready(tmp_path)
    control.pause(workload, reason="maintenance")
    t.until(lambda: [one.state for one in control.ps()] == ["paused"])
    begun = that_run(tmp_path)
    for name in begun:
        t.signal_to(str(tmp_path), f"{name}.end")
    t.until(lambda: t.free("GPU") == 2 and len(found := listed()) == 2 and found[0].state == WAITS)
    assert that_run(tmp_path) == begun
    assert len(control.abort(workload, actor="ann").tasks) == 2
    assert script.wait(t.LIMIT_S) == 0
    assert that_run(tmp_path) == begun
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert sum("TaskCancelledError" in line for line in lines) == 2, lines
