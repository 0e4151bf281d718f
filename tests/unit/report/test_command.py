"""`egs report` from the command line: the page, the JSON, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.runlog.io import write_run
from egs_core.runlog.metrics import summarise
from tests.unit.report.made_runs import made_run


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Two run logs on disk."""
    paths = []
    for policy in ("native", "egs"):
        made = made_run(policy, pipelines=2)
        paths.append(str(tmp_path / f"{policy}.jsonl"))
        write_run(paths[-1], made.header, made.records)
    return paths


def test_page_is_written(logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs report A B -o page` writes the page and says so."""
    page = tmp_path / "page.html"
    assert run(["report", *logs, "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out.strip() == f"{page}: 2 runs"


def test_other_tasks_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipelines on one page are refused: exit code 2, one line that names what differs, no page."""
    paths = []
    for policy, trainings in (("native", 3), ("egs", 5)):
        made = made_run(policy, pipelines=1, trainings=trainings)
        paths.append(str(tmp_path / f"{policy}.jsonl"))
        write_run(paths[-1], made.header, made.records)
    page = tmp_path / "page.html"
    assert run(["report", *paths, "-o", str(page)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"error: {paths[1]}: is not of the same tasks: 7 tasks in {paths[0]}, 9 in {paths[1]}" in said
    assert f"only in {paths[1]}: 1 x train-3, 1 x train-4" in said
    assert not page.exists()


def test_json_has_the_metrics_of_each_log(logs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object, in the order given, with the same figures as the library; it writes no page."""
    assert run(["report", *logs, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["report"] is None
    assert [r["policy"] for r in shown["runs"]] == ["native", "egs"]
    expected = summarise(made_run("native", pipelines=2).records).to_dict()
    assert {key: shown["runs"][0][key] for key in expected} == expected
    assert shown["runs"][0]["emulated_gpus"] is True


def test_json_and_page_together(logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -o the page is written beside the JSON, which names it."""
    page = tmp_path / "page.html"
    assert run(["report", logs[0], "--json", "-o", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(page)
    assert page.exists()


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"{}", b'{"r":"header","format":"egs-runlog","version":99}\n'])
def test_bad_logs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    """Exit code 2, one line on stderr that names the place, nothing on stdout, no page."""
    log, page = tmp_path / "bad.jsonl", tmp_path / "page.html"
    log.write_bytes(content)
    assert run(["report", str(log), "-o", str(page)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert f"{log}:1" in said.err
    assert not page.exists()


def test_missing_log_folder_and_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing path, a folder and no argument end with exit code 2 too."""
    for arguments in ([str(tmp_path / "none.jsonl")], [str(tmp_path)], []):
        assert run(["report", *arguments]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_without_a_run_log_it_says_what_shows_a_servers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr and exit code 2."""
    assert run(["report"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "error: egs report: no run log is named (name one; a site server's runs are shown by egs cost"
    )
