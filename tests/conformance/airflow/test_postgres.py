"""The provider where Airflow keeps its metadata in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.airflow import test_order
from tests.conformance.airflow.conftest import ENVIRONMENT, require_airflow
from tests.conformance.airflow.live import LiveAirflow, live_airflow
from tests.conformance.airflow.postgres import metadata_in, postgres

pytestmark = pytest.mark.slow  # an Airflow of its own, and the tests of order a second time


@pytest.fixture(scope="module")
def airflow_on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """An Airflow in mode on with EgsLocalExecutor."""
    require_airflow()
    home: Path = tmp_path_factory.mktemp("postgres")
    with postgres() as url:
        own = {"EGS_HISTORY": f"sqlite:///{home / 'history.sqlite'}", "EGS_RUNLOG": str(home / "runlog")}
        with live_airflow(
            home, {**ENVIRONMENT, **test_order.AIRFLOW_ENVIRONMENT, **own, **metadata_in(url)}
        ) as airflow:
            yield airflow


def test_order_on_postgresql(airflow_on_postgres: LiveAirflow) -> None:
    """Weights, slots that are kept for a successor and for a large task, GPU pools, and what is learned of it: as on
    SQLite; EGS has nothing to warn of."""
    airflow = airflow_on_postgres
    assert "postgresql" in airflow.command("config", "get-value", "database", "sql_alchemy_conn")
    test_order.test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag(airflow)
    test_order.test_gpu_tasks_of_chosen_dags_go_into_the_configured_pool(airflow)
    test_order.test_a_successor_gets_the_slot_that_its_predecessor_freed(airflow)
    test_order.test_a_task_that_needs_several_slots_does_not_starve(airflow)
    told = airflow.command("egs", "learn", "--url", airflow.url)
    assert "tasks of" in told
    assert not (airflow.home / "airflow.db").exists()
    assert "egs: " not in airflow.logs()
