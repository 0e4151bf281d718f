"""The gate that keeps slots fails, pauses and works again; and what another process sees of that."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow", reason="apache-airflow is not installed")

from egs_airflow import config
from egs_airflow.executors import gate as gate_module
from egs_airflow.executors import reading
from egs_airflow.executors.gate import MOST_SHAPES, Gate
from egs_airflow.executors.health import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    PATTERN,
    SILENT_S,
    Reporter,
    drop_dead,
    event_of,
    newest,
    read_states,
)


class Clock:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """It stands at 0."""
    return Clock()


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """What was logged."""
    return []


@pytest.fixture
def gate(clock: Clock, events: list[dict[str, Any]]) -> Gate:
    """A gate that has been given one task."""
    made = Gate(lambda **event: events.append(event), clock=clock)
    made.last_key = "key"
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the gate's files."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "egs" / "airflow"


def fail() -> None:
    """What breaks."""
    raise SystemExit("the database is locked")


def workload(number: int) -> Any:
    """A task of a DAG version of its own."""
    key = SimpleNamespace(dag_id="dag", task_id="first")
    ti = SimpleNamespace(id=number, key=key, dag_version_id=f"v{number}", external_executor_id=None)
    return SimpleNamespace(ti=ti)


def test_more_dag_versions_than_are_kept(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of tasks that run stay, however many; of others the oldest go. Nothing fails."""
    shape = reading.Shape({"first": ["second"], "second": []})
    monkeypatch.setattr(gate_module, "_shape_of", lambda *_: shape)
    for number in range(MOST_SHAPES + 88):
        gate.guard(partial(gate.note, workload(number)))
        gate.guard(gate.learn)
    assert gate.health.faults == 0
    assert len(gate.started) == len(gate.shapes) == MOST_SHAPES + 88
    for number in range(MOST_SHAPES + 80):
        del gate.started[number]
    gate.guard(gate.learn)
    assert len(gate.shapes) == MOST_SHAPES
    assert {task.version for task in gate.started.values()} <= gate.shapes.keys()


def test_a_fault_is_a_pause_that_grows_and_ends(gate: Gate, clock: Clock, events: list[dict[str, Any]]) -> None:
    """Nothing is tried while it lasts; each fault makes the next pause longer, to an end; and when the gate has worked
    for as long as the last pause, that is said, and the next fault begins anew."""
    calls: list[float] = []
    pauses = []
    for _ in range(9):
        gate.guard(fail)
        gate.guard(lambda: calls.append(clock.now_s))
        pauses.append(gate.health.pause_s)
        clock.now_s = gate.health.again_s
    assert calls == []
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    gate.guard(lambda: calls.append(clock.now_s))
    gate.check_recovery()
    assert calls == [clock.now_s]
    assert gate.health.problem
    clock.now_s += LONGEST_PAUSE_S
    gate.check_recovery()
    gate.check_recovery()
    assert not gate.health.problem
    assert [json.loads(event["extra"])["problem"] for event in events] == ["SystemExit: the database is locked"] * 9 + [
        ""
    ]
    gate.guard(fail)
    assert gate.health.pause_s == FIRST_PAUSE_S


def test_a_fault_leaves_the_pools_as_airflow_counts_them(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of the scheduler's pass, as one warning."""
    config.warn.cache_clear()
    pools: dict[str, Any] = {"p": {"scheduled": 1, "open": 1}}  # without a total, which the gate needs
    gate.guard(lambda: gate.adjust(pools))
    assert pools == {"p": {"scheduled": 1, "open": 1}}
    assert gate.health.is_paused
    assert len([one for one in caplog.records if one.name == "egs_airflow"]) == 1


def test_the_scheduler_can_be_ended_in_the_middle_of_the_gate(gate: Gate) -> None:
    """Airflow's handler of SIGTERM raises SystemExit(0) wherever the scheduler is; a fault of EGS is another."""

    def leave() -> None:
        sys.exit(os.EX_OK)

    with pytest.raises(SystemExit):
        gate.guard(leave)
    assert gate.health.faults == 0


def test_another_process_sees_the_gate(gate: Gate, clock: Clock, home: Path) -> None:
    """`airflow egs doctor` reads what the scheduler has written: it works, it is paused and why, it works again."""
    reporter = Reporter(gate.health)
    program = "import sys, time; from egs_airflow.executors.health import read_states\n"
    program += "for _ in sys.stdin: print([state.check(time.time()) for state in read_states(time.time())], flush=True)"
    who = f"scheduler {os.getpid()} on {socket.gethostname()}"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        def seen() -> str:
            assert other.stdin is not None
            assert other.stdout is not None
            reporter.tick()
            print(file=other.stdin, flush=True)
            return other.stdout.readline()

        assert f"[(True, '{who} works')]" in seen()
        gate.guard(fail)
        clock.now_s -= 1000.0  # the other process may be slow
        assert f"[(False, '{who}: paused, tries again in " in (said := seen())
        assert "(fault 1: SystemExit: the database is locked)" in said
        clock.now_s = gate.health.again_s + gate.health.pause_s
        gate.check_recovery()
        assert f"[(True, '{who} works, after faults: 1')]" in seen()
        gate.health.missing["gangs"] = "no gang is kept together"
        assert "gangs off: no gang is kept together" in seen()
    reporter.close()
    assert list(home.iterdir()) == []


def test_files_of_schedulers_that_are_gone(gate: Gate, home: Path) -> None:
    """One whose process is gone is not told of, and removed by the next scheduler; one that says nothing any more is
    told of; what is no such file is left alone."""
    Reporter(gate.health).tick()
    (own,) = home.glob(PATTERN)
    stored = json.loads(own.read_text())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (home / "gate-here-1.json").write_text(json.dumps(stored | {"pid": ended.pid}))
    (home / "gate-here-2.json").write_text("{")
    (state,) = read_states(time.time())
    assert state.pid == os.getpid()
    is_well, said = state.check(state.at + SILENT_S + 1)
    assert (is_well, "has said nothing for 121 s" in said) == (False, True)
    drop_dead()
    assert sorted(path.name for path in home.iterdir()) == sorted([own.name, "gate-here-2.json"])


def test_a_gate_that_cannot_write_is_one_warning(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler goes on."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    reporter = Reporter(gate.health)
    for _ in range(3):
        gate.guard(fail)
        reporter.tick()
    assert len([one for one in caplog.records if "cannot see whether slots are kept" in one.getMessage()]) == 1


def test_events_tell_where_there_is_no_file(gate: Gate, clock: Clock) -> None:
    """With another home: the newest event of each scheduler; an old pause without another word is no news."""
    gate.guard(fail)
    paused = event_of(gate.health)
    (state,) = newest([(100.0, paused), (90.0, "nonsense"), (95.0, "{}")], 102.0)
    assert state.check(102.0)[1].endswith("paused, tries again in 3 s (fault 1: SystemExit: the database is locked)")
    assert newest([(100.0, paused)], 100.0 + 2 * LONGEST_PAUSE_S + 1) == []
    clock.now_s = 100.0
    gate.check_recovery()
    (state,) = newest([(110.0, event_of(gate.health)), (100.0, paused)], 5000.0)
    assert state.check(5000.0)[0]
