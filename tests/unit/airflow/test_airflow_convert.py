"""DAGs, written and stored, as workload graphs: Airflow's own edges, and beside them what a graph cannot say."""

# ruff: noqa: E402 - imports of Airflow come after the check that it is there

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

airflow_examples = pytest.importorskip("airflow.example_dags", reason="apache-airflow is not installed")

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG, task, task_group

import egs_core as egs
from egs_airflow import compat
from egs_airflow.adapter import ADAPTER
from egs_airflow.convert.dag import Converted, convert
from egs_airflow.convert.facts import TaskFacts
from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Shape, TaskOptions

EXAMPLES = Path(os.path.dirname(airflow_examples.__file__ or ""))
FEWEST = 80  # DAGs that ship with Airflow 3.3 and need no other provider


def stored(dag: Any) -> Any:
    """The same DAG as the scheduler has it: through JSON text."""
    return compat.deserialize(json.loads(json.dumps(compat.serialize(dag))))


def edges(converted: Converted) -> set[tuple[str, str]]:
    """(parent, child) of a converted DAG."""
    graph = converted.graph
    return {(graph.ids[p], graph.ids[t]) for t, parents in enumerate(graph.parents) for p in parents}


def facts(converted: Converted) -> dict[str, TaskFacts]:
    """The facts by task id."""
    return dict(zip(converted.graph.ids, converted.facts, strict=True))


def options(converted: Converted, task_id: str) -> TaskOptions:
    """What the engine is told about a task."""
    return converted.graph.options_of(converted.graph.ids.index(task_id))


def phases(converted: Converted, task_id: str) -> list[tuple[int, Shape, float | None]]:
    """Kind, shape and seconds of a task's phases."""
    graph = converted.graph
    return [
        (graph.phase_kind[p], graph.shapes[graph.phase_shape[p]], graph.phase_duration_s[p])
        for p in graph.phases_of(graph.ids.index(task_id))
    ]


@pytest.mark.filterwarnings("ignore")  # what the examples of Airflow warn about is theirs
def test_every_example_of_airflow_converts() -> None:
    """All DAGs that ship with Airflow, as objects and as stored: edges equal to Airflow's own, facts equal in both."""
    dags, errors = compat.read_dag_file(EXAMPLES)
    assert errors == {}
    assert len(dags) >= FEWEST
    seen: set[object] = set()
    for dag in dags.values():
        written, kept = convert(dag), convert(stored(dag))
        own = {(str.__str__(t.task_id), down) for t in dag.tasks for down in t.downstream_task_ids}
        assert edges(written) == edges(kept) == own, dag.dag_id
        assert len(written.graph.ids) == len(dag.tasks)
        for task_id, fact in facts(kept).items():
            shown = facts(written)[task_id]
            assert {**as_dict(shown), "defers": False} == {**as_dict(fact), "defers": False}, task_id
            seen |= {fact.trigger_rule, fact.role, fact.width, "skips" * fact.skips, "sensor" * fact.sensor}
    assert seen >= {"all_success", "one_success", "setup", "teardown", None, 3, "skips", "sensor"}


def as_dict(fact: TaskFacts) -> dict[str, Any]:
    """All fields of the facts."""
    return {name: getattr(fact, name) for name in fact.__struct_fields__}


def test_groups_are_stages_and_rules_are_kept() -> None:
    """Stage, trigger rule, setup and teardown, retries, pool, limit and weight of a DAG, written and stored."""
    with DAG("shop", schedule=None) as dag:

        @task.branch
        def choose() -> str:
            return "left"

        @task_group
        def load() -> None:
            @task_group
            def inner() -> None:
                EmptyOperator(task_id="left", priority_weight=5, weight_rule="absolute")

            inner()
            EmptyOperator(task_id="right")

        chosen, groups = choose(), load()
        join = EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success", retries=2)
        slow = PythonOperator(
            task_id="slow", python_callable=print, execution_timeout=timedelta(minutes=5), pool="few", pool_slots=2
        )
        chosen >> groups >> join >> slow
        slow.as_teardown(setups=EmptyOperator(task_id="made").as_setup())
    for converted in (convert(dag), convert(stored(dag))):
        found = facts(converted)
        assert options(converted, "load.inner.left").stage == "load.inner"
        assert options(converted, "load.right").stage == "load"
        assert options(converted, "join").stage == ""
        assert options(converted, "load.inner.left").priority == 4
        assert options(converted, "slow").max_runtime_s == 300.0
        assert found["join"].trigger_rule == "none_failed_min_one_success"
        assert found["join"].retries == 2
        assert found["choose"].skips
        assert not found["join"].skips
        assert (found["made"].role, found["slow"].role) == ("setup", "teardown")
        assert (found["slow"].pool, found["slow"].pool_slots) == ("few", 2)
        assert phases(converted, "join") == [(CPU, Shape(cpu_milli=1), 0.0)]
        assert phases(converted, "slow") == [(CPU, Shape(), None)]
        assert ("made", "slow") in edges(converted)


