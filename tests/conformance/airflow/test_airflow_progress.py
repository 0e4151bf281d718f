"""`egs.progress` in tasks of a real Airflow at a site server: people see where each is, and rules look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_airflow.order.pools import DESCRIPTION
from tests.conformance.airflow.agents import an_agent
from tests.conformance.airflow.live import LiveAirflow, wait_until
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import own_site

pytestmark = pytest.mark.slow
AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}
RULES = """
alerts: {webhook: "http://127.0.0.1:9"}
rules:
  - {name: diverged, when: {loss: nan}, for: 0s, do: [alert, stop]}
  - {name: hangs, when: {no_progress_for: 5s}, do: [alert]}
"""
SOURCE = """
import os, subprocess, sys, time
from pathlib import Path
from airflow.sdk import DAG, task
import egs_core as egs

HOME = Path({home!r})
os.environ.setdefault("EGS_URL", "unix:///nowhere")  # `[egs] url`, as the workers of this Airflow would have it
CHILD = "import egs_core as egs; egs.progress(step=4, loss=float('nan'))"

with DAG("tells", tags=["egs-on"], schedule=None):
    @task(pool="tells")
    def fit():
        for step in range(4):
            egs.progress(step=step, loss=0.5)
        while not (HOME / "told").exists():
            time.sleep(0.05)

    @task(pool="tells")
    def starts():
        subprocess.run([sys.executable, "-c", CHILD], check=True)
        while not (HOME / "told").exists():
            time.sleep(0.05)

    fit(), starts()
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    """A server with rules, which only say what they would do."""
    with own_site(tmp_path, 0, rules=RULES) as found:
        yield found


def told(site: RealSite) -> dict[str, str]:
    """Of each task that tells, by name: in words."""
    found = [view.tasks.told for view in site.client.runs().runs if view.tasks is not None]
    return {one.task: one.words for tasks in found for one in tasks}


def fired(site: RealSite, rule: str) -> list[dict[str, Any]]:
    return [one for one in site.told("watch")["done"] if one["rule"] == rule]


def test_where_tasks_are_is_seen_and_looked_at(airflow: LiveAirflow, site: RealSite, tmp_path: Path) -> None:
    """Of a task's own code, and of a process that it starts: `egs why` has the latest; NaN is told of at once, silence
    when it has lasted. A rule that would stop says that it does not. The run succeeds, and nothing is left of it."""
    airflow.rest("POST", "/pools", {"name": "tells", "slots": 2, "description": DESCRIPTION, "include_deferred": False})
    airflow.add_dags(tells=SOURCE.format(home=str(airflow.home)))
    url = f"unix://{site.ready['socket']}"
    with an_agent(airflow, tmp_path / "log", airflow.url, EGS_URL=url, EGS_LEARN_EVERY="never") as agent:
        wait_until(lambda: "speaks for this Airflow" in agent.said(), "the agent to join")
        run = airflow.trigger("tells")
        where = {"tells.fit": "step 3, loss 0.5", "tells.starts": "step 4, loss is NaN"}
        wait_for(lambda: told(site) == where, "both have told")
        (driver,) = site.client.runs().runs
        why = site.egs("why", driver.id).stdout
        for name, words in where.items():
            assert f"task {name}: {words}, told " in why, why
        (alert, stop) = wait_for(lambda: fired(site, "diverged"), "the rule fires")
        assert [(one["action"], one["outcome"]) for one in (alert, stop)] == [("alert", "would"), ("stop", "left")]
        assert f"task tells.starts of driver {driver.id} (airflow: " in alert["text"]
        silent = wait_for(lambda: len(fired(site, "hangs")) == 2 and fired(site, "hangs"), "both tell no more")
        assert all("has told of no more work for " in one["text"] for one in silent)
        (airflow.home / "told").touch()
        assert airflow.wait_run("tells", run) == "success"
        wait_for(lambda: not told(site), "nothing is known of it")
        assert "Traceback" not in agent.said()
