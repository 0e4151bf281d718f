"""Modules, files and load functions are warm in a process of the task before its predecessor ends, and hold no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_ray
from egs_core.runlog.io import read_run
from egs_core.runlog.records import PreloadEnded, PreloadStarted
from egs_ray import Session
from egs_ray.worker.niceness import Niceness
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for all tests here but those that need other options: no test's processes serve another."""
    assert ray_address
    with t.session(tmp_path_factory.mktemp("session")) as made:
        yield made


@pytest.fixture
def session(shared: Session) -> Iterator[Session]:
    """That session, which warns again of what it has warned of in another test; afterwards nothing is held in Ray's
    books."""
    shared._shared._warned.clear()
    yield shared
    t.until(t.is_idle, "all resources are free")


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Session]:
    """A session of its own, which warns again, and whose preloads may take three seconds."""
    with t.session(tmp_path, preload_timeout_s=3.0) as made:
        yield made
    t.until(t.is_idle, "all resources are free")


def parked_for(session: Session, folder: Path, name: str = "first") -> egs_ray.Run:
    """A run of a predecessor that waits for the test, and a GPU task with a preload behind it."""
    task = t.with_folder(t.warmed, folder)
    made = egs_ray.run(task.bind(str(folder), t.before.bind(str(folder), name)), session=session)
    t.until((folder / f"{name}.runs").exists)
    return made


def test_is_warm_before_its_predecessor_ends(session: Session, tmp_path: Path) -> None:
    """The load has run, in the task's later process, while all GPUs were free and the predecessor still ran."""
    made = parked_for(session, tmp_path)
    job = made._books.jobs[1]
    t.until(lambda: job.is_warm, "the process is warm")
    assert t.free("GPU") == 2
    assert (tmp_path / "load.runs").read_text() == f"{job.pid} ", "loaded without a GPU in sight"
    t.signal_to(str(tmp_path), "first.end")
    found = made.get(t.LIMIT_S)
    assert found["wave"]
    assert found["pid"] == found["model"]["pid"] == job.pid


@pytest.mark.slow
def test_each_preload_of_the_run_log_is_over(tmp_path: Path) -> None:
    """Also of a task that was granted in the moment in which a process was kept for it: the task has used it."""
    task = t.with_folder(t.warmed, tmp_path)
    t.signal_to(str(tmp_path), "first.end")
    with t.session(tmp_path) as session:
        for _ in range(2):
            first = t.before.bind(str(tmp_path), "first")
            made = egs_ray.run(MultiOutputNode([task.bind(str(tmp_path), first) for _ in range(4)]), session=session)
            assert all(found["wave"] for found in made.get(t.LIMIT_S))
    last: dict[tuple[str, str], str] = {}
    for record in read_run(tmp_path / "run.jsonl").records:
        if isinstance(record, PreloadStarted | PreloadEnded):
            last[record.workload, record.task] = getattr(record, "outcome", "begun")
    assert last
    assert set(last.values()) <= {"used", "unused", "failed"}


def is_gentle(pid: int) -> bool:
    """Whether a thread of the process lets all others go first."""
    threads = os.listdir(f"/proc/{pid}/task")
    return any(os.sched_getscheduler(int(thread)) == os.SCHED_IDLE for thread in threads)


def test_mixed_tasks_load_before_they_take_their_cpus(session: Session, tmp_path: Path) -> None:
    """Two whose predecessor has ended hold nothing while they load, and then load at nobody's pleasure; each runs in
    the process that has loaded."""
    (tmp_path / "load.waits").touch()
    task, first = t.with_folder(t.mixed, tmp_path), t.before.bind(str(tmp_path), "first")
    made = egs_ray.run(MultiOutputNode([task.bind(first), task.bind(first)]), session=session)
    t.until(lambda: len(made._books.jobs) == 3)
    jobs = [job for job in made._books.jobs if job.warm_key]
    t.until(lambda: all(job.peer is not None for job in jobs), "both load")
    may_be_gentle = Niceness().may_lower
    t.until(lambda: all(is_gentle(job.pid) is may_be_gentle for job in jobs), "others go first")
    t.signal_to(str(tmp_path), "first.end")
    t.until(lambda: made._books.jobs[0].succeeded and t.is_idle(), "nothing is held while they load")
    assert [made.why(f"mixed-{number}").kind for number in range(2)] == ["warming", "warming"]
    t.until(lambda: not any(is_gentle(job.pid) for job in jobs), "they are in a hurry now")
    t.signal_to(str(tmp_path), "load.end")
    found = made.get(t.LIMIT_S)
    assert [pid for pid, _ in found] == [model["pid"] for _, model in found]


