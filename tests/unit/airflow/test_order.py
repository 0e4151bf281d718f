"""Weights, learned durations and pools of the Airflow provider, without a server."""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import egs_core as egs

# Airflow sets up logging when it is first imported: not in the middle of a test.
pytest.importorskip("airflow.settings", reason="apache-airflow is not installed")

from egs_airflow import compat, config, policy
from egs_airflow.order import pools
from egs_airflow.order.durations import Durations, current_durations, load_durations, write_durations
from egs_airflow.order.policy import apply_to_task
from egs_airflow.order.weights import HIGHEST, raised, remaining_path_s, usual_s, weight, weight_of, weights
from egs_airflow.shared import Shared
from egs_core.errors import InputError


@st.composite
def dags(draw: st.DrawFn) -> tuple[dict[str, set[str]], dict[str, float]]:
    """A DAG as successors by task, listed in a drawn order, with seconds of each task."""
    count = draw(st.integers(1, 12))
    edges = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    order = draw(st.permutations(range(count)))
    after = {f"t{n}": {f"t{b}" for a, b in edges if a == n and a < b} for n in order}
    seconds = draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count))
    return after, {f"t{n}": s for n, s in enumerate(seconds)}


@settings(deadline=None)
@given(dags())
def test_the_remaining_path(dag: tuple[dict[str, set[str]], dict[str, float]]) -> None:
    """A task and the longest path after it, whatever the order in which the tasks are listed."""
    after, seconds = dag

    def path_s(task: str) -> float:
        return seconds[task] + max(map(path_s, after[task]), default=0.0)

    assert remaining_path_s(after, seconds) == pytest.approx({task: path_s(task) for task in after})


@settings(deadline=None)
@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_longer_path_never_weighs_less(one: float, other: float) -> None:
    """Weights are whole numbers that the database can keep, in the order of the paths."""
    low, high = weight(min(one, other), False), weight(max(one, other), False)
    assert 1 <= low <= high <= HIGHEST
    assert weight(one, True) == weight(one, False) + 1


def test_weights_of_a_worked_example() -> None:
    """The drawing at the top of weights.py, and a task of which nothing is known."""
    after = {"a": {"b"}, "b": set[str](), "c": {"d"}, "d": set[str]()}
    known = {"a": 60.0, "b": 600.0, "c": 600.0, "d": 10.0}
    assert weights(after, known) == {"a": 96, "b": 93, "c": 95, "d": 36}
    assert weights(after, {"b": 600.0})["d"] == weight(600.0, False)
    assert weights(after, {}) == {"a": weight(2.0, True), "b": weight(1.0, False)} | {
        "c": weight(2.0, True),
        "d": weight(1.0, False),
    }


def test_hints_are_in_the_weights_of_what_airflow_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hinted priority goes before every path, or behind; a hinted duration stands until one is learned; also of a
    mapped task, and as the scheduler reads the DAG back from its tables."""
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG

    @egs.task(priority=2, expect=60)
    def hinted() -> None:
        """A task's function."""

    monkeypatch.setenv("EGS_MODE", "on")
    config.settings.cache_clear()
    with DAG("hints", schedule=None) as dag:
        PythonOperator(task_id="plain", python_callable=hinted) >> PythonOperator(task_id="after", python_callable=len)
        PythonOperator.partial(task_id="mapped", python_callable=hinted).expand(op_args=[[], []])
        PythonOperator(task_id="behind", python_callable=len, executor_config={"egs": {"priority": -1}})
    for task in dag.tasks:
        policy.task_policy(task)
    stored = compat.deserialize(compat.serialize(dag))
    learned: list[Durations] = [{}, {"hints": {"plain": 5.0}}]
    for durations, plain_s, usual in zip(learned, (60.0, 5.0), (60.0, 32.5), strict=True):
        monkeypatch.setattr("egs_airflow.order.weights.current_durations", lambda found=durations: found)
        monkeypatch.setattr("egs_airflow.order.weights._kept", OrderedDict())
        assert {task_id: weight_of(task) for task_id, task in stored.task_dict.items()} == {
            "plain": 2000 + weight(plain_s + usual, True),
            "after": weight(usual, False),
            "mapped": 2000 + weight(60.0, False),
            "behind": weight(usual, False) - 1000,
        }
    assert [raised(5, 10**9), raised(5, -(10**9)), raised(5, 0)] == [HIGHEST, -HIGHEST, 5]
    config.settings.cache_clear()


