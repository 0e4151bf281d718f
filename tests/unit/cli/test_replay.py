"""`egs replay`: its options, and the simulator's side; real frameworks are replayed in the conformance tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli import app
from egs_core.cli.replay import used_stretches
from egs_core.graph.load import decode_workload
from egs_core.runlog.io import read_run
from egs_core.runlog.records import ColdStart, Started, Used

TRAIN: dict[str, Any] = {
    "id": "train",
    "parents": ["load"],
    "warm_key": "torch",
    "warmup_s": 4.0,
    "phases": [
        {"kind": "cpu", "duration_s": 2.0},
        {"kind": "gpu", "gpus": 1, "duration_s": 3.0},
        {"kind": "cpu", "duration_s": 1.0},
    ],
}
LOAD: dict[str, Any] = {"id": "load", "phases": [{"kind": "cpu", "duration_s": 5.0, "memory": "900GiB"}]}


def workload(*tasks: dict[str, Any], **head: Any) -> dict[str, Any]:
    return {"format": "egs-workload", "version": 1, "id": "w", "tasks": list(tasks), **head}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Load, then a mixed training that takes 4 s to get warm."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload(LOAD, TRAIN)))
    return path


def replay(*args: object) -> int:
    return app.run(["replay", *map(str, args)])


def figures(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert replay(*args, "--json") == 0
    out, err = capsys.readouterr()
    assert not err
    found: dict[str, Any] = json.loads(out)
    return found


def test_native_in_the_simulator_by_hand(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """5 s, then 4 cold + 6 in the task, all with the GPU held; half as long at half the scale, of which 1.5 used."""
    found = figures(capsys, file, "--on", "sim", "--policy", "native", "--time-scale", 0.5, "--cpus", 2, "--gpus", 1)
    expected = {"makespan_s": 7.5, "gpu_held_s": 5.0, "gpu_used_s": 1.5, "cold_starts": 1, "lower_bound_s": 5.5}
    assert {name: found[name] for name in expected} == expected
    # Native wastes the cold start alone: nothing but the cold task itself ever waits for the GPU.
    assert found["wastage_effective"] == pytest.approx(2.0 / 7.5)
    about = {"on": "sim", "policy": "native", "time_scale": 0.5, "tasks": 2, "workloads": 1, "cpus": 2, "gpus": 1}
    assert {name: found[name] for name in about} == about


def test_egs_in_the_simulator_reaches_the_bound(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warm when load ends, and the GPU held only in the GPU phase: nothing is left to gain."""
    found = figures(capsys, file, "--on", "sim", "--policy", "egs", "--cpus", 2, "--gpus", 1)
    assert found["makespan_s"] == found["lower_bound_s"] == 11.0
    assert (found["gpu_held_s"], found["gpu_used_s"], found["cold_starts"]) == (3.0, 3.0, 0)
    assert found["wastage_effective"] == 0.0


def test_files_that_share_an_id_and_arrive_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same file twice is two workloads; the bound and the run count from the first arrival, scaled."""
    path = tmp_path / "late.json"
    path.write_text(json.dumps(workload(LOAD, arrival_s=10.0)))
    other = tmp_path / "later.json"
    other.write_text(json.dumps(workload(LOAD, arrival_s=14.0)))
    log = tmp_path / "log.jsonl"
    found = figures(capsys, path, other, "--on", "sim", "--gpus", 0, "--time-scale", 0.1, "--runlog", log)
    assert (found["workloads"], found["makespan_s"], found["lower_bound_s"]) == (2, 0.9, 0.9)
    assert {r.workload for r in read_run(log).records if isinstance(r, Started)} == {"w-0", "w-1"}


def test_run_log_says_what_it_is(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs report` tells native from EGS by the header; the table names the file."""
    log = tmp_path / "log.jsonl"
    assert replay(file, "--on", "sim", "--policy", "native", "--runlog", log) == 0
    header = read_run(log).header
    assert (header.driver, header.policy, header.mode) == ("sim", "native", "off")
    assert "run log" in capsys.readouterr().out


def test_gpu_phases_inside_whole_tasks() -> None:
    """The GPU is used from the end of the load on, after the CPU phase before it."""
    loaded = decode_workload(json.dumps(workload(LOAD, TRAIN)).encode(), "w")
    records = [Started(5.0, "w", "train"), ColdStart(5.0, 9.0, "w", "train")]
    assert used_stretches(records, [loaded]) == [Used(11.0, 14.0, "w", "train")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "slurm"], "--on: unknown 'slurm' (one of sim,"),
        (["--policy", "fifo"], "--policy: unknown 'fifo' (one of egs, native)"),
        (["--cpus", "0"], "--cpus: must be 1 to 100000, not 0"),
        (["--gpus", "-1"], "--gpus: must be 0 to 10000, not -1"),
        (["--time-scale", "0"], "--time-scale: must be 1e-06 to 1e+06, not 0"),
        (["--time-scale", "nan"], "--time-scale: must be 1e-06 to 1e+06, not nan"),
        (["--time-scale", "inf"], "--time-scale: must be 1e-06 to 1e+06, not inf"),
        (["--gpus", "0"], "w: task 'train': can never run here"),
        (["--runlog", "."], "is a folder"),
        (["--runlog", "no/such/log.jsonl"], "no such folder"),
    ],
)
def test_what_cannot_be_is_one_line(
    file: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line on stderr that names the option or the task."""
    defaults = [] if "--on" in options else ["--on", "sim"]
    assert replay(file, *defaults, *options) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1


def test_run_log_may_not_replace_a_workload(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the completion key must not cost the user the file."""
    before = file.read_bytes()
    assert replay(file, "--on", "sim", "--runlog", file) == 2
    assert "is one of the workload files" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_unknown_duration_names_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay needs to know how long; it says of which task it does not."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload({"id": "load", "phases": [{"kind": "cpu"}]})))
    assert replay(path, "--on", "sim") == 2
    assert "w: task 'load': its duration is unknown" in capsys.readouterr().err
