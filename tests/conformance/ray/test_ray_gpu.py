"""On a machine with a GPU: EGS's GPU paths with CUDA itself, as `python -m benchmarks.gpu_paths` shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TAKEN_BYTES = 256 << 20


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the command prints; skips, with its reason, where there is no device."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_paths", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    out: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if "skipped" in out:
        pytest.skip(f"no GPU here: {out['skipped']}")
    return out


@pytest.mark.gpu
def test_a_block_keeps_its_device_until_it_is_clean(found: dict[str, Any]) -> None:
    """CUDA's context stays behind a block, so the GPU is held in the CPU phase and free when the process is gone."""
    before, on_gpu, behind, freed = found["block"]
    assert (before["CUDA_VISIBLE_DEVICES"], on_gpu["CUDA_VISIBLE_DEVICES"], on_gpu["cuda_devices"]) == ("", "0", 1)
    assert before["held_bytes"] == 0
    assert behind["held_bytes"] is None or behind["held_bytes"] >= TAKEN_BYTES
    assert behind["gpus_free"] == 0
    assert (freed["gpus_free"], freed["processes_gone"]) == (1, True)


@pytest.mark.gpu
def test_steps_leave_a_clean_device(found: dict[str, Any]) -> None:
    """A GPU step's own process takes its memory with it: behind it the GPU is free, and the task's process is clean."""
    before, on_gpu, behind, freed = found["steps"]
    assert before["pid"] == behind["pid"] != on_gpu["pid"]
    assert (behind["held_bytes"], behind["gpus_free"], behind["CUDA_VISIBLE_DEVICES"]) == (0, 1, "")
    if on_gpu["device_used_bytes"] is not None:
        assert on_gpu["device_used_bytes"] - behind["device_used_bytes"] >= TAKEN_BYTES
    assert freed["processes_gone"]


@pytest.mark.gpu
def test_a_model_is_loaded_before_the_gpu_is_taken(found: dict[str, Any]) -> None:
    """The model is in the host's memory, in the task's own process, when its predecessor ends."""
    ahead, _ = found["whole, loaded ahead"]
    native, _ = found["whole, native"]
    assert ahead["loaded_by_this_process"]
    assert ahead["model_in_hand_s"] < native["model_in_hand_s"]
