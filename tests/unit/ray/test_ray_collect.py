"""The collector: what is pushed is kept, whatever else is sent; jobs become run logs and rows of the history, once."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.history.sql import SqlHistory
from egs_core.predict import Predictor
from egs_core.runlog.io import read_run
from egs_ray.audit import collect as module
from egs_ray.audit.collect import Receiver
from egs_ray.audit.spool import IDLE_S, SETTLE_S, Spool

FILES = Path(__file__).parents[2] / "fixtures" / "ray_history"
EVENTS = [json.loads(line) for line in (FILES / "pushed.events.jsonl").read_text().splitlines()]
SESSION = EVENTS[0]["sessionName"]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqlHistory]:
    """An empty one."""
    store = SqlHistory.in_folder(tmp_path)
    yield store
    store.close()


@pytest.fixture
def receiver(tmp_path: Path, history: SqlHistory) -> Iterator[Receiver]:
    """One that listens on a free port."""
    server = Receiver("127.0.0.1", 0, Spool(tmp_path / "kept", history))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def post(server: Receiver, body: bytes, **headers: str) -> int:
    """Send one request and return the answer's code."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_job_becomes_run_log_and_history(tmp_path: Path, history: SqlHistory) -> None:
    """When its driver has ended and its last events had time to come; then a predictor knows its tasks."""
    spool = Spool(tmp_path / "kept", history)
    spool.take(EVENTS, 100.0)
    assert spool.write_settled(100.0 + SETTLE_S - 1) == []
    (path,) = spool.write_settled(100.0 + SETTLE_S)
    assert path == tmp_path / "kept" / SESSION / "train-01000000.jsonl"
    log = read_run(path)
    assert (log.header.driver, log.header.mode, log.header.label) == ("ray", "off", "train")
    assert history.pipelines() == ["train"]
    rows = history.load("train")
    assert sum(row.task == "train" and row.shape.gpu_milli == 1000 for row in rows) == 4
    train = next(s for s in history.signatures("train") if s.task == "train" and s.shape.gpu_milli)
    estimate = Predictor.from_history(history, ["train"]).estimate(train)
    assert (estimate.source, estimate.n) == ("history", 4)
    assert spool.write_all() == []


def test_nothing_is_kept_twice(tmp_path: Path, history: SqlHistory) -> None:
    """Batches that come again, a job written twice, a collector started again: the rows are the same."""
    for _ in range(3):
        spool = Spool(tmp_path / "kept", history)
        spool.take(EVENTS, 100.0)
        assert len(spool.write_all()) == 1
    once = SqlHistory.in_folder(tmp_path / "once")
    other = Spool(tmp_path / "other", once)
    other.take(EVENTS, 100.0)
    other.write_all()
    assert history.load("train") == once.load("train")
    once.close()


