"""`airflow egs learn`: one line that says what is known now, and a file of durations for the ordering."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_airflow.history.learn import learn, run_learn
from egs_airflow.order.durations import durations_path, load_durations
from egs_core.errors import InputError
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
    """The first call learns all, the second finds nothing new, and the ordering reads the durations of REST."""
    assert learn(airflow.url) == (8, 1, 6)
    (fit,) = [row for row in airflow.data["instances"] if row["task_id"] == "fit"]
    assert load_durations(durations_path())["train"]["fit"] == pytest.approx(fit["duration"], abs=1e-3)
    run_learn(Namespace(url=airflow.url, user="", days=30.0))
    assert capsys.readouterr().out == f"0 new durations; 6 tasks of 1 DAGs are known, in {durations_path()}\n"


def test_a_broken_line_is_no_obstacle(airflow: RecordedAirflow, tmp_path: Path) -> None:
    """Lines of the listener that cannot be read are left out; REST has the durations all the same."""
    (tmp_path / "runlog").mkdir()
    (tmp_path / "runlog" / "tasks-1-host.jsonl").write_text("nonsense\n")
    assert learn(airflow.url).durations == 8


def test_no_airflow(airflow: RecordedAirflow, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody answers: one line and exit code 2; a folder that cannot be written is an InputError that names it."""
    with pytest.raises(SystemExit) as ended:
        run_learn(Namespace(url="http://127.0.0.1:1", user="", days=30.0))
    assert ended.value.code == 2
    assert "no answer from an Airflow 3" in capsys.readouterr().err
    (durations_path().parent.parent).mkdir(parents=True, exist_ok=True)
    durations_path().parent.write_text("a file")
    with pytest.raises(InputError, match=r"cannot be (read|written)"):
        learn(airflow.url)
