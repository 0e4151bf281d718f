"""Preload across nodes: on a real cluster of two, a task finds process, files and arguments on the node it runs on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_all_is_there_when_the_turn_comes(tmp_path: Path) -> None:
    """A GPU task on the second node is warm two steps ahead; its files are read and its 50 MB are there before the last
    predecessor ends."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    outside = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "EGS_RUNLOG")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.ray.two_nodes"],
        cwd=ROOT,
        env={**outside, **quiet, "PYTHONPATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(found)
    assert found["node"] == found["second"]
    assert found["gate_when_warm"] == "pending", "warm while the step before it was not even ready"
    assert (found["read"], found["size"]) == (True, 50_000_000)
    assert found["loaded_before_s"] > 0
