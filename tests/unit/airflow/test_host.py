"""The agent as a host of the engine, on an Airflow that answers as a recorded one did, with connections of its own."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_airflow import config
from egs_airflow.agent.commands import order_lines
from egs_airflow.agent.host import AGAIN_S, DECIDE_S, REFUSED_S, Host
from egs_airflow.agent.lease import record_of
from egs_airflow.agent.lease_store import ConnectionStore
from egs_airflow.agent.picture import Camera, Pool
from egs_airflow.agent.session import Session
from egs_airflow.agent.tags import Modes
from egs_airflow.order.durations import packed
from egs_airflow.order.published import Order, order_of
from egs_airflow.rest import Rest
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow

RUN = "manual__1"


class Site:
    """A recorded Airflow in which DAG `train` runs: `prepare` and one more run, `leaf` and `fit` wait. It keeps
    connections as Airflow does."""

    def __init__(self, server: RecordedAirflow) -> None:
        self.server, self.connections = server, dict[str, dict[str, Any]]()
        self.variables: dict[str, str] = {}
        self.may_write = True
        states = {"prepare": "running", "leaf": "scheduled", "fit": "scheduled"}
        rows = [row for row in server.data["instances"] if row["task_id"] in states and row["map_index"] < 1]
        self.instances = [
            row | {"state": states[row["task_id"]], "dag_run_id": RUN, "note": None, "executor_config": "{}"}
            for row in rows
        ]
        self.tasks = [
            row | {"priority_weight": 1.0, "weight_rule": "downstream"} for row in server.data["tasks"]["train"]
        ]
        server.answer = self.answer

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        where = urllib.parse.unquote(path.removeprefix("/api/v2/")).split("/")
        if where == ["dags", "~", "dagRuns"]:
            run = {"dag_id": "train", "dag_run_id": RUN, "start_date": "2026-11-22T00:00:00Z", "state": "running"}
            return 200, {"dag_runs": [run], "total_entries": 1}
        if where == ["dags", "~", "dagRuns", "~", "taskInstances"]:
            return 200, {"task_instances": self.instances, "total_entries": len(self.instances)}
        if where[0] == "variables" and where[1] in self.variables:
            return 200, {"key": where[1], "value": self.variables[where[1]]}
        if where == ["dags", "train", "tasks"]:
            return 200, {"tasks": self.tasks}
        return self.server.recorded(path, query)


class Store(ConnectionStore):
    """The connections of a `Site`: what of Airflow's routes the store uses is tried on a real one."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def texts(self) -> dict[int, str]:
        return {int(name): row["description"] for name, row in self.site.connections.items()}

    def create(self, epoch: int, text: str) -> None:
        if not self.site.may_write:
            raise config_error()
        assert str(epoch) not in self.site.connections
        self.site.connections[str(epoch)] = {"description": text, "extra": "{}"}

    def remove(self, epoch: int) -> None:
        del self.site.connections[str(epoch)]

    def _patch(self, epoch: int, **fields: str) -> bool:
        self.site.connections[str(epoch)].update(fields)
        return True


