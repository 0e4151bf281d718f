"""`split`: which tasks, edges, arguments and hints come of a function with phases, without a server."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.sdk import DAG, TriggerRule, task

import egs_core as egs
from egs_airflow import compat, config
from egs_airflow.convert.dag import convert
from egs_airflow.convert.needs import callable_of
from egs_airflow.split import output, split
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Shape
from egs_core.hints import hints_of


def decode(n: int, ti: Any = None) -> dict[str, int]:  # noqa: ARG001  # what Airflow gives to who asks
    """Decode images."""
    return {"n": n}


def fit(decoded: dict[str, int]) -> int:
    return decoded["n"] * 2


def write(value: int) -> dict[str, int]:
    return {"value": value}


PHASES = egs.phases(decode, egs.on_gpu(fit, cpus=1), write, name="train")
HINTED = egs.task(gpus=2, cpus=3, gpu_memory="1GiB", gang="g", name="nets", expect=(1, 2, 3), max_gpu_time=9)(
    egs.phases(decode, egs.on_gpu(fit, cpus=1), write, name="train")
)


def nothing(*_: Any) -> None:
    """A task beside the split ones."""


def beside(task_id: str) -> Any:
    """That task under a name."""
    return task(task_id=task_id)(nothing)


def upstream(dag: Any) -> dict[str, set[str]]:
    """What each task of a DAG waits for."""
    return {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}


def test_a_split_task_stands_in_the_dag_as_one() -> None:
    """What is put before it waits with the first phase, what comes after with the last, as value or by order; a copy
    of the DAG says the same."""
    with DAG("d", schedule=None) as dag:
        before, begin, after, end = (beside(name) for name in ("before", "begin", "after", "end"))
        train = split(PHASES)
        fitted = train(1)
        before() >> fitted >> after()
        fitted << begin()
        beside("use")(fitted["value"])
        [fitted, train.override(group_id="again")(fitted)] >> end()
    found = upstream(dag)
    assert found == {
        "before": set(),
        "begin": set(),
        "train.decode": {"before", "begin"},
        "train.fit": {"train.decode"},
        "train.write": {"train.fit"},
        "after": {"train.write"},
        "use": {"train.write"},
        "again.decode": {"train.write"},
        "again.fit": {"again.decode"},
        "again.write": {"again.fit"},
        "end": {"train.write", "again.write"},
    }
    assert upstream(dag.partial_subset("again", include_upstream=True)) == {
        name: before for name, before in found.items() if name not in ("after", "use", "end")
    }


def test_arguments_go_to_the_phases_that_they_are_about() -> None:
    """A trigger rule begins, outlets and their like end, the rest is for all, and a kind's own arguments win; defaults
    of the DAG cannot make a phase run after a failed one, or keep it from handing on."""
    defaults = {"trigger_rule": "all_done", "do_xcom_push": False, "retries": 7}
    with DAG("d", schedule=None, default_args=defaults) as dag:
        split(PHASES, group_id="plain")(1)
        split(PHASES, trigger_rule="one_failed", retries=2, queue="q", outlets=["o"], gpu={"retries": 5, "pool": "p"})(
            1
        )
    rules = {task.task_id: str(task.trigger_rule.value) for task in dag.tasks}
    pushes = {task.task_id: task.do_xcom_push for task in dag.tasks}
    assert rules["plain.decode"] == TriggerRule.ALL_DONE
    assert rules["train.decode"] == "one_failed"
    assert {rules[f"{group}.{name}"] for group in ("plain", "train") for name in ("fit", "write")} == {"all_success"}
    assert [pushes[f"plain.{name}"] for name in ("decode", "fit", "write")] == [True, True, False]
    train = [dag.get_task(f"train.{name}") for name in ("decode", "fit", "write")]
    assert [(task.retries, task.pool, task.queue) for task in train] == [
        (2, "default_pool", "q"),
        (5, "p", "q"),
        (2, "default_pool", "q"),
    ]
    assert [bool(task.outlets) for task in train] == [False, False, True]
    assert [task.multiple_outputs for task in train] == [False, False, True]  # as `write` is annotated


def test_a_split_converts_to_tasks_of_one_phase_each() -> None:
    """As many GPUs, CPUs and seconds in each as the hints say of that phase; edges and ids are Airflow's; one gang a
    phase; the same from `needs_of` alone, without hints."""
    with DAG("d", schedule=None) as dag:
        split(HINTED)(1)
        split(PHASES, group_id="bare")(1)
    converted = convert(dag)
    graph = converted.graph
    shapes = {
        name: [(graph.phase_kind[p], graph.shapes[graph.phase_shape[p]], graph.phase_duration_s[p]) for p in phases]
        for i, name in enumerate(graph.ids)
        for phases in [graph.phases_of(i)]
    }
    assert shapes == {
        "train.decode": [(CPU, Shape(3000), 1.0)],
        "train.fit": [(GPU, Shape(1000, 2000, 0, 1 << 30), 2.0)],
        "train.write": [(CPU, Shape(3000), 3.0)],
        "bare.decode": [(CPU, Shape(1000), None)],
        "bare.fit": [(GPU, Shape(1000, 1000), None)],
        "bare.write": [(CPU, Shape(1000), None)],
    }
    options = {name: graph.options_of(i) for i, name in enumerate(graph.ids)}
    told = {name: (one.stage, one.gang, one.max_gpu_s) for name, one in options.items() if name.startswith("train")}
    assert told == {
        "train.decode": ("train", "g.0", None),
        "train.fit": ("train", "g.1", 9.0),
        "train.write": ("train", "g.2", None),
    }
    hints = {name: hints_of(callable_of(dag.get_task(name))) for name in ("train.fit", "bare.fit")}
    assert {name: (hint.name, hint.gpus) for name, hint in hints.items() if hint} == {
        "train.fit": ("nets.fit", 2.0),
        "bare.fit": ("", 1.0),
    }


def test_a_split_can_be_mapped() -> None:
    """`expand` makes a mapped group: each instance has its own phases, and the value is the list of all."""
    with DAG("d", schedule=None) as dag:
        beside("use")(split(PHASES).expand(n=[1, 2, 3]))
    converted = convert(dag)
    widths = {
        name: (fact.width, fact.mapped_by) for name, fact in zip(converted.graph.ids, converted.facts, strict=True)
    }
    assert widths == {"use": (1, "")} | {f"train.{name}": (3, "train") for name in ("decode", "fit", "write")}


@pytest.mark.parametrize("mode", ["off", "observe", "on"])
def test_a_split_is_the_same_in_every_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in another mode than the scheduler has the same tasks: the stored DAGs are equal, but for pools."""

    def stored() -> Any:
        with DAG("d", schedule=None) as dag:
            split(HINTED, retries=1)(1)
        return json.loads(json.dumps(compat.serialize(dag), sort_keys=True))

    monkeypatch.setenv("EGS_MODE", mode)
    first = stored()
    monkeypatch.delenv("EGS_MODE")
    config.settings.cache_clear()
    assert first == stored()


