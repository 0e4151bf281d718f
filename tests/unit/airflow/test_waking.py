"""The scheduler's sleep, which ends when a task has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, insert

from egs_airflow import compat
from egs_airflow.executors import bell, reading, waking
from egs_airflow.executors.reading import End
from egs_airflow.executors.waking import Running, Runs, sleep_until
from egs_airflow.observe.listener import TaskListener


def test_news_end_the_sleep() -> None:
    """It sleeps to the end without news, and is over with the first news."""
    news = iter([False, False, True])
    asked = []

    def has_news() -> bool:
        asked.append(True)
        return next(news)

    sleep_until(has_news, 60.0)
    assert len(asked) == 3
    begin = time.monotonic()
    sleep_until(lambda: False, 0.05)
    assert time.monotonic() - begin >= 0.05


def test_an_end_is_news_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose process lives on after its end is told of once, so the scheduler does not spin until it is gone."""
    rows = {1: "running", 2: "running"}

    def ended(_connection: Any, ids: list[int]) -> list[End]:
        return [End(one, True, None) for one in ids if rows[one] == "success"]

    monkeypatch.setattr(reading, "ended", ended)
    monkeypatch.setattr(waking, "ASK_S", 0.0)
    monkeypatch.setattr(compat, "connect", _Connection)
    running = Running()
    running.note([SimpleNamespace(ti=SimpleNamespace(id=one)) for one in rows] + [SimpleNamespace()])
    assert not running.have_ended()
    rows[1] = "success"
    assert running.have_ended()
    assert not running.have_ended()
    assert running.ids == {2}


def test_the_database_is_not_asked_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement in ASK_S, and none where nothing runs."""
    asked: list[Any] = []

    def ended(_connection: Any, ids: list[int]) -> list[End]:
        asked.append(ids)
        return []

    monkeypatch.setattr(reading, "ended", ended)
    monkeypatch.setattr(compat, "connect", _Connection)
    running = Running()
    assert not running.have_ended()
    assert not asked
    running.note([SimpleNamespace(ti=SimpleNamespace(id=1))])
    monkeypatch.setattr(waking, "ASK_S", 60.0)
    running.asked_s = -100.0
    for _ in range(5):
        running.have_ended()
    assert asked == [[1]]


def test_a_task_that_rings_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fork of a fork, through Airflow's listener, when the task is over and not before; once for all that ring."""
    from egs_airflow.observe import listener

    monkeypatch.setattr(listener, "append", lambda _: None)
    asked: list[Any] = []

    def ended(_connection: Any, ids: list[int]) -> list[End]:
        asked.append(ids)
        return []

    monkeypatch.setattr(reading, "ended", ended)
    monkeypatch.setattr(compat, "connect", _Connection)
    monkeypatch.setattr(waking, "ASK_S", 3600.0)
    made = bell.hang()
    try:
        _in_fork(lambda: _in_fork(lambda: TaskListener().on_task_instance_running(SimpleNamespace())))
        assert not made.has_rung()

        def run() -> None:
            told = TaskListener()
            told.on_task_instance_running(SimpleNamespace())
            told.on_task_instance_success(SimpleNamespace())

        for _ in range(2):
            _in_fork(lambda: _in_fork(run))
        assert made.has_rung()
        assert not made.has_rung()
        running = Running()
        running.note([SimpleNamespace(ti=SimpleNamespace(id=1))])
        running.have_ended()
        running.have_ended()
        assert len(asked) == 1
        running.ask_now()
        running.have_ended()
        assert len(asked) == 2
    finally:
        bell.take_down()
    assert bell.hung is None


def test_a_tasks_own_file_is_not_written(tmp_path: Path) -> None:
    """Code that closes all files and opens its own: one of these has the number that the bell had."""
    made, path = bell.hang(), tmp_path / "own"

    def run() -> None:
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), made._writer)
        made.ring()

    try:
        _in_fork(run)
        assert path.read_bytes() == b""
        assert not made.has_rung()
    finally:
        bell.take_down()


def _in_fork(action: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_run_that_has_come_is_news_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A queued DAG run wakes the scheduler, also one that is younger than others that have to stay queued; none that
    runs, and none twice: the scheduler would never sleep."""
    from airflow.models.dagrun import DagRun

    engine = create_engine(f"sqlite:///{tmp_path / 'metadata.sqlite'}")
    monkeypatch.setattr(compat, "connect", engine.connect)
    monkeypatch.setattr(waking, "RUNS_S", 0.0)
    runs = Runs()
    with engine.connect() as connection:
        DagRun.__table__.create(connection)

        def add(number: int, state: str) -> None:
            own = {
                "id": number,
                "dag_id": "d",
                "run_id": str(number),
                "state": state,
                "clear_number": 0,
                "log_template_id": None,
            }
            own |= {"run_type": "manual", "run_after": datetime.now(UTC)}
            connection.execute(insert(DagRun.__table__).values(own))
            connection.commit()

        assert not runs.have_come()
        add(1, "running")
        assert not runs.have_come()
        add(2, "queued")
        assert runs.have_come()
        assert not runs.have_come()
        add(3, "queued")
        assert runs.have_come()
        assert not runs.have_come()
        monkeypatch.setattr(waking, "RUNS_S", 60.0)
        add(4, "queued")
        assert not runs.have_come()  # it was asked just now
    engine.dispose()


def test_the_schedulers_own_sleep_is_wrapped_and_given_back() -> None:
    """The real module of Airflow sleeps with ours, keeps the rest of its `time`, and has its own again in the end."""
    pytest.importorskip("airflow.jobs.scheduler_job_runner", reason="apache-airflow is not installed")
    from airflow.jobs import scheduler_job_runner

    assert compat.available("idle_sleep")
    slept: list[float] = []
    undo = compat.wrap_idle_sleep(slept.append)
    try:
        assert not compat.available("idle_sleep")  # not twice
        scheduler_job_runner.time.sleep(60.0)
        assert slept == [60.0]
        assert scheduler_job_runner.time.monotonic is time.monotonic
    finally:
        undo()
    assert scheduler_job_runner.time is time


class _Connection:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
