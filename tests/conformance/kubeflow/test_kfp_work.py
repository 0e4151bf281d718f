"""`egs.work` in components of the local runner: what tasks tell is in the run log, and `egs cost` rates it."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import json
from pathlib import Path

import pytest
from kfp import dsl

from egs_core.cli import app
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_kubeflow.components import component
from egs_kubeflow.run import run


@component(base_image="python:3.12", install_kfp_package=False, record=False, gpus=1)
def fit(tokens: int) -> int:
    import os

    import egs_core as egs

    egs.work(tokens=tokens)
    if os.fork() == 0:
        egs.work(tokens=1)
        os._exit(0)
    os.wait()
    return tokens


@component(base_image="python:3.12", install_kfp_package=False, record=False)
def silent(tokens: int) -> None:
    assert tokens


@dsl.pipeline
def told() -> None:
    """Two tasks that tell, one that does not."""
    first = fit(tokens=100)
    fit(tokens=200)
    silent(tokens=first.output)


def test_components_tell_of_their_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All processes of a task, in a task that is forked from the executor; before its end in the log."""
    result = run(told, cpus=2, gpus=1, emulate_gpus=True, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"))
    records = read_run(result.runlog).records
    works = [x for x in records if isinstance(x, r.Work)]
    assert sorted((x.task, x.amounts["tokens"]) for x in works) == [("fit", 101.0), ("fit-2", 201.0)]
    for work in works:
        end = next(x for x in records if isinstance(x, r.Ended) and x.task == work.task)
        assert records.index(work) < records.index(end)
    assert app.run(["cost", str(result.runlog), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["per_unit"]
    told_of = {(row["pipeline"], row["task"]): (row["amount"], row["tasks"]) for row in rows}
    assert told_of == {("told", "fit"): (101.0, 1), ("told", "fit-2"): (201.0, 1)}
    assert all(row["gpu_min"]["value"] > 0 for row in rows)
