"""EgsEdgeExecutor on a real Airflow whose tasks run in a real edge worker, which asks for them over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from egs_airflow import local
from egs_airflow.observe.lines import read_lines
from tests.conformance.airflow import test_agent, test_order
from tests.conformance.airflow.conftest import ENVIRONMENT, require_airflow
from tests.conformance.airflow.live import LiveAirflow, free_ports, live_airflow

pytestmark = pytest.mark.long  # an Airflow of its own, with a worker

PROVIDER = "apache-airflow-providers-edge3"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """An Airflow in mode on with EgsEdgeExecutor and an edge worker."""
    require_airflow()
    try:
        version(PROVIDER)
    except PackageNotFoundError:
        pytest.skip(f"{PROVIDER} is not installed")
    home = tmp_path_factory.mktemp("edge")
    environment = {
        **ENVIRONMENT,
        **test_order.AIRFLOW_ENVIRONMENT,
        "EGS_RUNLOG": str(home / "runlog"),
        "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.edge.EgsEdgeExecutor",
        "AIRFLOW__EDGE__API_ENABLED": "True",
        "AIRFLOW__EDGE__JOB_POLL_INTERVAL": "1",
        "AIRFLOW__EDGE__HEARTBEAT_INTERVAL": "5",
    }
    with live_airflow(home, environment) as airflow:
        _start_worker(airflow)
        yield airflow


def _start_worker(airflow: LiveAirflow) -> Path:
    """Start a worker that ends with Airflow; the file of what it prints."""
    folder = airflow.home / "worker"
    folder.mkdir()
    (logs_port,) = free_ports(1)
    own = {
        "AIRFLOW__EDGE__API_URL": f"{airflow.url}/edge_worker/v1/rpcapi",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(logs_port),
    }
    site = replace(airflow, home=folder, environment={**airflow.environment, **own})
    words = ("--concurrency", "8", "--queues", "default", "--edge-hostname", "edge", "--pid", str(folder / "pid"))
    airflow.processes.append(local.start(site, "edge", "worker", *words))
    return folder / "edge.log"


@pytest.mark.proves("airflow edge", "observe", "order", "priority", "expect")
def test_order_with_edge(edge: LiveAirflow) -> None:
    """Weights, and a slot kept for the successor that it was freed for: as with LocalExecutor. The tasks of the worker
    leave their lines."""
    test_order.test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag(edge)
    test_order.test_a_successor_gets_the_slot_that_its_predecessor_freed(edge)
    lines = read_lines(edge.home / "runlog")
    assert {"second", "leaf"} <= {line.task for line in lines if line.state == "success"}


@pytest.mark.proves("airflow edge", "abort")
def test_abort_with_edge(edge: LiveAirflow) -> None:
    """Tasks, a group and a run: the processes of the worker's tasks are dead within two seconds; the worker goes on."""
    test_agent.test_abort_of_tasks_a_group_and_a_run(edge)
    edge.check_alive()
    said = [line for line in edge.logs().splitlines() if "egs: " in line]
    assert [line for line in said if "every task counts as equally long" not in line] == []
