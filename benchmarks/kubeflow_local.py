"""What the local runner of Kubeflow pipelines adds to a task, beside kfp's own, in turn.

    python -m benchmarks.kubeflow_local [--tasks 20] [--rounds 5] [--json]

chain  no-op tasks one after the other: milliseconds a task, in both runners
six    six tasks of 1 s with a critical path of 4 s, on two CPU slots: seconds, in ours
"""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from kfp import dsl, local

from egs_kubeflow.run import run

KFP: dict[str, Any] = {"base_image": f"python:3.{sys.version_info.minor}", "install_kfp_package": False}


@dsl.component(**KFP)
def nothing(after: str) -> str:
    return after


@dsl.component(**KFP)
def sleep(after: str) -> str:
    import time

    time.sleep(1.0)
    return after


@dsl.pipeline
def six() -> None:
    """Four tasks in a chain, and two beside it."""
    before = "none"
    for _ in range(4):
        before = sleep(after=before).output
    sleep(after="none")
    sleep(after="none")


def chain_of(tasks: int) -> Any:
    """A pipeline of no-op tasks."""

    @dsl.pipeline
    def chain() -> None:
        before = "none"
        for _ in range(tasks):
            before = nothing(after=before).output

    return chain


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=folder, workspace_root=f"{folder}/workspace")
        found = measure(chain_of(options.tasks), options.rounds, Path(folder))
    a_task = {name: [1000 * seconds / options.tasks for seconds in found[name]] for name in ("egs", "kfp")}
    told = {
        "command": f"python -m benchmarks.kubeflow_local --tasks {options.tasks} --rounds {options.rounds}",
        "chain_ms_a_task": {name: _told(values, 1) for name, values in a_task.items()},
        "six_s": _told(found["six"], 3),
    }
    print(json.dumps(told) if options.json else json.dumps(told, indent=2))
    return 0


def measure(chain: Any, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each call, by what was called, in turn."""
    places: dict[str, Any] = {
        "root": folder,
        "runlog": str(folder / "run.jsonl"),
        "history": f"sqlite:///{folder}/h.db",
    }
    ways: dict[str, Callable[[], object]] = {
        "egs": lambda: run(chain, **places),
        "kfp": chain,
        "six": lambda: run(six, cpus=2, **places),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                begin = time.perf_counter()
                way()
                found[name].append(time.perf_counter() - begin)
    return found


def _told(values: list[float], digits: int) -> dict[str, float]:
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
