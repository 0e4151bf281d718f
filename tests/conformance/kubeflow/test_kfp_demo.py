"""`egs demo` and `egs replay` on kfp's own local runner and on EGS's: real processes, phases of tenths of a second."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kfp", reason="kfp is not installed")
if find_spec("sklearn") is None:  # importing it takes a second
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from egs_core.adapter import RunOutcome
from egs_core.cli import app
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.io import Run, read_run
from egs_core.runlog.records import Ended, Started, TaskAdded
from egs_core.runlog.timeline import build_timeline
from egs_kubeflow.adapter import ADAPTER
from egs_kubeflow.demo import times
from egs_kubeflow.demo.run import VARIANTS, run_variant

FACTOR = 0.04
TRAININGS, EVALUATIONS = times.STEPS + times.CANDIDATES, times.CANDIDATES + 1
USED_S = FACTOR * (TRAININGS * times.FIT_S + EVALUATIONS * times.EVALUATE_S)
TASKS = TRAININGS + EVALUATIONS + 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunOutcome]:
    """The demo on kfp's own runner, and with EGS, with phases that are a twenty-fifth of their length."""
    out = tmp_path_factory.mktemp("demo")
    return {name: run_variant(name, out, factor=FACTOR) for name in ("native", "egs")}


@pytest.mark.slow
def test_both_clocks_start_when_the_pipeline_is_called(outcomes: dict[str, RunOutcome]) -> None:
    """What a runner does before its first task counts in both: all tasks are submitted at zero, none starts before."""
    for outcome in outcomes.values():
        records = read_run(outcome.runlog_path).records
        assert {record.t for record in records if isinstance(record, TaskAdded)} == {0.0}
        assert min(record.t for record in records if isinstance(record, Started)) >= 0.0
        assert outcome.metrics["makespan_s"] >= max(r.t for r in records if isinstance(r, Ended)) - 1e-3


def line_of(outcome: RunOutcome) -> Timeline:
    return build_timeline(read_run(outcome.runlog_path).records)


def check(outcomes: dict[str, RunOutcome]) -> None:
    """The same results of all; as written one task a training, else three; all GPU phases have lasted."""
    assert len({outcome.digest for outcome in outcomes.values()}) == 1
    for name, outcome in outcomes.items():
        assert len(line_of(outcome).holds) == TASKS + (2 * TRAININGS if name in ("tuned", "egs") else 0), name
        assert 0.9 * USED_S <= outcome.metrics["gpu_used_s"] <= outcome.metrics["gpu_held_s"], name


@pytest.mark.slow
def test_kfps_own_runner_and_egs_give_the_same_results(outcomes: dict[str, RunOutcome]) -> None:
    """Every prediction of every model, whoever ran the pipeline and however its trainings were cut."""
    check(outcomes)


@pytest.mark.slow
def test_all_four_ways_give_the_same_results(outcomes: dict[str, RunOutcome], tmp_path: Path) -> None:
    """As written on EGS's runner, and cut by hand; who asks for a GPU there; tasks run beside each other."""
    others = {name: run_variant(name, tmp_path, factor=FACTOR) for name in ("fifo", "tuned")}
    check({**outcomes, **others})
    assert {*outcomes, *others} == set(VARIANTS) == set(ADAPTER.demo_variants)
    on_gpu = [hold.task for hold in line_of(others["tuned"]).holds if hold.demand.gpus]
    assert sorted({task.partition("-")[0] for task in on_gpu}) == ["evaluate", "fit"]
    holds = sorted(line_of(others["fifo"]).holds, key=lambda hold: hold.start_s)
    assert any(other.start_s < one.end_s for one, other in pairwise(holds))


@pytest.mark.slow
def test_kfps_runner_runs_one_after_the_other(outcomes: dict[str, RunOutcome]) -> None:
    """The run log of kfp's runner comes from the tasks' own notes; what it waits for is the pipeline's word."""
    holds = sorted(line_of(outcomes["native"]).holds, key=lambda hold: hold.start_s)
    assert all(one.end_s <= other.start_s for one, other in pairwise(holds))
    assert [hold.task for hold in holds][:2] == ["load", "prepare"]
    assert holds[-1].task == "report"


