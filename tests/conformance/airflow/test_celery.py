"""EgsCeleryExecutor on a real Airflow with Redis and Celery workers, whose metadata is in a real PostgreSQL: what
LocalExecutor has on SQLite is there too; and a worker that lacks the provider."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from egs_airflow.history.keep import keep_history, learned
from egs_airflow.observe.lines import read_lines
from egs_airflow.rest import connect
from egs_core.history.sql import SqlHistory
from tests.conformance.airflow import postgres, test_agent, test_order
from tests.conformance.airflow.celery_site import redis, settings, start_worker
from tests.conformance.airflow.conftest import ENVIRONMENT, require_airflow
from tests.conformance.airflow.live import LiveAirflow, live_airflow
from tests.conformance.airflow.sites import make_site

pytestmark = pytest.mark.slow  # an Airflow of its own, with a broker and two workers

MIXED = """
import egs_core as egs
from airflow.sdk import DAG, task

with DAG("mixed", tags=["egs-on"], schedule=None, default_args={"executor_config": {"site": {"rack": 7}}}):
    @task
    @egs.task(gpus=1, max_runtime="1h")
    def here(number):
        return number

    @task(queue="bare")
    @egs.task(gpus=1, max_runtime="1h")
    def there(numbers):
        import sys

        try:
            import egs_airflow
        except ImportError:
            return sum(numbers)
        raise AssertionError("this worker has the provider")

    @task
    def after(total):
        assert total == 3

    after(there(here.expand(number=[1, 2])))
"""

NOTHING_LEARNED = "egs: every task counts as equally long: "  # the agent of this Airflow has not learned yet


@pytest.fixture(scope="module")
def celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """An Airflow in mode on with EgsCeleryExecutor and a worker; on SQLite where there is no PostgreSQL."""
    require_airflow()
    home = tmp_path_factory.mktemp("celery")
    own = {"EGS_HISTORY": f"sqlite:///{home / 'history.sqlite'}", "EGS_RUNLOG": str(home / "runlog")}
    with redis() as broker, ExitStack() as stack:
        if postgres.is_installed():
            own |= postgres.metadata_in(stack.enter_context(postgres.postgres()))
        environment = {**ENVIRONMENT, **test_order.AIRFLOW_ENVIRONMENT, **own, **settings(broker, home)}
        with live_airflow(home, environment) as airflow:
            start_worker(airflow, "default")
            yield airflow


@pytest.mark.proves("airflow celery", "observe", "gpus")
def test_a_worker_that_lacks_the_provider_runs_its_tasks(
    celery: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose tasks go to two workers, one of which lacks the provider: it succeeds, with weights, pools and the
    user's `executor_config` as mode on has them. Tasks of the other worker leave their lines; all are learned."""
    site = make_site(tmp_path / "site")
    site.uninstall()
    monkeypatch.setattr(sys, "executable", str(site.python))
    bare = start_worker(celery, "bare", PYTHONPATH="")
    monkeypatch.undo()
    celery.add_dags(mixed=MIXED)
    run = celery.run("mixed")
    found = {(ti["task_id"], ti["map_index"]): ti for ti in celery.task_instances("mixed", run)}
    assert {ti["pool"] for (name, _), ti in found.items() if name != "after"} == {"order_gpu"}
    assert found["here", 0]["priority_weight"] > found["there", -1]["priority_weight"] > 1
    assert "'site': {'rack': 7}" in found["here", 0]["executor_config"]
    lines = [line for line in read_lines(celery.home / "runlog") if line.run == run]
    assert {(line.task, line.map_index): line.state for line in lines} == dict.fromkeys(
        found.keys() - {("there", -1)}, "success"
    )
    history = SqlHistory.in_folder(tmp_path)
    assert keep_history(connect(celery.url), history, tmp_path / "kept", lines=lines, settle_s=0.0) == len(found)
    assert learned(history)["mixed"].keys() == {"here", "there", "after"}
    history.close()
    assert "Traceback" not in bare.read_text()


@pytest.mark.proves("airflow celery", "order", "gpus", "priority", "expect")
def test_order_with_celery(celery: LiveAirflow) -> None:
    """Weights, GPU pools, slots kept for a successor and for a large task, and what is learned of it: as with
    LocalExecutor on SQLite."""
    kept_in = celery.command("config", "get-value", "database", "sql_alchemy_conn")
    assert ("postgresql" in kept_in) is postgres.is_installed()
    test_order.test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag(celery)
    test_order.test_gpu_tasks_of_chosen_dags_go_into_the_configured_pool(celery)
    test_order.test_a_successor_gets_the_slot_that_its_predecessor_freed(celery)
    test_order.test_a_task_that_needs_several_slots_does_not_starve(celery)
    assert "tasks of" in celery.command("egs", "learn", "--url", celery.url)
    assert (celery.home / "airflow.db").exists() is not postgres.is_installed()


@pytest.mark.proves("airflow celery", "abort")
def test_abort_with_celery(celery: LiveAirflow) -> None:
    """Tasks, a group and a run: the workers' processes are dead within two seconds; the workers go on."""
    test_agent.test_abort_of_tasks_a_group_and_a_run(celery)
    celery.check_alive()
    celery.run("mixed")
    said = [line for line in celery.logs().splitlines() if "egs: " in line]
    assert [line for line in said if NOTHING_LEARNED not in line] == []
