"""Staging without an Airflow: when tasks are expected to start, what is read and what is said of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from egs_airflow.agent import staging
from egs_airflow.agent.foresee import expected_starts, is_next
from egs_airflow.agent.instances import Instance
from egs_airflow.agent.learner import Learner
from egs_airflow.agent.loop import Agent
from egs_airflow.agent.staging import Stager, most_bytes, stated_files
from egs_airflow.agent.tags import Modes
from egs_airflow.preload.files import read_files
from egs_airflow.rest import Rest
from egs_core.errors import InputError
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow

MOST = 1 << 40
NOW_S = 1000.0
PARENTS = {"a": [], "b": [], "c": ["a", "b"], "d": ["c"], "e": ["x"], "x": []}


def one(task: str, state: str = "", started_s: float = 0.0) -> Instance:
    """A task instance of the graph above."""
    return Instance(task, "dag", "run", task, state=state, started_s=started_s)


def test_when_tasks_start() -> None:
    """After the last of what they wait for, each with its early side; one that outlives its median is not about to end;
    behind what nobody knows nothing is known; what runs or has ended has no start."""
    seconds = {"a": 10.0, "b": 20.0, "c": 5.0}
    states = {"a": one("a", "success"), "b": one("b", "running", NOW_S - 8.0), "x": one("x", "running", NOW_S - 8.0)}
    instances = [states.get(task, one(task)) for task in PARENTS]
    starts = expected_starts(PARENTS, instances, seconds, NOW_S)
    c, d = starts["c"], starts["d"]
    assert set(starts) == {"c", "d", "e"}
    assert c is not None
    assert d is not None
    assert c[0] == pytest.approx(12.0, abs=1.0)
    assert d[0] == pytest.approx(c[0] + 5.0, abs=0.5)
    assert 0 < c[0] - c[1] < c[0]
    assert starts["e"] is None
    late = expected_starts(
        PARENTS, [one("a", "success"), one("b", "running", NOW_S - 60.0), *instances[2:]], seconds, NOW_S
    )
    assert late["c"] is not None
    assert late["c"][0] > 5.0
    assert is_next("e", PARENTS, instances)
    assert is_next("c", PARENTS, instances)
    assert not is_next("d", PARENTS, instances)  # c has not begun
    assert expected_starts({"a": ["b"], "b": ["a"]}, [], seconds, NOW_S) == {}


def test_files_are_read_within_bounds(tmp_path: Path) -> None:
    """What was in memory is told from what came from disk; what cannot be read, is no file or is too large is said."""
    cold, warm = tmp_path / "cold", tmp_path / "warm"
    for path in (cold, warm):
        path.write_bytes(os.urandom(3 << 20))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    with cold.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    paths = [str(path) for path in (cold, warm, tmp_path / "none", tmp_path)]
    read = {found.path: found for found in read_files(paths, MOST)}
    assert [read[path].bytes for path in paths] == [3 << 20, 3 << 20, 0, 0]
    assert read[str(cold)].cold_bytes == 3 << 20
    assert read[str(warm)].cold_bytes == 0
    assert [read[path].problem for path in paths] == ["", "", "No such file or directory", "is no file"]
    first, second = read_files([str(cold), str(warm)], 4 << 20)
    assert (first.bytes, first.problem) == (3 << 20, "")
    assert (second.bytes, second.problem) == (1 << 20, "is larger than what may be read")


def test_the_process_reads_at_the_lowest_priority(tmp_path: Path) -> None:
    """As a command: a line a file; its own niceness is the highest there is, and that of who starts it stays."""
    (tmp_path / "model").write_bytes(b"x" * 10)
    program = "import os, runpy, sys; sys.argv[1:] = sys.argv[1:]; "
    program += "runpy.run_module('egs_airflow.preload.files', run_name='__main__'); print(os.nice(0))"
    command = [sys.executable, "-c", program, "1000", str(tmp_path / "model")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(out[0])["bytes"] == 10
    assert (out[1], os.nice(0)) == ("19", 0) or os.nice(0) > 0


def test_what_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute paths of our key; nothing of what means nothing. The bound is an option, and `no` switches it off."""
    assert stated_files("{'egs': {'files': ['/a', 'b', 3], 'max_runtime': 2.0}}") == ("/a",)
    for text in ("{}", "{'files': ['/a']}", "<V1Pod 'files'>", "{'egs': {'files': 3}}"):
        assert stated_files(text) == ()
    assert most_bytes() == 16 << 30
    monkeypatch.setenv("EGS_STAGE_BYTES", "no")
    assert most_bytes() == 0
    monkeypatch.setenv("EGS_STAGE_BYTES", "much")
    with pytest.raises(InputError, match="stage_bytes"):
        most_bytes()


