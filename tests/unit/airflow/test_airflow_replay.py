"""Replay on Airflow without a server: what a workload file becomes, what cannot become one, and what notes tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from egs_airflow import compat
from egs_airflow.agent.declare import declare
from egs_airflow.history.seen import Dag, Pool, Run, Seen, Try
from egs_airflow.replay.dagfile import airflow_ids, check_expressible, check_gangs, dag_file, usual_seconds
from egs_airflow.replay.notes import Note, read_notes, records_of
from egs_airflow.replay.play import NOTES, phase, play
from egs_core.adapter import ReplayWorkload
from egs_core.cli import app
from egs_core.errors import InputError
from egs_core.graph.model import Workload
from egs_core.runlog.metrics import summarise

GPU: dict[str, Any] = {"kind": "gpu", "gpus": 1, "duration_s": 3.0}
TASKS: list[dict[str, Any]] = [
    {"id": "load it", "phases": [{"duration_s": 2.0, "cpus": 1.5}]},
    {
        "id": "train/0",
        "name": "train",
        "parents": ["load it"],
        "phases": [{"duration_s": 2.0}, GPU, {"duration_s": 1.0}],
        "warm_key": "model",
        "warmup_s": 4.0,
    },
    {
        "id": "train.0",
        "name": "train",
        "parents": ["load it"],
        "phases": [{"duration_s": 4.0, "cpus": 2}, GPU, {"duration_s": 1.0}],
    },
    {"id": "class", "parents": ["train/0", "train.0"], "phases": [GPU]},
]


def workload(*tasks: dict[str, Any]) -> ReplayWorkload:
    model = Workload.model_validate({"id": "w", "tasks": tasks})
    return ReplayWorkload("w", model.to_graph())


def read(source: str, folder: Path) -> Any:
    """The DAG of a DAG file, as Airflow reads it."""
    path = folder / "made.py"
    path.write_text(source)
    dags, errors = compat.read_dag_file(path)
    assert not errors
    return dags["w"]


def edges(dag: Any) -> set[tuple[str, str]]:
    return {(task.task_id, child) for task in dag.tasks for child in task.downstream_task_ids}


def test_ids_are_those_that_airflow_takes_and_differ() -> None:
    """Other characters become one that Airflow takes, and two names never share an id."""
    assert airflow_ids(["a b", "a/b", "ok-1", "ü" * 300]) == {
        "a b": "a_b",
        "a/b": "a_b_2",
        "ok-1": "ok-1",
        "ü" * 300: "_" * 200,
    }


def test_natively_a_task_is_one_task_and_holds_its_gpus_throughout(tmp_path: Path) -> None:
    """Edges are the file's; GPU tasks are in the GPU pool with a slot a GPU, others take a slot a CPU."""
    dag = read(dag_file(workload(*TASKS), "w", 2.0, split=False), tmp_path)
    assert edges(dag) == {
        ("load_it", "train_0"),
        ("load_it", "train_0_2"),
        ("train_0", "class"),
        ("train_0_2", "class"),
    }
    assert {task.task_id: (task.pool, task.pool_slots) for task in dag.tasks} == {
        "load_it": ("default_pool", 2),
        "train_0": ("gpu", 1),
        "train_0_2": ("gpu", 1),
        "class": ("gpu", 1),
    }
    train = dag.get_task("train_0")
    assert list(train.op_args[0]) == [("cpu", 4.0), ("gpu", 6.0), ("cpu", 2.0)]
    assert train.op_kwargs == {"load_s": 8.0}


def test_text_of_the_file_is_no_code() -> None:
    """Whatever a workload or a task is called, nothing of it but an id gets into the source."""
    evil = '\\"\'""") + boom("""'
    model = Workload.model_validate({"id": evil, "tasks": [{"id": evil, "name": evil, "phases": [GPU]}]})
    replayed = ReplayWorkload(evil, model.to_graph())
    for split in (False, True):
        source = dag_file(replayed, airflow_ids([evil])[evil], 1.0, split=split)
        assert "boom(" not in source
        compile(source, "made.py", "exec")


