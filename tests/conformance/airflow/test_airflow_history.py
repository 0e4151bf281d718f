"""On a real Airflow: audited from outside, its durations learned, and a listener in its tasks that cannot hurt them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from egs_airflow.history.keep import keep_history, learned
from egs_airflow.observe.lines import read_lines
from egs_airflow.order.pools import is_gpu_pool
from egs_airflow.rest import connect
from egs_core.cli.app import run
from egs_core.history.sql import SqlHistory
from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import TaskAdded
from tests.conformance.airflow.holding import make_pool
from tests.conformance.airflow.live import LiveAirflow

POOL = "history_gpus"
LEAF_S = 2.0
CONTENDED = """
import os
import time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, task

with DAG("history_contended", schedule=None, default_args={"owner": "vision"}):
    @task(pool="history_gpus")
    def leaf(n: int, run_id=None) -> None:
        begun = Path(os.environ["AIRFLOW_HOME"]) / f"leaves {run_id}"
        begun.mkdir(exist_ok=True)
        (begun / str(n)).touch()
        end = time.monotonic() + 600
        while len(list(begun.iterdir())) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(2.0)  # from now on two hold both slots for so long

    @task(pool="history_gpus", pool_slots=2)
    def fit() -> None:
        time.sleep(1.0)

    @task(retries=1, retry_delay=timedelta(seconds=0.1))
    def flaky(ti=None) -> None:
        if ti.try_number == 1:
            raise ValueError("once")

    leaf.expand(n=[1, 2, 3]) >> fit() >> flaky()
"""
FAULTS = """
import os
import pathlib
from airflow.sdk import DAG, task

def at(name: str) -> pathlib.Path:
    from egs_airflow.observe import listener
    place = pathlib.Path(os.environ["AIRFLOW_HOME"]) / "faults" / name
    place.parent.mkdir(exist_ok=True)
    listener.folder = lambda: place
    return place

def file_of(place: pathlib.Path) -> pathlib.Path:
    from egs_airflow.observe import listener
    place.mkdir()
    seen = []
    opened, listener._open = listener._open, lambda path: seen.append(path) or 1 / 0
    try:
        listener.append(b"")
    except ZeroDivisionError:
        listener._open = opened
    return seen[0]

with DAG("history_faults", schedule=None):
    @task
    def no_folder() -> None:
        at("no_folder").write_text("a file")

    @task
    def full_disk() -> None:
        file_of(at("full_disk")).symlink_to("/dev/full")

    @task
    def hanging_disk() -> None:
        os.mkfifo(file_of(at("hanging_disk")))

    @task
    def exits() -> None:
        from egs_airflow.observe import listener
        def leave(line: bytes) -> None:
            raise SystemExit(3)
        listener.append = leave

    @task
    def broken_thread() -> None:
        from egs_airflow.observe import listener
        def none(**kwargs: object) -> None:
            raise SystemExit("can't start new thread")
        listener.threading = type("threading", (), {"Thread": staticmethod(none)})

    no_folder(), full_disk(), hanging_disk(), exits(), broken_thread()
"""
Row = dict[str, Any]
Ran = tuple[LiveAirflow, str, str]
Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def ran(airflow: LiveAirflow) -> Ran:
    """Airflow after one run of each DAG: the contended one's run id, and that of the one with faults."""
    make_pool(airflow, POOL, 2)
    airflow.add_dags(history_contended=CONTENDED, history_faults=FAULTS)
    runs = {dag: airflow.trigger(dag) for dag in ("history_contended", "history_faults")}
    states = {dag: airflow.wait_run(dag, run) for dag, run in runs.items()}
    assert states == dict.fromkeys(runs, "success"), airflow.logs()
    return airflow, runs["history_contended"], runs["history_faults"]


def egs(capsys: Out, *arguments: object) -> dict[str, Any]:
    """What `egs … --json` prints."""
    assert run(list(map(str, [*arguments, "--json"]))) == 0, capsys.readouterr().err
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def seconds_of(row: Row) -> float:
    """How long a try took, by REST's start and end; its `duration` differs from that by some milliseconds."""
    start, end = (datetime.fromisoformat(row[name]) for name in ("start_date", "end_date"))
    return (end - start).total_seconds()


