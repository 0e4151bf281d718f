"""How EGS is left while a DAG run is in flight that has its weights and its pool, and for which a slot is kept; with
Airflow's metadata in SQLite and in PostgreSQL."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from egs_airflow import local
from egs_airflow.local import LocalAirflowError
from egs_airflow.observe.lines import read_lines
from egs_airflow.order.durations import write_durations
from egs_airflow.order.weights import weights
from egs_core.web import Unreachable
from tests.conformance.airflow.conftest import ENVIRONMENT, require_airflow
from tests.conformance.airflow.holding import held_dag, holding, released
from tests.conformance.airflow.live import LiveAirflow, live_airflow, wait_until
from tests.conformance.airflow.postgres import metadata_in, postgres
from tests.conformance.airflow.sites import Site, add_module, make_site

pytestmark = pytest.mark.long

REST = """
    import egs_core as egs

    @task
    @egs.task(gpus=1)
    def train():
        pass

    begun >> large() >> train()
    begun >> small.expand(number=[0, 1])

with DAG("plain", tags=["egs-on"], schedule=None):
    @task
    def only():
        pass

    only()
"""

EDGES = {"holder": [], "first": ["large", "small"], "large": ["train"], "train": [], "small": []}
LEARNED_S = {"holder": 1.0, "first": 1.0, "large": 600.0, "train": 600.0, "small": 1.0}
NATIVELY = {"holder": 1, "first": 4, "large": 2, "train": 1, "small": 1}
OWN_INTERPRETER = "own_interpreter.KeepingInterpreter"
SETTINGS = {
    **ENVIRONMENT,
    "AIRFLOW__CORE__EXECUTOR": OWN_INTERPRETER,
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",  # else what was read half a minute ago is not read again
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "60",  # the api-server restarts while a task runs on
    "EGS_POOLS": "leaving_gpu=2",
    "EGS_RESERVE_AFTER": "0.001",
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The variables that say where Airflow keeps its metadata."""
    if request.param == "sqlite":
        yield {}
        return
    with postgres() as url:
        yield metadata_in(url)


