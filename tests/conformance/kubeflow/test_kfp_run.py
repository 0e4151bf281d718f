"""The local runner on real pipelines: every construct of kfp, its order, its time, its end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, local

from egs_core.cli.app import run as egs
from egs_core.cli.why import waits_in_log
from egs_core.errors import InputError
from egs_core.history.sql import SqlHistory
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from egs_kubeflow.cli import app
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.rewrite.history import load_history
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile
from egs_kubeflow.run import PipelineFailed, RunResult, run, run_file, start
from tests.conformance.kubeflow import pipelines

Run = Callable[..., RunResult]


@pytest.fixture
def runner(tmp_path: Path) -> Run:
    """`run` with all it writes in the test's folder."""

    def start(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        return run(pipeline, arguments, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"), **options)

    return start


@pytest.mark.slow
def test_tasks_that_ask_for_nothing_are_bounded_too(tmp_path: Path) -> None:
    """Of 24 tasks without a need no more than eight a CPU have a process at once; all of them come to their end."""
    places: dict[str, Any] = {"root": tmp_path / "out", "runlog": str(tmp_path / "run.jsonl")}
    begun = start(pipelines.crowded, {"folder": str(tmp_path)}, cpus=1, **places)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*.began"))) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (tmp_path / "go").touch()
    assert begun.wait().outputs["Output"] == sum(range(24))
    at_once, most = set[str](), 0
    for record in read_run(tmp_path / "run.jsonl").records:
        if isinstance(record, r.Started):
            at_once.add(record.task)
        elif isinstance(record, r.Ended):
            at_once.discard(record.task)
        most = max(most, len(at_once))
    assert most == 8


def states(result: RunResult) -> dict[str, str]:
    return {task.task: task.state for task in result.tasks}


@pytest.mark.parametrize(
    ("pipeline", "arguments", "output"),
    [
        (pipelines.nested, {"n": 5}, "sum 30 of 5sum 30 of 5"),
        (pipelines.files, {}, "9,1,4"),
        (pipelines.pairs, {}, 1),
        (pipelines.tables, {}, "[4, 4, 9, 9] [8, 18]"),
        (pipelines.choice, {"seed": 1}, "headhead"),
        (pipelines.choice, {"seed": 8}, "largelarge"),
        (pipelines.choice, {"seed": 2}, "tailtail"),
        (pipelines.twice, {}, "4 9"),
        (pipelines.opted, {}, "None unnamed 3 unnamed"),
        (pipelines.variables, {}, "of the task"),
        (pipelines.sharing, {}, "by the first"),
    ],
    ids=["nested", "files", "pairs", "tables", "head", "large", "tail", "twice", "opted", "variables", "sharing"],
)
def test_every_construct_gives_its_result(runner: Run, pipeline: Any, arguments: dict[str, Any], output: Any) -> None:
    """Nested DAGs, loops of both kinds, fields, Collected, OneOf, files, variables of the right task, the workspace."""
    result = runner(pipeline, arguments)
    assert result.outputs == {"Output": output}
    assert result.state == "succeeded"
    assert result.failed == ()


def test_a_branch_not_taken_leaves_no_task(runner: Run) -> None:
    """Only the taken branch has a task in the run and in its run log, which says why the other one was skipped."""
    result = runner(pipelines.choice, {"seed": 1})
    records = read_run(result.runlog).records
    logged = {record.task for record in records if isinstance(record, r.TaskAdded)}
    assert logged == {"coin", "condition-branches-1.condition-2.text", "text-4"} == set(states(result))
    (answer,) = waits_in_log(records, ["condition-3"], "log")
    assert answer["task"] == "condition-branches-1.condition-3"
    assert answer["text"].endswith(" s: its condition is not met: !(coin-Output == 'heads') && int(seed) > 5")


@pytest.mark.parametrize(
    ("pipeline", "arguments"),
    [(pipelines.twice_plain, {}), (pipelines.values, {}), (pipelines.values, {"n": 5, "share": 0.5, "is_on": False})],
    ids=["text", "defaults", "values"],
)
def test_the_result_is_that_of_kfps_own_runner(
    runner: Run, pipeline: Any, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kfp.local can run a pipeline, the runner gives the same output."""
    monkeypatch.chdir(tmp_path)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    try:
        theirs = pipeline(**arguments).outputs
    finally:
        local.config.LocalExecutionConfig.instance = None
    assert runner(pipeline, arguments).outputs == theirs


def test_an_exit_task_runs_after_a_failure(runner: Run, tmp_path: Path) -> None:
    """It hears which task failed; the run fails, and the error names the task and where its output is."""
    path = tmp_path / "status"
    with pytest.raises(
        PipelineFailed, match=r"exit-handler-1\.broken ended with exit code 1; its output is in"
    ) as found:
        runner(pipelines.guarded, {"path": str(path)})
    assert path.read_text() == "FAILED exit-handler-1"
    result = found.value.result
    assert states(result)["exit-handler-1.text"] == "skipped"
    (answer,) = waits_in_log(read_run(result.runlog).records, ["exit-handler-1.text"], "log")
    assert answer["text"].endswith(" s: exit-handler-1.broken, before it, failed")
    assert "RuntimeError: on purpose" in (Path(result.failed[0].folder) / "log.txt").read_text()
    assert summarise(read_run(result.runlog).records) is not None


def test_an_exit_task_after_a_success_hears_what_it_does_on_a_cluster(runner: Run, tmp_path: Path) -> None:
    """COMPLETE, as the cluster's driver has it; kfp's documentation says SUCCEEDED, which no pod ever sees."""
    runner(pipelines.finished, {"path": str(tmp_path / "status")})
    assert (tmp_path / "status").read_text() == "COMPLETE exit-handler-1"


def test_files_of_set_path_reach_the_next_task(runner: Run, tmp_path: Path) -> None:
    """A file and a folder that a task wrote elsewhere are where its artifacts are, as a cluster has them."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert runner(pipelines.moved, {"folder": str(folder)}).outputs == {"Output": "a file, a tree"}


def test_a_task_may_ignore_that_one_before_it_failed(runner: Run) -> None:
    """`ignore_upstream_failure` runs, and the run has failed all the same."""
    result = runner(pipelines.tolerant, raise_on_error=False)
    assert states(result) == {"broken": "failed", "text": "succeeded"}
    assert result.state == "failed"


def test_a_task_is_tried_again(runner: Run, tmp_path: Path) -> None:
    """Two failures, then the value; each attempt is in the run log, and has a folder of its own."""
    result = runner(pipelines.patient, {"path": str(tmp_path / "tries")})
    assert result.outputs == {"Output": 3}
    assert result.tasks[0].attempts == 3
    ended = [x.outcome for x in read_run(result.runlog).records if isinstance(x, r.Ended)]
    assert ended == ["failed", "failed", "succeeded"]
    assert {path.name for path in result.folder.iterdir()} == {
        "third-time",
        "third-time.attempt2",
        "third-time.attempt3",
    }


def test_an_importer_gives_what_is_there(runner: Run, tmp_path: Path) -> None:
    """Its artifact is the file itself, with its metadata."""
    file = tmp_path / "data"
    file.write_text("what was there")
    result = runner(pipelines.importing, {"uri": str(file)})
    assert result.outputs == {"Output": "what was there"}
    assert next(t for t in result.tasks if t.task == "importer").outputs["artifact"].metadata == {"kind": "given"}


@pytest.mark.slow  # it makes an environment
def test_packages_are_installed_beside_the_interpreter(runner: Run, tmp_path: Path) -> None:
    """Once for both tasks, in an environment that is gone afterwards; this one stays as it was."""
    wheel = tmp_path / "egs_test_package-1.0-py3-none-any.whl"
    info = "egs_test_package-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("egs_test_package.py", "VALUE = 'of the wheel'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: egs-test-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    result = runner(pipelines.packaged(str(wheel)))
    assert result.outputs == {"Output": "of the wheel of the wheel"}
    assert importlib.util.find_spec("egs_test_package") is None


@pytest.mark.slow  # it makes an environment, as the test above does
def test_packages_that_cannot_be_had_fail_their_task(runner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's error says which, as pip does."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PipelineFailed, match=r"its packages cannot be installed: .*no-such-egs-package"):
        runner(pipelines.packaged("no-such-egs-package==1.0"))


@pytest.mark.proves("kubeflow run", "gpus")
def test_gpu_slots_are_not_shared(runner: Run) -> None:
    """Four tasks on two emulated GPUs: each sees one device, never two tasks the same one at once; others see none."""
    result = runner(pipelines.devices, gpus=2, emulate_gpus=True, cpus=8)
    seen = {task.task: task.outputs["Output"] for task in result.tasks}
    assert seen.pop("variable-5") == ""
    assert set(seen.values()) == {"0", "1"}
    held: dict[int, str] = {}
    for record in read_run(result.runlog).records:
        if isinstance(record, r.Started) and record.devices:
            assert record.devices[0] not in held
            held[record.devices[0]] = record.task
        elif isinstance(record, r.Ended):
            held = {device: task for device, task in held.items() if task != record.task}


def test_a_chain_goes_on_while_others_run(runner: Run) -> None:
    """Six tasks on two CPU slots, four of them a chain: what a task of it leaves goes to the next one, so the two
    others run beside it, one after the other. (What the runner adds to a task is the benchmark `kubeflow_local`.)"""
    result = runner(pipelines.six, cpus=2)
    times = {(type(x), x.task): x.t for x in read_run(result.runlog).records if isinstance(x, (r.Started, r.Ended))}
    assert times[r.Started, "sleep-5"] < times[r.Ended, "sleep"]
    assert times[r.Ended, "sleep-5"] <= times[r.Started, "sleep-6"]


def test_a_compiled_file_takes_arguments_as_text(tmp_path: Path) -> None:
    """The file of a pipeline gives what the live one gives; values are read by the types that it states."""
    path = tmp_path / "nested.yaml"
    compiler.Compiler().compile(pipelines.nested, str(path))
    result = run_file(path, {"n": "3"}, root=tmp_path, runlog=str(tmp_path / "run.jsonl"))
    assert result.outputs == {"Output": "sum 5 of 3sum 5 of 3"}
    with pytest.raises(InputError, match="argument 'n': 'three' is no NUMBER_INTEGER"):
        run_file(path, {"n": "three"}, root=tmp_path)


def test_what_was_learned_orders_the_next_run(runner: Run, tmp_path: Path) -> None:
    """The second run's decisions know how long the tasks of the first took, and how sure that is."""
    history = f"sqlite:///{tmp_path / 'history.db'}"
    first = read_run(runner(pipelines.six, cpus=4, history=history).runlog).records
    started = {x.task: x.t for x in first if isinstance(x, r.Started)}
    took_s = {x.task: x.t - started[x.task] for x in first if isinstance(x, r.Ended)}
    second = read_run(runner(pipelines.six, cpus=4, history=history).runlog).records
    known_s = {x.task: x.estimate_p50_s for x in second if isinstance(x, r.Granted)}
    assert known_s == pytest.approx(took_s)
    assert len(known_s) == 6
    spread_s = {x.task: x.estimate_p95_s for x in second if isinstance(x, r.Granted)}
    assert spread_s == pytest.approx({task: 2 * seconds for task, seconds in took_s.items()})  # of one duration


def test_a_rewrite_and_a_plan_know_what_a_run_has_taught(
    runner: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each task of the run has its duration in the pipeline for a site, and in `egs plan`: nested, in a loop, too."""
    history = tmp_path / "history.db"
    runner(pipelines.nested, {"n": 2}, history=f"sqlite:///{history}")
    changes = rewrite(documents_of(pipelines.nested), Profile(), load_history(str(history), "nested")).changes
    known = {change.task for change in changes if change.field == "label egs.io/predicted-s"}
    assert known == {change.task for change in changes} > {"text"}
    assert any(task.startswith("summed.for-loop-1.") for task in known)
    compiler.Compiler().compile(pipelines.nested, str(tmp_path / "nested.yaml"))
    plan = ["plan", str(tmp_path / "nested.yaml"), "--slots", "2", "--history", str(history), "--json"]
    assert egs(plan) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["known_durations"], found["assumed_durations"]) == (len(known), 0)


def test_emulated_gpus_teach_only_a_history_that_is_named(
    runner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own history, which real runs share, stays as it is."""
    own, named = (f"sqlite:///{tmp_path / name}" for name in ("own.db", "named.db"))
    monkeypatch.setenv("EGS_HISTORY", own)
    options: dict[str, Any] = {"gpus": 1, "emulate_gpus": True}
    runner(pipelines.variables, **options)
    assert SqlHistory(own).load("variables") == []
    runner(pipelines.variables, history=named, **options)
    assert len(SqlHistory(named).load("variables")) == 1
    runner(pipelines.variables)
    assert len(SqlHistory(own).load("variables")) == 1


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Before anything has run or is recorded."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^root: .*/file/x/twice-.* cannot be made: Not a directory"):
        run(pipelines.twice, root=tmp_path / "file" / "x", runlog=str(tmp_path / "run.jsonl"))
    assert not (tmp_path / "run.jsonl").exists()


def test_the_command_prints_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs kubeflow run`: one JSON object, and exit code 1 for a pipeline that has failed; a wrong option is named."""
    for pipeline in (pipelines.twice, pipelines.guarded):
        compiler.Compiler().compile(pipeline, str(tmp_path / f"{pipeline.name}.yaml"))
    options = ["--json", "--root", str(tmp_path / "out"), "--runlog", str(tmp_path / "run.jsonl")]
    assert app(["run", str(tmp_path / "twice.yaml"), *options], standalone_mode=False) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["outputs"]) == ("succeeded", {"Output": "4 9"})
    guarded = ["run", str(tmp_path / "guarded.yaml"), "--arg", f"path={tmp_path / 'status'}", *options]
    assert app(guarded, standalone_mode=False) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "failed"
    for wrong, problem in ((["--policy", "best"], "policy: 'best' is unknown"), (["--arg", "path"], "form name=value")):
        with pytest.raises(InputError, match=problem):
            app([*guarded, *wrong], standalone_mode=False)


def test_a_run_log_that_cannot_be_written_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One warning why there is none; no path to a file that is not there."""
    compiler.Compiler().compile(pipelines.opted, str(tmp_path / "opted.yaml"))
    (tmp_path / "file").touch()
    options = ["--root", str(tmp_path / "out"), "--runlog", str(tmp_path / "file" / "run.jsonl")]
    assert app(["run", str(tmp_path / "opted.yaml"), *options], standalone_mode=False) == 0
    said = capsys.readouterr()
    assert said.err.count("egs: no run log: ") == 1
    assert "run log" not in said.out


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_all_tasks(ending: signal.Signals, tmp_path: Path) -> None:
    """An interrupted or terminated runner ends its tasks' processes first; its run log says that they were aborted."""
    compiler.Compiler().compile(pipelines.endless, str(tmp_path / "endless.yaml"))
    script = "from egs_kubeflow.cli import app; app()"
    command = [sys.executable, "-c", script, "run", "endless.yaml", "--runlog", "run.jsonl", "--cpus", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = tmp_path / "run.jsonl"
    while not log.exists() or log.read_text().count('"started"') < 2:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.02)
    process.send_signal(ending)
    try:
        _, errors = process.communicate(timeout=150)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "interrupted\n")
    run_log = read_run(log)
    assert [x.outcome for x in run_log.records if isinstance(x, r.Ended)] == ["aborted", "aborted"]
    assert isinstance(run_log.records[-1], r.WorkloadEnded)
    assert not _processes_in(tmp_path)


def test_threads_end_with_the_run(runner: Run) -> None:
    """Nothing of a run is left in the process."""
    before = set(threading.enumerate())
    runner(pipelines.twice)
    left = [t for t in threading.enumerate() if t not in before]
    for thread in left:
        thread.join(60.0)
    assert not [t for t in left if t.is_alive()]


def _processes_in(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found
