"""Each hint that orders tasks reaches the engine from a component of the local runner; one that does not is named."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components import component
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.run import run

KFP: dict[str, Any] = {"base_image": "python:3.12", "install_kfp_package": False, "record": False}


def nothing() -> None:
    print("nothing to do")


plain, expected, due, overdue, first = (
    component(**KFP, **hints)(nothing)
    for hints in (
        {},
        {"expect": "2h"},
        {"deadline": "90m", "expect": "1h"},
        {"max_wait": 0.0},
        {"priority": 1},
    )
)


@dsl.pipeline
def five() -> None:
    """Five tasks of one function that nothing connects, the least urgent first. The deadline presses from the start:
    half an hour more than the task is expected to take."""
    for made in (plain, expected, due, overdue, first):
        made()


@pytest.mark.proves("kubeflow run", "order", "priority", "max_wait", "deadline", "expect")
def test_hints_of_order_reach_the_engine(tmp_path: Path) -> None:
    """On one slot: the priority, then what has waited long enough, then what its deadline presses, then the longest
    path that is expected, then the rest. Without its hint each task would be where `plain` is."""
    result = run(five, cpus=1, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"))
    started = [x.task for x in read_run(result.runlog).records if isinstance(x, r.Started)]
    assert started == ["nothing-5", "nothing-4", "nothing-3", "nothing-2", "nothing"]


four_cpus = component(**KFP, cpus=4)(nothing)
on_gpu = component(**KFP, gpus=1, cpus=4, gpu_cpus=2)(nothing)


@dsl.pipeline
def needy() -> None:
    """Both take more CPUs than one slot; the second has a GPU."""
    four_cpus()
    on_gpu()


@pytest.mark.proves("kubeflow run", "gpus", "cpus", "gpu_cpus")
@pytest.mark.proves("kubeflow cluster", "gpus", "cpus", "gpu_cpus")
def test_hinted_needs_are_slots_here_and_limits_in_a_cluster(tmp_path: Path) -> None:
    """What a task holds by the run log, and what its container is given by the compiled pipeline."""
    result = run(needy, cpus=8, gpus=1, emulate_gpus=True, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"))
    held = {x.task: (x.gpus, x.cpus) for x in read_run(result.runlog).records if isinstance(x, r.Started)}
    assert held == {"nothing": (0.0, 4.0), "nothing-2": (1.0, 2.0)}
    executors = documents_of(needy).pipeline["deploymentSpec"]["executors"]
    stated = [executors[f"exec-{name}"]["container"]["resources"] for name in ("nothing", "nothing-2")]
    assert [one["resourceCpuLimit"] for one in stated] == ["4", "2"]
    assert stated[1]["accelerator"]["resourceCount"] == "1"