def test_with_egs_mixed_tasks_are_split_and_their_parts_are_known(tmp_path: Path) -> None:
    """A mixed task is three, wired as the whole was; each has its usual seconds under its own id."""
    replayed = workload(*TASKS)
    dag = read(dag_file(replayed, "w", 1.0, split=True), tmp_path)
    whole = {("load_it", "train_0.cpu_0"), ("train_0.cpu_0", "train_0.gpu_1"), ("train_0.gpu_1", "train_0.cpu_2")}
    assert whole | {("train_0.cpu_2", "class")} <= edges(dag)
    slots = {name: dag.get_task(f"{name}.cpu_0").pool_slots for name in ("train_0", "train_0_2")}
    assert slots == {"train_0": 1, "train_0_2": 2}
    usual = usual_seconds(replayed, 1.0)
    assert usual.keys() == {task.task_id for task in dag.tasks}
    assert (usual["train_0.cpu_0"], usual["train_0_2.gpu_1"], usual["load_it"]) == (3.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"id": "t", "phases": [{**GPU, "gpus": 0.5}]}, "w: task 't': needs a share of a GPU"),
        ({"id": "t", "phases": [{**GPU, "gpus": 3}]}, "w: task 't': needs 3 GPUs, there are 2"),
        ({"id": "t", "phases": [{}]}, "w: task 't': its duration is unknown"),
    ],
)
def test_what_airflow_cannot_run_is_one_line(
    task: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that names the task; nothing is started."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": [_lasting(task)]}))
    assert app.run(["replay", str(path), "--on", "airflow", "--json"]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = [line for line in err.splitlines() if line.startswith("error")]
    assert message in line


def _lasting(task: dict[str, Any]) -> dict[str, Any]:
    return {"phases": [{"duration_s": 1.0}], **task}


def test_a_workload_that_airflow_can_run_passes() -> None:
    """The check finds nothing wrong with whole GPUs, natively without gangs and with EGS with them."""
    check_expressible(workload(*TASKS), "native")
    check_expressible(workload(*({**one, "gang": "g"} for one in TASKS[:1])), "egs")


def test_gangs_are_for_egs_and_no_larger_than_their_pool() -> None:
    """Natively a task in a gang is refused by name; a gang that never fits is, too, with the numbers."""
    gang = workload(*({**one, "gang": "g", "parents": []} for one in TASKS[1:3]))
    with pytest.raises(InputError, match=r"task 'train/0': is in gang 'g': natively Airflow starts tasks one by one"):
        check_expressible(gang, "native")
    check_gangs(gang, cpus=3, gpus=2)  # CPU phases of one and of two CPUs, then two GPU phases
    with pytest.raises(InputError, match=r"w: gang 'g': needs 3 CPUs at once, there are 2"):
        check_gangs(gang, cpus=2, gpus=2)
    with pytest.raises(InputError, match=r"w: gang 'g': needs 2 GPUs at once, there are 1"):
        check_gangs(gang, cpus=3, gpus=1)


def test_a_gang_begins_phase_by_phase(tmp_path: Path) -> None:
    """A task that is not split begins with the first phases of those that are; natively nothing is said of gangs."""
    tasks = [{**one, "gang": "g", "parents": []} for one in TASKS[:2]]
    dag = read(dag_file(workload(*tasks), "w", 1.0, split=True), tmp_path)
    for one in dag.tasks:
        declare(one)
    found = {one.task_id: one.executor_config["egs"]["gang"] for one in dag.tasks}
    phases = {f"train_0.{kind}_{number}": f"g.{number}" for number, kind in enumerate(("cpu", "gpu", "cpu"))}
    assert found == {"load_it": "g.0", **phases}
    assert "'g'" not in dag_file(workload(*tasks), "w", 1.0, split=False)


def test_tasks_note_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole task and a phase each leave a line with Airflow's names for it; outside of a replay they leave none."""
    path = tmp_path / "notes.jsonl"
    names = {"DAG_ID": "w", "DAG_RUN_ID": "run", "TASK_ID": "t", "TRY_NUMBER": "2"}
    for name, value in names.items():
        monkeypatch.setenv(f"AIRFLOW_CTX_{name}", value)
    play([("cpu", 0.0)])
    assert not path.exists()
    monkeypatch.setenv(NOTES, str(path))
    play([("cpu", 0.0), ("gpu", 0.1)], load_s=0.1)
    assert phase("gpu", 1)([0.0, 7.0]) == [7.0]
    whole, part = read_notes(path)
    assert (whole.dag_id, whole.run_id, whole.task_id, whole.number) == ("w", "run", "t", "2")
    assert [kind for kind, _, _ in whole.stretches] == ["cold", "cpu", "gpu"]
    assert [kind for kind, _, _ in part.stretches] == ["gpu"]


def test_only_gpu_phases_count_as_used() -> None:
    """One GPU, held 10 s, loading for 2 s, used for 3 s; the second task waits all that while, so 7 s were wasted."""
    tries = [
        Try("w", "run", "a", -1, 1, "success", "gpu", 1, 100.0, 100.0, 100.0, 110.0),
        Try("w", "run", "b", -1, 1, "success", "gpu", 1, 100.0, 110.0, 110.0, 111.0),
    ]
    dag = Dag("w", parents={"a": (), "b": ()})
    seen = Seen(200.0, "3.3.2", {"gpu": Pool("gpu", 1)}, {"w": dag}, [Run("w", "run", "success", 100.0, 111.0)], tries)
    notes = [
        Note("w", "run", "a", "1", [("cold", 101.0, 103.0), ("cold", 103.0, 103.01), ("gpu", 104.0, 107.0)]),
        Note("w", "run", "b", "1", [("gpu", 110.0, 111.0)]),
    ]
    header, records = records_of(seen, "gpu", notes)
    metrics = summarise(records)
    assert header.started_at == 100.0
    assert (metrics.gpu_held_s, metrics.gpu_used_s, metrics.cold_starts, metrics.makespan_s) == (11.0, 4.0, 1, 11.0)
    assert metrics.wastage_effective == pytest.approx(7.0 / 11.0)