def test_phases_keep_their_names_and_have_one_in_any_case() -> None:
    """A function used twice gets Airflow's suffix; a lambda and a partial are called by their number."""
    with DAG("d", schedule=None) as dag:
        split(egs.phases(write, egs.on_gpu(partial(pow, 2)), lambda x: x, write, name="odd"))(1)
    assert list(dag.task_ids) == ["odd.write", "odd.phase1", "odd.phase2", "odd.write__1"]


def blocked(n: int) -> int:
    with egs.gpu():
        return n


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (write, {}, "split of write: has no phases"),
        (egs.task(split=False)(blocked), {}, "split of blocked: @egs.task: says split=False"),
        (egs.phases(blocked, write), {}, "split of blocked_write: blocked: has a GPU block"),
        (egs.task(split=False)(egs.phases(decode, write)), {}, "split of decode_write: @egs.task: says split=False"),
        (egs.phases(decode, task(write)), {}, "write: is a task of Airflow already"),
        (PHASES, {"task_id": "x"}, "split of train: task_id: a phase has the name of its function"),
        (PHASES, {"gpu": {"task_id": "x"}}, "split of train: task_id"),
    ],
)
def test_what_cannot_be_split_is_one_clear_error(function: Any, arguments: dict[str, Any], said: str) -> None:
    """Where the DAG file says it, before any task is made."""
    with pytest.raises(InputError) as raised:
        split(function, **arguments)
    assert said in str(raised.value)


def test_without_the_private_class_a_split_still_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its value is Airflow's own reference then, with one warning of what that cannot do."""

    def gone() -> Any:
        raise ImportError("PlainXComArg")

    monkeypatch.setattr(output, "_split_output", gone)
    with DAG("d", schedule=None) as dag:
        beside("use")(split(PHASES)(1))
    assert upstream(dag)["use"] == {"train.write"}
    (warned,) = (record.getMessage() for record in caplog.records if record.name == "egs_airflow")
    assert "PlainXComArg" in warned
