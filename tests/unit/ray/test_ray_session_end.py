"""What the hook waits for when a script ends: Ray's word on what has ended, and on nothing else. No Ray runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egs_ray import events, waiting
from egs_ray.gate.act import SOON_S, Orderer
from egs_ray.observe import FLUSH_S
from egs_ray.submission import Submission


class Gate:
    """Knows of tasks that have not ended."""

    def __init__(self, *unfinished: str) -> None:
        self._unfinished = set(unfinished)

    def unfinished(self) -> set[str]:
        return self._unfinished


def patience_s(tmp_path: Path, gate: Any, *tasks: tuple[str, float], is_told_soon: bool = True) -> float:
    """Of one that has seen these tasks, each with its GPUs, and has been told of no end."""
    made = Orderer(tmp_path / "log.jsonl")
    made.log.start_workload("w", time.time())
    for task, gpus in tasks:
        made.log.submitted(Submission(time.time(), task, "f", "task", gpus=gpus))
    made._ordering.gate = gate
    made._is_told_soon = is_told_soon
    found = made._patience_s()
    made.log.finish()
    return found


@pytest.fixture(params=["own", "other"])
def soon_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a task without a turn is waited for, on a Ray that the script has started and on another."""
    own = request.param == "own"
    monkeypatch.setattr(waiting, "has_started_ray", lambda: own)
    return SOON_S if own else FLUSH_S


def test_a_task_that_has_not_ended_is_not_waited_for(tmp_path: Path, soon_s: float) -> None:  # noqa: ARG001  # both
    """Its end will not come: a script with an endless GPU task took a second and a half to end, for nothing."""
    assert patience_s(tmp_path, Gate("running"), ("running", 1.0)) == 0.0


def test_a_gpu_task_that_has_ended_is_waited_for(tmp_path: Path, soon_s: float) -> None:  # noqa: ARG001  # both
    """Ray tells of it within its second: the run log needs when it ran."""
    assert patience_s(tmp_path, Gate("running"), ("running", 1.0), ("over", 1.0)) == FLUSH_S


def test_what_has_no_turn_is_waited_for_as_long_as_ray_takes_to_tell(tmp_path: Path, soon_s: float) -> None:
    """Nobody here knows whether it has ended; a Ray that tells ten times a second would have said so."""
    for gate in (Gate(), None):
        assert patience_s(tmp_path, gate, ("method", 0.0)) == soon_s
    assert patience_s(tmp_path, None, ("method", 0.0), is_told_soon=False) == FLUSH_S  # the user has said how often


def test_how_often_ray_tells_is_the_users_where_he_has_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the script starts after its session has nothing of it."""
    monkeypatch.delenv(events.REPORTS, raising=False)
    assert events.report_often()
    assert os.environ[events.REPORTS] == events.OFTEN_MS
    events.report_as_before()
    assert events.REPORTS not in os.environ
    monkeypatch.setenv(events.REPORTS, "5000")
    assert not events.report_often()
    events.report_as_before()
    assert os.environ[events.REPORTS] == "5000"


def test_a_session_ends_though_what_actors_told_cannot_be_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script's own `ray.shutdown` does not fail of it, and the rest of the session is ended."""
    closed: list[bool] = []

    def note_work() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    made = Orderer(tmp_path / "log.jsonl")
    desk: Any = SimpleNamespace(note_work=note_work, close=lambda: closed.append(True), ordered=0, groups=0)
    made._desk = desk
    made.session_ends()
    assert closed == [True]
    assert "no longer observing, the script is not affected: RuntimeError" in capsys.readouterr().err