def test_a_dag_of_which_nothing_is_known_is_as_long_as_others() -> None:
    """Its tasks count as the median of all that are known: a first run goes neither before nor after all of those."""
    durations = {"known": {"a": 4.0, "b": 5.0, "c": 6.0}}
    assert usual_s(durations) == 5.0
    assert weights({"new": []}, {}, usual_s(durations)) == {"new": weight(5.0, False)}
    assert weights({"new": []}, {}, usual_s({})) == {"new": weight(1.0, False)}


def test_numbers_that_are_too_large_are_no_durations(tmp_path: Path) -> None:
    """Sums of them would be no numbers, and one such file would turn all weights off."""
    path = tmp_path / "durations.json"
    path.write_text(
        '{"format": "egs-airflow-durations", "version": 1, "dags": {"d": {"a": 1e308, "b": 1e308, "c": 2}}}'
    )
    assert load_durations(path) == {"d": {"c": 2.0}}
    assert weight(math.inf, False) == HIGHEST


def test_durations_that_are_not_there_are_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the place where they are looked for; once they are there, they count."""
    path = tmp_path / "durations.json"
    monkeypatch.setenv("EGS_DURATIONS", str(path))
    monkeypatch.setattr("egs_airflow.order.durations.LOOK_S", 0.0)
    assert current_durations() is current_durations() == {}
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"egs: every task counts as equally long: there are none in {path};")
    write_durations(path, {"dag": {"a": 1.0}})
    assert current_durations() is current_durations() == {"dag": {"a": 1.0}}


def test_durations_are_read_as_written_and_again_when_they_change(tmp_path: Path) -> None:
    """A reader gets the same object until the file is another; what is no duration is left out."""
    path = tmp_path / "new" / "durations.json"
    assert load_durations(path) == {}
    write_durations(path, {"dag": {"one": 1.5, "never": math.nan, "long": math.inf, "back": -1.0}})
    first = load_durations(path)
    assert first == {"dag": {"one": 1.5}}
    assert load_durations(path) is first
    write_durations(path, {"dag": {"one": 2.0}})
    assert load_durations(path) == {"dag": {"one": 2.0}}
    assert [one.name for one in path.parent.iterdir()] == ["durations.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "egs-airflow-durations", "version": 2, "dags": {}}', '{"dags": []}']
)
def test_a_bad_file_of_durations_teaches_nothing(tmp_path: Path, text: str) -> None:
    """A file that cannot be read is one warning, and weights as if nothing had been learned."""
    path = tmp_path / "durations.json"
    path.write_text(text)
    assert load_durations(path) == {}


def test_pools_come_from_the_configuration_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option there is no pool; nothing is detected on this host."""
    monkeypatch.delenv("EGS_POOLS", raising=False)
    assert pools.configured_pools() == []
    monkeypatch.setenv("EGS_POOLS", "gpu=8, big=4")
    assert pools.configured_pools() == [pools.GpuPool("gpu", 8), pools.GpuPool("big", 4)]


