"""Installed and observing, EGS changes nothing; hints run wherever Airflow runs a function."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.airflow.live import LiveAirflow

DAG = """
import egs_core as egs
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator

with DAG("observed", schedule=None) as dag:

    @task
    @egs.task(gpus=1, preload=[egs.modules("json")])
    def train(step: int) -> int:
        return step * 2

    @task(priority_weight=7, weight_rule="absolute")
    def weigh() -> None:
        pass

    made = BashOperator(task_id="made", bash_command="true")
    made >> weigh() >> train.expand(step=[1, 2])
"""

COPIED = """
import sys
import egs_core as egs
from airflow.sdk import DAG, task

with DAG("copied", schedule=None):

    @task.external_python(python=%(python)r, expect_airflow=False)
    @egs.task(
        gpus=1,
        max_runtime="2h",
    )
    def elsewhere(step: int) -> int:
        import sys

        assert "egs_core" not in sys.modules
        return step * 2

    @task
    def check(result: int) -> None:
        assert result == 42

    check(elsewhere(21))
"""


def rows(airflow: LiveAirflow, query: str) -> list[tuple[Any, ...]]:
    """What Airflow's own tables have."""
    with sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def state_of(airflow: LiveAirflow, dag_id: str) -> dict[str, Any]:
    """All that an observer must leave alone: pools, stored DAGs with their versions, weights."""
    stored = rows(airflow, f"select data from serialized_dag where dag_id = '{dag_id}'")
    return {
        "pools": rows(airflow, "select pool, slots, include_deferred, description from slot_pool order by pool"),
        "versions": rows(airflow, f"select count(*) from dag_version where dag_id = '{dag_id}'"),
        "dag": [json.loads(data) if isinstance(data, str) else data for (data,) in stored],
    }


def run_facts(airflow: LiveAirflow, dag_id: str) -> list[tuple[Any, ...]]:
    """What one run gave each task instance."""
    run_id = airflow.run(dag_id)
    kept = ("task_id", "map_index", "state", "priority_weight", "pool", "pool_slots", "queue", "try_number")
    return sorted(tuple(instance[name] for name in kept) for instance in airflow.task_instances(dag_id, run_id))


@pytest.mark.proves("airflow mode, executor, agent", "observe")
def test_observe_changes_nothing(airflow: LiveAirflow) -> None:
    """The same file parsed by Airflow with EGS observing and with EGS off: equal stored DAG, one version, no pool; and
    a run of it has the weights, pools and queues that Airflow gives by itself."""
    pools = state_of(airflow, "observed")["pools"]
    airflow.add_dags(observed=DAG)
    before = state_of(airflow, "observed")
    assert before["pools"] == pools
    assert run_facts(airflow, "observed") == [
        ("made", -1, "success", 9, "default_pool", 1, "default", 1),
        ("train", 0, "success", 1, "default_pool", 1, "default", 1),
        ("train", 1, "success", 1, "default_pool", 1, "default", 1),
        ("weigh", -1, "success", 7, "default_pool", 1, "default", 1),
    ]
    airflow.command("dags", "reserialize", EGS_MODE="off")
    airflow.reserialize()
    assert state_of(airflow, "observed") == before
    assert before["versions"] == [(1,)]


def test_hints_run_where_source_is_copied(airflow: LiveAirflow) -> None:
    """`@egs.task` below `@task.external_python`, which runs a copy of the source in another interpreter without EGS."""
    airflow.add_dags(copied=COPIED % {"python": _bare_python(airflow.home)})
    airflow.run("copied")


def test_airflow_knows_egs(airflow: LiveAirflow) -> None:
    """Airflow lists the plugin, `airflow egs doctor` finds all well, and `[egs]` is in the configuration."""
    plugins = airflow.rest("GET", "/plugins?limit=100")["plugins"]
    ours = next(plugin for plugin in plugins if plugin["name"] == "egs")
    assert "airflow-provider-egs" in ours["source"]
    assert ours["listeners"]
    told = json.loads(airflow.command("egs", "doctor", "--json").splitlines()[-1])
    assert {line["name"]: line["ok"] for line in told if not line["ok"]} == {}
    slots = next(line for line in told if line["name"] == "slots kept")
    if slots["detail"].startswith("active"):  # where no other module of this session needs an executor of EGS it is off
        assert re.search(r"; scheduler \d+ on \S+ works", slots["detail"]), slots
    mode = next(line for line in told if line["name"] == "mode")
    assert mode["detail"] == "on (EGS_MODE in the environment) for DAGs with tag egs-on"
    assert "[egs]" in airflow.command("config", "list", "--section", "egs")


def test_no_error_where_airflow_looks_for_examples(airflow: LiveAirflow) -> None:
    """With `load_examples`, Airflow's default, each task begins with this: Airflow 3.3 makes a module's name of the
    distribution's, and writes an error with a traceback where there is none."""
    program = "from airflow.dag_processing.bundles.manager import DagBundlesManager; DagBundlesManager()"
    environment = {
        **airflow.environment,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "True",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    told = done.stdout + done.stderr
    assert "example_dags" in told  # it has looked
    assert "Could not load provider module" not in told


def _bare_python(home: Path) -> str:
    """An interpreter without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "bare")], check=True)
    return str(home / "bare" / "bin" / "python")
