"""Native and tuned on a real local Ray: the same results, and logs that say how they got there.

One pipeline instead of six, in a process of its own: other tests may hold a Ray in this one.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from egs_core.runlog.figures import figures_of
from egs_core.runlog.io import read_run
from egs_core.runlog.records import ColdStart, Started, Used

ROOTS = os.pathsep.join(path for path in sys.path if path)
PROGRAM = """
import json, pathlib, sys
from egs_core.runlog.io import write_run
from egs_ray.demo import measure, pipelines
pipelines.PIPELINES = 1
for name in ("native", "tuned"):
    measured = measure.measure_variant(name)
    write_run(f"{sys.argv[1]}/{name}.jsonl", measured.header, measured.records)
    pathlib.Path(sys.argv[1], f"{name}.json").write_text(json.dumps(measured.run.reports))
"""

pytestmark = pytest.mark.slow  # two runs of the demo, each on a Ray of its own


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """The reports of both variants, and the folder with their run logs."""
    folder = tmp_path_factory.mktemp("demo")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": ROOTS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("native", "tuned")], folder


@pytest.mark.ray
def test_results_are_identical(runs: tuple[list[Any], Path]) -> None:
    """Accuracies and the digest of every prediction are the same whichever way the pipeline ran."""
    (native, tuned), _ = runs
    assert native == tuned
    assert len(native[0]["digest"]) == 64
    assert min(native[0]["accuracies"]) > 0.9


@pytest.mark.ray
def test_gpus_are_used_equally_and_held_differently(runs: tuple[list[Any], Path]) -> None:
    """Both compute for at least 4 x 1.5 + 0.7 s on a GPU; native holds it for CPU phases and each task's loading."""
    _, folder = runs
    native, tuned = (figures_of(read_run(folder / f"{name}.jsonl").records) for name in ("native", "tuned"))
    for figures in (native, tuned):
        assert figures["gpu_used_s"] >= 6.7  # a busy machine computes for longer
    assert native["gpu_held_s"] >= native["gpu_used_s"] + 4 * 1.3 + 5 * 1.0
    held_cold = {name: _gpu_cold_starts(folder / f"{name}.jsonl") for name in ("native", "tuned")}
    assert held_cold["native"] == 5
    assert 2 <= held_cold["tuned"] < 5  # one a GPU, unless Ray ends an idle process on a busy machine


def _gpu_cold_starts(path: Path) -> int:
    """How many tasks loaded while they held a GPU."""
    records = read_run(path).records
    on_gpu = {(r.task, r.phase) for r in records if isinstance(r, Started) and r.gpus}
    return len({(r.task, r.phase) for r in records if isinstance(r, ColdStart)} & on_gpu)


@pytest.mark.ray
def test_native_restarts_a_process_a_task_and_tuned_keeps_two(runs: tuple[list[Any], Path]) -> None:
    """Each native GPU task is a cold start in its own process; by hand there is at most one process a GPU."""
    _, folder = runs
    pids: dict[str, set[int]] = {}
    for name in ("native", "tuned"):
        started = [r for r in read_run(folder / f"{name}.jsonl").records if isinstance(r, Started) and r.gpus]
        pids[name] = {record.pid for record in started}
        assert {device for record in started for device in record.devices} == {0, 1}
        assert len(started) == 5
    assert len(pids["native"]) == 5
    assert len(pids["tuned"]) == 2


@pytest.mark.ray
def test_no_device_is_used_twice_at_once(runs: tuple[list[Any], Path]) -> None:
    """On each logical device the useful stretches follow one another: Ray's books were kept."""
    _, folder = runs
    for name in ("native", "tuned"):
        records = read_run(folder / f"{name}.jsonl").records
        device = {(r.task, r.phase): r.devices for r in records if isinstance(r, Started)}
        used = sorted((device[r.task, r.phase], r.t, r.end_t) for r in records if isinstance(r, Used))
        for (one, _, end), (other, start, _) in itertools.pairwise(used):
            assert one != other or end <= start
