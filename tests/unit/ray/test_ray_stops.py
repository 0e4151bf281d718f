"""Which tasks of a script can be stopped to start again, and how they are. No Ray runs."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from egs_ray.payload import Payload
from egs_ray.session.stops import SAVE_S, Stops, may_start_again
from egs_ray.session.tasks import RAYS_RETRIES, Job, Way, retries_of


def job(way: Way = Way.SHELL, *, options: dict[str, Any] | None = None, **state: Any) -> Job:
    """A task that runs and whose code has said `egs.checkpoint`."""
    node = Payload("fit", int, None, (), {}, options or {})
    run = SimpleNamespace(grows=True, converted=SimpleNamespace(nodes=[node]))
    told = {"saver": cast("Any", object()), "leaves": True}
    return Job(cast("Any", run), 0, 0, way, **{**told, **state})


@pytest.mark.parametrize(
    ("task", "may"),
    [
        (job(), True),
        (job(Way.TICKET), False),  # Ray would start it at once, with its GPU
        (job(saver=None), False),
        (job(leaves=False), False),  # a process with an EGS of before
        (job(apart=True), False),  # what saves is not the process that Ray would miss
        (job(stopped="preempted by ann"), False),
        (job(succeeded=True), False),
        (job(options={"max_retries": 0}), False),
        (job(options={"max_retries": -1}, lost_tries=9), True),
        (job(options={"max_retries": 2}, lost_tries=1), True),
        (job(options={"max_retries": 2}, lost_tries=2), False),
        (job(lost_tries=3), False),  # as often as Ray does by default
    ],
)
def test_which_task_of_a_script_may_start_again(task: Job, may: bool) -> None:
    """One whose process ends when it is told to, waits for a turn when Ray has started it again, and goes on from what
    it has kept."""
    assert may_start_again(task) is may


@pytest.mark.parametrize(
    ("options", "variable", "retries"),
    [
        ({}, None, RAYS_RETRIES),
        ({"max_retries": 1}, "7", 1),
        ({}, "7", 7),
        ({}, "0", 0),
        ({}, "-1", -1),
        ({}, "many", RAYS_RETRIES),
    ],
)
def test_how_often_ray_starts_a_task_again(
    options: dict[str, Any], variable: str | None, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the task says, else what the driver's environment says to Ray."""
    monkeypatch.delenv("RAY_TASK_MAX_RETRIES", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_TASK_MAX_RETRIES", variable)
    assert retries_of(options) == retries
    assert may_start_again(job(options=options)) == (retries != 0)


class Line(list[dict[str, Any]]):
    """A worker's line: what it was told."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def send(self, message: dict[str, Any]) -> None:
        self.append(message)


def stops() -> Stops:
    """Of a session whose promises are their names."""
    promises = SimpleNamespace(board=lambda: b"", new=lambda key: key)
    site = SimpleNamespace(report=lambda _: None, do=lambda action: action())
    return Stops(cast("Any", SimpleNamespace(promises=promises, site=site, broken=False)), cast("Any", None))


def test_a_scripts_task_without_a_grace_is_asked_to_save() -> None:
    """Nothing else of it can be started again, and it has said that it can save."""
    line: Any = Line()
    stops().preempt(job(saver=line), "preempted by ann")
    (word,) = line
    assert (word["m"], word["leaves_in"]) == ("save", SAVE_S)


def test_each_try_keeps_a_checkpoint_of_its_own() -> None:
    """Ray starts the same submission again. Its first try's checkpoint, also one that is heard of late, is not taken
    for the second's, and the second is not told to leave before it has saved."""
    first: Any = Line()
    second: Any = Line()
    made = stops()
    task = job(saver=first, life="a", submission=7)
    made.preempt(task, "preempted by ann")
    task.saver, task.life, task.stopped = second, "b", ""  # it has died meanwhile: another process is there
    made.preempt(task, "preempted by ann")
    made.said(task, first, {"m": "saved", "error": ""})
    assert task.checkpoint == first[0]["key"] != second[0]["key"]
    assert [word["m"] for word in second] == ["save"]
    made.said(task, second, {"m": "saved", "error": ""})
    assert task.checkpoint == second[0]["key"]
    assert [word["m"] for word in first] == ["save"]
    assert [word["m"] for word in second] == ["save", "leave"]


LEAVES = """
import subprocess, sys
from egs_ray.worker.saving import _Keeper

keeper = _Keeper(None)
code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.pid, int(child.stdout.readline()), flush=True)
if sys.argv[1] == "over":
    keeper.close()
keeper._leave()
"""


@pytest.mark.parametrize("state", ["runs", "over"])
def test_what_a_task_has_started_ends_with_it(state: str) -> None:
    """A script that it has started would go on computing on a GPU that another has by then. A task that is over ends
    nothing: its process may have another one's."""

    def alive(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    done = subprocess.run([sys.executable, "-c", LEAVES, state], stdout=subprocess.PIPE, text=True, timeout=240)
    pids = [int(word) for word in done.stdout.split()]
    try:
        assert len(pids) == 2
        assert done.returncode == (1 if state == "runs" else 0)
        if state == "over":
            assert all(alive(pid) for pid in pids)
            return
        until = time.monotonic() + 60
        while any(alive(pid) for pid in pids):
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        for pid in filter(alive, pids):
            psutil.Process(pid).kill()
