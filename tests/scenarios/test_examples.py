"""Each example runs as a user would run it, and prints what is recorded beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from egs_core.cli import app
from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Started, TaskAdded

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240

pytestmark = pytest.mark.ray


class Done(NamedTuple):
    """What one example has printed, and its run log."""

    stdout: str
    stderr: str
    log: Path


@pytest.fixture(scope="module")
def run_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Done]:
    """Runs one example in a process and data folder of its own; the same way only once, for it starts a Ray."""

    @cache
    def run(name: str, **variables: str) -> Done:
        folder = tmp_path_factory.mktemp(name)
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
        return Done(done.stdout, done.stderr, log)

    return run


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_prints_what_is_recorded(name: str, run_example: Callable[..., Done]) -> None:
    """The recorded output is the output."""
    assert run_example(name).stdout == (EXAMPLES / f"{name}.out").read_text()


@pytest.mark.parametrize("mode", [pytest.param("observe", marks=pytest.mark.slow), "on"])
def test_the_hook_changes_no_output_and_leaves_a_run_log(mode: str, run_example: Callable[..., Done]) -> None:
    """An unmodified script under the hook prints the same, and its GPU tasks are in the run log."""
    done = run_example("01_hook", RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE=mode)
    assert done.stdout == (EXAMPLES / "01_hook.out").read_text()
    assert "Traceback" not in done.stderr
    run = read_run(done.log)
    assert run.header.mode == mode
    assert summarise(run.records).gpu_held_s > 0


def test_the_tutorials_commands_read_that_run_log(
    run_example: Callable[..., Done], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`egs report` and `egs audit` take the run log of the hook, as docs/tutorials/ray.md says."""
    done = run_example("01_hook", RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on")
    assert app.run(["report", str(done.log), "-o", str(tmp_path / "report.html")]) == 0
    assert app.run(["audit", str(done.log), "--seeds", "1"]) == 0
    assert "held" in capsys.readouterr().out
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["02_hints", "03_phases"])
def test_a_run_holds_gpus_only_in_gpu_phases(name: str, run_example: Callable[..., Done]) -> None:
    """The examples' claim: a GPU is held in GPU phases, and in no other phase of any task."""
    records = read_run(run_example(name).log).records
    kinds = {record.task: [kind for kind, *_ in record.phases] for record in records if isinstance(record, TaskAdded)}
    assert {"cpu", "gpu"} <= {kind for phases in kinds.values() for kind in phases}
    held = {(r.task, r.phase) for r in records if isinstance(r, Started) and r.gpus}
    assert held == {(task, phase) for task in kinds for phase, kind in enumerate(kinds[task]) if kind == "gpu"}
