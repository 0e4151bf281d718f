"""Staging without an Airflow: what is read when the engine says so, and what is said of it."""

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
from egs_airflow.agent.declare import stated_files
from egs_airflow.agent.host import REFUSED_S
from egs_airflow.agent.learner import Learner
from egs_airflow.agent.lease import Record
from egs_airflow.agent.lease_store import ORDER
from egs_airflow.agent.loop import Agent
from egs_airflow.agent.staging import Stager, most_bytes
from egs_airflow.order.published import Order
from egs_airflow.preload.files import read_files
from egs_airflow.rest import Rest
from egs_core.errors import InputError
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow

MOST = 1 << 40


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
    """The answers of an Airflow with one run: `first` runs on a host, and the engine has `train`'s files loaded."""

    def __init__(self, paths: list[str], host: str) -> None:
        self.paths, self.host, self.asked = paths, host, list[str]()
        self.state, self.train = "running", {"state": None, "start_date": None, "hostname": ""}
        self.holder = "agent"
        self.loads: tuple[tuple[str, str, str], ...] = (("dag", "run", "train"),)

    def __call__(self, path: str, _: dict[str, str]) -> tuple[int, Any]:
        place = unquote(path.removeprefix("/api/v2/"))
        self.asked.append(place)
        extra = json.dumps({ORDER: Order(loads=self.loads).text()})
        text = Record(self.holder, 1, 30.0).text()
        record = {"connection_id": "egs_engine_1", "description": text, "extra": extra}
        if place == "connections":
            return 200, {"connections": [record], "total_entries": 1}
        if place == "connections/egs_engine_1":
            return 200, record
        if place == "dags/dag/dagRuns/run":
            return 200, {"state": self.state}
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
    """Read once however often it is published; a run that ends without its task is a line, one whose task has begun is
    not; one whose tasks are on another host is left to that."""
    model = tmp_path / "model.pt"
    model.write_bytes(b"x" * 5000)
    airflow.answer = run = OneRun([str(model)], socket.gethostname())
    stager = Stager(Rest(airflow.url))
    look_until(stager, lambda: acts(tmp_path))
    (staged,) = acts(tmp_path)
    assert (staged["act"], staged["task"], staged["bytes"], staged["cold_bytes"]) == ("staged for", "train", 5000, 0)
    for _ in range(5):
        stager.look(True, time.monotonic())
    assert len(acts(tmp_path)) == 1
    run.state = "failed"
    look_until(stager, lambda: len(acts(tmp_path)) == 2)
    assert acts(tmp_path)[1]["act"] == "staged in vain for"
    run.loads, asked = (), len(run.asked)
    stager.look(False, time.monotonic())
    assert len(run.asked) == asked  # a host without tasks asks nothing
    airflow.answer = used = OneRun([str(model)], socket.gethostname())
    stager.look(True, time.monotonic())
    used.train = {"state": "running", "start_date": "2026-01-01T00:00:00+00:00", "hostname": socket.gethostname()}
    stager.look(True, time.monotonic())
    used.state = "success"
    stager.look(True, time.monotonic())
    airflow.answer = OneRun([str(model)], "elsewhere")
    other = Stager(Rest(airflow.url))
    for _ in range(5):
        other.look(True, time.monotonic())
    other.close()
    stager.close()
    assert len(acts(tmp_path)) == 2


def test_nothing_is_read_where_nobody_hosts_the_engine(airflow: RecordedAirflow, tmp_path: Path) -> None:
    """What a host that has let its lease go had published is nobody's word."""
    model = tmp_path / "model.pt"
    model.write_bytes(b"x")
    airflow.answer = run = OneRun([str(model)], socket.gethostname())
    run.holder = ""
    stager = Stager(Rest(airflow.url))
    stager.look(True, time.monotonic())
    assert set(run.asked) == {"connections", "connections/egs_engine_1"}
    run.holder = "agent"
    look_until(stager, lambda: acts(tmp_path))
    stager.close()


def test_an_agent_that_may_not_read_connections(
    airflow: RecordedAirflow, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, stages nothing for a while, and does all the rest."""
    refused = [True]
    answer = OneRun([], "")
    airflow.answer = lambda path, query: (403, {}) if refused[0] else answer(path, query)
    agent = Agent(Rest(airflow.url, "token"), Learner(airflow.url, "", 0.0))
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    agent._stage(True)
    refused[0] = False
    agent._stage(True)
    assert answer.asked == []
    clock[0] += REFUSED_S
    agent._stage(True)
    assert answer.asked
    agent.close()
    assert capsys.readouterr().err.count("no file is staged for 300 s: ") == 1


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