@pytest.fixture(scope="module")
def site(
    database: dict[str, str],  # noqa: ARG001  # with another one there is another site
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    """An environment from which the provider can be uninstalled, for each database another."""
    require_airflow()
    return make_site(tmp_path_factory.mktemp("leaving") / "site")


@pytest.fixture(scope="module")
def leaving(site: Site, database: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """An Airflow in that environment, in mode on, whose tasks each have an interpreter of their own."""
    home = tmp_path_factory.mktemp("leaving") / "home"
    extra = home.parent / "extra"
    add_module(extra, Path(__file__).parent / "executors" / "own_interpreter.py")
    own = {"PYTHONPATH": str(extra), "EGS_RUNLOG": str(home / "runlog"), "EGS_DURATIONS": str(home / "durations.json")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(site.python))
        with live_airflow(home, {**SETTINGS, **own, **database}) as airflow:
            airflow.rest("POST", "/pools", {"name": "leaving", "slots": 2, "include_deferred": False})
            airflow.add_dags(leaving=held_dag("leaving", home, REST))
            try:
                yield airflow
            finally:
                released("leaving", home).touch()


def test_from_on_to_observe(leaving: LiveAirflow) -> None:
    """The file of durations is corrupt: DAG runs succeed, with one warning. Then mode observe while a run is in flight:
    it ends well, what was kept is given to whoever is next, and Airflow's own weights and pools are back."""
    durations = leaving.home / "durations.json"
    durations.write_text('{"format": ')
    for run in [leaving.trigger("plain"), leaving.trigger("plain")]:
        assert leaving.wait_run("plain", run) == "success"
    assert leaving.logs().count("durations.json: no durations can be read from it") == 1
    run = hold(leaving)
    since = restart(leaving, EGS_MODE="observe", AIRFLOW__CORE__EXECUTOR="egs_airflow.executors.EgsLocalExecutor")
    check_left(leaving, run, since)


def test_uninstalled(leaving: LiveAirflow, site: Site) -> None:
    """The provider's files are gone while all runs: a task whose worker lacks them succeeds. Then Airflow restarts
    without it: the run in flight ends well, and nothing is left that Airflow cannot read."""
    restart(leaving, EGS_MODE="on", AIRFLOW__CORE__EXECUTOR=OWN_INTERPRETER)
    leaving.reserialize()
    run = hold(leaving)
    known = lines(leaving)
    assert ("leaving", run, "first") in known
    site.uninstall()
    leaving.run("plain")
    assert lines(leaving) == known  # the worker had no listener
    assert is_held(leaving, run)
    since = restart(leaving, AIRFLOW__CORE__EXECUTOR="LocalExecutor")
    plugins = leaving.rest("GET", "/plugins?limit=100")["plugins"]
    assert not [plugin for plugin in plugins if plugin["name"] == "egs"]
    check_left(leaving, run, since)


def hold(airflow: LiveAirflow) -> str:
    """Start a run, and wait until a slot is kept in it: also while another run has begun and ended."""
    for path in (holding("leaving", airflow.home), released("leaving", airflow.home)):
        path.unlink(missing_ok=True)
    write_durations(airflow.home / "durations.json", {"leaving": LEARNED_S})
    run = airflow.trigger("leaving")
    wait_until(lambda: is_held(airflow, run), "a kept slot")
    airflow.run("plain")
    assert is_held(airflow, run), airflow.task_instances("leaving", run)
    found = airflow.task_instances("leaving", run)
    assert {ti["task_id"]: ti["priority_weight"] for ti in found} == weights(EDGES, LEARNED_S)
    assert {ti["pool"] for ti in found if ti["task_id"] == "train"} == {"leaving_gpu"}
    return run


def is_held(airflow: LiveAirflow, run: str) -> bool:
    """Whether one slot is open, and both the large task and small ones wait."""
    waiting = {ti["task_id"] for ti in airflow.task_instances("leaving", run) if ti["state"] == "scheduled"}
    return waiting == {"large", "small"} and airflow.rest("GET", "/pools/leaving")["open_slots"] == 1


def restart(airflow: LiveAirflow, **environment: str) -> float:
    """End api-server and scheduler and start them with other variables; the moment in between (Unix time)."""
    for process in airflow.processes:
        process.terminate()
    for process in airflow.processes:
        process.wait(timeout=300)
    since = time.time()
    airflow.environment.update(environment)
    airflow.processes[:] = [local.start(airflow, "api-server", "--workers", "1")]
    wait_until(lambda: is_warm(airflow), "an api-server")
    airflow.processes.append(local.start(airflow, "scheduler"))
    return since


def is_warm(airflow: LiveAirflow) -> bool:
    """Whether tasks are answered: the first answer takes seconds, and a task that waits for it in vain fails."""
    airflow.check_alive()
    try:
        airflow.ask("GET", "/execution/health")
    except (Unreachable, LocalAirflowError):
        return False
    return True


def check_left(airflow: LiveAirflow, run: str, since: float) -> None:
    """The run in flight ends well, natively; then all is as if EGS had never been there."""
    held = {ti["map_index"] for ti in airflow.task_instances("leaving", run) if ti["task_id"] == "small"}
    small = wait_until(lambda: smalls(airflow, run), "small tasks in the slot that was kept")
    assert all(datetime.fromisoformat(ti["start_date"]).timestamp() > since for ti in small if ti["map_index"] in held)
    released("leaving", airflow.home).touch()
    assert airflow.wait_run("leaving", run) == "success"
    assert {ti["state"] for ti in airflow.task_instances("leaving", run)} == {"success"}
    airflow.reserialize()
    assert airflow.rest("GET", "/importErrors")["total_entries"] == 0
    again = airflow.run("leaving")
    found = airflow.task_instances("leaving", again)
    assert {ti["task_id"]: ti["priority_weight"] for ti in found} == NATIVELY
    assert {ti["pool"] for ti in found} == {"leaving", "default_pool"}
    for place in ("details", "tasks", "dagVersions", "dagRuns", f"dagRuns/{run}/taskInstances"):
        assert airflow.rest("GET", f"/dags/leaving/{place}")
    assert {p["name"]: p["slots"] - p["open_slots"] for p in airflow.rest("GET", "/pools")["pools"]} == {
        "default_pool": 0,
        "leaving": 0,
        "leaving_gpu": 0,
    }


def smalls(airflow: LiveAirflow, run: str) -> list[dict[str, Any]]:
    """The small tasks of a run, once all have ended."""
    found = [ti for ti in airflow.task_instances("leaving", run) if ti["task_id"] == "small"]
    return found if {ti["state"] for ti in found} == {"success"} else []


def lines(airflow: LiveAirflow) -> set[tuple[str, str, str]]:
    """What listeners have noted until now."""
    return {(line.dag, line.run, line.task) for line in read_lines(airflow.home / "runlog")}
