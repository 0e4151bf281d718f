"""A run under way says how long its own tasks take, by the rule by which the history is learned, and only once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.history.opened import open_history
from egs_core.history.pending import Note, _kept, learn_pending, leave, pending_folder
from egs_core.runlog import records as r
from egs_core.runlog.added import added_tasks
from egs_core.runlog.io import read_run, write_run
from egs_core.site import Learning

FIRST = 100  # the site's number of the workload's first phase


def graph_of(*names: str) -> Graph:
    graph = Graph()
    for number, name in enumerate(names):
        graph.add_task(f"{name}-{number}", (), ((CPU, Shape(1000), None),), name)
    return graph


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[Learning]:
    made = Learning(tmp_path / "run.jsonl", r.Header(driver="test"), f"sqlite:///{tmp_path}/history.db")
    yield made
    made.close()


def told(learning: Learning, *records: r.Record) -> list[tuple[int, float, float]]:
    """What the last of these lines changes."""
    found: list[tuple[int, float, float]] = []
    for record in records:
        learning.record(record)
        found = learning.revised(record)
    return found


def run(task: str, start: float, end: float, outcome: str = "succeeded", cold_s: float = 0.0) -> list[r.Record]:
    lines: list[r.Record] = [r.Started(start, "w", task, cpus=1.0)]
    if cold_s:
        lines.append(r.ColdStart(start, start + cold_s, "w", task))
    return [*lines, r.Ended(end, "w", task, outcome=outcome)]


def test_what_has_ended_tells_of_its_like(learning: Learning) -> None:
    """Without its cold start, and under the site's numbers; a task of another name is not meant. A try that failed
    says nothing."""
    learning.follow("w", "p", graph_of("a", "b", "a", "a"), FIRST)
    assert told(learning, *run("a-0", 0.0, 9.0, "failed")) == []
    assert told(learning, r.Started(9.0, "w", "a-0", attempt=2), r.Ended(12.0, "w", "a-0", attempt=2)) != []
    revised = told(learning, *run("a-2", 0.0, 5.0, cold_s=2.0))
    assert [phase for phase, *_ in revised] == [FIRST + 3]
    ((_, p50_s, p95_s),) = revised
    assert p50_s == pytest.approx(3.0)
    assert p95_s >= p50_s


def test_a_run_is_learned_once(learning: Learning) -> None:
    """What it taught while it went on is not counted again when it is over: the next run knows three durations."""
    graph = graph_of("a", "a", "a", "a")
    learning.follow("w", "p", graph, FIRST)
    told(learning, r.WorkloadSubmitted(0.0, "w", "p"), *added_tasks(0.0, "w", graph))
    for task in ("a-0", "a-1", "a-2"):
        told(learning, *run(task, 0.0, 3.0))
    learning.run_over("w", "p")
    (estimate, *_) = learning.predictor("p").estimates(graph, "p", graph.names)
    assert (estimate.source, round(estimate.p50_s, 6), estimate.n) == ("history", 3.0, 3)
    assert told(learning, *run("a-3", 3.0, 4.0)) == []  # it is followed no more


def test_where_no_task_is_like_another_nothing_is_followed(learning: Learning) -> None:
    learning.follow("w", "p", graph_of("a", "b"), FIRST)
    assert told(learning, *run("a-0", 0.0, 3.0)) == []
    assert not learning._followed


def test_a_mistake_in_it_ends_no_run(learning: Learning, capsys: pytest.CaptureFixture[str]) -> None:
    """A predictor that fails costs one warning, and what is believed stays as it was."""
    learning.follow("w", "p", graph_of("a", "a"), FIRST)
    learning._predictors["p"] = None  # type: ignore[assignment]  # the fault
    assert told(learning, *run("a-0", 0.0, 3.0)) == []
    assert "what runs teaches nothing of what is to come" in capsys.readouterr().err
    assert told(learning, *run("a-1", 0.0, 3.0)) == []


OBSERVED: list[r.Record] = [
    r.WorkloadSubmitted(t=0.0, workload="script"),
    r.TaskAdded(t=0.0, workload="script", task="fit", phases=(("cpu", 1.0, 0.0, 0),)),
    r.Started(t=1.0, workload="script", task="fit", node="n", cpus=1.0),
    r.Ended(3.0, "script", "fit"),
]


def observed_at(log: Path, started_at: float) -> None:
    """A script that a hook has observed has ended: its run log is there, and nothing of it in a history."""
    header = r.Header(driver="ray", started_at=started_at)
    write_run(log, header, OBSERVED)
    leave(log, header)


def test_a_session_knows_what_was_observed_before_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the history that it has, the user's or one that is named, and not that of another; once, so that no later
    run of it waits for a log."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("EGS_HISTORY", raising=False)
    graph = graph_of("fit")
    for number, url in enumerate((None, f"sqlite:///{tmp_path}/named.db")):
        monkeypatch.setenv("EGS_HISTORY", url or "")
        observed_at(tmp_path / f"observed-{number}.jsonl", 100.0 + number)
        session = Learning(tmp_path / "run.jsonl", r.Header(), url)
        session.catch_up()
        assert session.believe("script", graph, ["fit"]).phase_duration_s == [pytest.approx(2.0)]
        observed_at(tmp_path / f"later-{number}.jsonl", 200.0 + number)
        session.catch_up()
        assert learn_pending(url or "") == 1
        session.close()


def test_what_is_wrong_with_pending_run_logs_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder stands where a log that was overwritten would be, and cannot be removed: one warning."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("EGS_HISTORY", raising=False)
    observed_at(tmp_path / "observed.jsonl", 100.0)
    (note,) = pending_folder().iterdir()
    _kept(note, Note(str(tmp_path / "observed.jsonl"))).mkdir(parents=True)
    session = Learning(tmp_path / "run.jsonl", r.Header(), None)
    session.catch_up()
    assert capsys.readouterr().err.count("nothing learned from run logs") == 1
    session.record(r.WorkloadSubmitted(t=0.0, workload="script"))
    session.close()


def test_the_run_log_of_a_session_keeps_what_is_to_be_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was observed and then runs with EGS into the same file: the observed run stays to be learned."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EGS_HISTORY", url := f"sqlite:///{tmp_path}/history.db")
    observed_at(log := tmp_path / "run.jsonl", 100.0)
    session = Learning(log, r.Header(driver="ray", started_at=200.0), url)
    session.record(r.WorkloadSubmitted(t=0.0, workload="script"))
    session.close()
    assert read_run(log).header.started_at == 200.0
    assert learn_pending() == 1
    assert [row.seconds for row in open_history(url).load("script")] == [2.0]
