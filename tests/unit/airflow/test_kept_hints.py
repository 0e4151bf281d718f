"""Which hints hold on Airflow by executor: one table, in the documentation and in the warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner

import egs_core as egs
from egs_airflow import compat, config
from egs_airflow.kept_hints import EXECUTORS, HOLDS, NO, kept_table
from egs_airflow.policy import task_policy
from egs_core.hints import HINTS

ROOT = Path(__file__).parents[3]
LOCAL = "egs_airflow.executors.EgsLocalExecutor"


def parsed(function: Callable[..., object], monkeypatch: pytest.MonkeyPatch, executor: str, mode: str = "on") -> None:
    """A DAG file with that function is read, where that executor is configured."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    config.settings.cache_clear()
    with DAG("hints", schedule=None):
        for name in ("one", "two"):
            task_policy(PythonOperator(task_id=name, python_callable=function))


def test_the_table_names_every_hint_and_is_in_the_documentation() -> None:
    """A hint that is new in the core has to be said here too."""
    assert HOLDS.keys() == HINTS.keys()
    assert {len(how) for how in HOLDS.values()} == {len(EXECUTORS)}
    assert kept_table() in (ROOT / "docs" / "airflow.md").read_text()


@pytest.mark.parametrize(
    ("executor", "names"),
    [
        (LOCAL, {"memory", "max_cost"}),
        ("egs_airflow.executors.celery.EgsCeleryExecutor", {"memory", "max_cost"}),
        ("egs_airflow.executors.edge.EgsEdgeExecutor", {"memory", "max_cost"}),
        ("LocalExecutor,CeleryExecutor", {"memory", "max_cost", "gang", "max_wait", "deadline"}),
        ("KubernetesExecutor", {"memory", "max_cost", "gang", "max_wait", "deadline", "max_gpu_time", "preload"}),
        ("our.own.Executor", set()),
    ],
)
def test_a_hint_that_does_not_hold_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executor: str, names: set[str]
) -> None:
    """One line a hint, with the executor and the reason, however many tasks state it."""

    @egs.task(
        gpus=1,
        memory="1GiB",
        priority=1,
        max_wait=1,
        deadline=1,
        expect=1,
        max_runtime=1,
        max_gpu_time=1,
        max_cost=1.0,
        gang="g",
        preload=[egs.files("/models/m.pt")],
    )
    def hinted() -> None: ...

    parsed(hinted, monkeypatch, executor)
    said = [one.getMessage() for one in caplog.records if "is not kept on Airflow" in one.getMessage()]
    assert sorted(line.split()[2] for line in said) == sorted(names)
    name = executor.split(",")[0].rpartition(".")[2]
    assert all(f"is not kept on Airflow with {name}: " in line for line in said)


def test_a_task_that_reads_its_dag_file_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each task reads the file once more, and whatever is said then stands in its log."""

    @egs.task(memory="1GiB")
    def hinted() -> None: ...

    assert Path(task_runner.__file__).parts[-4:] == Path(compat.TASK_RUNNER).parts
    runner = compile("read()", task_runner.__file__, "exec")
    exec(runner, {"read": lambda: parsed(hinted, monkeypatch, LOCAL)})
    assert not caplog.records
    parsed(hinted, monkeypatch, LOCAL)
    assert len(caplog.records) == 1


def test_what_of_preload_holds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Files only; where EGS is not on nothing is said."""

    @egs.task(preload=[egs.modules("json"), egs.files("/models/m.pt")])
    def hinted() -> None: ...

    parsed(hinted, monkeypatch, LOCAL, "observe")
    assert not caplog.records
    parsed(hinted, monkeypatch, LOCAL)
    (line,) = [one.getMessage() for one in caplog.records]
    why = "only files are read ahead; for modules there is [egs] preload_modules"
    assert line == f"egs: hint preload is not kept on Airflow with EgsLocalExecutor: {why}"
    assert HOLDS["preload"][0].startswith("files")
    assert HOLDS["preload"][3].startswith(NO)