def test_what_comes_later_is_added(tmp_path: Path, history: SqlHistory) -> None:
    """A job written while it ran, and again when it was over, is whole in the log and once in the history."""
    spool = Spool(tmp_path / "kept", history)
    spool.take(EVENTS[: len(EVENTS) // 2], 100.0)
    assert len(spool.write_settled(100.0 + IDLE_S)) == 1
    before = len(history.load("train"))
    spool.take(EVENTS[len(EVENTS) // 2 :], 2000.0)
    assert len(spool.write_settled(2000.0 + SETTLE_S)) == 1
    rows = history.load("train")
    assert 0 < before < len(rows)
    assert len({(row.task, row.ended_at, row.phase, row.seconds) for row in rows}) == len(rows)


def test_events_of_a_collector_that_was_killed(tmp_path: Path, history: SqlHistory) -> None:
    """The next one finds them and writes the job."""
    Spool(tmp_path / "kept", history).take(EVENTS, 100.0)
    (path,) = Spool(tmp_path / "kept", history).write_all()
    assert len(read_run(path).records) > 50


def test_two_sessions_do_not_mix(tmp_path: Path, history: SqlHistory) -> None:
    """Every Ray counts its jobs from one; a session's name cannot lead out of the folder."""
    spool = Spool(tmp_path / "kept", history)
    spool.take(EVENTS, 100.0)
    spool.take([{**event, "sessionName": "../../elsewhere"} for event in EVENTS], 100.0)
    written = spool.write_all()
    assert len(written) == 2
    assert all((tmp_path / "kept") in path.resolve().parents for path in written)


def test_bad_input_does_no_harm(receiver: Receiver) -> None:
    """No JSON, no list, no length, too long, cut off, or a broken event among good ones: the good ones are kept."""
    assert post(receiver, b"{not json") == 400
    assert post(receiver, b"\xff\xfe") == 400
    assert post(receiver, b"[" * 100_000) == 400
    assert post(receiver, b'{"eventType": "x"}') == 400
    assert post(receiver, b"", **{"Content-Length": str(module.MOST_BODY_BYTES + 1)}) == 413
    assert post(receiver, b"", **{"Content-Length": "-1"}) == 411
    broken: list[Any] = [1, None, {"eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": {}}, {"eventType": []}]
    with socket.create_connection(receiver.server_address[:2]) as gone:  # type: ignore[arg-type]  # host and port
        gone.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n[")
    assert post(receiver, json.dumps([*broken, EVENTS[0]]).encode()) == 200
    assert (receiver.spool.events, receiver.spool.left_out) == (1, 4)


def test_disk_that_refuses_lets_ray_try_again(receiver: Receiver, tmp_path: Path) -> None:
    """503, so Ray keeps the batch; when the disk takes it, all of it is there."""
    folder = tmp_path / "kept" / SESSION
    folder.write_text("a file where the folder should be")
    assert post(receiver, json.dumps(EVENTS).encode()) == 503
    folder.unlink()
    assert post(receiver, json.dumps(EVENTS).encode()) == 200
    assert len(receiver.spool.write_all()) == 1


def test_command(tmp_path: Path) -> None:
    """`egs collect` says where it listens, keeps what is sent, and on SIGTERM writes it and ends with 0."""
    store = f"sqlite:///{tmp_path}/h.sqlite"
    command = [sys.executable, "-m", "egs_core.cli.app", "collect", "--listen", "127.0.0.1:0", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, env={**os.environ, "EGS_HISTORY": store}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert "RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR=http://127.0.0.1:" in first
        connection = http.client.HTTPConnection(first.split()[2].rstrip(";").removeprefix("http://"), timeout=150)
        connection.request("POST", "/", json.dumps(EVENTS))
        assert connection.getresponse().read() == b"kept"
        connection.request("GET", "/")
        assert json.loads(connection.getresponse().read())["events"] > 100
        connection.close()
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    assert "train-01000000.jsonl" in rest
    assert "durations in the history" in rest
    history = SqlHistory(store)
    assert history.pipelines() == ["train"]
    history.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "is no HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "is no HOST:PORT"),
        (["--listen", "256.1.1.1:0"], "cannot listen there"),
    ],
)
def test_errors(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    assert run(["collect", "--out", str(tmp_path / "kept"), *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_port_in_use_and_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is received."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["collect", "--out", str(tmp_path / "kept"), "--listen", place]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["collect", "--out", str(tmp_path / "file"), "--listen", "127.0.0.1:0"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_endless_job_stops_growing(tmp_path: Path, history: SqlHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one job may take on disk is bounded; what no longer fits is counted, other jobs go on."""
    monkeypatch.setattr("egs_ray.audit.spool.MOST_JOB_BYTES", 20_000)
    spool = Spool(tmp_path / "kept", history)
    for event in EVENTS * 3:
        spool.take([event], 100.0)
    size = (tmp_path / "kept" / SESSION / "01000000.events.jsonl").stat().st_size
    assert 20_000 < size < 25_000
    assert spool.left_out > 100
    assert len(spool.write_all()) == 1
