"""The listener in a task: a line with what happened, little time, and no way to hurt the task."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import egs_core as egs
from egs_airflow import compat, config, plugin
from egs_airflow.features import FEATURES
from egs_airflow.observe import listener
from egs_airflow.observe.lines import drop_old, read_all, read_lines
from egs_core.errors import InputError

START = datetime(2026, 11, 22, 10, 0, 0, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of lines, which does not exist yet; each line is there when its task is over, however busy we are."""
    monkeypatch.setattr(listener, "PATIENCE_S", 120.0)
    monkeypatch.setenv("EGS_RUNLOG", str(tmp_path / "runlog"))
    config.warn.cache_clear()
    return tmp_path / "runlog"


def task_instance(**other: Any) -> Any:
    """What Airflow hands to a listener, as far as one looks at it."""
    fields = {
        "dag_id": "train",
        "run_id": "manual",
        "task_id": "fit",
        "map_index": -1,
        "try_number": 1,
        "start_date": START,
        "end_date": START.replace(second=5),
        "task": SimpleNamespace(pool="gpus", pool_slots=2),
    }
    return SimpleNamespace(**{**fields, **other})


def files_of(place: Path) -> Path:
    """The one file in the folder."""
    (file,) = place.iterdir()
    return file


def run_task(state: str = "success", **other: Any) -> None:
    """Call the listener as a task's process does."""
    called = listener.TaskListener()
    called.on_task_instance_running(task_instance=task_instance())
    getattr(called, f"on_task_instance_{state}")(task_instance=task_instance(**other))


def test_one_line_a_task(place: Path) -> None:
    """Each end of a task is one line that says which try it was, in which pool, and when."""
    for state in ("success", "failed", "skipped"):
        run_task(state, map_index=3)
    lines = read_lines(place)
    assert [line.state for line in lines] == ["success", "failed", "skipped"]
    assert lines[0].key == ("train", "manual", "fit", 3, 1)
    assert (lines[0].pool, lines[0].slots, lines[0].end - lines[0].start) == ("gpus", 2, 5.0)


def test_a_task_tells_of_its_work(place: Path) -> None:
    """What its code says by `egs.work`, and not what was said before: while its DAG file was imported, by the last."""
    egs.work(tokens=100)
    for amount in (3, 4):
        called = listener.TaskListener()
        called.on_task_instance_running(task_instance=task_instance())
        egs.work(tokens=amount)
        called.on_task_instance_success(task_instance=task_instance())
    run_task()
    assert [line.work for line in read_lines(place)] == [{"tokens": 3.0}, {"tokens": 4.0}, {}]
    assert files_of(place).read_text().count('"work"') == 2  # a line without is as it was


def test_nothing_where_no_task_runs(place: Path) -> None:
    """The scheduler and the api-server tell listeners of what they change: then nothing is written, or even read."""

    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    listener.TaskListener().on_task_instance_failed(task_instance=Untouchable())
    assert not place.exists()


def test_a_disk_that_hangs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that does not return is waited for PATIENCE_S, and then goes on hanging without the task."""
    hangs, is_over = threading.Event(), threading.Event()

    def hang(_line: bytes) -> None:
        hangs.wait(600)
        is_over.set()

    monkeypatch.setattr(listener, "PATIENCE_S", 0.01)
    monkeypatch.setattr(listener, "append", hang)
    run_task()
    assert not is_over.is_set()  # the task is over, its line still hangs
    hangs.set()
    assert is_over.wait(120)
    assert not place.exists()


@pytest.mark.parametrize("error", [OSError("no space"), SystemExit(3), KeyboardInterrupt(), ValueError("x" * 99)])
def test_whatever_is_raised_stays_here(
    error: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that raises, also what would end the process, is one warning and nothing else."""

    def fail(_line: bytes) -> None:
        raise error

    monkeypatch.setattr(listener, "append", fail)
    run_task()
    run_task()
    assert len([r for r in caplog.records if "this task is not recorded" in r.getMessage()]) == 1
    assert not place.exists()


