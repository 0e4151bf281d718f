"""What all components share: read when it is new, by one thread, from Airflow's own table or through the supervisor."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection

pytest.importorskip("airflow", reason="apache-airflow is not installed")

from egs_airflow.order.durations import UNREADABLE, current_durations, packed, unpacked
from egs_airflow.shared import DURATIONS, FAILED_S, Reader, Shared
from tests.unit.airflow.metadata import put


def test_a_long_text_is_read_when_it_is_another(metadata: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decrypted as Airflow stores it; a look at an unchanged one asks for its description and length only."""
    from airflow.models import crypto
    from cryptography.fernet import Fernet

    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    monkeypatch.setattr("airflow.models.variable.get_fernet", crypto.get_fernet.__wrapped__)
    monkeypatch.setattr("airflow.models.crypto.get_fernet", crypto.get_fernet.__wrapped__)
    reader = Reader(DURATIONS)
    assert reader() is None
    put(metadata, DURATIONS, "one", "what")
    asked: list[str] = []
    event.listen(metadata.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    assert [reader(), reader(), reader()] == ["one"] * 3
    assert [text.startswith("SELECT variable.val") for text in asked] == [False, True, False, False]
    assert reader.description() == "what"
    put(metadata, DURATIONS, "two", "what")
    assert reader() == "two"


def test_in_a_process_that_reads_dag_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks its supervisor, and not the database, which Airflow forbids there."""
    from airflow.sdk.execution_time import task_runner

    asked: list[str] = []

    def get(key: str, default: str | None = None) -> str | None:
        asked.append(key)
        return {"here": "text"}.get(key, default)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(), raising=False)
    monkeypatch.setattr("airflow.sdk.Variable.get", get)
    monkeypatch.setattr("egs_airflow.compat.connect", None)
    assert (Reader("here")(), Reader("gone")()) == ("text", None)
    assert asked == ["here", "gone"]


def test_what_cannot_be_read_leaves_what_was_known(caplog: pytest.LogCaptureFixture) -> None:
    """With one warning, and a pause; another thread that asks meanwhile gets what is known at once."""
    now, answers, asked = [0.0], ["1"], [0]
    began, go_on = threading.Event(), threading.Event()

    def read() -> str:
        asked[0] += 1
        if answers[0] == "slow":
            began.set()
            assert go_on.wait(240)
            return "3"
        if not answers[0]:
            raise OSError("no answer")
        return answers[0]

    shared = Shared(read, int, 0, 1.0, lambda: now[0])
    assert (shared.current(), shared.current(), asked) == (1, 1, [1])
    now[0], answers[0] = 2.0, ""
    assert shared.current() == 1
    assert [record.getMessage() for record in caplog.records] == [
        "egs: what is shared cannot be read, and what was known stands: no answer"
    ]
    now[0] += FAILED_S - 0.1
    assert (shared.current(), asked) == (1, [2])
    now[0], answers[0] = 100.0, "slow"
    thread = threading.Thread(target=shared.current)
    thread.start()
    assert began.wait(240)
    now[0] = 200.0
    assert (shared.current(), asked) == (1, [3])
    go_on.set()
    thread.join()
    assert shared.current() == 3


def test_durations_travel_packed(metadata: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """As they are, whatever tasks are called; JSON that a person wrote is taken too; what is damaged teaches nothing,
    with a warning. Where task instances are made it is the same object until it changes."""
    known = {"dag": {"token_count": 1.5, "b": 2.0}}
    text = packed(known)
    assert "token" not in text
    assert unpacked(text) == known
    assert unpacked('{"format": "egs-airflow-durations", "version": 1, "dags": {"d": {"t": 1}}}') == {"d": {"t": 1.0}}
    for bad in ("", "{", "nonsense", text[:-8], "x" + text):
        assert unpacked(bad) is UNREADABLE
    assert "Variable egs_durations of this Airflow: no durations can be read from it" in caplog.text
    put(metadata, DURATIONS, text, "")
    assert current_durations() == known
    assert current_durations() is current_durations()