@pytest.mark.slow
def test_with_egs_a_gpu_is_held_in_gpu_phases_only(outcomes: dict[str, RunOutcome]) -> None:
    """As written a training holds one while it decodes and writes; with hints its middle part does."""
    on_gpu = {hold.task for hold in line_of(outcomes["egs"]).holds if hold.demand.gpus}
    trainings = {"train", *(f"train-{number}" for number in range(2, TRAININGS + 1))}
    assert {task for task in on_gpu if task.startswith("train")} == {f"{task}.train-gpu" for task in trainings}
    assert {task for task in on_gpu if not task.startswith("train")} == {
        "evaluate",
        *(f"evaluate-{number}" for number in range(2, EVALUATIONS + 1)),
    }
    whole = {hold.task for hold in line_of(outcomes["native"]).holds if hold.demand.gpus}
    assert trainings < whole


# --- replay -----------------------------------------------------------------------------------------------------------

GPU = {"kind": "gpu", "gpus": 1, "duration_s": 0.3}
FILE: dict[str, Any] = {
    "format": "egs-workload",
    "version": 1,
    "id": "first",
    "tasks": [
        {"id": "alone", "phases": [{"duration_s": 0.2}]},
        {"id": "load it", "phases": [{"duration_s": 0.2}]},
        {"id": "train/0", "parents": ["load it"], "phases": [{"duration_s": 0.3}, GPU, {"duration_s": 0.2}]},
        {"id": "write", "parents": ["train/0"], "phases": [{"duration_s": 0.1}], "warm_key": "m", "warmup_s": 0.2},
    ],
}
LATER = {**FILE, "id": "later", "arrival_s": 4.0, "tasks": [{"id": "only", "phases": [GPU]}]}


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], policy: str) -> tuple[dict[str, Any], Run]:
    """The figures that are printed, and the run log, of both files on one CPU and one GPU."""
    paths = [folder / "first.json", folder / "later.json"]
    for path, content in zip(paths, (FILE, LATER), strict=True):
        path.write_text(json.dumps(content))
    log = folder / f"{policy}.jsonl"
    options = ["--on", "kubeflow", "--policy", policy, "--cpus", "1", "--gpus", "1", "--runlog", str(log), "--json"]
    assert app.run(["replay", *map(str, paths), *options]) == 0
    return json.loads(capsys.readouterr().out), read_run(log)


def order_of(run: Run) -> list[tuple[str, int]]:
    return [(record.task, record.phase) for record in run.records if isinstance(record, Started)]


def test_a_replay_with_egs_splits_and_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What others wait for goes first, though the file has it later; the GPU is held in the GPU phase; the later
    workload comes when it is due; the figures are those of the run log."""
    told, run = replayed(tmp_path, capsys, "egs")
    assert (run.header.driver, run.header.policy, run.header.mode, run.header.emulated_gpus) == (
        "kubeflow",
        "egs",
        "on",
        True,
    )
    order, line = order_of(run), build_timeline(run.records)
    assert order[0] == ("load it", 0)
    assert [place for place in order if place[0] == "train/0"] == [("train/0", 0), ("train/0", 1), ("train/0", 2)]
    assert {(hold.task, hold.phase) for hold in line.holds if hold.demand.gpus} == {("train/0", 1), ("only", 0)}
    later_s = line.workloads["later"].submitted_s
    assert later_s is not None
    assert later_s > 0.6, "arrivals count from before the pipeline is read"
    assert (told["phases"], told["cold_starts"], told["makespan_s"]) == (
        7,
        1,
        round(line.window[1] - line.window[0], 3),
    )
    assert 0.55 <= told["gpu_used_s"] <= told["gpu_held_s"]
    assert told["makespan_s"] >= told["lower_bound_s"]


def test_a_native_replay_keeps_tasks_whole_and_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First ready, first served; a mixed task holds its GPU from start to end, and uses it in its GPU phase only."""
    told, run = replayed(tmp_path, capsys, "native")
    assert (run.header.policy, run.header.mode) == ("native", "off")
    assert [task for task, _ in order_of(run) if task != "only"] == ["alone", "load it", "train/0", "write"]
    added = {record.task: record for record in run.records if isinstance(record, TaskAdded)}
    assert added["train/0"].phases == (("gpu", 1.0, 1.0, 0),)
    assert added["write"].parents == ("train/0",)
    hold = next(hold for hold in build_timeline(run.records).holds if hold.task == "train/0")
    assert hold.end_s - hold.start_s >= 0.8
    assert sum(end - start for start, end in hold.useful) <= hold.end_s - hold.start_s - 0.5  # of CPU phases
    assert (told["phases"], told["cold_starts"]) == (5, 1)
