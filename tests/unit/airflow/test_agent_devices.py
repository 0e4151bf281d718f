"""Which GPUs the tasks of a host have: seen by the agent's own thread, told to a server once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from egs_airflow.agent import devices as devices_module
from egs_airflow.agent.devices import Devices
from egs_airflow.agent.picture import Picture, Pool
from egs_airflow.agent.processes import TaskProcess
from egs_airflow.agent.session import Session
from tests.unit.airflow.test_agent_session import NOW_S, instance, run

PATIENCE_S = 60.0


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """The GPUs of tries that run here for long, by id; `old`, `new` are their processes."""
    known: dict[str, tuple[str, ...]] = {"old": ("GPU-a",), "new": ("GPU-b",)}
    processes = [TaskProcess(1, "old", time.time() - 60), TaskProcess(2, "new", time.time() + PATIENCE_S)]
    monkeypatch.setattr(devices_module, "task_processes", lambda: processes)
    monkeypatch.setattr(devices_module, "is_of_user", lambda *_: True)
    monkeypatch.setattr(devices_module, "LOOK_S", 0.02)

    def devices_of(roots: dict[int, str], _users: object) -> dict[str, tuple[str, ...]]:
        return {name: known[name] for name in roots.values() if name in known}

    monkeypatch.setattr(devices_module, "devices_of", devices_of)
    return known


def test_what_a_task_has_used_it_has_until_it_uses_another(host: dict[str, tuple[str, ...]]) -> None:
    """Of tasks that have run for a while, and are asked about; who asks never waits."""
    found = Devices(dict)
    try:
        assert found.look([]) == {}
        wait_for(lambda: found.look(["old", "new", "gone"]) == {"old": ("GPU-a",)})
        del host["old"]
        time.sleep(0.1)
        assert found.look(["old"]) == {"old": ("GPU-a",)}
        host["old"] = ("GPU-c",)
        wait_for(lambda: found.look(["old"]) == {"old": ("GPU-c",)})
        assert found.look(["new"]) == {}
    finally:
        found.close()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_only_processes_of_the_user_who_runs_airflow_are_tasks(
    host: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The agent's own user, and where that is root the owner of Airflow's home; without one root itself."""
    asked: list[int] = []

    def is_of_user(_: int, user: int) -> bool:
        asked.append(user)
        return user != 8

    monkeypatch.setattr(devices_module, "is_of_user", is_of_user)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    found = Devices(dict)
    for own, owner in ((7, 9), (0, 9), (0, 8), (0, 0)):
        monkeypatch.setattr(os, "getuid", lambda own=own: own)
        os.chown(tmp_path, owner, -1)
        assert found._seen({"old"}) == ({} if owner == 8 else {"old": host["old"]})
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "none"))
    assert found._seen({"old"}) == {"old": host["old"]}
    assert asked == [7, 9, 8, 0, 0]


@pytest.mark.usefixtures("host")
def test_a_driver_that_hangs_holds_up_nobody() -> None:
    """And one that does not answer is asked again; without NVML's binding nobody is asked any more."""
    hangs, asked = threading.Event(), list[int]()

    def hang() -> dict[str, tuple[int, ...]]:
        asked.append(1)
        assert hangs.wait(PATIENCE_S)
        raise ImportError("no pynvml")

    found = Devices(hang)
    wait_for(lambda: found.look(["old"]) == {} and bool(asked))
    began = time.monotonic()
    assert found.look(["old"]) == {}
    found.close()
    assert time.monotonic() - began < 1.0
    hangs.set()
    thread = found._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert (thread.is_alive(), len(asked)) == (False, 1)


def test_a_server_is_told_of_tasks_in_gpu_pools_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the site's number, once, and again where it is another GPU; a site of the agent's own is told nothing."""
    session = Session()
    told: list[tuple[int, tuple[str, ...]]] = []
    asked: list[set[str]] = []
    has: dict[str, tuple[str, ...]] = {"r.a": ("GPU-a",)}

    def look(tries: Iterable[str]) -> dict[str, tuple[str, ...]]:
        asked.append(set(tries))
        return has

    monkeypatch.setattr(session.site, "has_devices", lambda *words: told.append(words))
    monkeypatch.setattr(session._devices, "look", look)
    try:
        both = [instance("a", state="running"), instance("b", state="running", pool="cpus"), instance("c", state="")]
        picture = Picture((Pool("p", 1, is_gpu=True), Pool("cpus", 1)), [run(both)], 1.0, 30.0)
        session.order(picture, NOW_S)
        assert (told, asked) == ([], [])
        monkeypatch.setattr(type(session.site), "is_shared", property(lambda _: True))
        for _ in range(2):
            session.site.call(lambda: session._tell(picture, NOW_S))
        assert asked == [{"r.a"}, {"r.a"}]
        ((number, devices),) = told
        assert devices == ("GPU-a",)
        assert session.site.tasks([number])[0].status == "running"
        has["r.a"] = ("GPU-b",)
        session.site.call(lambda: session._tell(picture, NOW_S))
        assert told[1:] == [(number, ("GPU-b",))]
    finally:
        session.close()
