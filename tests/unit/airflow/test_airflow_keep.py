"""Durations from REST into the history: all at first, then what is new, none twice, and none lost by a bad store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_airflow.history.keep import keep_history, learned
from egs_airflow.observe.lines import Line
from egs_airflow.rest import Rest, connect
from egs_core.errors import InputError
from egs_core.history.sql import SqlHistory
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow


@pytest.fixture
def airflow() -> Iterator[RecordedAirflow]:
    """An Airflow that answers as recorded."""
    with recorded_airflow() as server:
        yield server


@pytest.fixture
def rest(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> Rest:
    """Connected to it."""
    for name in ("AIRFLOW_CLI_TOKEN", "EGS_AIRFLOW_USER"):
        monkeypatch.delenv(name, raising=False)
    return connect(airflow.url)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqlHistory]:
    """An empty history."""
    store = SqlHistory.in_folder(tmp_path)
    yield store
    store.close()


def test_at_first_all_then_what_is_new(
    rest: Rest, airflow: RecordedAirflow, history: SqlHistory, tmp_path: Path
) -> None:
    """The first call keeps what succeeded, the next one nothing; a run that ends later comes with the call after."""
    state = tmp_path / "kept.json"
    late = [row for row in airflow.data["instances"] if row["task_id"] == "fit"]
    airflow.data["instances"] = [row for row in airflow.data["instances"] if row["task_id"] != "fit"]
    assert keep_history(rest, history, state, ["gpus"]) == 7
    assert keep_history(rest, history, state, ["gpus"], settle_s=1.0) == 0
    kept = state.read_bytes()
    airflow.data["instances"] += late
    state.write_bytes(kept.replace(kept[kept.rindex(b":") + 1 : kept.index(b"}")], b"0"))  # as if looked at before
    assert keep_history(rest, history, state, ["gpus"]) == 8
    names = [row.task for row in history.load("train")]
    assert (names.count("fit"), names.count("leaf"), names.count("flaky")) == (1, 6, 2)


def test_durations_are_those_of_rest(rest: Rest, airflow: RecordedAirflow, history: SqlHistory, tmp_path: Path) -> None:
    """A row has REST's duration, its pool's GPUs, and when it ended; the ordering gets a duration for each task."""
    keep_history(rest, history, tmp_path / "kept.json", ["gpus"])
    (row,) = [row for row in history.load("train") if row.task == "fit"]
    (told,) = [row for row in airflow.data["instances"] if row["task_id"] == "fit"]
    assert row.seconds == pytest.approx(told["duration"], abs=1e-3)
    assert (row.framework, row.shape.gpu_milli, row.shape.cpu_milli) == ("airflow", 2000, 0)
    expected = learned(history)["train"]
    assert set(expected) == {"choose", "fit", "flaky", "kept", "leaf", "prepare"}
    assert expected["fit"] == pytest.approx(row.seconds)


def test_cold_starts_are_no_part_of_a_duration(rest: Rest, history: SqlHistory, tmp_path: Path) -> None:
    """Where the listener noted when the user's code began, the time before is the cold start."""
    keep_history(rest, history, tmp_path / "kept.json")
    (row,) = [row for row in history.load("train") if row.task == "fit"]
    run = next(iter(rest.rows("dags/~/dagRuns", "dag_runs")))["dag_run_id"]
    code_s = row.ended_at - 1.5
    line = Line(1, "train", run, "fit", -1, 1, "success", "gpus", 2, row.ended_at - row.seconds, code_s, row.ended_at)
    again = SqlHistory.in_folder(tmp_path / "again")
    keep_history(rest, again, tmp_path / "again.json", lines=[line])
    (warm,) = [row for row in again.load("train") if row.task == "fit"]
    again.close()
    assert warm.seconds == pytest.approx(1.5, abs=1e-4)
    assert warm.seconds + warm.warmup_s == pytest.approx(row.seconds, abs=1e-4)


def test_a_store_that_keeps_nothing_loses_nothing(rest: Rest, history: SqlHistory, tmp_path: Path) -> None:
    """Where the history cannot be written that is said, and the next call begins at the same place."""
    state = tmp_path / "kept.json"
    with pytest.raises(InputError, match="keeps nothing"):
        keep_history(rest, SqlHistory("sqlite:////dev/null/none.sqlite"), state)
    assert not state.exists()
    assert keep_history(rest, history, state) == 8


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is no state"), (b'{"format":"x"}', "is unknown"), (b'{"until_s":{"a":"b"}}', "is no state")],
)
def test_bad_state(content: bytes, said: str, rest: Rest, history: SqlHistory, tmp_path: Path) -> None:
    """A state file that is none is said, and left as it was."""
    state = tmp_path / "kept.json"
    state.write_bytes(content)
    with pytest.raises(InputError, match=said):
        keep_history(rest, history, state)
    assert state.read_bytes() == content
