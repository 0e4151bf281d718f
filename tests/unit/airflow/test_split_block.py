"""`split` of a function with one `with egs.gpu():`: which tasks it becomes, and that they compute what it does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.sdk import DAG, task

import egs_core as egs
from egs_airflow import compat, config
from egs_airflow.convert.needs import callable_of
from egs_airflow.policy import task_policy
from egs_airflow.split import split
from egs_airflow.split.block import VALUES
from egs_core.errors import InputError
from egs_core.hints import hints_of

FACTOR = 3


def helper(value: int) -> int:
    return value * FACTOR


@egs.task(gpus=2, cpus=1, expect=(1, 2, 3), max_gpu_time=9, gang="g")
def train(path: str, number: int = 4, ti: Any = None) -> dict[str, Any]:
    """Trains."""
    import json as reader

    def twice(value: int) -> int:
        return 2 * value

    rows = [twice(helper(i)) for i in range(number)]
    if path == "missing":
        raise FileNotFoundError(path)
    with egs.gpu(cpus=2):
        loss = sum(rows) + twice(1)
        if number > 5:
            extra = number
    told = reader.dumps([path, loss])
    return {"told": told, "extra": extra if number > 5 else None, "ti": ti}


@egs.task(gpus=1)
def only(number: int) -> int:
    with egs.gpu():
        if number > 1:
            return number
        return helper(number)


@egs.task(gpus=1)
def given_back(number: int) -> tuple[int, int]:
    before = helper(number)
    with egs.gpu():
        found = before + 1
    return found, before


def made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
    """A DAG with the split function, and its tasks in order."""
    with DAG("d", schedule=None) as dag:
        split(function)(*args, **kwargs)
    return dag, list(dag.tasks)


def run(tasks: list[Any], context: dict[str, Any] | None = None) -> Any:
    """What Airflow does with these tasks, one after the other: arguments, the value of the one before, the context."""
    value = None
    for each in tasks:
        function, given = callable_of(each), dict(each.op_kwargs)
        if VALUES in given:
            given[VALUES] = value
        names = function.__kwdefaults__ or {}
        given |= {name: (context or {})[name] for name in names if name in (context or {})}
        value = function(**given)
    return value


def test_a_block_becomes_three_tasks_that_compute_the_same() -> None:
    """Parameters go to the parts that use them, values through what the parts return, definitions are written again;
    a name that is bound under a condition may be missing. What Airflow gives by name, the part gets that asks."""
    dag, tasks = made(train, "here", number=6)
    assert {task.task_id: set(task.upstream_task_ids) for task in tasks} == {
        "train.before": set(),
        "train.gpu": {"train.before"},
        "train.after": {"train.gpu"},
    }
    assert [set(task.op_kwargs) for task in tasks] == [
        {"path", "number"},
        {VALUES, "number"},
        {VALUES, "path", "number"},
    ]
    assert run(tasks, {"ti": "me"}) == train("here", 6, ti="me")
    assert run(made(train, "here")[1]) == train("here")
    assert [callable_of(each).__doc__ for each in tasks] == ["Trains."] * 3
    assert dag.task_group.children["train"].tooltip == "Trains."


def test_parts_have_the_hints_of_phases_and_only_one_needs_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected times one by one, a gang of its own, GPU time for the GPU part, and its CPUs from the block."""
    hints = [hints_of(callable_of(each)) for each in made(train, "here")[1]]
    assert [(h.gpus, h.expect_s, h.gang, h.max_gpu_s, h.cpus) for h in hints if h] == [
        (0.0, (1.0,), "g.0", None, 1.0),
        (2, (2.0,), "g.1", 9.0, 2),
        (0.0, (3.0,), "g.2", None, 1.0),
    ]
    monkeypatch.setenv("EGS_MODE", "on")
    config.settings.cache_clear()
    for each in (tasks := made(train, "here")[1]):
        task_policy(each)
    assert [each.executor_config["egs"].get("expect") for each in tasks] == [1.0, 2.0, 3.0]


def test_no_task_without_work() -> None:
    """Nothing before the block, and it returns itself; a value that is there at its end is returned by the GPU part."""
    _, tasks = made(only, 5)
    assert [each.task_id for each in tasks] == ["only.gpu"]
    assert (run(tasks), run(made(only, 1)[1])) == (only(5), only(1))
    _, tasks = made(given_back, 5)
    assert [each.task_id for each in tasks] == ["given_back.before", "given_back.gpu"]
    assert run(tasks) == given_back(5) == (16, 15)


def test_errors_name_the_line_of_the_author() -> None:
    """A part is code of the same file at the same line, in which tracebacks and debuggers find it."""
    with pytest.raises(FileNotFoundError) as raised:
        run(made(train, "missing")[1])
    with pytest.raises(FileNotFoundError) as native:
        train("missing")
    last, expected = (traceback.extract_tb(one.value.__traceback__)[-1] for one in (raised, native))
    assert (last.filename, last.lineno, last.line) == (expected.filename, expected.lineno, expected.line)


def test_it_is_used_as_one_task_and_is_the_same_at_each_reading() -> None:
    """Before, behind, mapped, and with a value that another task gives; stored alike each time."""

    def dag_of() -> Any:
        with DAG("d", schedule=None) as dag:
            begin, end = (task(task_id=name)(helper) for name in ("begin", "end"))
            trained = split(train, retries=2, gpu={"retries": 5})
            first = trained(begin(1))
            first >> end(first["told"])
            trained.override(group_id="each").partial(path="p").expand(number=[1, 2])
        return dag

    dag = dag_of()
    assert dag.get_task("train.before").upstream_task_ids == {"begin"}
    assert dag.get_task("end").upstream_task_ids == {"train.after"}
    assert dag.get_task("each.gpu").upstream_task_ids == {"each.before"}
    assert [dag.get_task(f"train.{name}").retries for name in ("before", "gpu", "after")] == [2, 5, 2]
    assert compat.serialize(dag) == compat.serialize(dag_of())


def in_a_loop(numbers: list[int]) -> None:
    for _ in numbers:
        with egs.gpu():
            pass


def any_number(*paths: str) -> None:
    print(paths)
    with egs.gpu():
        pass


def a_handle(path: str) -> str:
    file = open(path)  # noqa: SIM115
    with egs.gpu():
        text = file.read()
    return text.strip()


def around() -> Callable[..., Any]:
    """A function that uses a name of this one."""
    local = 1

    def inner(number: int) -> int:
        total = number + local
        with egs.gpu():
            total += 1
        return total

    return inner


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (in_a_loop, "'with egs.gpu():' is inside another statement"),
        (any_number, "has parameters without a name of their own"),
        (a_handle, "the open file file is used on the other side of the block"),
        (around(), "uses local of the function around it"),
    ],
)
def test_what_cannot_be_cut_names_its_line(function: Callable[..., Any], said: str) -> None:
    """Where the DAG file is read, before any task is made."""
    with pytest.raises(InputError) as raised:
        split(function)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{__file__}:")
