"""Components with hints, phases and GPU blocks, run for real; and how they look once kfp has compiled them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, components, local

from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components.recorder import PREFIX
from egs_kubeflow.convert.documents import documents_of, dump_documents
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.run import RunResult, run
from tests.conformance.kubeflow import components as made

Run = Callable[[Any], RunResult]


@pytest.fixture
def runner(tmp_path: Path) -> Run:
    """A run with one emulated GPU."""

    def start(pipeline: Any) -> RunResult:
        return run(pipeline, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"), gpus=1, emulate_gpus=True)

    return start


def gpus_held(result: RunResult) -> dict[str, float]:
    return {x.task: x.gpus for x in read_run(result.runlog).records if isinstance(x, r.Started)}


def records_of(result: RunResult, task: str) -> list[dict[str, Any]]:
    """What the recorder noted in a task's output."""
    folder = next(Path(found.folder) for found in result.tasks if found.task == task)
    lines = (folder / "log.txt").read_text().splitlines()
    return [json.loads(line.removeprefix(PREFIX)) for line in lines if line.startswith(PREFIX)]


def test_hints_become_resources_limits_and_an_annotation() -> None:
    """Each task of the component has them; what the pipeline's author sets on a task goes before."""
    facts = {f.name: f for f in convert(made.hinted).facts}
    assert facts["train"].hints.gang == "shards"
    assert facts["train"].hints.max_runtime_s == 7200.0
    assert (facts["train"].needs.cpus, facts["train-2"].needs.cpus) == (2.0, 3.0)
    assert facts["train"].needs.gpus == 1.0
    assert facts["train"].needs.memory_bytes == 2**30
    graph = convert(made.hinted).graph
    assert graph.options_of(graph.ids.index("train")).max_runtime_s == 7200.0


def test_the_text_of_a_component_is_the_same_each_time() -> None:
    """Cache keys hold the command: it must not change between two compilations."""
    texts = {dump_documents(documents_of(pipeline)) for pipeline in (made.all_kinds, made.all_kinds)}
    assert len(texts) == 1
    assert components.load_component_from_text(texts.pop()).name == "all-kinds"


def test_a_component_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles, and runs outside of a pipeline with kfp's own runner and with ours."""
    compiler.Compiler().compile(made.train, str(tmp_path / "train.yaml"))
    assert run(tmp_path / "train.yaml", {"epochs": 4}, root=tmp_path, runlog=str(tmp_path / "l")).outputs["Output"] == 8
    monkeypatch.chdir(tmp_path)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    try:
        assert made.train(epochs=3).output == 6
    finally:
        local.config.LocalExecutionConfig.instance = None


def test_a_task_records_what_it_took(runner: Run) -> None:
    """Start, end, exit code and peak memory of a recorded component; nothing of one that is not."""
    result = runner(made.hinted)
    (record,) = records_of(result, "train")
    assert record["exit_code"] == 0
    assert record["start"] < record["end"]
    assert record["peak_rss_bytes"] > 1_000_000
    assert records_of(result, "unrecorded") == []


def test_a_caller_is_told_what_the_author_prints(tmp_path: Path) -> None:
    """And when the task starts and ends: not a line of this kfp's executor or of the recorder, which are in log.txt."""
    told: list[str] = []
    options: dict[str, Any] = {"gpus": 1, "emulate_gpus": True, "root": tmp_path, "runlog": str(tmp_path / "l")}
    result = run(made.printing, echo=lambda task, line: told.append(f"{task} {line}"), **options)
    assert [line.split(" after ")[0] for line in told] == [
        "prints · starts\n",
        "prints of the author\n",
        "prints no end of the line\n",
        "prints · succeeded",
    ]
    text = (Path(result.tasks[0].folder) / "log.txt").read_text()
    assert "Got executor_input" in text
    assert PREFIX in text


@pytest.mark.proves("kubeflow run", "split")
def test_phases_hold_the_gpu_only_in_theirs(runner: Run) -> None:
    """Any value that pickle takes goes from phase to phase; the GPU is held in the middle one."""
    result = runner(made.of_phases)
    assert result.outputs == {"Output": 1.5}
    assert gpus_held(result) == {"phased.decode": 0.0, "phased.fit": 1.0, "phased.write": 0.0}
    graph = convert(made.of_phases).graph
    assert dict(zip(graph.ids, graph.phase_duration_s, strict=True))["phased.fit"] == 2.0


def test_phases_have_comprehensions_and_named_outputs(runner: Run) -> None:
    """Scopes inside a phase, and the fields of a NamedTuple as outputs of the whole."""
    assert runner(made.of_named_outputs).outputs == {"Output": "6.0 up to 3.0"}


def test_phases_that_are_not_to_be_split_are_one_task(runner: Run) -> None:
    """`split=False`: the same result from one task with its GPU."""
    result = runner(made.in_one)
    assert result.outputs == {"Output": 1.5}
    assert gpus_held(result) == {"whole": 1.0}


@pytest.mark.proves("kubeflow run, cluster", "split")
def test_a_gpu_block_becomes_a_task_of_its_own(runner: Run) -> None:
    """Inputs, imports, functions, values and the output artifact are where they are used; only the block has a GPU."""
    result = runner(made.all_kinds)
    assert result.outputs == {"Output": "trained on 0: [2.0, 4.0]"}
    held = gpus_held(result)
    assert [task for task, gpus in held.items() if gpus] == ["blocked.blocked-gpu"]
    assert {"blocked.blocked-before", "blocked.blocked-after"} < held.keys()


def test_a_block_without_a_gpu_is_no_phase(runner: Run) -> None:
    """`gpus=0`: one task, in which the block does nothing."""
    result = runner(made.without_gpu)
    assert result.outputs == {"Output": 2}
    assert gpus_held(result) == {"on-cpu": 0.0}
