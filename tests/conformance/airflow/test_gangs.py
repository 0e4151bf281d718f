"""Gangs on a real Airflow: in a chosen DAG they begin whole, in its copy that is not chosen they begin in parts."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.airflow.live import LiveAirflow

AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "EGS_RESERVE_AFTER": "1",
}
SIDES = {"egs": ["egs-on"], "native": []}
SLOTS = 4

GANGS = """
import time
from datetime import timedelta

import egs_core as egs
from airflow.sdk import DAG, get_current_context, task

POOL = "gangs_{side}"

with DAG("gangs_{side}", tags={tags}, schedule=None, max_active_tasks=64):
    @task
    def first():
        pass

    @task(pool=POOL)
    def small(number):
        time.sleep(0.3 + number % 3 * 0.2)

    def member():
        time.sleep(1.5)

    @task(pool=POOL)
    @egs.task(gang="shards")
    def shard(number):
        time.sleep(1.5)

    @task(pool=POOL)
    @egs.task(gang="crowd")
    def crowd(number):
        pass

    @task(pool=POOL, pool_slots=2)
    @egs.task(gang="pair")
    def steady():
        time.sleep(4)

    @task(pool=POOL, retries=1, retry_delay=timedelta(seconds=0.1))
    @egs.task(gang="pair")
    def shaky():
        if get_current_context()["ti"].try_number == 1:
            raise ValueError("the first time")

    begun = first()
    for number in range(3):
        begun >> task(egs.task(gang="named")(member), task_id=f"named{{number}}", pool=POOL)()
    begun >> [shard.expand(number=[0, 1, 2]), small.expand(number=list(range(9))), steady(), shaky()]
    begun >> crowd.expand(number=list(range(5)))
"""


def test_gangs_begin_whole_or_not_at_all(airflow: LiveAirflow) -> None:
    """Two gangs of three, named and mapped, in a pool of four slots with small tasks around: never a part of one runs;
    the copy that is not chosen runs parts. A retry waits for nobody, and a gang that is too large is said to be so."""
    for side, tags in SIDES.items():
        airflow.rest("POST", "/pools", {"name": f"gangs_{side}", "slots": SLOTS, "include_deferred": False})
        airflow.add_dags(**{f"gangs_{side}": GANGS.format(side=side, tags=tags)})
    runs = {side: airflow.trigger(f"gangs_{side}") for side in SIDES}
    found = {}
    for side, run in runs.items():
        assert airflow.wait_run(f"gangs_{side}", run) == "success"
        found[side] = airflow.task_instances(f"gangs_{side}", run)
    parts = {side: {gang: _queued_at(tis, gang) for gang in ("named", "shard")} for side, tis in found.items()}
    print(f"moments at which members of a gang were queued: {parts}; crowd: {_queued_at(found['egs'], 'crowd')}")
    assert parts["egs"] == {"named": 1, "shard": 1}
    assert sum(parts["native"].values()) > 2, parts
    for gang in ("named", "shard"):
        members = _of(found["egs"], gang)
        assert len(members) == 3
        assert max(one["start_date"] for one in members) < min(one["end_date"] for one in members)
    assert _most_slots(found["egs"]) <= SLOTS
    (steady,), (shaky,) = _of(found["egs"], "steady"), _of(found["egs"], "shaky")
    assert shaky["try_number"] == 2
    assert steady["start_date"] < shaky["start_date"] < steady["end_date"]  # its second try, beside the other one
    (left,) = _events(airflow, "gangs_egs", "egs gang left to Airflow")
    assert left == {"gang": "crowd", "problem": "it needs 5 slots of pool gangs_egs at once, which has 4"}
    assert not _events(airflow, "gangs_native", "egs gang left to Airflow")
    kept = [one for one in _events(airflow, "gangs_egs", "egs kept slots") if one["reason"] == "gang"]
    print(f"kept for gangs: {kept}")
    assert kept  # of three gangs two have to wait, and small tasks would take the fourth slot again and again
    assert all(one["slots"] < SLOTS and one["tasks"] for one in kept)
    assert not _events(airflow, "gangs_native", "egs kept slots")


def _of(tis: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in tis if one["task_id"].startswith(name)]


def _queued_at(tis: list[dict[str, Any]], name: str) -> int:
    """At how many different moments members of a gang got their slots."""
    return len({one["queued_when"] for one in _of(tis, name)})


def _most_slots(tis: list[dict[str, Any]]) -> int:
    """The most slots of the pool that were held at once, each from start to end."""
    inside = [one for one in tis if one["pool"].startswith("gangs_")]
    spans = [(str(one["start_date"]), str(one["end_date"]), int(one["pool_slots"])) for one in inside]
    return max(sum(slots for start, end, slots in spans if start <= at < end) for at, _, _ in spans)


def _events(airflow: LiveAirflow, dag_id: str, event: str) -> list[dict[str, Any]]:
    found = airflow.rest("GET", f"/eventLogs?dag_id={dag_id}&limit=100")["event_logs"]
    return [json.loads(one["extra"]) for one in found if one["event"] == event]