def tries_of(airflow: LiveAirflow, dag: str, run: str) -> list[Row]:
    """All tries of a run that held slots, by REST."""
    found = []
    for row in airflow.task_instances(dag, run):
        index = f"/{row['map_index']}" if row["map_index"] >= 0 else ""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{row['task_id']}{index}/tries"
        found += airflow.rest("GET", path)["task_instances"]
    return found


def what_is_there(airflow: LiveAirflow) -> list[Any]:
    """What an audit must leave as it was."""
    versions = [airflow.rest("GET", f"/dags/{dag}/dagVersions") for dag in ("history_contended", "history_faults")]
    return [airflow.rest("GET", f"/{part}") for part in ("pools", "variables", "connections", "dags")] + versions


@pytest.mark.proves("airflow mode, executor, agent", "audit")
def test_audit(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """Its GPU time is slots x time by REST's own times, the wait has its reason, the edges are the DAG's, the page's
    figures are the same, and nothing in Airflow has changed."""
    airflow, run_id, _ = ran
    monkeypatch.setenv("AIRFLOW_CLI_TOKEN", airflow.token)
    before, log = what_is_there(airflow), tmp_path / "run.jsonl"
    source = ("audit", "--airflow", airflow.url, "--days", "1", "--gpu-pool", POOL)
    job = ("--job", f"history_contended/{run_id}")
    audited = egs(capsys, *source, *job, "--events", airflow.home / "runlog", "--runlog", log)
    assert what_is_there(airflow) == before
    tries = tries_of(airflow, "history_contended", run_id)
    held_s = sum(seconds_of(row) * row["pool_slots"] for row in tries if row["pool"] == POOL)
    assert audited["total"]["held_s"] == pytest.approx(held_s, abs=1e-3)
    assert {row["name"]: row["runs"] for row in audited["by_task"]} == {
        "history_contended.leaf": 3,
        "history_contended.fit": 1,
    }
    assert audited["total"]["cold_s"] > 0  # what the listener noted
    wait = max(audited["waits"], key=lambda wait: wait["no_gpu_s"] * (wait["name"] == "history_contended.leaf"))
    assert wait["no_gpu_s"] >= LEAF_S - 0.1  # the third instance: for so long the other two had both slots
    assert wait["blockers"][0][0] == "history_contended.leaf"
    if wait["no_gpu_s"] > wait["wait_s"] / 2:  # on a busy machine Airflow itself may take longer than that
        assert wait["reason"].startswith("no free GPU while history_contended.leaf")
    assert audited["forecast"]["gpu_held_s"]["low"] <= held_s
    kept = read_run(log)
    leaves = {f"leaf[{n}]" for n in range(3)}
    parents = {record.task: set(record.parents) for record in kept.records if isinstance(record, TaskAdded)}
    assert parents == {**{leaf: set() for leaf in leaves}, "fit": leaves, "flaky": {"fit"}}
    metrics = summarise(kept.records)
    assert (metrics.phases, metrics.outcomes["failed"]) == (len(tries), 1)
    assert egs(capsys, "report", log)["runs"][0]["gpu_held_s"] == pytest.approx(held_s, abs=1e-3)


@contextmanager
def _no_pool_of_egs(airflow: LiveAirflow) -> Iterator[None]:
    """Pools that EGS has made are known to be of GPUs, by their description: for a while there are none."""
    made = [pool for pool in airflow.rest("GET", "/pools")["pools"] if is_gpu_pool(pool["description"])]
    for is_over in (False, True):
        for pool in made:
            description = pool["description"] if is_over else "another"
            body = {"pool": pool["name"], "slots": pool["slots"], "include_deferred": pool["include_deferred"]}
            airflow.rest("PATCH", f"/pools/{pool['name']}", {**body, "description": description})
        if not is_over:
            yield


def test_audit_without_gpus(ran: Ran, capsys: Out) -> None:
    """Where no pool is named, slots are accounted for, and it is said that GPU time is not known."""
    airflow, run_id, _ = ran
    with _no_pool_of_egs(airflow):
        audited = egs(capsys, "audit", "--airflow", airflow.url, "--job", f"history_contended/{run_id}")
    tries = tries_of(airflow, "history_contended", run_id)
    held_s = sum(seconds_of(row) * row["pool_slots"] for row in tries)
    assert (audited["unit"], audited["capacity_gpu_s"]) == ("slot", 0.0)
    assert audited["total"]["held_s"] == pytest.approx(held_s, abs=1e-3)
    assert any("GPU time is not known" in note for note in audited["unknown"])


@pytest.mark.parametrize(
    ("options", "token", "said"),
    [
        (["http://127.0.0.1:1"], "", "no answer from an Airflow 3"),
        (["{url}"], "wrong", "refuses the request"),
        (["{url}", "--days", "0.0000001"], "", "no task of any job is known there"),
        (["{url}", "--gpu-pool", "no_such_pool"], "", "its pools: default_pool"),
    ],
)
def test_refused(
    ran: Ran, options: list[str], token: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """Whatever cannot be audited is one line on stderr and exit code 2."""
    monkeypatch.setenv("AIRFLOW_CLI_TOKEN", token)
    assert run(["audit", "--airflow", *(option.format(url=ran[0].url) for option in options)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def test_listener(ran: Ran) -> None:
    """One line for each try, with REST's end, and the moment at which the user's code began, which REST has not."""
    airflow, run_id, _ = ran
    noted = read_lines(airflow.home / "runlog")
    lines = [line for line in noted if (line.dag, line.run) == ("history_contended", run_id)]
    tries = tries_of(airflow, "history_contended", run_id)
    told = {(row["task_id"], row["map_index"], row["try_number"]): row for row in tries}
    assert sorted((line.task, line.map_index, line.number) for line in lines) == sorted(told)
    for line in lines:
        row = told[line.task, line.map_index, line.number]
        assert (line.state, line.pool, line.slots) == (row["state"], row["pool"], row["pool_slots"])
        start_s, end_s = (datetime.fromisoformat(row[name]).timestamp() for name in ("start_date", "end_date"))
        assert line.end == pytest.approx(end_s, abs=1e-3)
        assert start_s - 1e-3 <= line.start <= line.code <= line.end  # REST's start is that of the task's supervisor


def test_listener_that_fails(ran: Ran) -> None:
    """A folder that is a file, a full disk, one that hangs, SystemExit: each task has succeeded at its first try."""
    airflow, _, run_id = ran
    rows = airflow.task_instances("history_faults", run_id)
    states = {row["task_id"]: (row["state"], row["try_number"]) for row in rows}
    names = ("no_folder", "full_disk", "hanging_disk", "exits", "broken_thread")
    assert states == dict.fromkeys(names, ("success", 1))
    assert not [line for line in read_lines(airflow.home / "runlog") if line.dag == "history_faults"]


def test_history(ran: Ran, tmp_path: Path) -> None:
    """At first all that ended is kept, then only what is new; what was learned is what REST tells."""
    airflow, run_id, _ = ran
    history, state = SqlHistory.in_folder(tmp_path), tmp_path / "kept.json"
    rest = connect(airflow.url)
    keep_history(rest, history, state, [POOL], settle_s=0.0)
    rows = history.load("history_contended")
    ended = [row for row in tries_of(airflow, "history_contended", run_id) if row["state"] == "success"]
    assert sorted(row.task for row in rows) == ["fit", "flaky", "leaf", "leaf", "leaf"]
    assert sorted(row.seconds for row in rows) == pytest.approx(sorted(map(seconds_of, ended)), abs=1e-5)
    assert {row.shape.gpu_milli for row in rows if row.task == "fit"} == {2000}
    assert keep_history(rest, history, state, [POOL], settle_s=0.0) == 0
    seconds = sorted(seconds_of(row) for row in ended if row["task_id"] == "leaf")
    assert seconds[0] <= learned(history)["history_contended"]["leaf"] <= seconds[-1]
    history.close()
