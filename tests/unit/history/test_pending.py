"""Run logs wait to be learned from until somebody asks for the history, each is learned once, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.cli.app import run as egs
from egs_core.cli.beliefs import own_predictor, predictor_of
from egs_core.history.opened import open_history
from egs_core.history.pending import keep_pending, learn_pending, leave, open_learned, pending_folder
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run, write_run
from egs_core.runlog.retention import OWN_NAME, runs_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("EGS_HISTORY", raising=False)
    return tmp_path


def header(started_at: float = 100.0) -> r.Header:
    return r.Header(run_id="train", driver="ray", started_at=started_at, label="train", in_order=False)


def write_log(path: Path, seconds: float = 2.0, started_at: float = 100.0) -> Path:
    """A run log with one task; the order of its lines is not that of time, as an observer leaves it."""
    records: list[r.Record] = [
        r.Ended(1.0 + seconds, "train", "fit"),
        r.Started(t=1.0, workload="train", task="fit", node="n", cpus=1.0, gpus=1.0, flavor="a100"),
        r.TaskAdded(t=0.0, workload="train", task="fit", name="fit", phases=(("gpu", 1.0, 1.0, 0),)),
        r.WorkloadSubmitted(t=0.0, workload="train", name="train"),
    ]
    write_run(path, header(started_at), records)
    return path


def test_a_log_is_learned_when_somebody_asks(home: Path) -> None:
    """Not before; once; and the note is gone."""
    leave(write_log(home / "log.jsonl"), header())
    assert open_history().load("train") == []
    assert learn_pending() == 1
    assert [row.seconds for row in open_history().load("train")] == [2.0]
    assert learn_pending() == 0
    assert list(pending_folder().iterdir()) == []


def test_logs_of_another_history_wait_for_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with a history of its own teaches that one, however its file is spelled."""
    other = f"sqlite:///{home}/other.sqlite"
    with monkeypatch.context() as patch:
        patch.setenv("EGS_HISTORY", other)
        leave(write_log(home / "log.jsonl"), header())
    assert learn_pending() == 0
    monkeypatch.chdir(home)
    assert learn_pending("sqlite:///other.sqlite") == 1
    assert [row.seconds for row in open_history(other).load("train")] == [2.0]


def test_what_is_gone_or_damaged_is_forgotten(home: Path) -> None:
    """A log that was removed or is none, and a note that is none: nothing is raised, and nothing is asked again."""
    leave(home / "gone.jsonl", header())
    (home / "text").write_text("no run log")
    leave(home / "text", header(200.0))
    (pending_folder() / "1-1.json").write_text("{")
    assert learn_pending() == 0
    assert list(pending_folder().iterdir()) == []


def test_a_learner_that_died_is_followed_by_another(home: Path) -> None:
    """Its note says who took it; while that process lives, nobody else learns the log."""
    leave(write_log(home / "log.jsonl"), header())
    (note,) = pending_folder().iterdir()
    taken = note.rename(note.with_name(f"{note.name}.taken-{os.getpid()}"))
    assert learn_pending() == 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    taken.rename(note.with_name(f"{note.name}.taken-{ended.pid}"))
    assert learn_pending() == 1


def test_a_log_that_the_next_run_overwrites_is_kept_until_it_is_learned(home: Path) -> None:
    """Both runs count, each once; what was kept is among the logs that are pruned, and gone once it was learned."""
    log = home / "log.jsonl"
    for run in (1, 2, 3):
        keep_pending(log)
        leave(write_log(log, float(run), 100.0 * run), header(100.0 * run))
    assert sorted(read_run(path).header.started_at for path in runs_folder().iterdir()) == [100.0, 200.0]
    assert all(OWN_NAME.fullmatch(path.name) for path in runs_folder().iterdir())
    assert learn_pending() == 3
    assert sorted(row.seconds for row in open_history().load("train")) == [1.0, 2.0, 3.0]
    assert list(runs_folder().iterdir()) == []
    assert read_run(log).header.started_at == 300.0, "the log that the user named stays"


def test_a_log_that_was_learned_is_not_kept(home: Path) -> None:
    """Nor one that no note names, nor one of another run than the note's: it stays where it is."""
    log = write_log(home / "log.jsonl")
    leave(log, header())
    learn_pending()
    keep_pending(log)
    leave(log, header(50.0))
    keep_pending(log)
    keep_pending(home / "none.jsonl")
    assert read_run(log).header == header()
    assert not runs_folder().exists()


def test_a_log_behind_a_link_is_kept(home: Path) -> None:
    """The link stays, and the next run's log is where it leads."""
    (home / "disk").mkdir()
    (link := home / "log.jsonl").symlink_to(home / "disk" / "real.jsonl")
    leave(write_log(link), header())
    keep_pending(link)
    leave(write_log(link, 5.0, 200.0), header(200.0))
    assert link.is_symlink()
    assert learn_pending() == 2


def test_notes_that_name_one_run_teach_it_once(home: Path) -> None:
    """The same run left twice, and notes without a run, as an earlier EGS wrote them: one file, one run."""
    log = write_log(home / "log.jsonl")
    leave(log, header())
    leave(log, header())
    for number in (1, 2):
        (pending_folder() / f"{number}-7.json").write_text(json.dumps({"log": str(log), "history": ""}))
    assert learn_pending() == 1
    assert [row.seconds for row in open_history().load("train")] == [2.0]
    assert list(pending_folder().iterdir()) == []


def test_a_log_of_another_run_teaches_nothing_of_the_noted_one(home: Path) -> None:
    """Overwritten by who did not keep it: that run is lost, and the other is not counted for it."""
    leave(write_log(home / "log.jsonl"), header())
    write_log(home / "log.jsonl", 5.0, 200.0)
    assert learn_pending() == 0
    assert open_history().load("train") == []


@pytest.mark.parametrize("words", [("history", "--json"), ("advise", "--json"), ("profile", "--json", "fit")])
def test_every_command_that_reads_the_history_knows_the_run_before(
    words: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right after a run, whichever is asked first."""
    monkeypatch.delenv("EGS_URL", raising=False)
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(home))  # no site server's runs
    leave(write_log(home / "log.jsonl"), header())
    assert egs(list(words)) == 0
    shown = capsys.readouterr().out
    assert "a100" in shown or '"runs": 1' in shown
    assert not list(pending_folder().iterdir())


def test_what_is_believed_knows_the_run_before(home: Path) -> None:
    """By the user's own history, as `egs plan` and `egs why` of a pipeline's file have it, and by one at a URL."""
    leave(write_log(home / "log.jsonl"), header())
    assert own_predictor("train").signatures()
    leave(write_log(home / "next.jsonl", 3.0, 200.0), header(200.0))
    assert predictor_of([f"sqlite:///{home}/data/egs/history.sqlite"], ["train"]).signatures()
    assert len(open_history().load("train")) == 2


def test_a_run_waits_for_a_history_that_cannot_be_used(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is the command's, once; when the history can be used again the run is there."""
    broken = home / "data" / "egs" / "history.sqlite"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"this is no database" * 1000)
    leave(write_log(home / "log.jsonl"), header())
    assert egs(["history"]) == 2
    assert capsys.readouterr().err.count("cannot be read") == 1
    broken.unlink()
    store = open_learned()
    assert [row.seconds for row in store.load("train")] == [2.0]
