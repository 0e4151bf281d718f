"""`egs replay` and the demo on a real Airflow that the command starts itself, and of which nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import ColdStart, Ended, Record, Started, Used
from tests.conformance.airflow.conftest import require_airflow
from tests.conformance.airflow.live import SOURCES, wait_until

GPU_TASK = [{"duration_s": 2.0}, {"kind": "gpu", "gpus": 1, "duration_s": 3.0}, {"duration_s": 1.0}]
TASKS = [
    {"id": "load it", "phases": [{"duration_s": 0.5}]},
    {"id": "train/0", "parents": ["load it"], "phases": GPU_TASK},
    {"id": "train/1", "parents": ["load it"], "phases": GPU_TASK, "warm_key": "m", "warmup_s": 1.0},
    {"id": "report", "parents": ["train/0", "train/1"], "phases": [{"duration_s": 0.5}]},
]


@pytest.mark.slow  # an Airflow of its own
def test_a_replay_with_egs_holds_the_gpu_in_gpu_phases(tmp_path: Path) -> None:
    """Every phase has run; only GPU phases hold the GPU, after the CPU phase before and until the one after, one phase
    at a time; what a warm key names is loaded once; the run log gives what was printed; nothing is left."""
    require_airflow()
    done = subprocess.run(
        [*_command(tmp_path), "--runlog", str(tmp_path / "log.jsonl"), "--json"],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    run = read_run(tmp_path / "log.jsonl")
    metrics = summarise(run.records)
    print(told)
    assert (run.header.driver, run.header.policy, run.header.mode, run.header.emulated_gpus) == (
        "airflow",
        "egs",
        "on",
        True,
    )
    assert told["makespan_s"] == round(metrics.makespan_s, 3)
    assert (told["phases"], told["cold_starts"]) == (8, 1)
    assert told["makespan_s"] >= told["lower_bound_s"]
    _check_holds(run.records, told)
    assert not _left(tmp_path)


def _check_holds(records: list[Record], told: dict[str, Any]) -> None:
    """Which task held the GPU between what, by the times of the run log."""
    began = {record.task: record.t for record in records if isinstance(record, Started)}
    ended = {record.task: record.t for record in records if isinstance(record, Ended)}
    holds = {
        record.task: (record.t, ended[record.task]) for record in records if isinstance(record, Started) if record.gpus
    }
    assert holds.keys() == {"train_0.gpu_1", "train_1.gpu_1"}
    for task, (start, end) in holds.items():
        group = task.partition(".")[0]
        assert ended[f"{group}.cpu_0"] <= start < end <= began[f"{group}.cpu_2"], task
    one, other = sorted(holds.values())
    assert one[1] <= other[0]
    assert told["gpu_held_s"] == pytest.approx(one[1] - one[0] + other[1] - other[0], abs=2e-3)
    used = {record.task: record for record in records if isinstance(record, Used)}
    assert used.keys() == holds.keys()
    for task, record in used.items():
        assert holds[task][0] <= record.t <= record.end_t <= holds[task][1], task
        assert record.end_t - record.t >= 2.9, task  # a sleep of three seconds
    (loaded,) = (record for record in records if isinstance(record, ColdStart))
    assert (loaded.task, loaded.end_t <= used[loaded.task].t) == ("train_1.gpu_1", True)


@pytest.mark.slow  # an Airflow of its own
def test_a_replay_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while Airflow's processes run ends them all."""
    require_airflow()
    command = subprocess.Popen(
        _command(tmp_path),
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("temp/*/*/scheduler.log"))) == 1, "a scheduler")
        command.send_signal(signal.SIGINT)
        printed, _ = command.communicate(timeout=300)
    finally:
        command.kill()
    assert command.returncode == 130, printed
    assert "Traceback" not in printed
    assert not _left(tmp_path)


def _command(folder: Path) -> list[str]:
    path = folder / "w.json"
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": TASKS}))
    start = "import sys; from egs_core.cli.app import run; sys.exit(run(sys.argv[1:]))"
    return [sys.executable, "-c", start, "replay", str(path), "--on", "airflow", "--gpus", "1", "--cpus", "2"]


def _environment(folder: Path) -> dict[str, str]:
    (folder / "temp").mkdir()
    own = {"TMPDIR": str(folder / "temp"), "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    return {**os.environ, **own}


def _left(folder: Path) -> list[str]:
    """Processes and files that a command has left; every process of its Airflow has its temporary folder as home."""
    home, left = str(folder / "temp"), [str(path) for path in (folder / "temp").iterdir()]
    for process in psutil.process_iter():
        try:
            if process.environ().get("AIRFLOW_HOME", "").startswith(home):
                left.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return left
