"""`egs graph` as a user calls it: figures, conversions, and one line with exit code 2 for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.graph.load import load_workload
from egs_core.units import format_bytes

WORKLOAD = {
    "format": "egs-workload",
    "version": 1,
    "id": "six",
    "name": "six [bold]tasks[/bold]",
    "files": [{"id": "data", "size_bytes": "2KiB"}],
    "tasks": [
        {"id": "load", "phases": [{"duration_s": 1.0}], "outputs": ["data"]},
        {
            "id": "fit1",
            "parents": ["load"],
            "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 2.0}],
            "inputs": ["data"],
        },
        {
            "id": "fit2",
            "parents": ["load"],
            "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 4.0}],
            "inputs": ["data"],
        },
        {"id": "report", "parents": ["fit1", "fit2"], "phases": [{"duration_s": 0.5}, {}]},
    ],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "six.json"
    path.write_text(json.dumps(WORKLOAD))
    return path


def test_json_has_the_figures(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of a small graph, counted on paper; the bound only with --slots."""
    assert run(["graph", str(file), "--json", "--slots", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["tasks"], facts["edges"], facts["phases"], facts["gpu_phases"]) == (4, 4, 5, 2)
    assert (facts["critical_path_s"], facts["critical_path"]) == (5.5, ["load", "fit2", "report"])
    assert (facts["work_s"], facts["gpu_work_s"], facts["unknown_durations"]) == (7.5, 6.0, 1)
    assert (facts["depth"], facts["width"]) == (3, 2)
    assert (facts["files"], facts["files_bytes"], facts["edges_bytes"]) == (1, 2048, 4096)
    assert (facts["slots"], facts["lower_bound_s"]) == (1, 7.5)
    assert run(["graph", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lower_bound_s"] is None


def test_the_table_shows_names_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json a table; square brackets in a name are text, not markup."""
    assert run(["graph", str(file), "--slots", "2"]) == 0
    shown = capsys.readouterr().out
    assert "six [bold]tasks[/bold]" in shown
    assert "load → fit2 → report" in shown
    assert "lower bound on 2 slots" in shown


def test_where_no_duration_is_known_there_is_no_critical_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of tasks that all count as 0 s, any one would be the longest path."""
    path = tmp_path / "own.json"
    tasks = [{"id": "load", "phases": [{}]}, {"id": "score", "parents": ["load"], "phases": [{}]}]
    path.write_text(json.dumps(WORKLOAD | {"tasks": tasks, "files": []}))
    assert run(["graph", str(path), "--slots", "2"]) == 0
    shown = capsys.readouterr().out
    assert "critical path" in shown
    assert shown.count("unknown, as no duration is known") == 2
    assert "2, all of them (--history has those of runs before)" in shown
    assert "score" not in shown
    assert "0.0 s" not in shown
    assert run(["graph", str(path), "--json", "--slots", "2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    keys = ("critical_path_s", "critical_path", "work_s", "gpu_work_s", "lower_bound_s")
    assert [facts[key] for key in keys] == [None] * 5
    assert facts["unknown_durations"] == 2


def test_short_times_have_their_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request of a model takes milliseconds: in `graph`, `plan` and `simulate`."""
    path = tmp_path / "model.json"
    tasks = [{"id": "gpu0.0", "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 0.042}]}]
    path.write_text(json.dumps(WORKLOAD | {"tasks": tasks, "files": []}))
    assert run(["graph", str(path)]) == 0
    assert "0.042 s: gpu0.0" in capsys.readouterr().out
    assert run(["plan", str(path), "--slots", "2"]) == 0
    assert "0.042 s, at best 0.042 s" in capsys.readouterr().out
    assert run(["simulate", str(path), "--slots", "2"]) == 0
    assert capsys.readouterr().out.count(" 0.042 ") == 4


def test_conversions_print_or_write(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--to prints, -o writes; what is written as EGS JSON loads equal."""
    assert run(["graph", str(file), "--to", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR\n")
    assert run(["graph", str(file), "--to", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph ")
    out = tmp_path / "again.json.gz"
    assert run(["graph", str(file), "--to", "egs", "-o", str(out)]) == 0
    assert load_workload(out) == load_workload(file)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--to", "xml"], "--to: unknown format 'xml'"),
        (["--to", "wfformat"], "task 'fit1' (tasks[1]): WfFormat holds one CPU phase a task"),
        (["--json", "--to", "egs"], "--json"),
        (["--slots", "0"], "--slots: must be at least 1"),
        (["-o", "/nowhere/at/all.json"], "/nowhere/at/all.json: cannot be written"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_two(
    file: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, nothing on stdout, the problem on stderr."""
    assert run(["graph", str(file), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1


def test_a_bad_file_is_one_line_and_exit_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder and a missing file, as the command line tells them."""
    for path in (tmp_path, tmp_path / "none.json"):
        assert run(["graph", str(path)]) == 2
        err = capsys.readouterr().err
        assert str(path) in err
        assert err.count("\n") == 1


def test_sizes_for_people() -> None:
    """The largest binary unit that keeps the number above one."""
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 * 2**40)] == ["0 B", "1023 B", "1.0 KiB", "3.0 TiB"]
