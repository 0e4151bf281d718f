"""Each hint that orders tasks reaches the engine from a component of the local runner; one that does not is named."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from pathlib import Path
from typing import Any

from kfp import dsl

from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components import component
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


def test_hints_of_order_reach_the_engine(tmp_path: Path) -> None:
    """On one slot: the priority, then what has waited long enough, then what its deadline presses, then the longest
    path that is expected, then the rest. Without its hint each task would be where `plain` is."""
    result = run(five, cpus=1, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"))
    started = [x.task for x in read_run(result.runlog).records if isinstance(x, r.Started)]
    assert started == ["nothing-5", "nothing-4", "nothing-3", "nothing-2", "nothing"]