@pytest.mark.parametrize("use", ["used", "unused"])
def test_failing_load_costs_one_warning(session: Session, tmp_path: Path, capsys: Capture, use: str) -> None:
    """A load function that raises leaves a task that starts cold; it succeeds unless it needs the value itself."""
    (tmp_path / "load.fails").touch()
    if use == "unused":
        (tmp_path / "load.unused").touch()
    made = parked_for(session, tmp_path)
    t.until(lambda: made._books.jobs[1].is_warm, "it has tried")
    if use == "used":
        (tmp_path / "load.fails").unlink()
    t.signal_to(str(tmp_path), "first.end")
    found = made.get(t.LIMIT_S)
    assert (found["model"] is None) == (use == "unused")
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("egs:")]
    assert len(warned) == 1, warned
    assert "RuntimeError: no model" in warned[0]


@pytest.mark.parametrize("predecessor", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_hanging_load_does_not_keep_its_task(
    impatient: Session, tmp_path: Path, capsys: Capture, predecessor: bool
) -> None:
    """A load that takes longer than the time-out keeps the task no longer from starting, cold, with one warning."""
    for name in ("load.waits", "load.unused", "first.end"):
        (tmp_path / name).touch()
    node = t.with_folder(t.warmed, tmp_path).bind(
        str(tmp_path), *([t.before.bind(str(tmp_path), "first")] if predecessor else [])
    )
    made = egs_ray.run(node, session=impatient)
    assert made.get(t.LIMIT_S)["model"] is None
    t.signal_to(str(tmp_path), "load.end")
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("egs:")]
    assert len(warned) == 1, warned
    assert "starts cold" in warned[0]


def test_processes_are_kept_for_the_next_task(session: Session, tmp_path: Path) -> None:
    """Tasks with the same preload that follow each other are served by warm processes: no more loads than slots."""
    task = t.with_folder(t.warmed, tmp_path)
    egs_ray.run(task.bind(str(tmp_path)), session=session).get(t.LIMIT_S)
    node = MultiOutputNode([task.bind(str(tmp_path), i) for i in range(6)])
    found = egs_ray.run(node, session=session).get(t.LIMIT_S)
    assert len({x["pid"] for x in found}) < 6
    assert all(x["model"]["pid"] == x["pid"] for x in found)


def test_processes_are_kept_for_another_pipeline(session: Session, tmp_path: Path) -> None:
    """The only task of one pipeline runs in a process that has loaded the same for another one's tasks, and loads
    nothing, though that is loaded too fast to be worth a process of its own."""
    task = t.with_folder(t.warmed, tmp_path)
    node = MultiOutputNode([task.bind(str(tmp_path), i) for i in range(3)])
    before = egs_ray.run(node, name="one", session=session).get(t.LIMIT_S)
    loads = (tmp_path / "load.runs").read_text()
    found = egs_ray.run(task.bind(str(tmp_path)), name="another", session=session).get(t.LIMIT_S)
    assert found["pid"] in {one["pid"] for one in before}
    assert (tmp_path / "load.runs").read_text() == loads


def test_without_preload_nothing_is_loaded_early(tmp_path: Path) -> None:
    """With `preload` off the process of a GPU task is not there before its turn."""
    with t.session(tmp_path, preload=False) as session:
        made = parked_for(session, tmp_path)
        t.signal_to(str(tmp_path), "first.end")
        assert made.get(t.LIMIT_S)["model"]["at"] > (tmp_path / "first.end").stat().st_mtime
        assert ray.is_initialized()
