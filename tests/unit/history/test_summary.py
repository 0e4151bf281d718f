"""`egs history`: what is told of tasks, and how a history that is empty, odd or broken is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.sqlite import SqliteHistory
from egs_core.history.summary import Week, percentile, summarise

Out = pytest.CaptureFixture[str]
MONDAY = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
DAY = 86400.0


def row(task: str, seconds: float, day: float = 0.0, pipeline: str = "train", **more: object) -> HistoryRow:
    fields: dict[str, object] = {"phase": 0, "shape": Shape(1000, 1000), "framework": "ray"} | more
    return HistoryRow(pipeline=pipeline, task=task, seconds=seconds, ended_at=MONDAY + day * DAY, **fields)  # type: ignore[arg-type]  # of one test each


def test_a_phase_of_a_task_is_a_line() -> None:
    """How often, how long, how often cold and for how long then, when last; by name."""
    rows = [row("fit", float(n), n / 10, warmup_s=4.0 if n == 3 else 0.0) for n in range(1, 21)]
    load, fit, second = summarise([*rows, row("fit", 9.0, phase=1, shape=Shape(500, 0)), row("a load", 2.0)])
    assert (load.task, load.runs, load.p95_s) == ("a load", 1, 2.0)
    assert (fit.runs, fit.median_s, fit.p95_s) == (20, 10.5, 19.0)
    assert (fit.cold, fit.cold_median_s, fit.last_at, fit.gpus) == (1, 4.0, MONDAY + 2 * DAY, 1.0)
    assert (second.phase, second.gpus, second.cold_median_s) == (1, 0.0, None)


def test_runs_in_phases_and_as_one_gpu_phase_are_lines_apart() -> None:
    """Both have a phase 0: one on CPUs, the other with the GPU all along; neither's durations are the other's."""
    split = [row("fit", 1.0, day, shape=Shape(1000, 0)) for day in range(4)]
    native = [row("fit", 10.0, day) for day in range(8)]
    on_cpu, whole = summarise([*native, *split])
    assert (on_cpu.phase, on_cpu.gpus, on_cpu.runs, on_cpu.median_s) == (0, 0.0, 4, 1.0)
    assert (whole.phase, whole.gpus, whole.runs, whole.median_s) == (0, 1.0, 8, 10.0)


def test_trends_are_by_weeks_that_begin_on_monday() -> None:
    """In UTC; the last with runs against the one with runs before it, whatever lies between."""
    rows = [row("fit", 10.0, -0.001), row("fit", 20.0, 0.0), row("fit", 30.0, 6.999), row("fit", 50.0, 21.0)]
    (found,) = summarise(rows, weeks=2)
    assert found.weeks == (Week("2026-11-02", 2, 25.0), Week("2026-11-23", 1, 50.0))
    assert found.change == pytest.approx(1.0)
    (alone,) = summarise(rows[1:2])
    assert (alone.change, alone.weeks) == (None, ())


@pytest.mark.parametrize(
    ("values", "median", "p95"), [([3.0], 3.0, 3.0), ([1.0, 3.0], 2.0, 3.0), ([0.0] * 5, 0.0, 0.0)]
)
def test_percentiles_of_few_values(values: list[float], median: float, p95: float) -> None:
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (median, p95)


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = SqliteHistory(tmp_path / "history.sqlite")
    rows = [
        row("fit", 10.0, 0),
        row("fit", 30.0, 8, warmup_s=2.0),
        row("[red]load", 1.0),
        row("eval", 5.0, pipeline="test"),
    ]
    assert store.record(rows) == 4
    store.close()
    return f"sqlite:///{tmp_path}/history.sqlite"


def test_the_command_tells_all_or_what_is_asked_for(url: str, capsys: Out) -> None:
    """By pipeline and task, with * for anything; JSON has moments that machines read."""
    assert run(["history", "--history", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["pipeline"], one["task"]) for one in told["tasks"]] == [
        ("test", "eval"),
        ("train", "[red]load"),
        ("train", "fit"),
    ]
    assert told["tasks"][2] == {
        "pipeline": "train",
        "task": "fit",
        "phase": 0,
        "framework": "ray",
        "gpus": 1.0,
        "runs": 2,
        "median_s": 20.0,
        "p95_s": 30.0,
        "cold": 1,
        "cold_median_s": 2.0,
        "last_at": "2026-11-10T00:00:00+00:00",
        "change": 2.0,
    }
    assert run(["history", "tr*", "--task", "f*", "--weeks", "3", "--history", url, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tasks"]
    assert one["weeks"] == [
        {"monday": "2026-11-02", "runs": 1, "median_s": 10.0},
        {"monday": "2026-11-09", "runs": 1, "median_s": 30.0},
    ]


def test_a_table_shows_names_as_they_are(url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup in a name is text; a row is a line where the output is a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's own processes have: rows would be folded
    assert run(["history", "--history", url, "--weeks", "4"]) == 0
    shown = capsys.readouterr().out
    assert "[red]load" in shown
    assert "+200%" in shown
    assert "▃█" in shown
    assert run(["history", "--history", url, "--task", "none"]) == 0
    assert capsys.readouterr().out == "no such task\n"


def test_no_history_is_no_error_and_a_broken_one_is_a_line(url: str, tmp_path: Path, capsys: Out) -> None:
    """An empty one says how it fills; a name that is near is offered; a file that is none is one line, code 2."""
    assert run(["history", "--history", f"sqlite:///{tmp_path}/none.sqlite"]) == 0
    assert "nothing is known yet" in capsys.readouterr().out
    assert run(["history", "trian", "--history", url]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    (tmp_path / "broken.sqlite").write_bytes(b"this is no database" * 1000)
    assert run(["history", "--history", f"sqlite:///{tmp_path}/broken.sqlite"]) == 2
    shown = capsys.readouterr()
    assert "broken.sqlite: cannot be read: " in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
