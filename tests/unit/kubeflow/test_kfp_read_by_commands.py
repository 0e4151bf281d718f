"""`egs plan`, `graph`, `replay` and `why` read a compiled pipeline, with durations from a history."""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import json
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from egs_core.cli.app import run
from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.sql import SqlHistory


@dsl.component(base_image="python:3.12")
def step(text: str = "a") -> str:
    return text


@dsl.pipeline
def inner() -> str:
    return step(text="deep").output


@dsl.pipeline(name="known-one")
def known() -> None:
    """Two tasks that nothing connects, of one component; the second, in a DAG of its own, is the long one."""
    step()
    inner()


PATHS = {"step": 2.0, "inner.step": 30.0}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "known.yaml"
    compiler.Compiler().compile(known, str(path))
    return str(path)


@pytest.fixture
def history(tmp_path: Path) -> str:
    """What a local run of the pipeline has left: by the tasks' paths."""
    store = SqlHistory(f"sqlite:///{tmp_path / 'history.sqlite'}")
    store.record([HistoryRow("known-one", task, 0, Shape(), seconds) for task, seconds in PATHS.items()])
    store.close()
    return str(tmp_path / "history.sqlite")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_has_the_durations_of_a_history(file: str, history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On one slot the long one goes first, by what a run of the pipeline has taught; without it both are guesses."""
    plan = printed(capsys, "plan", file, "--slots", "1", "--history", history)
    assert {row["task"]: row["rank_s"] for row in plan["tasks"]} == pytest.approx(PATHS)
    assert [row["task"] for row in plan["tasks"]] == ["inner.step", "step"]
    assert (plan["known_durations"], plan["assumed_durations"]) == (2, 0)
    blind = printed(capsys, "plan", file, "--slots", "1")
    assert (blind["known_durations"], blind["assumed_durations"]) == (0, 2)


def test_the_users_own_history_is_the_default(
    file: str, history: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a compiled pipeline, which states no durations; `egs graph` has its critical path by it."""
    monkeypatch.setenv("EGS_HISTORY", f"sqlite:///{history}")
    graph = printed(capsys, "graph", file)
    assert (graph["critical_path"], graph["unknown_durations"]) == (["inner.step"], 0)
    assert graph["critical_path_s"] == pytest.approx(30.0)


def test_pipelines_in_json_are_known_by_their_fields(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kfp writes JSON, too, with a `schemaVersion` as WfFormat has one; what is neither is said as before."""
    path = tmp_path / "known.json"
    with pytest.warns(DeprecationWarning, match="JSON"):
        compiler.Compiler().compile(known, str(path))
    assert printed(capsys, "graph", str(path)) == printed(capsys, "graph", file)
    path.write_text('{"schemaVersion": "2.1.0"}')
    assert run(["graph", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: schemaVersion: unknown version")


def test_a_pipeline_is_replayed_where_its_durations_are_known(
    file: str, history: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them the first task is named, and where they may come from."""
    options = ("--on", "sim", "--cpus", "1", "--gpus", "0")
    assert printed(capsys, "replay", file, *options, "--history", history)["makespan_s"] == pytest.approx(32.0)
    assert run(["replay", file, *options]) == 2
    said = capsys.readouterr().err
    assert "task 'inner.step': its duration is unknown (run it once, which your history then knows" in said
    assert "`egs plan` assumes" in said


def test_why_explains_a_pipelines_task(file: str, history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The short one waits for the long one."""
    found = printed(capsys, "why", file, "step", "--slots", "1", "--history", history)
    assert found["tasks"][0]["phases"][0]["waited_s"] == pytest.approx(30.0)


@pytest.mark.parametrize("command", ["plan", "graph", "replay"])
def test_what_is_no_pipeline_is_one_line_with_its_place(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, no traceback; so is a history that cannot be read."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("root: [1\n")
    options = {"plan": ["--slots", "1"], "graph": [], "replay": ["--on", "sim"]}[command]
    assert run([command, str(bad), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {bad}")
    assert said.count("\n") == 1
