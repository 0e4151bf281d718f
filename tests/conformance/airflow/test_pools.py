"""GPU pools in the real metadata database: sizes from the configuration, what else a user has set stays."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conformance.airflow.live import LiveAirflow

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


def test_a_pool_keeps_its_team_and_gets_its_size(airflow: LiveAirflow) -> None:
    """A start of the executor makes what is missing, deferred tasks included, and leaves what is there; `airflow egs
    pools` gives it its size, and description and team stay, also where teams are switched off. No size is detected."""
    settings = {"EGS_POOLS": "pools_team=4, pools_new=3", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    command = [sys.executable, "-c", PROGRAM]
    environment = {**airflow.environment, **settings, "XDG_DATA_HOME": str(airflow.home / "pools")}  # its own list
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, started, resized, again, *bad, after = json.loads(done.stdout.splitlines()[-1])
    mine, new = ["mine", "pools_research"], [3, True, "GPUs, one slot each; size from [egs] pools", None]
    assert before == [[2, False, *mine], None]
    assert started == [
        ["pools_team: left as it is, 2 slots", "pools_new: created with 3 slots"],
        [[2, False, *mine], new],
    ]
    assert resized[0][0] == "pools_team: 4 slots, deferred tasks included"
    assert resized[1] == again[1] == after == [[4, True, *mine], new]
    assert ["is not a pool with at least one slot" in said for said in bad] == [True] * 3
    assert again[0] == ["pools_team: left as it is, 4 slots", "pools_new: left as it is, 3 slots"]
    assert airflow.rest("GET", "/pools/pools_team")["team_name"] == "pools_research"
    for name in ("pools_team", "pools_new"):
        airflow.rest("DELETE", f"/pools/{name}")
