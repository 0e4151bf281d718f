"""GPU pools in the real metadata database: sizes from the configuration, what else a user has set stays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

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
    environment = {**airflow.environment, **settings, "XDG_DATA_HOME": str(airflow.home / "pools")}  # its own list
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    before, started, resized, again, *bad, after = json.loads(done.stdout.splitlines()[-1])
    listed = airflow.home / "pools" / "egs" / "airflow" / "pools.json"
    text = f"GPUs, one slot each; size from [egs] pools; listed in {listed}"
    mine, new = ["mine", "pools_research"], [3, True, text, None]
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


def test_another_home_than_the_one_in_which_the_pool_was_made(airflow: LiveAirflow) -> None:
    """Whoever reads DAG files there says that GPU tasks stay in the default pool, with the list that it has looked
    into; doctor names both lists."""
    airflow.add_dags(pools_home=TOO_LARGE.replace("pools_large", "pools_home").replace("gpus=3", "gpus=1"))
    home = {"XDG_DATA_HOME": str(airflow.home / "other")}
    own, other = (airflow.home / name / "egs" / "airflow" / "pools.json" for name in ("xdg_data_home", "other"))
    told = airflow.reserialize(**home)
    assert f"order_gpu is not in {other}, where this process looks which pools were created" in told.replace("\n", "")
    detail = doctor(airflow, **home)["GPU pools"]["detail"]
    assert f"pool order_gpu was made with the list {own};" in detail
    assert f"looks into {other}, where it is not" in detail
    airflow.reserialize()
    assert doctor(airflow)["GPU pools"]["ok"] is True


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
