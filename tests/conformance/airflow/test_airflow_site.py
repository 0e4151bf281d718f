"""A real Airflow whose order is a site server's: no agent has an engine, people see it, and the server may die."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_airflow.agent.commands import order_lines
from egs_airflow.order.pools import DESCRIPTION
from egs_airflow.rest import Rest
from tests.conformance.airflow.agents import an_agent
from tests.conformance.airflow.live import LiveAirflow, wait_until
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import own_site

pytestmark = pytest.mark.slow
AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}
QUEUES = """
teams:
  - {{name: vision, users: ["{user}"]}}
queues:
  - {{name: images, team: vision}}
"""
SOURCE = """
import time
from pathlib import Path
from airflow.sdk import DAG, task

HOME = Path({home!r})

with DAG("site_holder", tags=["egs-on"], schedule=None):
    @task(pool="site")
    def holder(run_id=None):
        (HOME / f"holding {{run_id}}").touch()
        while not (HOME / f"release {{run_id}}").exists():
            time.sleep(0.05)

    holder()

for name, priority in (("site_low", 0), ("site_high", 5)):
    with DAG(name, tags=["egs-on"], schedule=None):
        @task(pool="site", executor_config={{"egs": {{"priority": priority}}}})
        def only():
            pass

        only()
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    """A server with one queue, of team vision."""
    with own_site(tmp_path, 0, queues=QUEUES.format(user=os.getuid())) as found:
        yield found


@pytest.mark.proves("airflow site", "order", "abort", "priority")
def test_an_airflow_at_a_site_server(airflow: LiveAirflow, site: RealSite, tmp_path: Path) -> None:
    """Two DAG runs wait for one GPU slot: that with the higher priority, which came later, goes first, in the server's
    order, and nobody hosts an engine. `egs ps`, `queue` and `why` there show the Airflow, with framework and team;
    `egs abort` ends what runs of it. Then the server is killed: one line, no order is followed, and runs succeed."""
    rest = Rest(airflow.url, airflow.token)
    airflow.rest("POST", "/pools", {"name": "site", "slots": 1, "description": DESCRIPTION, "include_deferred": False})
    airflow.add_dags(site=SOURCE.format(home=str(airflow.home)))
    url = f"unix://{site.ready['socket']}"
    with an_agent(airflow, tmp_path / "log", airflow.url, EGS_URL=url, EGS_LEARN_EVERY="never") as agent:
        wait_until(lambda: "speaks for this Airflow" in agent.said(), "the agent to join")
        holder = _hold(airflow)
        runs = {dag: airflow.trigger(dag) for dag in ("site_low", "site_high")}
        wait_until(lambda: len(order_lines(rest)) == 3, "an order of both")
        head, first, _ = order_lines(rest)
        assert head.startswith(f"the engine is that of the site server {url}, joined by")
        assert "site_high" in first
        (view,) = wait_for(
            lambda: [one for one in site.client.queue().runs if one.tasks and one.tasks.waiting == 2], "both wait"
        )
        assert (view.framework, view.team, view.state, view.gpus) == ("airflow", "vision", "running", 1.0)
        assert "airflow: " in site.egs("ps").stdout
        assert site.egs("why", view.id).returncode == 0
        (airflow.home / f"release {holder}").touch()
        for dag, run in runs.items():
            assert airflow.wait_run(dag, run) == "success"
        began = {dag: str(airflow.task_instances(dag, run)[0]["start_date"]) for dag, run in runs.items()}
        assert began["site_high"] < began["site_low"], began

        ended = _hold(airflow)
        wait_for(lambda: [one for one in site.client.runs().runs if one.gpus], "the server sees that it runs")
        site.told("abort", view.id, "--reason", "too long")
        assert airflow.wait_run("site_holder", ended, "failed") == "failed"

        holder = _hold(airflow)
        site.kill()
        wait_until(lambda: "weights from creation stand" in agent.said(), "the agent to say so")
        wait_until(lambda: len(order_lines(rest)) == 2, "no order to be followed")
        run = airflow.trigger("site_low")
        time.sleep(5.0)  # beyond two looks: nothing is said again
        (airflow.home / f"release {holder}").touch()
        assert airflow.wait_run("site_holder", holder) == "success"
        assert airflow.wait_run("site_low", run) == "success"
        said = agent.said()
        assert said.count("weights from creation stand") == 1, said
        assert "hosts the engine" not in said
        assert "Traceback" not in said


def _hold(airflow: LiveAirflow) -> str:
    """A run that has the slot."""
    run: str = airflow.trigger("site_holder")
    wait_until((airflow.home / f"holding {run}").exists, "the slot to be held")
    return run
