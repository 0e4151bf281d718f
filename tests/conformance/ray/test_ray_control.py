"""Abort, pause and preempt from another process, by workload, stage and task: dead, no retry, books right."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import egs_ray
from egs_core.cli.app import run as egs
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended
from egs_ray.control import commands as control
from egs_ray.control import controller
from egs_ray.events import processes_of
from tests.conformance.ray import control_tasks as c
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import Script

pytestmark = pytest.mark.usefixtures("ray_address")


class Runner:
    """A driver of its own that runs the same pipeline whenever it is told to; started again when it is gone."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self.process: Any = None
        self.number = -1

    def begin(self, *files: str) -> tuple[str, Path]:
        """Start a run; its workload, and its folder, in which these files are."""
        before = self._folder / str(self.number) / "out.txt"
        if self.number >= 0 and (not before.exists() or "why" not in before.read_text()):
            self.end()  # a test has left it in the middle of a run
        if self.process is None or self.process.poll() is not None:
            self._folder = self._folder.parent / f"{self._folder.name}-"
            self._folder.mkdir()
            self.process, self.number = c.start("run", self._folder, self._address), -1
        self.number += 1
        new = self._folder / f"{self.number}.new"
        new.mkdir()
        for name in files:
            (new / name).touch()
        new.rename(self._folder / str(self.number))
        return f"pipe#{self.number}", self._folder / str(self.number)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> list[Any]:
        return read_run(self._folder / "run.jsonl").records