def test_no_thread_and_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a thread can be started, and the warning fails too."""

    def none(*_args: Any, **_kwargs: Any) -> Any:
        raise SystemExit("can't start new thread")

    monkeypatch.setattr(threading, "Thread", none)
    monkeypatch.setattr(config, "warn", none)
    run_task()


def test_odd_task_instances(place: Path) -> None:
    """One without an operator or an end is kept with what it has."""
    run_task(task=None, end_date=None, map_index=None)
    (line,) = read_lines(place)
    assert (line.pool, line.slots, line.map_index) == ("", 1, -1)
    assert line.end == pytest.approx(time.time(), abs=60)


def test_full_disk_and_half_a_line(place: Path) -> None:
    """A disk without room leaves at most half a line, which is left out when lines are read."""
    run_task()
    file = files_of(place)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert len(read_lines(place)) == 1
    file.unlink()
    file.symlink_to("/dev/full")
    run_task()
    assert file.is_symlink()


def test_a_day_has_an_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file grows to MOST_BYTES; more is lost, not the disk."""
    run_task()
    size = files_of(place).stat().st_size
    monkeypatch.setattr(listener, "MOST_BYTES", size + 1)
    run_task()
    run_task()
    assert len(read_lines(place)) == 2


def test_old_files_are_dropped(place: Path) -> None:
    """Files of earlier than KEPT_DAYS go, those of today stay."""
    run_task()
    old = place / "tasks-20200101-host.jsonl"
    old.write_text("")
    os.utime(old, (0, 0))
    assert drop_old(place) == 1
    assert len(read_lines(place)) == 1


def test_a_line_after_half_a_line(place: Path) -> None:
    """A full disk, then another append: the whole lines are read, the broken one is counted with its place."""
    for number in range(5):
        run_task(task_id=f"t{number}")
    file = files_of(place)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][: len(lines[2]) // 2]
    file.write_bytes(b"".join(lines) + b"\xff nonsense\n" + lines[0].replace(b'"v":1', b'"v":9'))
    found = read_all(place)
    assert [line.task for line in found.lines] == ["t0", "t1", "t3", "t4"]
    assert (found.skipped, found.first) == (3, f"{file}:3: begins with half a line")


def test_doctor_counts_lines_that_cannot_be_read(place: Path) -> None:
    """They are missed in what is learned, and nothing is to be done about them."""
    run_task()
    with files_of(place).open("ab") as file:
        file.write(b"{}\n")
    assert FEATURES["observe"]()[1].startswith(
        f"active: each task leaves a line in {place}; 1 lines cannot be read, the"
    )


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("def on_task_instance_success(previous_state, instance): pass", "Argument(s) {'task_instance'}"),
        ("def on_task_instance_ended(task_instance): pass", "unknown hook 'on_task_instance_success'"),
    ],
)
def test_an_airflow_with_other_hooks(
    hook: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Registered there, the listener would end the scheduler: it is left out, with one warning."""
    import pluggy

    specs = ModuleType("specs")
    others = "def on_task_instance_running(task_instance): pass\ndef on_task_instance_failed(task_instance): pass\n"
    exec(f"{others}def on_task_instance_skipped(task_instance): pass\n{hook}", specs.__dict__)
    for name in [name for name in vars(specs) if name.startswith("on_")]:
        pluggy.HookspecMarker("airflow")(getattr(specs, name))
    assert plugin.load_part("listeners")
    monkeypatch.setattr(compat, "_listener_specs", lambda: specs)
    assert plugin.load_part("listeners") == []
    (record,) = caplog.records
    off = "egs_airflow.observe.listener:listeners is off, Airflow runs without it: PluginValidationError"
    assert off in record.getMessage()
    assert said in record.getMessage()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}\n", "is no line"), (b"\xff\n", "is no line"), (b"[1]\n", "is no line")],
)
def test_other_files(content: bytes, said: str, place: Path) -> None:
    """What is no line is named with its file and number; so is an empty folder."""
    place.mkdir()
    with pytest.raises(InputError, match="has no lines"):
        read_lines(place)
    (place / "tasks-1-host.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_lines(place)
    assert caught.value.place.endswith("tasks-1-host.jsonl:1")
