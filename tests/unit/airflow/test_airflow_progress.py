"""What a task of Airflow tells of how far it is: kept by its processes, read by its host's agent, told to a server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import egs_core as egs
from egs_airflow import config
from egs_airflow.agent.picture import Picture, Pool
from egs_airflow.agent.session import Session
from egs_airflow.observe import progress
from egs_airflow.observe.listener import TaskListener
from egs_airflow.observe.progress import PLACE, Reader
from egs_core.site import Where
from egs_core.worked import FOLDER
from tests.unit.airflow.test_agent_session import NOW_S, instance, run

ID = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = ID[::-1].replace("-", "0")[:8] + ID[8:]
TELLS = "import egs_core as egs; egs.progress(step=9, loss=float('nan'))"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run log, of an Airflow at a site server."""
    monkeypatch.setenv("EGS_RUNLOG", str(tmp_path))
    monkeypatch.setenv("EGS_URL", "unix:///nowhere")
    monkeypatch.delenv(FOLDER, raising=False)
    config.warn.cache_clear()
    return tmp_path


def began(try_id: str = ID) -> TaskListener:
    """A task whose code is about to run in this process."""
    found = TaskListener()
    found.on_task_instance_running(task_instance=SimpleNamespace(id=try_id))
    return found


def end(task: TaskListener, **fields: Any) -> None:
    known = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1, "task": None}
    task.on_task_instance_success(task_instance=SimpleNamespace(start_date=None, end_date=None, **known, **fields))


def test_a_task_and_what_it_starts_are_heard_while_it_runs(place: Path) -> None:
    """Once for each word that is new; nothing is left when it is over, and the next begins with nothing."""
    reader = Reader(place)
    assert reader.look([ID]) == {}
    task = began()
    assert reader.look([ID]) == {}
    egs.progress(step=3, loss=2.0)
    (found,) = reader.look([ID, OTHER]).values()
    assert (found.step, found.loss, found.losses) == (3.0, 2.0, 1)
    assert reader.look([ID]) == {}
    subprocess.run([sys.executable, "-c", TELLS], check=True)
    found = reader.look([ID])[ID]
    assert (found.step, found.is_nan) == (9.0, True)
    end(task)
    assert FOLDER not in os.environ
    assert list((place / PLACE).iterdir()) == []
    assert reader.look([ID]) == {}
    task = began(OTHER)
    egs.progress(step=1)
    found = reader.look([OTHER])[OTHER]
    assert (found.step, found.loss, found.losses) == (1.0, None, 0)
    end(task)


@pytest.mark.parametrize(
    ("variables", "try_id"),
    [({"EGS_URL": ""}, ID), ({}, "../../up"), ({}, ""), ({FOLDER: "/mine"}, ID)],
    ids=["no server", "no id", "none", "a command's own"],
)
def test_nothing_is_kept_where_nobody_would_read_it(
    variables: dict[str, str], try_id: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    task = began(try_id)
    assert not (place / PLACE).exists()
    assert os.environ.get(FOLDER, "") == variables.get(FOLDER, "")
    end(task)


def test_a_full_disk_is_one_warning(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The task runs on."""
    (place / PLACE).touch()
    for _ in range(2):
        end(began())
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 1
    assert "what this task tells of how far it is is not kept" in said[0]


def test_what_killed_tasks_leave_goes_when_it_is_old(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of one that runs."""
    for name in (ID, OTHER):
        (place / PLACE / name).mkdir(parents=True)
        os.utime(place / PLACE / name, (0, 0))
    young = place / PLACE / "young"
    young.mkdir()
    Reader(place).look([ID])
    assert {one.name for one in (place / PLACE).iterdir()} == {ID, "young"}
    monkeypatch.setattr(progress, "MOST_FOLDERS", 0)
    Reader(place).look([])
    assert (place / PLACE / ID).exists()


@pytest.mark.usefixtures("place")
def test_an_agent_tells_a_server_of_tries_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the site's number of each, with how long ago; what has not changed is told once, and a site of the agent's own
    is told nothing."""
    session = Session()
    told: list[Where] = []
    monkeypatch.setattr(session.site, "progressed", told.append)
    try:
        task = began()
        egs.progress(step=3, loss=2.0)
        picture = Picture((Pool("p", 1),), [run([instance("a", state="running", id=ID), instance("b")])], 1.0, 30.0)
        session.order(picture, NOW_S)
        assert told == []
        monkeypatch.setattr(type(session.site), "is_shared", property(lambda _: True))
        for _ in range(2):
            session.site.call(lambda: session._tell(picture, time.time() + 60))
        (where,) = told
        assert (where.step, where.loss, where.losses, where.total, where.squares) == (3.0, 2.0, 1, 2.0, 4.0)
        assert 59 < where.ago_s < 120
        assert [one.task for one in session.site.tasks([where.task])] == [where.task]
        assert session.site.tasks([where.task])[0].status == "running"
        end(task)
    finally:
        session.close()
