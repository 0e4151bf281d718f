"""`airflow egs learn`: one line that says what is known now, and durations where the ordering reads them."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_airflow.history.learn import learn, run_learn
from egs_airflow.order.durations import Known, load_durations, of_rest
from egs_airflow.rest import Rest
from egs_core.errors import InputError
from egs_core.history.opened import open_history
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedAirflow]:
    """An Airflow that answers as recorded, and folders of the test's own."""
    for name in ("AIRFLOW_CLI_TOKEN", "EGS_AIRFLOW_USER", "EGS_POOLS", "EGS_DURATIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EGS_HISTORY", f"sqlite:///{tmp_path / 'history.sqlite'}")
    monkeypatch.setenv("EGS_RUNLOG", str(tmp_path / "runlog"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with recorded_airflow() as server:
        yield server


def test_learns_what_ran(airflow: RecordedAirflow, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call learns all, the second finds nothing new; what is learned is a Variable of that Airflow, made by
    the first and changed by the second. Where only the history is to know it, no request changes anything."""
    rest = Rest(airflow.url)
    learn(airflow.url, tells=False)
    assert [method for method, _ in airflow.requests if method != "GET"] == []
    assert of_rest(rest).current() == {}
    assert learn(airflow.url) == (0, 1, 6)
    (fit,) = [row for row in airflow.data["instances"] if row["task_id"] == "fit"]
    assert of_rest(rest).current()["train"]["fit"] == pytest.approx(fit["duration"], abs=1e-3)
    told = of_rest(rest).current()
    assert isinstance(told, Known)
    assert told.p95["train"].keys() == told["train"].keys()
    assert told.p95["train"]["fit"] > told["train"]["fit"], "one run says little of the next"
    said = airflow.variables["egs_durations"]["description"]
    assert re.fullmatch(r"EGS: how long 6 tasks of 1 DAGs take, learned on .* UTC \[[0-9a-f]{8}\]", said)
    run_learn(Namespace(url=airflow.url, user="", days=30.0, history_only=False))
    where = "Variable egs_durations of this Airflow"
    assert capsys.readouterr().out == f"0 new durations; 6 tasks of 1 DAG are known, in {where}\n"
    assert [method for method, path in airflow.requests if "variables" in path and method != "GET"] == [
        "PATCH",
        "POST",
        "PATCH",
    ]


def test_durations_are_of_the_flavor_of_their_pool(
    airflow: RecordedAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the option says it, so that `egs advise` can compare; the ordering is told one duration a task as ever."""
    monkeypatch.setenv("EGS_POOLS", "gpus=2")
    monkeypatch.setenv("EGS_POOL_FLAVORS", "gpus=A100")
    assert learn(airflow.url) == (8, 1, 6)
    store = open_history(f"sqlite:///{tmp_path / 'history.sqlite'}")
    assert {(row.flavor, row.shape.gpu_milli > 0) for row in store.load("train")} == {("A100", True), ("", False)}
    (fit,) = [row for row in airflow.data["instances"] if row["task_id"] == "fit"]
    assert of_rest(Rest(airflow.url)).current()["train"]["fit"] == pytest.approx(fit["duration"], abs=1e-3)


def test_a_file_for_what_was_learned(airflow: RecordedAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the option names one, nothing is written into that Airflow."""
    monkeypatch.setenv("EGS_DURATIONS", str(tmp_path / "durations.json"))
    assert learn(airflow.url) == (8, 1, 6)
    assert len(load_durations(tmp_path / "durations.json")["train"]) == 6
    assert [method for method, _ in airflow.requests if method != "GET"] == []


def test_a_broken_line_is_no_obstacle(airflow: RecordedAirflow, tmp_path: Path) -> None:
    """Lines of the listener that cannot be read are left out; REST has the durations all the same."""
    (tmp_path / "runlog").mkdir()
    (tmp_path / "runlog" / "tasks-1-host.jsonl").write_text("nonsense\n")
    assert learn(airflow.url).durations == 8


def test_no_airflow(airflow: RecordedAirflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody answers: one line and exit code 2; a folder that cannot be written is an InputError that names it."""
    with pytest.raises(SystemExit) as ended:
        run_learn(Namespace(url="http://127.0.0.1:1", user="", days=30.0, history_only=False))
    assert ended.value.code == 2
    assert "no answer from an Airflow 3" in capsys.readouterr().err
    (tmp_path / "egs").mkdir(exist_ok=True)
    (tmp_path / "egs" / "airflow").write_text("a file")
    with pytest.raises(InputError, match=r"cannot be (read|written)"):
        learn(airflow.url)
