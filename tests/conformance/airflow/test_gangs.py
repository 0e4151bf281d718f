"""Gangs on a real Airflow: in a chosen DAG they begin whole, in its copy that is not chosen they begin in parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.airflow import test_order
from tests.conformance.airflow.holding import held_runs, released
from tests.conformance.airflow.live import LiveAirflow, wait_until
from tests.conformance.airflow.test_order import await_passes

AIRFLOW_ENVIRONMENT = test_order.AIRFLOW_ENVIRONMENT
SIDES = {"egs": ["egs-on"], "native": []}
SLOTS = 3

GANGS = """
    from airflow.sdk import get_current_context
    from datetime import timedelta
    import egs_core as egs

    BEGUN, AGAIN = Path({begun!r}), Path({again!r})

    @task(pool={name!r})
    @egs.task(gang="shards")
    def shard(number):
        pass

    def member():
        pass

    @task(pool={name!r})
    @egs.task(gang="crowd")
    def crowd(number):
        pass

    @task(pool={name!r}, pool_slots=2)
    @egs.task(gang="pair")
    def steady():
        BEGUN.touch()
        wait(AGAIN)

    @task(pool={name!r}, retries=1, retry_delay=timedelta(0))
    @egs.task(gang="pair")
    def shaky():
        if get_current_context()["ti"].try_number == 1:
            wait(BEGUN)
            raise ValueError("the first time")
        AGAIN.touch()

    held_too = holder.override(task_id="other")()
    begun >> shard.expand(number=[0, 1])
    if {is_chosen}:
        for number in range(2):
            begun >> task(egs.task(gang="named")(member), task_id=f"named{{number}}", pool={name!r})()
        begun >> [steady(), shaky(), crowd.expand(number=[0, 1, 2, 3])]
"""
LEARNED = {"holder": 900.0, "other": 900.0, "shard": 600.0, "named0": 300.0, "named1": 300.0}
LEARNED |= {"steady": 60.0, "shaky": 60.0, "crowd": 1.0}


@pytest.mark.proves("airflow executor, agent", "gang")
def test_gangs_begin_whole_or_not_at_all(airflow: LiveAirflow) -> None:
    """One slot of three is open: a gang of two waits, and the slot is kept for it; of the copy that is not chosen one
    member runs. Then two gangs of two, named and mapped, get their slots each in one pass, in that order. A retry waits
    for nobody, and a gang that is too large is said to be so."""
    airflow.tell_durations({"gangs_egs": LEARNED})
    begun, again = airflow.home / "steady_begun", airflow.home / "again"
    for file in (begun, again):
        file.unlink(missing_ok=True)
    tags = {f"gangs_{side}": tags for side, tags in SIDES.items()}
    rests = {
        name: GANGS.format(name=name, begun=str(begun), again=str(again), is_chosen=bool(tags[name])) for name in tags
    }
    found = {}
    with held_runs(airflow, rests, SLOTS, tags) as runs:

        def states(side: str) -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for one in airflow.task_instances(f"gangs_{side}", runs[f"gangs_{side}"]):
                found.setdefault(one["task_id"], set()).add(one["state"])
            return found

        wait_until(lambda: "success" in states("native")["shard"], "a member of the gang that is not kept together")
        wait_until(lambda: states("egs")["crowd"] == {"scheduled"}, "tasks that would take the slot")
        await_passes(airflow)
        assert states("egs")["shard"] == states("egs")["named0"] == states("egs")["crowd"] == {"scheduled"}
        for name in runs:
            released(name, airflow.home).touch()
        for side in SIDES:
            assert airflow.wait_run(f"gangs_{side}", runs[f"gangs_{side}"]) == "success"
            found[side] = airflow.task_instances(f"gangs_{side}", runs[f"gangs_{side}"])
    for gang in ("named", "shard"):
        assert len(_of(found["egs"], gang)) == 2
        assert _queued_at(found["egs"], gang) == 1, found["egs"]
    assert _queued_at(found["native"], "shard") == 2, found["native"]
    assert _most_slots(found["egs"]) <= SLOTS
    (steady,), (shaky,) = _of(found["egs"], "steady"), _of(found["egs"], "shaky")
    assert shaky["try_number"] == 2
    assert steady["start_date"] < shaky["start_date"] < steady["end_date"]  # its second try, beside the other one
    (left,) = _events(airflow, "gangs_egs", "egs gang left to Airflow")
    assert left == {"gang": "crowd", "problem": f"it needs 4 slots of pool gangs_egs at once, which has {SLOTS}"}
    assert not _events(airflow, "gangs_native", "egs gang left to Airflow")
    kept = [one for one in _events(airflow, "gangs_egs", "egs kept slots") if one["reason"] == "gang"]
    print(f"kept for gangs: {kept}")
    assert kept
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