def config_error() -> Exception:
    from egs_core.errors import InputError

    return InputError("http://airflow", "refuses the request for connections (403 Forbidden)")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """In mode on for all DAGs, with folders of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("EGS_MODE", "on")
    config.settings.cache_clear()
    with recorded_airflow() as server:
        yield Site(server)
    config.settings.cache_clear()


def host_of(site: Site) -> Host:
    rest = Rest(site.server.url)
    host = Host(rest, Modes(rest))
    host._store = host.lease.store = Store(site)
    return host


def test_the_picture(site: Site) -> None:
    """Open instances with their edges, and what of each pool is left for them; a DAG with a priority set by hand is
    left alone as a whole, and what runs of it takes slots."""
    site.variables["egs_durations"] = packed({"train": {"fit": 60.0}})
    rest = Rest(site.server.url)
    (gpus,) = (row for row in site.server.data["pools"] if row["name"] == "gpus")
    gpus["occupied_slots"] = 1
    found = Camera(rest, Modes(rest)).look()
    assert {pool.name: pool for pool in found.pools}["gpus"] == Pool("gpus", 2, 1)
    (run,) = found.runs
    assert (run.workload, len(run.instances), run.known_s) == (f"train/{RUN}", 3, {"fit": 60.0})
    assert run.downstream["prepare"] == ["fit"]
    for row in site.instances:
        row["executor_config"] = "{'egs': {'expect': 7.0}}"
    (run,) = Camera(rest, Modes(rest)).look().runs
    assert run.known_s == {"prepare": 7.0, "leaf": 7.0, "fit": 60.0}  # what was learned goes before what was hinted
    for field, value in (("priority_weight", 7.0), ("weight_rule", "absolute")):
        site.tasks[0][field], before = value, site.tasks[0][field]
        assert Camera(rest, Modes(rest)).look().runs == []
        site.tasks[0][field] = before


def test_it_publishes_what_it_decides(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Once it holds the lease; again only when something has changed; a second agent looks on and publishes nothing;
    when the first has let go, it takes over with the next epoch."""
    first, second = host_of(site), host_of(site)
    first.look(0.0)
    second.look(0.0)
    order = order_of(json.loads(site.connections["1"]["extra"])["order"])
    assert order is not None
    assert {turn.id for turn in order.turns} == {row["id"] for row in site.instances if row["state"] == "scheduled"}
    asked = len(site.server.requests)
    first.look(0.1)
    assert len(site.server.requests) == asked
    site.connections["1"]["extra"] = "untouched"
    first.look(DECIDE_S)
    assert site.connections["1"]["extra"] == "untouched"
    assert list(site.connections) == ["1"]
    first.close()
    second.look(60.0)
    assert record_of(site.connections["2"]["description"]).holder == second.lease.holder
    told = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "hosts the engine, epoch 1",
        f"the engine is hosted by {first.lease.holder}",
        "hosts the engine, epoch 2",
    ]


def test_one_that_may_not_write(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so once, is an agent in all else, and tries again much later."""
    site.may_write = False
    host = host_of(site)
    for now_s in (0.0, 20.0, 40.0):
        host.look(now_s)
    assert capsys.readouterr().err.count("refuses the request for connections (403 Forbidden)") == 1
    site.may_write = True
    host.look(REFUSED_S)
    assert host.lease.is_held


def test_an_engine_that_fails(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the lease is let go: another agent may have more luck."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(Session, "order", fail)
    host = host_of(site)
    host.look(0.0)
    assert "tries again in 300 s: ZeroDivisionError: injected" in capsys.readouterr().err
    assert not host.lease.is_held
    assert record_of(site.connections["1"]["description"]).holder == ""


def test_the_order_in_words(site: Site) -> None:
    """`airflow egs order`: who hosts, and what waits with the reason; and where nobody does."""
    rest = Rest(site.server.url)

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        rows = [{"connection_id": f"egs_engine_{n}", **row} for n, row in site.connections.items()]
        if path == "/api/v2/connections":
            return 200, {"connections": rows, "total_entries": len(rows)}
        found = [row for row in rows if path == f"/api/v2/connections/{row['connection_id']}"]
        return (200, found[0]) if found else site.answer(path, query)

    site.server.answer = answer
    assert order_lines(rest)[0].startswith("no agent hosts the engine")
    host = host_of(site)
    host.look(0.0)
    first, *others = order_lines(rest)
    assert first == f"the engine is hosted by {host.lease.holder}, epoch 1"
    assert len(others) == 2
    assert any("would start now, by" in line for line in others), others


def test_a_site_server_that_is_not_there(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lease is held, nobody's order is published, no engine is hosted, and one line is said, however often it is
    tried again."""
    monkeypatch.setenv("EGS_URL", "http://127.0.0.1:1")
    host = host_of(site)
    for now_s in (0.0, AGAIN_S, 2 * AGAIN_S):
        host.look(now_s)
    assert host.lease.is_held
    order = order_of(json.loads(site.connections["1"]["extra"])["order"])
    assert order == Order(site="http://127.0.0.1:1")
    said = capsys.readouterr().err
    assert said.count("weights from creation stand until it answers") == 1
    assert "hosts the engine" not in said