class OneRun:
    """The answers of an Airflow with one run: `first` runs on a host, and `train` comes after it."""

    def __init__(self, paths: list[str], host: str) -> None:
        self.paths, self.host, self.asked = paths, host, list[str]()
        self.run_id = "run"
        self.state, self.train = "running", {"state": None, "start_date": None, "hostname": ""}

    def __call__(self, path: str, _: dict[str, str]) -> tuple[int, Any]:
        place = unquote(path.removeprefix("/api/v2/"))
        self.asked.append(place)
        if place == "dags/~/dagRuns":
            row = {"dag_id": "dag", "dag_run_id": self.run_id, "dag_versions": [{"version_number": 3}]}
            rows = [row] if self.state == "running" else []
            return 200, {"dag_runs": rows, "total_entries": len(rows)}
        if place == "dags/dag/tasks":
            tasks = [
                {"task_id": "first", "downstream_task_ids": ["train"]},
                {"task_id": "train", "downstream_task_ids": []},
            ]
            return 200, {"tasks": tasks}
        begun = {"state": "running", "start_date": "2026-01-01T00:00:00+00:00", "hostname": self.host}
        config = str({"egs": {"files": self.paths}})
        rows = [_row("first", "{}", **begun), _row("train", config, **self.train)]
        return 200, {"task_instances": rows, "total_entries": 2}


def _row(task: str, config: str, **more: Any) -> dict[str, Any]:
    names = ("hostname", "pid", "start_date", "end_date", "pool", "note")
    row: dict[str, Any] = {"id": task, "dag_id": "dag", "dag_run_id": "run", "task_id": task, "map_index": -1}
    return {**row, **dict.fromkeys(names), "try_number": 0, "pool_slots": 1, "executor_config": config, **more}


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedAirflow]:
    """An Airflow that answers as it is told to, in mode on."""
    for name, value in {"XDG_DATA_HOME": tmp_path, "EGS_RUNLOG": tmp_path / "runlog", "EGS_MODE": "on"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(staging, "LOOK_S", 0.0)
    with recorded_airflow() as server:
        yield server


def look_until(stager: Stager, is_over: Callable[[], object]) -> None:
    """Look again and again."""
    end = time.monotonic() + 120.0
    while not is_over():
        assert time.monotonic() < end
        stager.look(True, time.monotonic())
        time.sleep(0.01)


def acts(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "runlog" / f"agent-{socket.gethostname()}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_file_once_and_what_was_in_vain(airflow: RecordedAirflow, tmp_path: Path) -> None:
    """Read once however often the run is looked at; a run that ends without its task is a line; one whose tasks are on
    another host is left to that."""
    model = tmp_path / "model.pt"
    model.write_bytes(b"x" * 5000)
    airflow.answer = run = OneRun([str(model)], socket.gethostname())
    rest = Rest(airflow.url)
    stager = Stager(rest, Modes(rest))
    look_until(stager, lambda: acts(tmp_path))
    (staged,) = acts(tmp_path)
    assert (staged["act"], staged["task"], staged["bytes"], staged["cold_bytes"]) == ("staged for", "train", 5000, 0)
    for _ in range(5):
        stager.look(True, time.monotonic())
    assert len(acts(tmp_path)) == 1
    run.state = "failed"
    look_until(stager, lambda: len(acts(tmp_path)) == 2)
    assert acts(tmp_path)[1]["act"] == "staged in vain for"
    asked = len(run.asked)
    stager.look(False, time.monotonic())
    assert len(run.asked) == asked  # a host without tasks asks nothing
    airflow.answer = elsewhere = OneRun([str(model)], "elsewhere")
    other = Stager(rest, Modes(rest))
    for _ in range(5):
        other.look(True, time.monotonic())
    other.close()
    stager.close()
    assert len(acts(tmp_path)) == 2
    elsewhere.paths, idle = [], Stager(rest, Modes(rest))
    idle.look(True, time.monotonic())
    elsewhere.run_id, elsewhere.asked = "another", []
    idle.look(True, time.monotonic())
    assert elsewhere.asked == ["dags/~/dagRuns"]  # this version of the DAG states no files


def test_an_agent_goes_on_without_staging(
    airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with staging is one line, and the end of staging only."""
    agent = Agent(Rest(airflow.url), Learner(airflow.url, "", 0.0))
    asked = []

    def fails(*_: object) -> None:
        asked.append(1)
        raise RuntimeError("no more processes")

    monkeypatch.setattr(Stager, "look", fails)
    for _ in range(3):
        agent._stage(True)
    agent.close()
    assert len(asked) == 1
    assert capsys.readouterr().err == "egs agent: no file is staged any more: RuntimeError: no more processes\n"
