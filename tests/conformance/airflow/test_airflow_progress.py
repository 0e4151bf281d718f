"""What a site server knows of tasks of a real Airflow while they run: where each is, by `egs.progress`, and whether the
GPUs that they use compute. People see it, and rules look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_airflow.order.pools import DESCRIPTION
from egs_core.client.gpu_users import CUDA_FILE
from tests.conformance.airflow.agents import an_agent
from tests.conformance.airflow.live import LiveAirflow, wait_until
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import own_site
from tests.unit.server.test_serve_watching import Gpus, played

pytestmark = pytest.mark.slow
AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}
RULES = """
alerts: {webhook: "http://127.0.0.1:9"}
rules:
  - {name: diverged, when: {loss: nan}, for: 0s, do: [alert, stop]}
  - {name: hangs, when: {no_progress_for: 3s}, do: [alert]}
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


IDLE = """
rules:
  - {name: idle, when: {idle_for: 4s}, do: [hook]}
"""
HOLDS = """
import os, subprocess, sys, time
from pathlib import Path
from airflow.sdk import DAG, task

HOME = Path({home!r})
USES = "import os, sys, time; file = open(sys.argv[1]); open(sys.argv[2], 'w').write(str(os.getpid())); time.sleep(600)"

def hold(name):
    while not (HOME / name).exists():
        time.sleep(0.05)

with DAG("holds", tags=["egs-on"], schedule=None):
    @task(pool="held")
    def computes():
        file = open({cuda!r})
        (HOME / "a.new").write_text(str(os.getpid()))
        (HOME / "a.new").rename(HOME / "a.pid")
        hold("over")

    @task(pool="held")
    def starts():
        child = subprocess.Popen([sys.executable, "-c", USES, {cuda!r}, str(HOME / "b.new")])
        while not (HOME / "b.new").exists() or not (HOME / "b.new").read_text():
            time.sleep(0.05)
        (HOME / "b.new").rename(HOME / "b.pid")
        hold("over")
        child.kill()

    @task(pool="held")
    def never():
        hold("over")

    computes(), starts(), never()
"""


def test_a_task_that_holds_a_gpu_and_does_nothing_is_told_of(airflow: LiveAirflow, tmp_path: Path) -> None:
    """On one host with its Airflow, whose NVML is played: a task that uses a GPU itself, and one that has a program use
    one, each have what NVML lists their processes on; of one that uses none it is not known. While both compute nothing
    is told; then one does not any more, and it is told of the task that has this one."""
    gpus, cuda = Gpus(tmp_path / "gpus.json"), tmp_path / "dev" / CUDA_FILE
    cuda.parent.mkdir()
    cuda.touch()
    (tmp_path / "watch.yaml").write_text(IDLE)
    airflow.rest("POST", "/pools", {"name": "held", "slots": 3, "description": DESCRIPTION, "include_deferred": False})
    airflow.add_dags(holds=HOLDS.format(home=str(airflow.home), cuda=str(cuda)))
    site = RealSite(tmp_path / "site", gpus=None)
    nvml = played(tmp_path)
    site.environment |= nvml
    path = os.pathsep.join([nvml["PYTHONPATH"], airflow.environment["PYTHONPATH"]])
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"))
        own = {**nvml, "PYTHONPATH": path, "EGS_DEVICE_FOLDER": str(cuda.parent), "EGS_LEARN_EVERY": "never"}
        url = f"unix://{site.ready['socket']}"
        with an_agent(airflow, tmp_path / "log", airflow.url, EGS_URL=url, **own) as agent:
            wait_until(lambda: "speaks for this Airflow" in agent.said(), "the agent to join")
            run = airflow.trigger("holds")
            for name in "ab":
                file = airflow.home / f"{name}.pid"
                wait_for(file.exists, "a task uses a GPU")
                gpus.set(name, pids=[int(file.read_text())])

            def rule() -> tuple[int, int]:
                (found,) = site.told("watch")["rules"]
                return found["looked_at"], found["unknown"]

            wait_for(lambda: rule() == (3, 1), "it is known which two have")
            assert site.told("watch")["seen"] == []
            gpus.set("b", busy=0)
            (seen,) = wait_for(lambda: site.told("watch")["seen"], "one is idle")
            assert seen["text"].startswith("task holds.starts of driver ")
            assert "holds 1 GPU, of which none has computed for" in seen["text"]
            gpus.set("b", busy=50)
            wait_for(lambda: not site.told("watch")["seen"], "it computes again")
            gpus.set("a", busy=0)
            (seen,) = wait_for(lambda: site.told("watch")["seen"], "the other one is idle")
            assert seen["text"].startswith("task holds.computes of driver ")
            (airflow.home / "over").touch()
            assert airflow.wait_run("holds", run) == "success"
            wait_for(lambda: rule() == (0, 0), "nothing runs")
            assert "Traceback" not in agent.said()
    finally:
        site.close()
