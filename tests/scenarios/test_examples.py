"""Each example runs as a user would run it, and prints what is recorded beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 120

pytestmark = pytest.mark.ray


def run_example(name: str, folder: Path, **variables: str) -> tuple[str, str, Path]:
    """stdout, stderr and run log of one example in a process and data folder of its own."""
    log = folder / "run.jsonl"
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "XDG_DATA_HOME": str(folder),
        "EGS_RUNLOG": str(log),
        **variables,
    }
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, log


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_prints_what_is_recorded(name: str, tmp_path: Path) -> None:
    """The recorded output is the output."""
    stdout, _, _ = run_example(name, tmp_path)
    assert stdout == (EXAMPLES / f"{name}.out").read_text()


@pytest.mark.parametrize("mode", ["observe", "on"])
def test_the_hook_changes_no_output_and_leaves_a_run_log(mode: str, tmp_path: Path) -> None:
    """An unmodified script under the hook prints the same, and its GPU tasks are in the run log."""
    variables = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": mode}
    stdout, stderr, log = run_example("01_hook", tmp_path, **variables)
    assert stdout == (EXAMPLES / "01_hook.out").read_text()
    assert "Traceback" not in stderr
    run = read_run(log)
    assert run.header.mode == mode
    assert summarise(run.records).gpu_held_s > 0


@pytest.mark.parametrize("name", ["02_hints", "03_phases"])
def test_a_run_holds_gpus_only_in_gpu_phases(name: str, tmp_path: Path) -> None:
    """The examples' claim: what is held of a GPU is what is used of it, but for milliseconds."""
    _, _, log = run_example(name, tmp_path)
    metrics = summarise(read_run(log).records)
    assert metrics.gpu_used_s > 0
    assert metrics.gpu_held_s - metrics.gpu_used_s < 0.5