def test_widths_are_written_or_unknown() -> None:
    """A mapped task is one task: its width is what the DAG says, every combination counted, and else unknown."""
    with DAG("mapped", schedule=None) as dag:

        @task
        def names() -> list[str]:
            return ["a"]

        @task
        def one(x: object, y: object = 1) -> None:
            print(x, y)

        @task_group
        def group(x: int) -> None:
            one.override(task_id="in_group")(x)

        one.override(task_id="plain")(1)
        one.override(task_id="written").expand(x=[1, 2, 3], y=[1, 2])
        one.override(task_id="partly").expand(x=[1, 2, 3], y=names())
        one.override(task_id="listed").expand_kwargs([{"x": 1}, {"x": 2}])
        group.expand(x=[1, 2])
    for converted in (convert(dag), convert(stored(dag))):
        found = {task_id: (fact.width, fact.mapped_by) for task_id, fact in facts(converted).items()}
        assert found == {
            "names": (1, ""),
            "plain": (1, ""),
            "written": (6, "written"),
            "partly": (None, "partly"),
            "listed": (2, "listed"),
            "group.in_group": (2, "group"),
        }
        assert edges(converted) == {("names", "partly")}


def test_sensors_and_deferrable_operators_are_told_apart() -> None:
    """A sensor is one in both forms; that an operator defers is seen where Airflow says so."""
    with DAG("waits", schedule=None) as dag:
        TimeDeltaSensor(task_id="pokes", delta=timedelta(0))
        TimeDeltaSensor(task_id="defers", delta=timedelta(0), deferrable=True)
    written, kept = facts(convert(dag)), facts(convert(stored(dag)))
    assert (written["pokes"].sensor, written["pokes"].defers) == (True, False)
    assert (written["defers"].sensor, written["defers"].defers) == (True, True)
    assert kept["pokes"].sensor
    assert kept["defers"].sensor


@pytest.mark.proves("airflow mode, executor, agent", "name", "stage")
def test_hints_give_phases_and_options() -> None:
    """`@egs.task` below `@task`: phases from the code, durations, resources, options; of mapped tasks too."""

    def train(x: int = 0) -> None:
        with egs.gpu():
            print(x)

    hinted = egs.task(
        gpus=2,
        cpus=4,
        memory="8GiB",
        gpu_memory="20GiB",
        expect=(1, 2, 3),
        deadline="1h",
        gang="g",
        stage="fit",
        name="fit",
    )(train)
    with DAG("hinted", schedule=None) as dag:
        task(hinted).override(task_id="one")()
        task(hinted).override(task_id="many").expand(x=[1, 2])
        PythonOperator(task_id="classic", python_callable=hinted)
    converted = convert(dag)
    cpu, gpu = Shape(4000, 0, 8 << 30, 0), Shape(4000, 2000, 8 << 30, 20 << 30)
    for task_id in ("one", "many", "classic"):
        assert phases(converted, task_id) == [(CPU, cpu, 1.0), (GPU, gpu, 2.0), (CPU, cpu, 3.0)]
        assert options(converted, task_id) == TaskOptions(stage="fit", deadline_s=3600.0, gang="g")
    assert set(converted.graph.names) == {"fit"}


def test_what_cannot_be_said_is_an_error_that_names_it() -> None:
    """An unknown trigger rule, a parent that is not there and an empty DAG: never a dropped edge."""
    with DAG("odd", schedule=None) as dag:
        first, second = EmptyOperator(task_id="first"), EmptyOperator(task_id="second")
        first >> second
    second.__dict__["trigger_rule"] = "some_of_them"
    with pytest.raises(InputError, match=r"DAG 'odd': task 'second': trigger rule 'some_of_them'"):
        convert(dag)
    second.__dict__["trigger_rule"] = "all_success"
    second.upstream_task_ids.add("third")
    with pytest.raises(InputError, match=r"task 'second': waits for 'third', which is not in the DAG"):
        convert(dag)
    with pytest.raises(InputError, match="empty"):
        convert(DAG("nothing", schedule=None))


TWO = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
for name in ("a", "b"):
    with DAG(name, schedule=None) as dag:
        EmptyOperator(task_id="x") >> EmptyOperator(task_id="y")
    globals()[name] = dag
"""


def test_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs graph FILE --from airflow` shows a DAG file and a stored DAG; a file with several DAGs asks for one."""
    file = tmp_path / "two.py"
    file.write_text(TWO)
    assert run(["graph", str(file), "--from", "airflow", "--select", "b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)  # and nothing besides: what Airflow logs goes to stderr
    assert (shown["id"], shown["tasks"], shown["edges"]) == ("b", 2, 1)
    assert run(["graph", str(file), "--from", "airflow"]) == 2
    assert "has 2 DAGs (choose one with --select: a, b)" in " ".join(capsys.readouterr().err.split())
    dags, _ = compat.read_dag_file(file)
    (tmp_path / "a.json").write_text(json.dumps(compat.serialize(dags["a"])))
    assert ADAPTER.convert(tmp_path / "a.json").id == "a"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("broken.py", "import airflow\nraise ValueError('no')", "is not a DAG file: ValueError: no"),
        ("none.py", "x = 1", "has 0 DAGs"),
        ("wrong.json", '{"x": 1}', "is not a stored DAG"),
        ("gone.py", None, "there is no such file"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # Airflow's own, about the broken file
def test_bad_files_are_one_clear_error(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    """A file that is no DAG file, or no stored DAG, is an error that names it."""
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        ADAPTER.convert(tmp_path / name)
    assert name in str(caught.value)
