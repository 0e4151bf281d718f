"""However a local run ends, nothing of it stays: no process, in whatever session, and no temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from kfp import compiler

from egs_kubeflow.run import run, run_file
from egs_kubeflow.run.door import folder_of_doors
from egs_kubeflow.run.own_folder import LOCK, OLD_S, own_folder, remove_stale
from tests.conformance.kubeflow import pipelines

DEADLINE_S = 150.0
COMMAND = [
    sys.executable,
    "-c",
    "from egs_kubeflow.cli import app; raise SystemExit(app(standalone_mode=False))",
    "run",
]


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def numbers_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_what_leaves_a_tasks_session_ends_with_the_task(tmp_path: Path) -> None:
    """A process in a session of its own neither holds a run up nor outlives its task, and a time limit is kept."""
    result = run(
        pipelines.escaping,
        {"folder": str(tmp_path)},
        root=tmp_path / "out",
        runlog=str(tmp_path / "run.jsonl"),
        raise_on_error=False,
    )
    assert {task.task: task.state for task in result.tasks} == {"escape": "succeeded", "escape-2": "failed"}
    assert result.failed[0].error == "went over its limit of 1 s"
    left = numbers_in(tmp_path / "escaped")
    assert len(left) == 2
    assert not [pid for pid in left if is_alive(pid)]


def test_a_killed_runner_leaves_nothing(tmp_path: Path) -> None:
    """`kill -9`: forked tasks, those with variables or the recorder, what they have started, and all folders go."""
    compiler.Compiler().compile(pipelines.staying, str(tmp_path / "staying.yaml"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    options = ["--arg", f"folder={tmp_path}", "--cpus", "4", "--runlog", "run.jsonl"]
    process = subprocess.Popen(
        [*COMMAND, "staying.yaml", *options],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(numbers_in(tmp_path / "kept")) == 6 or process.poll() is not None, "three tasks run")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    running = numbers_in(tmp_path / "kept")
    wait_until(lambda: not [pid for pid in running if is_alive(pid)], f"of {running} some still run")
    wait_until(lambda: not list(temporary.glob("egs-*")), "folders of the run are still there")
    wait_until(lambda: not list(folder_of_doors().iterdir()), "its door is still there")


def test_a_reader_that_goes_away_costs_a_run_nothing(tmp_path: Path) -> None:
    """`egs kubeflow run p.yaml 2>&1 | head -2`: the run goes on to its end, and its exit code is its own."""
    compiler.Compiler().compile(pipelines.talking, str(tmp_path / "talking.yaml"))
    process = subprocess.Popen(
        [*COMMAND, "talking.yaml", "--runlog", "run.jsonl"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout as output:
            assert output.readline() == "[talk] · starts\n"
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert '"workload-ended"' in (tmp_path / "run.jsonl").read_text().replace("_", "-")


def test_a_loop_and_a_branch_that_cannot_begin_say_why(tmp_path: Path) -> None:
    """The task of the pipeline that stands for them fails with the reason, in the result as in the error."""
    path = tmp_path / "over.yaml"
    compiler.Compiler().compile(pipelines.over_items, str(path))
    places: dict[str, Any] = {"root": tmp_path / "out", "runlog": str(tmp_path / "run.jsonl")}
    result = run_file(path, {"items": "5"}, raise_on_error=False, **places)
    assert [(task.task, task.error) for task in result.failed] == [
        ("for-loop-1", "for-loop-1: the loop's items are no list but int")
    ]
    result = run(pipelines.on_unwritten, raise_on_error=False, **places)
    assert [task.task for task in result.failed] == ["condition-1"]
    assert "its condition" in result.failed[0].error


def test_a_folder_is_removed_when_nobody_has_it_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose process was killed, and an old one without a lock; not one in use, nor anything of another name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("egs-test-left", "egs-test-old", "egs-test-new", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "egs-test-left" / LOCK).touch()
    old = time.time() - OLD_S - 60
    os.utime(tmp_path / "egs-test-old", (old, old))
    with own_folder("egs-test-") as name:
        remove_stale("egs-test-")
        assert {path.name for path in tmp_path.iterdir()} == {Path(name).name, "egs-test-new", "other"}
    assert not Path(name).exists()


def test_a_run_can_be_interrupted_while_something_holds_its_output(tmp_path: Path) -> None:
    """SIGTERM to the command: it ends with its tasks and what they have left."""
    compiler.Compiler().compile(pipelines.staying, str(tmp_path / "staying.yaml"))
    options = ["--arg", f"folder={tmp_path}", "--cpus", "4", "--runlog", "run.jsonl"]
    process = subprocess.Popen([*COMMAND, "staying.yaml", *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(numbers_in(tmp_path / "kept")) == 6 or process.poll() is not None, "three tasks run")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert not [pid for pid in numbers_in(tmp_path / "kept") if is_alive(pid)]
