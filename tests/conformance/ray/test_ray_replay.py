"""`egs replay --on ray`: a workload file on a real Ray of its own, natively and with EGS, as a user calls it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from egs_core.cli import app
from egs_core.runlog.io import Run, read_run
from egs_core.runlog.records import Ended, PreloadEnded, Started

ROOT = Path(__file__).resolve().parents[3]
SCALE = 0.1


def phase(kind: str, seconds: float, **needs: float) -> dict[str, Any]:
    return {"kind": kind, "duration_s": seconds, **needs}


GPU_1 = {"gpus": 1, "cpus": 0}
TASKS: list[dict[str, Any]] = [
    {"id": "load", "phases": [phase("cpu", 40)]},
    {
        "id": "mixed",
        "parents": ["load"],
        "warm_key": "m",
        "warmup_s": 10,
        "phases": [phase("cpu", 10), phase("gpu", 10, **GPU_1), phase("cpu", 5)],
    },
    {"id": "ends on gpu", "parents": ["load"], "phases": [phase("cpu", 5), phase("gpu", 5, gpus=0.5)]},
    {"id": "begins on gpu", "parents": ["load"], "phases": [phase("gpu", 5, **GPU_1), phase("cpu", 5)]},
    {
        "id": "gpu twice",
        "parents": ["load"],
        "phases": [phase("gpu", 5, **GPU_1), phase("cpu", 5, cpus=2), phase("gpu", 5, **GPU_1)],
    },
    {
        "id": "évaluer",
        "parents": ["mixed", "ends on gpu", "begins on gpu", "gpu twice"],
        "phases": [phase("gpu", 5, gpus=2)],
    },
]
USED_S = SCALE * (10 + 0.5 * 5 + 5 + 5 + 5 + 2 * 5)


OWN_RAYS = pytest.mark.slow  # two, one for each policy


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[dict[str, Any], Run]]]:
    """The figures and the run log of each policy; afterwards no process and no file of theirs is left."""
    folder = tmp_path_factory.mktemp("replay")
    file, temp = folder / "w.json", Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    file.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": TASKS}))
    found = {}
    for policy in ("native", "egs"):
        log = folder / f"{policy}.jsonl"
        done = replay(temp, file, "--policy", policy, "--time-scale", SCALE, "--runlog", log, "--json")
        assert done.returncode == 0, done.stderr
        found[policy] = (json.loads(done.stdout), read_run(log))
    yield found
    assert list(temp.iterdir()) == []
    assert [p.info for p in psutil.process_iter(["cmdline"]) if str(temp) in " ".join(p.info["cmdline"] or ())] == []
    shutil.rmtree(temp)


def replay(temp: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """`egs replay` in a process of its own, whose temporary files go to `temp`."""
    roots = [str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots), "TMPDIR": str(temp)}
    command = [sys.executable, "-m", "egs_core.cli.app", "replay", "--on", "ray", *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@OWN_RAYS
@pytest.mark.parametrize("policy", ["native", "egs"])
def test_every_task_runs_once_for_its_scaled_time(runs: dict[str, tuple[dict[str, Any], Run]], policy: str) -> None:
    """All tasks succeed after what they depend on, and the GPUs are used for exactly what the file says."""
    figures, run = runs[policy]
    ends = {r.task: r.t for r in run.records if isinstance(r, Ended) and r.outcome == "succeeded"}
    starts: dict[str, float] = {}
    for record in run.records:
        if isinstance(record, Started):
            starts.setdefault(record.task, record.t)
    assert set(ends) == {task["id"] for task in TASKS}
    assert all(ends[parent] <= starts[task["id"]] for task in TASKS for parent in task.get("parents", ()))
    assert figures["gpu_used_s"] >= USED_S
    assert figures["makespan_s"] >= figures["lower_bound_s"]


@OWN_RAYS
def test_native_holds_gpus_for_whole_tasks_and_egs_only_in_gpu_phases(
    runs: dict[str, tuple[dict[str, Any], Run]],
) -> None:
    """Natively CPU phases and loading hold a GPU too; with EGS GPU phases do, and no other."""
    native, egs = runs["native"][0], runs["egs"][0]
    assert native["gpu_held_s"] >= USED_S + SCALE * (10 + 10 + 5 + 0.5 * 5 + 5 + 5)
    assert egs["gpu_held_s"] < native["gpu_held_s"]
    kinds = {(task["id"], number): each["kind"] for task in TASKS for number, each in enumerate(task["phases"])}
    held = {(r.task, r.phase) for r in runs["egs"][1].records if isinstance(r, Started) and r.gpus}
    assert held == {place for place, kind in kinds.items() if kind == "gpu"}


@OWN_RAYS
def test_egs_loads_ahead_and_native_starts_cold(runs: dict[str, tuple[dict[str, Any], Run]]) -> None:
    """The load of `mixed` is over before its predecessor ends; natively it is part of the task."""
    cold = {
        policy: [r.warm for r in run.records if isinstance(r, Started) and r.task == "mixed" and r.phase == 0]
        for policy, (_, run) in runs.items()
    }
    assert cold == {"native": [False], "egs": [True]}
    assert ("mixed", "used") in {(r.task, r.outcome) for r in runs["egs"][1].records if isinstance(r, PreloadEnded)}


@OWN_RAYS
def test_no_device_is_held_beyond_its_capacity(runs: dict[str, tuple[dict[str, Any], Run]]) -> None:
    """At no moment do the phases that run hold more than two GPUs."""
    for _, run in runs.values():
        started = {(r.task, r.phase): r for r in run.records if isinstance(r, Started)}
        changes = [(r.t, r.gpus) for r in started.values()]
        changes += [(r.t, -started[r.task, r.phase].gpus) for r in run.records if isinstance(r, Ended)]
        held = 0.0
        for _, change in sorted(changes):
            held += change
            assert held <= 2.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"id": "big", "phases": [phase("gpu", 1, gpus=3)]}, "w: task 'big': needs 3 GPUs, there are 2"),
        ({"id": "wide", "phases": [phase("cpu", 1, cpus=5)]}, "w: task 'wide': needs 5 CPUs, there are 4"),
        ({"id": "blind", "phases": [{"kind": "cpu"}]}, "w: task 'blind': its duration is unknown"),
    ],
)
def test_what_can_never_run_is_one_line(
    tmp_path: Path, task: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before Ray is started, exit code 2."""
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": [task]}))
    assert app.run(["replay", "--on", "ray", str(file)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
