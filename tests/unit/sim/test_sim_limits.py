"""Limits in a simulation: what a user writes into files stops what it should, when it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core import notices
from egs_core.cli import app as cli
from egs_core.engine.specs import FlavorSpec, Limits
from egs_core.errors import InputError
from egs_core.graph.load import encode_workload, load_workload
from egs_core.queues import parse_queues
from egs_core.runlog.records import Ended, WorkloadEnded
from egs_core.sim import SimConfig, SimNode, SimResult, simulate

GPU_100_S = [{"kind": "gpu", "gpus": 1, "duration_s": 100.0}]
CONFIG = SimConfig(nodes=(SimNode("n", 4.0, 2),))


def run(tmp_path: Path, tasks: list[dict[str, object]], config: SimConfig = CONFIG, **head: object) -> SimResult:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", **head, "tasks": tasks}))
    return simulate([load_workload(path)], config, observer=lambda engine: engine.validate_state())


def ends(result: SimResult) -> list[tuple[str, float, str]]:
    return [(r.task, r.t, r.outcome) for r in result.records if isinstance(r, Ended)]


def test_a_tasks_limits(tmp_path: Path) -> None:
    """Each of time, GPU time and cost ends its task at its moment; the workload has failed, and says of which."""
    prices = (FlavorSpec("", gpu_hour=3600.0, cpu_hour=0.0),)
    tasks: list[dict[str, object]] = [
        {"id": "a", "phases": GPU_100_S, "max_runtime_s": 30.0},
        {"id": "b", "phases": [{"kind": "gpu", "gpus": 2, "duration_s": 50.0}], "parents": ["c"], "max_gpu_s": 40.0},
        {"id": "c", "phases": GPU_100_S, "max_cost": 20.0, "on_limit": "end"},
        {"id": "d", "parents": ["b"], "phases": GPU_100_S},
    ]
    config = SimConfig(nodes=CONFIG.nodes, flavors=prices)
    result = run(tmp_path, tasks, config)
    assert ends(result) == [("c", 20.0, "succeeded"), ("a", 30.0, "failed"), ("b", 50.0, "failed")]
    assert (result.failed, result.jct_s) == (["w"], [50.0])
    assert result.over_limit == {
        "w/a": "over its limit of 30 s",
        "w/b": "over its limit of 40 s of GPU time",
        "w/c": "over its limit of 20 in cost",
    }


def test_a_workloads_limits(tmp_path: Path) -> None:
    """Its time ends it too while all of its tasks wait, and that is its end."""
    tasks: list[dict[str, object]] = [
        {"id": "a", "phases": [{"kind": "cpu", "duration_s": 10.0}, *GPU_100_S]},
        {"id": "b", "phases": [{"kind": "gpu", "gpus": 2, "duration_s": 1000.0}], "priority": 1},
    ]
    result = run(tmp_path, tasks, max_runtime_s=60.0)
    assert ends(result) == [("a", 10.0, "succeeded"), ("b", 60.0, "failed")]
    assert [r.t for r in result.records if isinstance(r, WorkloadEnded)] == [60.0]
    assert result.over_limit["w"] == "its workload is over its limit of 60 s"


def test_requeued_by_a_limit(tmp_path: Path) -> None:
    """With checkpoints it goes on where it was, and ends after as many rounds as its work needs."""
    config = SimConfig(nodes=CONFIG.nodes, preempt=True, checkpoint_s=10.0)
    tasks: list[dict[str, object]] = [{"id": "a", "phases": GPU_100_S, "max_runtime_s": 35.0, "on_limit": "requeue"}]
    result = run(tmp_path, tasks, config)
    assert [round(t) for _, t, _ in ends(result)] == [35, 70, 105, 115]
    assert (result.failed, result.over_limit) == ([], {})


def test_a_queues_time_box(tmp_path: Path) -> None:
    """A queue's box ends what is longer, and that is no failure."""
    text = "queues:\n  - name: interactive\n    nominal: {gpus: 1}\n    limits: {max_runtime: 1m, on_limit: end}\n"
    config = SimConfig(nodes=CONFIG.nodes, queues=parse_queues(text))
    result = run(tmp_path, [{"id": "a", "phases": GPU_100_S}], config, queue="interactive")
    assert (result.jct_s, result.failed) == ([60.0], [])


def test_missed_deadlines_are_told(tmp_path: Path) -> None:
    """By how much, of the workload and of tasks with one of their own; what was in time is not named."""
    tasks: list[dict[str, object]] = [
        {"id": "a", "phases": GPU_100_S, "deadline_s": 90.0},
        {"id": "b", "phases": GPU_100_S, "deadline_s": 100.0},
    ]
    result = run(tmp_path, tasks, deadline_s=70.0)
    assert result.late_s == {"w": 30.0, "w/a": 10.0}


def test_a_file_keeps_its_limits(tmp_path: Path) -> None:
    """What is read is written again: of the workload and of its tasks."""
    path = tmp_path / "w.json"
    limits = {"deadline_s": 60.0, "max_runtime_s": 50.0, "max_gpu_s": 40.0, "max_cost": 30.0}
    task = {"id": "a", **limits, "idle_timeout_s": 5.0, "on_limit": "end"}
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", **limits, "tasks": [task]}))
    loaded = load_workload(path)
    path.write_bytes(encode_workload(loaded))
    again = json.loads(path.read_text())
    assert {key: again[key] for key in limits} == limits
    assert again["tasks"] == [task]


@pytest.mark.parametrize("text", ["{max_runtime: soon}", "{on_limit: stop}", "{max_gpu: 1h}", "{max_cost: -1}"])
def test_errors_in_a_queues_limits_name_the_line(text: str) -> None:
    """One clear error."""
    with pytest.raises(InputError, match=r"queues line 3: queues\[0\]\.limits\."):
        parse_queues(f"queues:\n  - name: a\n    limits: {text}\n")


def test_a_queues_limits_are_read() -> None:
    """Times in seconds; what is left out is no limit."""
    (queue,) = parse_queues("queues:\n  - name: a\n    limits: {max_gpu_time: 1h, max_cost: 2.5, on_limit: end}\n")
    assert queue.limits == Limits(None, 3600.0, 2.5, None, "end")


def test_an_idle_timeout_of_a_queue_is_refused_with_its_line() -> None:
    """Nothing measures whether a task is idle: applied, it would stop busy work."""
    with pytest.raises(InputError, match=r"queues line 4: queues\[0\]\.limits\.idle_timeout: is not avail") as said:
        parse_queues("queues:\n  - name: a\n    limits:\n      idle_timeout: 15m\n")
    assert said.value.hint == "use max_runtime"


def test_a_simulated_task_that_works_is_not_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 s of work with an idle time-out of 3 s: it runs to its end, with one warning. So does one with a cost limit
    where nothing has a price."""
    monkeypatch.setattr(notices, "_said", set())
    path = tmp_path / "w.json"
    tasks = [{"id": name, "phases": GPU_100_S, "idle_timeout_s": 3.0, "max_cost": 0.1} for name in "ab"]
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": tasks}))
    assert cli.run(["simulate", str(path), "--cpus", "4", "--gpus", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["makespan_s"], shown["over_limit"]) == (100.0, {})
    assert [line.split(" is not")[0] for line in err.splitlines()] == ["egs: idle_timeout_s", "egs: max_cost"]
    assert cli.run(["simulate", str(path), "--cpus", "4", "--gpus", "2", "--gpu-price", "36", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["over_limit"]
