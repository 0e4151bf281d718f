"""GPU pools in the real metadata database: sizes from the configuration, what else a user has set stays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from egs_airflow.order.pools import DESCRIPTION, NOTED
from egs_airflow.rest import Rest
from egs_airflow.shared import POOLS, read_rest, write
from tests.conformance.airflow import test_order
from tests.conformance.airflow.live import WAIT_S, LiveAirflow, wait_until
from tests.conformance.airflow.test_view import get

AIRFLOW_ENVIRONMENT = test_order.AIRFLOW_ENVIRONMENT

PROGRAM = """
import json
import os
from airflow.models.pool import Pool
from airflow.models.team import Team
from airflow.utils.session import create_session
from egs_airflow.order.pools import create_pools
from egs_core.errors import InputError

def state():
    with create_session() as session:
        pools = [Pool.get_pool(name, session=session) for name in ("pools_team", "pools_new")]
        return [p and [p.slots, p.include_deferred, p.description, p.team_name] for p in pools]

with create_session() as session:
    session.add(Team(name="pools_research"))
    session.flush()
    stated = {"description": "mine", "include_deferred": False, "team_name": "pools_research"}
    session.add(Pool(pool="pools_team", slots=2, **stated))
told = [state()]
for resize in (False, True, True):
    told.append([create_pools(resize=resize), state()])
for bad in ("pools_team=0", "pools_team", "pools_team=-1"):
    os.environ["EGS_POOLS"] = bad
    try:
        create_pools(resize=True)
    except InputError as error:
        told.append(str(error))
print(json.dumps([*told, state()]))
"""
NOT_DEFERRED = "deferred tasks give their slots away there (include_deferred is off)"


def test_a_pool_keeps_its_team_and_gets_its_size(airflow: LiveAirflow) -> None:
    """A start of the executor makes what is missing, deferred tasks included, and leaves what is there; `airflow egs
    pools` gives it its size, and all else of it stays, also where teams are switched off. No size is detected."""
    settings = {"EGS_POOLS": "pools_team=4, pools_new=3", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    command = [sys.executable, "-c", PROGRAM]
    environment = {**airflow.environment, **settings}
    rest = Rest(airflow.url, airflow.token)
    noted = read_rest(rest, POOLS)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    before, started, resized, again, *bad, after = json.loads(done.stdout.splitlines()[-1])
    mine, new = ["mine", "pools_research"], [3, True, DESCRIPTION, None]
    assert before == [[2, False, *mine], None]
    assert started == [
        [f"pools_team: left as it is, 2 slots; {NOT_DEFERRED}", "pools_new: created with 3 slots"],
        [[2, False, *mine], new],
    ]
    assert resized[0][0] == f"pools_team: 4 slots; {NOT_DEFERRED}"
    assert resized[1] == again[1] == after == [[4, False, *mine], new]
    assert ["is not a pool with at least one slot" in said for said in bad] == [True] * 3
    assert again[0] == [f"pools_team: left as it is, 4 slots; {NOT_DEFERRED}", "pools_new: left as it is, 3 slots"]
    assert airflow.rest("GET", "/pools/pools_team")["team_name"] == "pools_research"
    assert (noted, read_rest(rest, POOLS)) == ("order_gpu=2", "pools_team=4, pools_new=3")
    write(rest, POOLS, "order_gpu=2", NOTED)
    for name in ("pools_team", "pools_new"):
        airflow.rest("DELETE", f"/pools/{name}")


TOO_LARGE = """
import egs_core as egs
from airflow.sdk import DAG, task

with DAG("pools_large", tags=["egs-on"], schedule=None):
    @task
    @egs.task(gpus=3)
    def train():
        pass

    train()
"""


def test_a_task_that_needs_more_gpus_than_the_pool_has(airflow: LiveAirflow) -> None:
    """It waits as `scheduled`, as Airflow itself says in the scheduler's log; doctor and page say why; and it runs when
    the pool is larger. In the default pool it would have run at once."""
    airflow.add_dags(pools_large=TOO_LARGE)
    run = airflow.trigger("pools_large")
    why = "(are greater than total pool slots|is greater than the total pool slots)"
    wait_until(lambda: re.search(why, airflow.logs()), "Airflow's word for a task that needs more slots than there are")
    (found,) = airflow.task_instances("pools_large", run)
    assert (found["state"], found["pool"], found["pool_slots"]) == ("scheduled", "order_gpu", 3)
    lines = doctor(airflow)
    assert lines["GPU pools"]["ok"] is False
    assert "pools_large.train never starts: needs 3 slots, order_gpu has 2" in lines["GPU pools"]["detail"]
    page = airflow_page(airflow, "/egs/dag/pools_large")
    assert "it will never start: it needs 3 slots, pool order_gpu has 2" in page
    resize(airflow, 3)
    try:
        assert airflow.wait_run("pools_large", run) == "success"
    finally:
        resize(airflow, 2)


def test_dag_files_read_with_two_homes_are_one_version(airflow: LiveAirflow) -> None:
    """Two real dag-processors, each with a home of its own, and a command put the GPU task into the pool that was made
    with a third home: they ask Airflow, through the supervisor and in its database. What is stored is one version."""
    dag_id = "pools_home"
    (airflow.dags / f"{dag_id}.py").write_text(TOO_LARGE.replace("pools_large", dag_id).replace("gpus=3", "gpus=1"))
    parsed = set()
    for name in ("one", "two", "command"):
        home = {"HOME": str(airflow.home / name), "XDG_DATA_HOME": str(airflow.home / name / "data")}
        (airflow.home / name).mkdir()
        words = ("reserialize",) if name == "command" else ("--num-runs", "1")
        airflow.command("dags" if name == "command" else "dag-processor", *words, **home)
        parsed.add(airflow.rest("GET", f"/dags/{dag_id}/details")["last_parsed"])
        assert airflow.rest("GET", f"/dags/{dag_id}/dagVersions")["total_entries"] == 1
        (task,) = airflow.rest("GET", f"/dags/{dag_id}/tasks")["tasks"]
        assert (task["pool"], task["pool_slots"]) == ("order_gpu", 1)
    assert len(parsed) == 3
    told = doctor(airflow, XDG_DATA_HOME=str(airflow.home / "one" / "data"))["GPU pools"]
    assert (told["ok"], told["detail"]) == (True, "active: order_gpu=2, by Variable egs_pools of this Airflow")


def resize(airflow: LiveAirflow, slots: int) -> None:
    """Give the session's GPU pool another size."""
    body = {"pool": "order_gpu", "slots": slots, "include_deferred": True}
    airflow.rest("PATCH", "/pools/order_gpu?update_mask=slots", body)


def doctor(airflow: LiveAirflow, **environment: str) -> dict[str, dict[str, Any]]:
    """The lines of `airflow egs doctor` by name; it fails where one is not well."""
    words = ("egs", "doctor", "--json")
    if airflow.commands is not None and not environment:
        _, said = airflow.commands.run(*words)
    else:
        command = [sys.executable, "-m", "airflow", *words]
        settings = {**airflow.environment, **environment}
        said = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=WAIT_S, check=False).stdout
    return {line["name"]: line for line in json.loads(said.splitlines()[-1])}


def airflow_page(airflow: LiveAirflow, place: str) -> str:
    """A page of EGS."""
    status, page = get(airflow.url, place, airflow.token)
    assert status == 200
    return page