@pytest.fixture(scope="module")
def runner(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    made = Runner(tmp_path_factory.mktemp("runner"), ray_address)
    yield made
    made.end()
    t.until(t.is_idle)


@pytest.fixture
def script(ray_address: str, tmp_path: Path) -> Iterator[Any]:
    """An unmodified script in mode on."""
    process = c.start("hook", tmp_path, ray_address)
    yield process
    print((tmp_path / "out.txt").read_text())  # shown when the test fails
    process.kill()
    process.wait()
    t.until(t.is_idle)


def both_fits_run(workload: str, folder: Path) -> list[int]:
    """Let the loads end and both fits start; their processes, known to the controller."""
    for i in range(2):
        t.signal_to(str(folder), f"load{i}.end")
    t.until(lambda: c.starts(folder, "fit0") and c.starts(folder, "fit1"))
    pids = [c.starts(folder, "fit0")[0], c.starts(folder, "fit1")[0]]
    t.until(lambda: {task.pid for task in told(workload) if task.stage == "fit"} == set(pids))
    return pids


def both_children_run(folder: Path) -> list[int]:
    t.until(lambda: c.starts(folder, "fit0.child") and c.starts(folder, "fit1.child"))
    return [c.starts(folder, "fit0.child")[0], c.starts(folder, "fit1.child")[0]]


def shown(workload: str) -> list[Any]:
    """The workload as the controller shows it: others of this Ray may not have ended yet."""
    return [one for one in control.ps() if one.workload == workload]


def told(workload: str) -> list[Any]:
    """What the controller says runs of a workload."""
    return [task for one in shown(workload) for task in one.running]


def until_dead(pids: list[int]) -> None:
    """None of them ends by itself before the test fails."""
    t.until(lambda: all(c.is_dead(pid) for pid in pids))


def output(folder: Path, word: str) -> str:
    """The driver's line that begins with the word."""
    path = folder / "out.txt"
    return str(t.until(lambda: path.exists() and [x for x in path.read_text().splitlines() if x.startswith(word)])[0])


def test_abort_workload(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    """By `egs abort`: running tasks and their children are dead, nothing is tried again or started after, the
    GPUs are free, and the driver, its run log and `why` tell who and why."""
    workload, folder = runner.begin("children")
    pids = both_fits_run(workload, folder)
    children = both_children_run(folder)
    assert egs(["ps", "--on", "ray"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in (workload, "fit-0", "running"))
    assert egs(["abort", "--on", "ray", workload, "--reason", "wrong data", "--actor", "ann"]) == 0
    until_dead(pids)
    until_dead(children)
    assert output(folder, "error").startswith("error TaskCancelledError")
    assert "aborted by ann: wrong data" in output(folder, "error")
    assert "aborted by ann: wrong data" in output(folder, "why")
    t.until(t.is_idle)
    assert [len(c.starts(folder, name)) for name in ("fit0", "fit1", "after")] == [1, 1, 0]
    ended = [r for r in runner.log if isinstance(r, Ended) and (r.workload, r.task[:3]) == (workload, "fit")]
    assert {(r.outcome, r.reason) for r in ended} == {("aborted", "aborted by ann: wrong data")}


@pytest.mark.proves("ray run", "abort", "stage")
def test_abort_stage_and_task(runner: Runner) -> None:
    """A task alone, then a stage: what else runs goes on, what waits for them never starts."""
    workload, folder = runner.begin()
    pids = both_fits_run(workload, folder)
    (one,) = [task.task for task in told(workload) if task.pid == pids[0]]
    assert control.abort(workload, task=one).tasks == (one,)
    until_dead(pids[:1])
    assert not c.is_dead(pids[1])
    assert len(control.abort(workload, stage="fit").tasks) == 2
    until_dead(pids[1:])
    output(folder, "error")
    assert c.starts(folder, "after") == []


def test_abort_when_the_driver_hangs(runner: Runner) -> None:
    """A stopped driver cannot cancel: its processes are ended where they run, and when it goes on nothing starts."""
    workload, folder = runner.begin("children")
    pids = both_fits_run(workload, folder)
    children = both_children_run(folder)
    t.until(lambda: [len(task) for _, task in holders()] == [2, 2])
    runner.process.send_signal(signal.SIGSTOP)
    outcome = control.abort(workload, reason="hangs")
    assert (outcome.hangs, len(outcome.tasks)) == (True, 2)
    until_dead(pids)
    until_dead(children)
    t.until(t.is_idle)
    runner.process.send_signal(signal.SIGCONT)
    assert "TaskCancelledError" in output(folder, "error")
    assert [len(c.starts(folder, name)) for name in ("fit0", "fit1", "after")] == [1, 1, 0]


def holders() -> list[tuple[str, list[Any]]]:
    """For each running fit the processes that the controller knows: its own, and what holds its GPU."""
    table = ray.get(controller.find().table.remote())  # type: ignore[union-attr]  # it is there
    return [(row["task"], row["pids"]) for driver in table for row in driver["tasks"] if row["stage"] == "fit"]


def test_pause_and_resume(runner: Runner) -> None:
    """What runs goes on to its end, and nothing of it starts before it is resumed."""
    workload, folder = runner.begin()
    t.until(lambda: c.starts(folder, "load0") and c.starts(folder, "load1"))
    t.until(lambda: any(one.workload == workload for one in control.ps()))
    control.pause(workload, stage="fit", reason="maintenance")
    control.pause(workload)
    t.until(lambda: [one.state for one in shown(workload)] == ["paused"])
    control.resume(workload)
    for i in range(2):
        t.signal_to(str(folder), f"load{i}.end")
        t.signal_to(str(folder), f"fit{i}.end")
    t.until(lambda: [one.open for one in shown(workload)] == [3])  # of five: both loads have ended
    assert c.starts(folder, "fit0") == c.starts(folder, "fit1") == []
    control.resume(workload, stage="fit")
    assert output(folder, "value") == "value ['fit0', 'fit1']"


def test_preempt_from_another_process(runner: Runner) -> None:
    """The process ends at once, the task starts again in another one, and what waits for it gets the new value."""
    workload, folder = runner.begin()
    pids = both_fits_run(workload, folder)
    (one,) = [task.task for task in told(workload) if task.pid == pids[0]]
    assert control.preempt(workload, task=one, actor="ann").tasks == (one,)
    until_dead(pids[:1])
    t.until(lambda: len(c.starts(folder, "fit0")) == 2)
    for i in range(2):
        t.signal_to(str(folder), f"fit{i}.end")
    assert output(folder, "value") == "value ['fit0', 'fit1']"
    assert len(c.starts(folder, "fit1")) == 1
    ended = [r for r in runner.log if isinstance(r, Ended) and (r.workload, r.task) == (workload, one)]
    assert [(r.outcome, r.attempt, r.reason) for r in ended] == [
        ("preempted", 1, "preempted by ann"),
        ("succeeded", 2, ""),
    ]


def script_runs(folder: Path) -> tuple[str, list[int]]:
    """Wait until two of a hooked script's tasks run; the script's workload, and their processes."""
    t.until(lambda: len([n for n in range(3) if c.starts(folder, f"plain{n}")]) == 2)
    scripts = t.until(lambda: [one for one in control.ps() if [task.name for task in one.running] == ["plain"] * 2])
    (workload,) = [one.workload for one in scripts]
    return workload, [pid for n in range(3) for pid in c.starts(folder, f"plain{n}")]


@pytest.mark.proves("ray script", "abort")
def test_abort_tasks_of_a_script(script: Any, tmp_path: Path) -> None:
    """Unmodified, in mode on: one task by its id, then all of a name; those that wait at the gate never start."""
    workload, pids = script_runs(tmp_path)
    one = told(workload)[0].task
    control.pause(workload)
    assert control.abort(workload, task=one).tasks == (one,)
    t.until(lambda: sum(c.is_dead(pid) for pid in pids) == 1)
    with pytest.raises(InputError, match="nothing of it can be started again"):
        control.preempt(workload, task="plain")
    with pytest.raises(InputError, match=r"has no task 'nosuch' \(its tasks: plain-"):
        control.abort(workload, task="nosuch")
    control.abort(workload, task="plain", actor="ann", reason="enough")
    until_dead(pids)
    assert script.wait(t.LIMIT_S) == 0
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [line for line in lines if "TaskCancelledError" in line] == [f"{n} TaskCancelledError" for n in range(4)]
    assert [len(c.starts(tmp_path, f"plain{n}")) for n in range(3)] in ([1, 1, 0], [1, 0, 1], [0, 1, 1])
    assert c.starts(tmp_path, "last") == []
    ended = [r.reason for r in read_run(tmp_path / "run.jsonl").records if isinstance(r, Ended)]
    assert "aborted by ann: enough" in ended


def test_pause_a_script_and_abort_it_while_it_hangs(script: Any, tmp_path: Path) -> None:
    """Paused, nothing passes its gate; resumed, it does. A stopped script's tasks are ended where they run."""
    workload, _ = script_runs(tmp_path)
    control.pause(workload, reason="maintenance")
    for n in range(3):
        t.signal_to(str(tmp_path), f"plain{n}.end")
    t.until(lambda: [(one.state, len(one.running)) for one in shown(workload)] == [("paused", 0)])
    t.until(lambda: t.free("GPU") == 2)
    assert c.starts(tmp_path, "last") == []
    control.resume(workload)
    pids = t.until(lambda: c.starts(tmp_path, "last"))
    t.until(lambda: [len(where) for where in processes_told(workload)] == [1])
    script.send_signal(signal.SIGSTOP)
    assert control.abort(workload).hangs
    until_dead(pids)
    t.until(t.is_idle)
    script.send_signal(signal.SIGCONT)
    assert script.wait(t.LIMIT_S) == 0
    assert c.starts(tmp_path, "last") == pids


def processes_told(workload: str) -> list[list[tuple[str, int]]]:
    """For each running task where Ray's own events say that it runs."""
    table = ray.get(controller.find().table.remote())  # type: ignore[union-attr]  # it is there
    rows = [row for driver in table for row in driver["tasks"] if row["workload"] == workload]
    return [processes_of([row["framework_id"]]) for row in rows]


def test_unknown_targets(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error names what there is; on the command line one line and exit code 2."""
    workload, folder = runner.begin()
    both_fits_run(workload, folder)
    assert egs(["abort", "--on", "ray", "nosuch#0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"no such workload runs .*pipe#", line)
    with pytest.raises(InputError, match=r"no stage 'fitting' \(its stages: after, fit, load\)"):
        control.abort(workload, stage="fitting")
    with pytest.raises(InputError, match=r"no task 'fit-7' \(its tasks: .*fit-0"):
        control.pause(workload, task="fit-7")
    with pytest.raises(InputError, match="in driver 12ab"):
        control.abort(workload, driver="12ab")
    with pytest.raises(InputError, match=r"no cluster at 127\.0\.0\.1:1"):
        control._connect("127.0.0.1:1")
    control.abort(workload, driver=str(runner.process.pid))
    output(folder, "error")


def test_dead_drivers_vanish_and_the_controller_comes_back(runner: Runner) -> None:
    """A killed controller is told everything again and then works; a killed driver's entries go."""
    workload, folder = runner.begin()
    both_fits_run(workload, folder)
    found = controller.find()
    assert found is not None
    ray.kill(found, no_restart=False)
    t.until(lambda: answers() and len([task for task in told(workload) if task.stage == "fit"]) == 2)
    found = controller.find()
    ray.kill(found)  # for good: another one is made
    t.until(lambda: answers() and len([task for task in told(workload) if task.stage == "fit"]) == 2)
    assert len(c.starts(folder, "fit0")) == len(c.starts(folder, "fit1")) == 1
    runner.end()
    t.until(lambda: not control.ps())


OBSERVED = """
import sys, threading
import ray
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1, max_calls=0)
def one():
    return 1
print(ray.get(one.remote()), [name for name in sys.modules if name.startswith("egs_ray.control.")])
print([thread.name for thread in threading.enumerate() if thread.name == "egs-report"])
"""


def test_in_mode_observe_there_is_no_controller(run_script: Script) -> None:
    """Nothing of it is even imported."""
    ran = run_script(OBSERVED)
    assert (ran.returncode, ran.stdout) == (0, "1 []\n[]\n")


def answers() -> bool:
    """Whether the controller is there."""
    try:
        control.ps()
    except (InputError, ray.exceptions.RayError):
        return False
    return True


def test_the_session_of_this_process_is_a_driver_too(tmp_path: Path) -> None:
    """A run of this process is listed and can be aborted through the controller; it leaves when its session ends."""
    session = egs_ray.Session(egs_ray.Options(runlog=str(tmp_path / "run.jsonl"), history=f"sqlite:///{tmp_path}/h.db"))
    try:  # without waiting for all processes that it starts
        made = egs_ray.run(c.graph(str(tmp_path)), name="own", session=session)
        t.until(lambda: answers() and [one.workload for one in control.ps()] == ["own#0"])
        t.until(lambda: c.starts(tmp_path, "load0") and c.starts(tmp_path, "load1"))
        control.abort("own#0", actor="ben")
        with pytest.raises(ray.exceptions.TaskCancelledError, match="aborted by ben"):
            made.get(t.LIMIT_S)
    finally:
        session.close()
    t.until(lambda: control.ps() == [])
    t.until(t.is_idle)
