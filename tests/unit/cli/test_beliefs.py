"""`egs simulate --durations predicted --history …`: every kind of history gives the same beliefs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core.cli import app
from egs_core.cli.beliefs import estimator_of
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload, save_workload
from egs_core.history import history_from_runlog
from egs_core.history.sql import SqlHistory
from egs_core.runlog.io import read_run


def workload_file(path: Path, long_s: float) -> str:
    """A fan of three short chains and one that starts alike and is long; the long one is listed last."""
    graph = Graph()
    for name, seconds in (("short", 1.0), ("short", 1.0), ("short", 1.0), ("long", long_s)):
        graph.add_task(f"{name}-{graph.n_tasks}", (), ((CPU, Shape(), seconds),), name=name)
    save_workload(LoadedWorkload("fan", "fan", "", "", 0.0, graph), path)
    return str(path)


def makespan(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    """What `egs simulate --json` on two slots says."""
    assert app.run(["simulate", *words, "--slots", "2", "--json"]) == 0
    return float(json.loads(capsys.readouterr().out)["makespan_s"])


@pytest.fixture
def histories(tmp_path: Path) -> dict[str, str]:
    """The same past run as a workload file, as a run log and as a database."""
    past, log, base = workload_file(tmp_path / "past.json", 8.0), tmp_path / "past.jsonl", tmp_path / "past.sqlite"
    assert app.run(["simulate", past, "--slots", "2", "--runlog", str(log), "--json"]) == 0
    store = SqlHistory(f"sqlite:///{base}")
    store.record(history_from_runlog(read_run(log).records))
    store.close()
    return {"workload": past, "log": str(log), "database": str(base), "url": f"sqlite:///{base}"}


@pytest.mark.parametrize("kind", ["workload", "log", "database", "url"])
def test_any_history_puts_the_long_task_first(
    kind: str, histories: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blind, the long task starts last: 1 + 9 s. With a history of it: 9 s."""
    now = workload_file(tmp_path / "now.json", 9.0)
    capsys.readouterr()
    assert makespan(capsys, now, "--durations", "blind") == 10.0
    assert makespan(capsys, now, "--durations", "predicted", "--history", histories[kind]) == 9.0


def test_beliefs_follow_the_input_size(tmp_path: Path) -> None:
    """A past workload of another name whose tasks took 1 s for each MB: a larger input is believed to take longer."""
    past, now = Graph(), Graph()
    for number in range(80):
        megabytes = 1 + 17 * number % 40
        add_reader(past, megabytes * 10**6, float(megabytes))
    for megabytes in (3, 30):
        add_reader(now, megabytes * 10**6, None)
    save_workload(LoadedWorkload("past", "past", "", "", 0.0, past), tmp_path / "past.json")
    believe = estimator_of([str(tmp_path / "past.json")], ["now"])
    workload = LoadedWorkload("now", "now", "", "", 0.0, now)
    small, large = (believe(workload, phase)[0] for phase in range(2))
    assert small == pytest.approx(3.0, rel=0.4)
    assert large == pytest.approx(30.0, rel=0.4)


def add_reader(graph: Graph, size_bytes: int, seconds: float | None) -> None:
    """A task `read` with one input file."""
    task = graph.add_task(f"read-{graph.n_tasks}", (), ((CPU, Shape(), seconds),), name="read")
    graph.inputs[task] = (len(graph.file_ids),)
    graph.file_ids.append(f"file-{task}")
    graph.file_sizes.append(size_bytes)


@pytest.mark.parametrize("history", ["missing.sqlite", ".", "garbage.bin"])
def test_a_bad_history_is_one_line(
    history: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and the line names the place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.bin").write_bytes(bytes(range(256)))
    now = workload_file(tmp_path / "now.json", 9.0)
    words = ["simulate", now, "--slots", "2", "--durations", "predicted", "--history", history]
    assert app.run(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
