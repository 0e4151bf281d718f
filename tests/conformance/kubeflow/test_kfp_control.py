"""What is done to a run from outside while it goes on, and gangs of the local runner beyond the conformance suite."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kfp import dsl

from egs_core.cli.app import run as egs
from egs_core.errors import InputError
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components import component
from egs_kubeflow.run import Run, RunResult, start
from egs_kubeflow.run.door import folder_of_doors
from tests.conformance.kubeflow import pipelines

KFP: dict[str, Any] = {"base_image": "python:3.12", "install_kfp_package": False, "record": False}
DEADLINE_S = 150.0


@component(gpus=1, gang="shards", **KFP)
def together(number: int, folder: str) -> int:
    """Ends once the other one runs, too; at the first try number 1 fails then."""
    import os
    import time

    tries = os.path.join(folder, f"tries{number}")
    with open(tries, "a") as file:
        file.write("x")
    deadline = time.monotonic() + 150
    while not os.path.exists(os.path.join(folder, f"tries{1 - number}")):
        assert time.monotonic() < deadline, "the other one does not run"
        time.sleep(0.01)
    if os.path.getsize(tries) == 1:
        if number:
            raise RuntimeError("on purpose")
        time.sleep(600)
    return number


@dsl.pipeline
def ganged(folder: str) -> None:
    """A loop whose iterations are a gang, and a task that would take a GPU from them."""
    with dsl.ParallelFor([0, 1]) as number:
        together(number=number, folder=folder).set_retry(num_retries=1, backoff_duration="0s")


@dsl.pipeline
def lost(folder: str) -> None:
    """The same two as tasks of the pipeline itself, without a retry."""
    together(number=0, folder=folder)
    together(number=1, folder=folder)


@dsl.pipeline
def endless_two() -> None:
    pipelines.sleep(seconds=600.0)
    pipelines.sleep(seconds=600.0)


@dsl.pipeline
def sleepy() -> None:
    """Two tasks in a DAG of their own that sleep, what waits for it, and a task beside it."""
    inner = endless_two()
    pipelines.text(value="after").after(inner)
    pipelines.sleep(seconds=1.0)


@dsl.pipeline
def four() -> None:
    """Three tasks that do not end by themselves, on two slots, and what waits for the last."""
    pipelines.sleep(seconds=600.0)
    pipelines.sleep(seconds=600.0)
    last = pipelines.sleep(seconds=600.0)
    pipelines.text(value="after", times=1).after(last)


@component(gpus=1, max_gpu_time="1s", max_runtime="1h", **KFP)
def hungry() -> None:
    import time

    time.sleep(600)


@component(gpus=1, max_gpu_time="1h", **KFP)
def modest() -> None:
    print("done")


@dsl.pipeline
def limited() -> None:
    hungry().set_retry(num_retries=2, backoff_duration="0s")
    modest()


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """A run with two emulated GPUs and room for all; one that a failed test has left is ended."""
    runs: list[Run] = []

    def begin(*pipeline: Any, **more: Any) -> Run:
        options: dict[str, Any] = {"cpus": 8, "gpus": 2, "emulate_gpus": True, **more}
        options |= {"root": tmp_path / "out", "runlog": str(tmp_path / "run.jsonl")}
        runs.append(start(*pipeline, **options))
        return runs[-1]

    yield begin
    for run in runs:
        if not run.is_over:
            run.abort()
            run.wait()


def states(result: RunResult) -> dict[str, str]:
    return {task.task: task.state for task in result.tasks}


def wait_for(run: Run, started: int) -> None:
    """Until so many tasks have started."""
    deadline = time.monotonic() + DEADLINE_S
    while not run.runlog.exists() or run.runlog.read_text().count('"started"') < started:
        assert time.monotonic() < deadline, run.runlog
        time.sleep(0.02)


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_gang_in_a_loop_starts_again_as_a_whole(begun: Callable[..., Run], tmp_path: Path) -> None:
    """One iteration fails: the other is stopped, and both run a second time, together."""
    result = begun(ganged, {"folder": str(tmp_path)}).wait()
    assert set(states(result).values()) == {"succeeded"}
    assert [task.attempts for task in result.tasks] == [2, 2]
    ended = [x.outcome for x in read_run(result.runlog).records if isinstance(x, r.Ended)]
    assert sorted(ended) == ["failed", "preempted", "succeeded", "succeeded"]


def test_a_gang_that_loses_a_member_for_good_ends(begun: Callable[..., Run], tmp_path: Path) -> None:
    """The other would wait for it for ever; the error says so."""
    result = begun(lost, {"folder": str(tmp_path)}).wait()
    assert set(states(result).values()) == {"failed"}
    errors = sorted(task.error.partition(";")[0] for task in result.tasks)
    assert errors == ["ended with exit code 1", "was ended: its gang has lost together-2"]


def test_a_nested_dag_is_aborted_and_the_rest_goes_on(begun: Callable[..., Run]) -> None:
    """What runs of it ends, what waits for it is skipped, and what runs beside it comes to its own end."""
    run = begun(sleepy)
    wait_for(run, 3)
    with pytest.raises(InputError, match="has no task 'endless-to'"):
        run.abort("endless-to")
    run.abort("endless-two")
    result = run.wait()
    expected = {"endless-two.sleep": "failed", "endless-two.sleep-2": "failed", "sleep": "succeeded", "text": "skipped"}
    assert states(result) == expected
    assert {task.error for task in result.failed} == {"was aborted"}
    outcomes = [x.outcome for x in read_run(result.runlog).records if isinstance(x, r.Ended)]
    assert sorted(outcomes) == ["aborted", "aborted", "skipped", "succeeded"]


def test_a_run_is_aborted_from_another_thread(begun: Callable[..., Run]) -> None:
    """All that runs ends, nothing more starts, and `wait` says so."""
    run = begun(pipelines.endless)
    wait_for(run, 3)
    run.abort()
    result = run.wait()
    assert result.state == "aborted"
    assert set(states(result).values()) == {"failed"}


def listed(capsys: pytest.CaptureFixture[str]) -> Any:
    """The only run that `egs ps` has."""
    capsys.readouterr()
    assert egs(["ps", "--on", "kubeflow", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["workloads"]
    return found


def states_of(run: Run, outcome: str = "") -> list[str]:
    """The tasks that have ended so, or without an outcome those that have started, by the run log."""
    records = read_run(run.runlog).records
    if outcome:
        return [x.task for x in records if isinstance(x, r.Ended) and x.outcome == outcome]
    return [x.task for x in records if isinstance(x, r.Started)]


@pytest.mark.proves("kubeflow run", "abort")
def test_a_run_is_seen_and_steered_by_commands(begun: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    """`egs ps`, `pause`, `preempt`, `resume`, `abort --task`, then `abort` in a process of its own: nothing starts in a
    paused run, what was preempted starts again, what waits after a failure is skipped, and it is known who asked."""
    run = begun(four, cpus=2)
    wait_for(run, 2)
    name, on = run.folder.name, ["--on", "kubeflow"]
    first, second = (task["task"] for task in listed(capsys)["running"])
    assert {first, second} < {"sleep", "sleep-2", "sleep-3"}
    until(lambda: all(psutil.pid_exists(task["pid"] or -1) for task in listed(capsys)["running"]), "processes")
    assert egs(["pause", "four", *on]) == 0
    assert egs(["preempt", "four", "--task", first, "--actor", "joe", "--reason", "too early", *on]) == 0
    until(lambda: states_of(run, "preempted") == [first], "it ends")
    found = listed(capsys)
    assert (found["state"], [task["task"] for task in found["running"]]) == ("paused", [second])
    assert egs(["resume", "four", *on]) == 0
    wait_for(run, 3)
    assert egs(["abort", name, "--task", second, *on]) == 0
    until(lambda: states_of(run, "aborted") == [second], "it ends, too")
    assert egs(["abort", "four", "--task", second, *on]) == 2
    assert "has ended" in capsys.readouterr().err
    command = [sys.executable, "-m", "egs_core.cli.app", "abort", name, "--actor", "ann", *on]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (said.returncode, said.stdout.startswith(f"{name}: ended (")) == (0, True), said.stderr
    result = run.wait()
    assert result.state == "aborted"
    errors = {task.task: task.error for task in result.tasks}
    assert errors.pop(second).startswith("was aborted by ")
    assert sorted(errors.values()) == ["", "", "was aborted by ann"]
    ended = [x for x in read_run(run.runlog).records if isinstance(x, r.Ended)]
    assert [x.reason for x in ended if x.outcome == "preempted"] == ["preempted by joe: too early"]
    assert not list(folder_of_doors().iterdir())


def test_what_waits_can_be_aborted(begun: Callable[..., Run]) -> None:
    """A task that has not begun is lost, and so is what waits for it; what runs of its DAG goes on to its end."""
    run = begun(four, cpus=2)
    wait_for(run, 2)
    (waiting,) = {"sleep", "sleep-2", "sleep-3"} - set(states_of(run))
    run.abort(waiting)
    with pytest.raises(InputError, match="has ended"):
        run.abort(waiting)
    for task in states_of(run):
        run.abort(task)
    result = run.wait()
    assert result.state == "failed"
    assert states(result) == {"sleep": "failed", "sleep-2": "failed", "sleep-3": "failed", "text": "skipped"}
    assert {task.error for task in result.failed} == {"was aborted"}


@pytest.mark.proves("kubeflow run", "limits", "max_gpu_time")
def test_a_limit_of_gpu_time_ends_a_task_for_good(begun: Callable[..., Run]) -> None:
    """It is of all attempts together, so none follows; one within its limit is not touched."""
    result = begun(limited, gpus=2).wait()
    tasks = {task.task: task for task in result.tasks}
    assert (tasks["hungry"].error, tasks["hungry"].attempts) == ("went over its limit of 1 s of GPU time", 1)
    assert tasks["modest"].state == "succeeded"
    ended = {x.task: (x.outcome, x.reason) for x in read_run(result.runlog).records if isinstance(x, r.Ended)}
    assert ended["hungry"] == ("failed", "went over its limit of 1 s of GPU time")