@pytest.mark.parametrize("text", ["gpu", "gpu=", "gpu=0", "gpu=-1", "=4", "gpu=x", "gpu=1 gpu=2"])
def test_a_pool_without_slots_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A pool of size 0 would stop its tasks for ever."""
    monkeypatch.setenv("EGS_POOLS", text)
    with pytest.raises(InputError, match="pools"):
        pools.configured_pools()


def test_a_pool_that_was_not_created_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow never starts a task whose pool does not exist. What was made holds, also where a process is configured
    with others; and nothing where none is configured."""
    monkeypatch.setenv("EGS_POOLS", "gpu=8")
    made = note_pools(monkeypatch)
    assert pools.gpu_pool() is None
    made[0] = "old=4, gpu=8"
    assert pools.gpu_pool() == pools.GpuPool("old", 4)
    monkeypatch.delenv("EGS_POOLS")
    assert pools.gpu_pool() is None


def test_a_tasks_process_asks_nobody_for_pools_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process that it was forked from knew holds; where that knew nothing it asks, as others do."""
    monkeypatch.setenv("EGS_POOLS", "gpu=8")
    made = note_pools(monkeypatch)
    monkeypatch.setattr(compat, "reads_for_a_task", lambda: True)
    assert pools.gpu_pool() is None
    made[0] = "gpu=8"
    assert pools.gpu_pool() == pools.GpuPool("gpu", 8)
    made[0] = "gpu=4"
    assert pools.gpu_pool() == pools.GpuPool("gpu", 8)
    monkeypatch.setattr(compat, "reads_for_a_task", lambda: False)
    assert pools.gpu_pool() == pools.GpuPool("gpu", 4)


def note_pools(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What Airflow's metadata say of the pools that were made: nothing, until it is put in."""
    made: list[str | None] = [None]
    monkeypatch.setattr(pools, "_made", Shared[list[pools.GpuPool]](lambda: made[0], pools.parse_pools, [], 0.0))
    return made


def test_pools_are_made_in_mode_on_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`airflow egs pools` in another mode is one line and exit code 2."""
    monkeypatch.setenv("EGS_MODE", "observe")
    config.settings.cache_clear()
    try:
        with pytest.raises(SystemExit) as stopped:
            pools.run_pools()
    finally:
        config.settings.cache_clear()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_task_that_states_gpus_goes_into_the_pool_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One slot a GPU, a share counts as one, also where more are needed than there are, which Airflow then holds; not
    where the user chose a pool. That no pool was made is one warning."""
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG

    @egs.task(gpus=0.5)
    def share() -> None:
        """A task's function."""

    @egs.task(gpus=9)
    def large() -> None:
        """A task's function."""

    monkeypatch.setenv("EGS_POOLS", "gpu=8")
    made = note_pools(monkeypatch)
    with DAG("gpus", schedule=None):
        tasks = [
            PythonOperator(task_id="share", python_callable=share),
            PythonOperator.partial(task_id="mapped", python_callable=share).expand(op_args=[[], []]),
            PythonOperator(task_id="large", python_callable=large),
            PythonOperator(task_id="own", python_callable=share, pool="mine"),
            PythonOperator(task_id="plain", python_callable=len),
            PythonOperator(task_id="resources", python_callable=len, resources={"gpus": 2}),
        ]
    for task in tasks:
        apply_to_task(task)
    assert {task.pool for task in tasks} == {"default_pool", "mine"}  # the pool was not created
    made[0] = "gpu=8"
    for task in tasks:
        apply_to_task(task)
    found = {task.task_id: (task.pool, task.pool_slots) for task in tasks}
    assert found == {"share": ("gpu", 1), "mapped": ("gpu", 1), "resources": ("gpu", 2)} | {
        "large": ("gpu", 9),
        "own": ("mine", 1),
        "plain": ("default_pool", 1),
    }
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("egs: [egs] pools: tasks that state GPUs stay in the default pool")
    assert "no pool is in Variable egs_pools of this Airflow; `airflow egs pools` makes gpu" in said[0]
    held = "needs 9 slots, pool gpu is configured with 8: Airflow keeps it scheduled until the pool is larger"
    assert said[1:] == [f"egs: gpus.large: {held}"]
