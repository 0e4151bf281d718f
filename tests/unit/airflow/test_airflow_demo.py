"""The demo on Airflow without a server: its DAG files, the work in its tasks, and the bound."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")
if find_spec("sklearn") is None:  # importing it takes a second
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from egs_airflow import compat
from egs_airflow.adapter import ADAPTER
from egs_airflow.demo import times, work
from egs_airflow.demo.bound import ideal_bound_s
from egs_airflow.demo.run import DAGS, VARIANTS, demo
from egs_core.adapter import DemoRequest
from egs_core.errors import InputError


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No phase waits; the model is loaded anew."""
    for name in vars(times):
        if name.endswith("_S"):
            monkeypatch.setattr(times, name, 0.0)
    monkeypatch.delitem(sys.modules, "egs_airflow.demo.model", raising=False)


def read(file: str) -> Any:
    dags, errors = compat.read_dag_file(DAGS / f"{file}.py")
    assert not errors
    return dags["digits"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_has_as_many_tasks_as_it_says(variant: str) -> None:
    """Progress is counted in them; the adapter offers just these variants."""
    assert len(read(VARIANTS[variant].file).tasks) == VARIANTS[variant].tasks
    assert tuple(VARIANTS) == ADAPTER.demo_variants


def test_who_holds_a_gpu() -> None:
    """As written the whole training, by hand and with hints its GPU phase; evaluation in each."""
    in_pool = {f: {t.task_id for t in read(f).tasks if t.pool == "gpu"} for f in ("native", "tuned")}
    numbers = range(times.TRAININGS)
    assert in_pool["native"] == {"evaluate", *(f"train_{n}" for n in numbers)}
    assert in_pool["tuned"] == {"evaluate", *(f"fit_{n}" for n in numbers)}
    hints = read("hints")
    assert hints.get_task("train_0.fit").upstream_task_ids == {"train_0.decode"}
    assert hints.get_task("evaluate").upstream_task_ids == {"preprocess", *(f"train_{n}.write" for n in numbers)}


@pytest.mark.usefixtures("at_once")
def test_whole_and_split_trainings_give_the_same_report(tmp_path: Path) -> None:
    """Every prediction is the same, and training improves on the pretrained model."""
    reports = []
    for name in ("whole", "split"):
        folder = work.preprocess(work.load(str(tmp_path / name), "3"))
        trained = [
            work.train(folder, number) if name == "whole" else work.write(work.fit(work.decode(folder, number)))
            for number in range(2)
        ]
        work.report(folder, "3", work.evaluate(folder, trained))
        reports.append(json.loads((Path(folder) / work.REPORT).read_text()))
    assert reports[0] == reports[1]
    assert reports[0]["pipeline"] == 3
    assert min(reports[0]["accuracies"]) > reports[0]["pretrained_accuracy"]


def test_the_bound_by_hand() -> None:
    """Two GPUs share all trainings and evaluations; before the first fit and after the last one they cannot work."""
    before = times.LOAD_S + times.PREPROCESS_S + times.DECODE_S
    gpu = times.PIPELINES * (times.TRAININGS * times.FIT_S + times.EVALUATE_S) / times.GPUS
    assert ideal_bound_s() >= before + gpu + times.REPORT_S
    assert ideal_bound_s() <= before + gpu + times.REPORT_S + times.WRITE_S + times.EVALUATE_S + times.ARRIVAL_S


@pytest.mark.parametrize("text", ["fast", "0", "-1", "inf", "nan"])
def test_a_factor_that_is_none_is_one_line(text: str) -> None:
    """The variable is named, and nothing is started."""
    with pytest.raises(InputError, match=r"EGS_DEMO_FACTOR: .* is no factor"):
        times._read_factor(text)


def test_an_unknown_variant_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(InputError, match="unknown variant 'fast' "):
        demo(DemoRequest(("fast",), tmp_path))
