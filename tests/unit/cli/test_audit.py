"""`egs audit` from the command line, on run logs: tables, JSON, forecasts kept and compared, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from egs_core.cli.app import run
from egs_core.runlog.io import read_run, write_run
from egs_core.runlog.records import TaskAdded
from tests.unit.audit.contended import ran

Out = pytest.CaptureFixture[str]


@pytest.fixture
def native(tmp_path: Path) -> str:
    """A run log without EGS."""
    return _log(tmp_path / "native.jsonl", "fifo", jobs=2)


def _log(path: Path, policy: str, jobs: int = 1) -> str:
    observed = ran(policy, jobs=jobs)
    write_run(path, observed.header, observed.records)
    return str(path)


def test_tables(native: str, capsys: Out) -> None:
    """What was held and wasted, by job and task, why tasks waited, and the forecast with its band."""
    assert run(["audit", native, "--gpu-price", "3600"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("2 jobs, 20 tasks", "wastage ratio of GPUs", "train-0", "leaf", "no free GPU while leaf", "band"):
        assert part in shown, part
    assert "cost: 18.00 held, 0.00 of it wasted" in shown


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: Out) -> None:
    """Names that look like markup are neither read as such nor left out."""
    observed = ran()
    records = [
        msgspec.structs.replace(r, name="[/a][red]") if isinstance(r, TaskAdded) else r for r in observed.records
    ]
    write_run(tmp_path / "log.jsonl", msgspec.structs.replace(observed.header, label="[/l]"), records)
    assert run(["audit", str(tmp_path / "log.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert "[/a][red]" in shown
    assert "[/l]: 1 job" in shown


def test_json(native: str, capsys: Out) -> None:
    """One object with the same sums as the tables; of several logs one each."""
    assert run(["audit", native, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["total"]["held_s"] == pytest.approx(18)
    assert sum(row["held_s"] for row in shown["by_job"]) == pytest.approx(18)
    assert shown["total"]["wasted_s"] == pytest.approx(shown["total"]["cold_s"] + shown["total"]["idle_s"])
    assert shown["forecast"]["makespan_s"]["low"] <= shown["forecast"]["makespan_s"]["expected"]
    assert run(["audit", native, native, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["audits"]) == 2


def test_one_job(native: str, capsys: Out) -> None:
    """`--job` leaves the others out; one that is not there is an error with the nearest name."""
    assert run(["audit", native, "--job", "train-1", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["by_job"]] == ["train-1"]
    assert run(["audit", native, "--job", "trian-1"]) == 2
    assert "no job 'trian-1'" in capsys.readouterr().err


def test_forecast_is_kept_and_compared(tmp_path: Path, capsys: Out) -> None:
    """What EGS reaches in the simulator lies in the band of the forecast from the native log, the makespan by 5 s."""
    forecast = str(tmp_path / "forecast.json")
    before, after = _log(tmp_path / "before.jsonl", "fifo"), _log(tmp_path / "after.jsonl", "egs")
    assert run(["audit", before, "--forecast-out", forecast]) == 0
    capsys.readouterr()
    assert run(["audit", "--compare", forecast, after, "--json"]) == 0
    figures = {row["figure"]: row for row in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["makespan_s"]["achieved"] == pytest.approx(9)
    assert all(row["in_band"] for row in figures.values())
    assert run(["audit", "--compare", forecast, after]) == 0
    assert capsys.readouterr().out.count("in the band") == 3


def test_a_forecast_is_not_compared_with_a_run_of_other_tasks(tmp_path: Path, capsys: Out) -> None:
    """A history of two jobs against a run of one: exit code 2, and the line names what differs."""
    forecast = str(tmp_path / "forecast.json")
    before, after = _log(tmp_path / "before.jsonl", "fifo", jobs=2), _log(tmp_path / "after.jsonl", "egs")
    assert run(["audit", before, "--forecast-out", forecast]) == 0
    capsys.readouterr()
    assert run(["audit", "--compare", forecast, after]) == 2
    said = capsys.readouterr().err
    assert "is not of the same tasks: 20 tasks in the forecast, 10 in" in said
    assert "only in the forecast: " in said


def test_page_and_run_log(native: str, tmp_path: Path, capsys: Out) -> None:
    """`-o` writes the history as a page, `--runlog` as a run log that can be read again."""
    page, log = tmp_path / "page.html", tmp_path / "copy.jsonl"
    assert run(["audit", native, "-o", str(page), "--runlog", str(log), "--json"]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert read_run(log).records == read_run(native).records
    assert json.loads(capsys.readouterr().out)["jobs"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "or RUNLOG...; of a site server: egs cost)"),
        (["{log}", "--events", "{folder}"], "needs one source"),
        (["{folder}/none.jsonl"], "no such file"),
        (["{log}", "--gpu-price", "-1"], "--gpu-price"),
        (["{log}", "--seeds", "1000"], "--seeds"),
        (["{log}", "--most-tasks", "0"], "--most-tasks"),
        (["{log}", "--forecast-out", "{folder}/no/such/f.json"], "cannot be written"),
        (["--compare", "{folder}/none.json", "{log}"], "no such file"),
        (["--compare", "{log}", "{log}"], "not a forecast"),
        (["--compare", "{log}"], "needs one run log"),
        (["--events", "{folder}/none"], "no such file or folder"),
        (["--events", "{empty}"], "has no event files"),
        (["--events", "{log}"], "no event of Ray"),
        (["--ray", "ftp://host"], "not the address of a Ray dashboard"),
        (["--ray", "http://127.0.0.1:1"], "no answer from a Ray dashboard"),
        (["--ray", "http://127.0.0.1:99999"], "is no address"),
    ],
)
def test_errors_are_one_line(arguments: list[str], said: str, native: str, tmp_path: Path, capsys: Out) -> None:
    """Each kind of bad input is one line on stderr and exit code 2."""
    (tmp_path / "empty").mkdir()
    places = {"log": native, "folder": str(tmp_path), "empty": str(tmp_path / "empty")}
    assert run(["audit", *(argument.format(**places) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_comparing_a_native_run_is_refused(native: str, tmp_path: Path, capsys: Out) -> None:
    """A forecast of EGS says nothing about a run without it."""
    forecast = str(tmp_path / "forecast.json")
    assert run(["audit", native, "--forecast-out", forecast, "--json"]) == 0
    capsys.readouterr()
    assert run(["audit", "--compare", forecast, native]) == 2
    assert "mode off" in capsys.readouterr().err
