"""What a local task has loaded before its turn: in its own process, while its predecessor runs, and harmless where it
cannot be. And what is believed of how long tasks take, by what is known at each moment."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from kfp import dsl

import egs_core as egs
from egs_core.cli import app
from egs_core.history.sql import SqlHistory
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components import component
from egs_kubeflow.components.recorder import PREFIX
from egs_kubeflow.run import RunResult, preloads, run

KFP: dict[str, Any] = {"base_image": "python:3.12", "install_kfp_package": False}
WANTED = "import os\nopen('loaded', 'w').write(str(os.getpid()))\n"
Runner = Callable[..., RunResult]


@component(**KFP, record=False)
def waits(path: str, fails: bool) -> str:
    import os
    import time

    deadline = time.monotonic() + 150
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    assert not fails
    return path


def tells(given: str) -> str:
    import os
    import sys

    assert given
    return f"{'egs_test_wanted' in sys.modules} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}"


wanting = component(**KFP, gpus=1, preload=egs.modules("egs_test_wanted"))(tells)
lacking = component(**KFP, record=False, preload=[egs.modules("no_such_module"), egs.files("no-such-file")])(tells)
hanging = component(**KFP, record=False, gpus=1, preload=egs.modules("egs_test_hangs"))(tells)


@dsl.pipeline
def ahead(path: str, fails: bool = False) -> str:
    """The first task ends only when the second one's module has been imported."""
    return wanting(given=waits(path=path, fails=fails).output).output  # type: ignore[no-any-return]  # what it will be


@dsl.pipeline
def without() -> None:
    """Nothing that these want can be loaded; and one that has a variable of its own cannot be there early."""
    lacking(given=hanging(given="a").output)
    lacking(given="b").set_env_variable("LEVEL", "3")


@dsl.component(**KFP)
def makes(size: int, made: dsl.Output[dsl.Dataset]) -> None:
    with open(made.path, "w") as file:
        file.write("x" * size)


@dsl.component(**KFP)
def reads(made: dsl.Input[dsl.Dataset]) -> int:
    with open(made.path) as file:
        return len(file.read())


@dsl.pipeline
def sized(size: int) -> int:
    return reads(made=makes(size=size).outputs["made"]).output  # type: ignore[no-any-return]  # what it will be


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs in the test's folder, where the modules are; with one emulated GPU."""
    monkeypatch.chdir(tmp_path)
    Path("egs_test_wanted.py").write_text(WANTED)
    Path("egs_test_hangs.py").write_text("import time\ntime.sleep(600)\n")
    options: dict[str, Any] = {"gpus": 1, "emulate_gpus": True, "cpus": 4, "root": tmp_path / "out"}
    return lambda *a, **more: run(*a, **{**options, "runlog": str(tmp_path / "run.jsonl"), **more})


def preloads_in(result: RunResult) -> dict[str, list[str]]:
    """By task, what became of its preloads."""
    found: dict[str, list[str]] = {}
    for x in read_run(result.runlog).records:
        if isinstance(x, r.PreloadEnded):
            found.setdefault(x.task, []).append(x.outcome)
    return found


@pytest.mark.proves("kubeflow run", "preload")
def test_a_task_runs_in_the_process_that_has_loaded_for_it(runner: Runner) -> None:
    """Recorded, too: its parent notes what it took from its turn on. It sees its GPU then, and the run log says that it
    was warm."""
    result = runner(ahead, {"path": "loaded"})
    assert result.outputs["Output"] == f"True {Path('loaded').read_text()} 0"
    assert preloads_in(result) == {"tells": ["warm", "used"]}
    records = read_run(result.runlog).records
    (started,) = (x for x in records if isinstance(x, r.Started) and x.task == "tells")
    assert started.warm
    (folder,) = (task.folder for task in result.tasks if task.task == "tells")
    assert [line for line in (Path(folder) / "log.txt").read_text().splitlines() if line.startswith(PREFIX)]


def test_a_process_that_is_not_needed_ends(runner: Runner) -> None:
    """Its task is skipped, as what it waits for has failed: nothing of it is left when the run is over."""
    result = runner(ahead, {"path": "loaded", "fails": True}, raise_on_error=False)
    assert {task.task: task.state for task in result.tasks} == {"waits": "failed", "tells": "skipped"}
    assert preloads_in(result)["tells"][-1] == "unused"
    assert not psutil.pid_exists(int(Path("loaded").read_text()))


def test_what_cannot_be_loaded_costs_a_warning(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module and a file that are not there, a module that hangs, a task with a variable: all run, and it is said."""
    monkeypatch.setattr("egs_core.notices._said", set())
    monkeypatch.setattr(preloads, "LOADS_WITHIN_S", 2.0)
    result = runner(without)
    assert {task.state for task in result.tasks} == {"succeeded"}
    assert preloads_in(result) == {"tells": ["failed"], "tells-2": ["warm", "used"]}
    said = capsys.readouterr().err
    assert "the hint preload of 'tells-3' is not kept on this machine" in said
    for name in ("no_such_module", "no-such-file"):
        assert said.count(f"preload: {name} could not be loaded") == 1


def test_a_run_learns_by_the_size_of_its_inputs_and_says_when_it_knew_nothing(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run log and the history have the bytes that a task read; `egs why` says of the first run that nobody knew, of
    the second what was expected, at the median and at most."""
    history = f"sqlite:///{tmp_path / 'history.db'}"
    said = []
    for size in (1000, 2000):
        log = tmp_path / f"{size}.jsonl"
        runner(sized, {"size": size}, history=history, runlog=str(log))
        added = {x.task: x.input_bytes for x in read_run(log).records if isinstance(x, r.TaskAdded)}
        assert added == {"makes": -1, "reads": size}
        capsys.readouterr()
        assert app.run(["why", str(log), "reads"]) == 0
        said.append(capsys.readouterr().out)
    assert "nobody knew how long it takes: no history, no hint" in said[0]
    assert "expected to take" in said[1]
    assert ", up to " in said[1]
    rows = SqlHistory(history).load("sized")
    assert [row.input_bytes for row in rows if row.task == "reads"] == [1000, 2000]
