"""Order on a real Airflow: weights from learned durations, slots kept for whom they were freed, GPU pools.

Native and EGS run at the same time in one Airflow: a DAG with the tag `egs-on` and its copy without, each with its own
pool.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from egs_airflow.executors.health import State, read_states
from egs_airflow.history.read import read_airflow
from egs_airflow.history.records import past_of
from egs_airflow.order.durations import write_durations
from egs_airflow.order.weights import weights
from egs_airflow.rest import Rest
from egs_core.runlog.records import Held
from tests.conformance.airflow.holding import held_dag, holding, released
from tests.conformance.airflow.live import LiveAirflow, wait_until

AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).with_name("plugins")),
    "EGS_POOLS": "order_gpu=2",
    "EGS_RESERVE_AFTER": "1",
    "EGS_REFRESH_WEIGHTS": "0.5",
}
SIDES = {"egs": ["egs-on"], "native": []}

CHAIN = """
from airflow.sdk import DAG, task
import time

with DAG("order_chain_{side}", tags={tags}, schedule=None):
    last = None
    for number in range({links}):
        @task(task_id=f"link{{number}}", pool="order_chain_{side}", priority_weight=100, weight_rule="absolute")
        def link():
            time.sleep(0.1)
        link = link()
        if last is not None:
            last >> link
        last = link

with DAG("order_leaves_{side}", tags={tags}, schedule=None, max_active_tasks=64):
    for number in range({leaves}):
        @task(task_id=f"leaf{{number}}", pool="order_chain_{side}", priority_weight=1, weight_rule="absolute")
        def leaf():
            time.sleep(0.1)
        leaf()
"""

LARGE = """
from airflow.sdk import DAG, task
import time

with DAG("order_large_{side}", tags={tags}, schedule=None, max_active_tasks=64):
    @task
    def first():
        pass

    @task(pool="order_large_{side}", pool_slots=2, priority_weight=100, weight_rule="absolute")
    def large():
        pass

    @task(pool="order_large_{side}", weight_rule="absolute")
    def small(number):
        time.sleep(4 if number else 2)  # never two at once

    first() >> large()
    small.expand(number=list(range({smalls})))
"""

WEIGHTS = """
from airflow.sdk import DAG, task

def step():
    pass

for dag_id, tags, by_hand in (("order_egs", ["egs-on"], 1), ("order_native", [], 1), ("order_by_hand", ["egs-on"], 7)):
    with DAG(dag_id, tags=tags, schedule=None):
        one, two, three, four = (
            task(step, task_id=name, priority_weight=by_hand if name == "one" else 1)()
            for name in ("one", "two", "three", "four")
        )
        one >> two
        three >> four
"""

GPUS = """
import egs_core as egs
from airflow.sdk import DAG, task

for dag_id, tags in (("order_gpus_egs", ["egs-on"]), ("order_gpus_native", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        @task
        @egs.task(gpus=2)
        def train():
            pass

        @task(pool="default_pool", pool_slots=3)
        @egs.task(gpus=1)
        def by_hand():
            pass

        @task
        def plain():
            pass

        train()
        by_hand()
        plain()
"""

REFRESHED = """
    @task(pool={name!r})
    def one():
        pass

    @task(pool={name!r})
    def two():
        pass

    begun >> [one(), two()]

for dag_id, tags, by_hand in (("order_refresh_native", [], 1), ("order_refresh_by_hand", ["egs-on"], 7)):
    with DAG(dag_id, tags=tags, schedule=None):
        @task(pool={name!r}, priority_weight=by_hand)
        def one():
            pass

        one()
"""

FAULT = """
    begun >> [large(), small.expand(number=list(range(12)))]
"""

HASHES = """
import sys
import time
from pathlib import Path
from egs_airflow import compat
from egs_airflow.order.durations import durations_path, write_durations
from airflow.models.serialized_dag import SerializedDagModel

hashes = set()
for number in range(100):
    write_durations(durations_path(), {"order_egs": {"one": number, "four": number ** 2}})
    dags, errors = compat.read_dag_file(Path(sys.argv[1]))
    assert not errors, errors
    hashes.add(SerializedDagModel.hash(compat.serialize(dags["order_egs"])))
print("hashes:", len(hashes))
"""

DEFERS = """
from datetime import timedelta
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator

class Pod(BaseOperator):
    container_resources = {"limits": {"nvidia.com/gpu": 2}}

    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(days=1)), method_name="execute")

for dag_id, tags in (("order_defers_egs", ["egs-on"]), ("order_defers_native", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        for name in ("one", "two"):
            Pod(task_id=name, **({} if tags else {"pool": dag_id, "pool_slots": 2}))
"""

ROUNDS = 4


def test_a_successor_gets_the_slot_that_its_predecessor_freed(airflow: LiveAirflow) -> None:
    """apache/airflow#26933: natively leaves run between the links of a heavier chain, in a chosen DAG fewer do.

    The race is Airflow's own, so chains are run until it has shown natively.
    """
    _add_copies(airflow, CHAIN, "chain", slots=1, links=7, leaves=20)
    slow = airflow.home / "slow"
    slow.touch()
    between = dict.fromkeys(SIDES, 0)
    leaves = {side: airflow.trigger(f"order_leaves_{side}") for side in SIDES}
    for _ in range(ROUNDS):
        for side, chain in _run_both(airflow, "order_chain").items():
            started = [ti["start_date"] for ti in airflow.task_instances(f"order_leaves_{side}", leaves[side])]
            first, last = (chain[place]["start_date"] for place in (0, -1))
            between[side] += sum(1 for start in started if start and first < start < last)
        if between["native"] >= 2 and between["egs"] < between["native"]:
            break
    slow.unlink()
    for side, run in leaves.items():
        airflow.rest("PATCH", f"/dags/order_leaves_{side}/dagRuns/{run}", {"state": "failed"})
    kept = _kept(airflow, "order_chain_egs")
    print(f"leaves between links: {between}; kept: {kept}")
    assert between["egs"] < between["native"], between
    assert {one["reason"] for one in kept} == {"successor"}
    assert all(one["seconds"] <= 1.0 or one["passes"] == 1 for one in kept), kept
    assert not _kept(airflow, "order_chain_native")


def test_a_task_that_needs_several_slots_does_not_starve(airflow: LiveAirflow) -> None:
    """apache/airflow#29474: natively small tasks take each slot that comes free; here the large one gets them, and the
    small ones that wait meanwhile are held by a reservation in the run log."""
    since_s = time.time()
    _add_copies(airflow, LARGE, "large", slots=2, smalls=8)
    found = _run_both(airflow, "order_large")
    before = {side: [ti["task_id"] for ti in tis].index("large") for side, tis in found.items()}
    kept = _kept(airflow, "order_large_egs")
    print(f"tasks before the large one: {before}; kept: {kept}")
    assert before["egs"] < before["native"], before
    assert {one["reason"] for one in kept} == {"reservation"}
    seen = read_airflow(Rest(airflow.url, airflow.token), since_s, "order_large_egs")
    held = [one for one in past_of(seen).records() if isinstance(one, Held) and one.kind == "reservation"]
    assert {one.task.partition("[")[0] for one in held} == {"small"}
    assert "slots of pool order_large_egs were kept for order_large_egs.large (reservation)" in {x.reason for x in held}


def test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag(airflow: LiveAirflow) -> None:
    """Weights of a chosen DAG follow the longest remaining path; others keep Airflow's, also one with a priority set by
    hand; new durations make no DAG version, in 100 readings of the file."""
    path = airflow.home / "xdg_data_home" / "egs" / "airflow" / "durations.json"
    learned = {"one": 5.0, "two": 5.0, "three": 10.0, "four": 600.0}
    airflow.add_dags(order_weights=WEIGHTS)
    write_durations(path, dict.fromkeys(("order_egs", "order_native", "order_by_hand"), learned))
    expected = weights({"one": ["two"], "two": [], "three": ["four"], "four": []}, learned)
    assert _weights(airflow, "order_egs") == expected
    assert _weights(airflow, "order_native") == {"one": 2, "two": 1, "three": 2, "four": 1}
    assert _weights(airflow, "order_by_hand") == {"one": 8, "two": 1, "three": 2, "four": 1}
    command = [sys.executable, "-c", HASHES, str(airflow.dags / "order_weights.py")]
    done = subprocess.run(command, env=airflow.environment, capture_output=True, text=True, timeout=240, check=False)
    assert "hashes: 1\n" in done.stdout, done.stdout + done.stderr
    airflow.reserialize()
    assert airflow.rest("GET", "/dags/order_egs/dagVersions")["total_entries"] == 1


def test_gpu_tasks_of_chosen_dags_go_into_the_configured_pool(airflow: LiveAirflow) -> None:
    """The pool is there from the scheduler's start, with size and deferred tasks as told; what the user set stays."""
    pool = airflow.rest("GET", "/pools/order_gpu")
    assert (pool["slots"], pool["include_deferred"]) == (2, True)
    airflow.add_dags(order_gpus=GPUS)
    found = {dag: _pools(airflow, dag) for dag in ("order_gpus_egs", "order_gpus_native")}
    native = {"train": ("default_pool", 1), "by_hand": ("default_pool", 3), "plain": ("default_pool", 1)}
    assert found == {"order_gpus_egs": native | {"train": ("order_gpu", 2)}, "order_gpus_native": native}
    airflow.run("order_gpus_egs")


def test_weights_of_waiting_tasks_follow_what_is_learned_meanwhile(airflow: LiveAirflow) -> None:
    """`refresh_weights`: two tasks wait for a slot; new durations turn their order round, in Airflow's table and then
    in what runs. Those of a DAG that is not chosen, or has a priority set by hand, keep their weights."""
    learned = airflow.home / "xdg_data_home" / "egs" / "airflow" / "durations.json"
    name, by_hand, native = "order_refresh", "order_refresh_by_hand", "order_refresh_native"
    write_durations(learned, {name: {"one": 600.0, "two": 5.0}})
    airflow.rest("POST", "/pools", {"name": name, "slots": 1, "include_deferred": False})
    airflow.add_dags(order_refresh=held_dag(name, airflow.home, REFRESHED.format(name=name)))
    runs = {name: airflow.trigger(name)}
    wait_until(holding(name, airflow.home).exists, "the slot to be held")
    runs |= {dag: airflow.trigger(dag) for dag in (by_hand, native)}

    def waiting(dag_id: str = name) -> dict[str, int]:
        found = airflow.task_instances(dag_id, runs[dag_id])
        return {ti["task_id"]: ti["priority_weight"] for ti in found if ti["state"] == "scheduled"}

    def are_waiting() -> bool:
        return waiting().keys() == {"one", "two"} and waiting(by_hand).keys() == waiting(native).keys() == {"one"}

    wait_until(are_waiting, "tasks that wait for a slot")
    before, others = waiting(), (waiting(by_hand), waiting(native))
    assert before["one"] > before["two"], before
    write_durations(learned, {name: {"one": 5.0, "two": 600.0}, by_hand: {"one": 600.0}, native: {"one": 600.0}})
    wait_until(lambda: waiting()["two"] > waiting()["one"], "new weights")
    assert (waiting(by_hand), waiting(native)) == others == ({"one": 7}, {"one": 1})
    released(name, airflow.home).touch()
    assert {airflow.wait_run(dag, run) for dag, run in runs.items()} == {"success"}
    started = [ti["task_id"] for ti in airflow.task_instances(name, runs[name])]
    assert started.index("two") < started.index("one"), started


def test_a_deferred_task_keeps_its_gpu_slots(airflow: LiveAirflow) -> None:
    """A deferrable pod operator gives the process away while its pod holds the GPUs: the next one waits, which natively
    starts meanwhile. (Nothing here resumes deferred tasks.)"""
    airflow.rest("POST", "/pools", {"name": "order_defers_native", "slots": 2, "include_deferred": False})
    airflow.add_dags(order_defers=DEFERS)
    runs = {side: airflow.trigger(f"order_defers_{side}") for side in SIDES}
    for side, states in (("native", ["deferred", "deferred"]), ("egs", ["deferred", "scheduled"])):
        _wait_states(airflow, f"order_defers_{side}", runs[side], states)
    pool = airflow.rest("GET", "/pools/order_gpu")
    assert (pool["deferred_slots"], pool["open_slots"]) == (2, 0)
    for side, run in runs.items():
        airflow.rest("PATCH", f"/dags/order_defers_{side}/dagRuns/{run}", {"state": "failed"})


def test_slot_keeping_comes_back_after_a_fault(airflow: LiveAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of the gate fails in the scheduler: tasks go on as without EGS, another process sees that it is paused
    and why, and events say so; then the query works again, and slots are kept as before."""
    monkeypatch.setenv("XDG_DATA_HOME", airflow.environment["XDG_DATA_HOME"])
    name, fault = "order_fault", airflow.home / "gate_raises"

    def gate() -> State:
        (state,) = read_states(time.time())
        return state

    airflow.rest("POST", "/pools", {"name": name, "slots": 2, "include_deferred": False})
    airflow.add_dags(order_fault=held_dag(name, airflow.home, FAULT))
    fault.touch()
    run = airflow.trigger(name)
    wait_until(lambda: gate().problem == "SystemExit: injected", "a pause of the gate")
    is_well, said = gate().check(time.time())
    assert not is_well
    assert said.endswith(": SystemExit: injected)"), said
    fault.unlink()
    wait_until(lambda: not gate().problem, "the gate to work again")
    assert re.search(r"works, after faults: \d+$", gate().check(time.time())[1])
    wait_until(lambda: "small" in _waiting(airflow, name, run), "a task for whose sake another one waits")
    released(name, airflow.home).touch()
    assert airflow.wait_run(name, run) == "success"
    assert {one["reason"] for one in _kept(airflow, name)} == {"reservation"}
    found = airflow.rest("GET", "/eventLogs?event=egs slot keeping&limit=100".replace(" ", "%20"))["event_logs"]
    *faults, last = [json.loads(one["extra"])["problem"] for one in found]
    assert (set(faults), last) == ({"SystemExit: injected"}, "")


def _waiting(airflow: LiveAirflow, dag_id: str, run: str) -> list[str]:
    """The tasks of a run that wait for a slot."""
    return [ti["task_id"] for ti in airflow.task_instances(dag_id, run) if ti["state"] == "scheduled"]


def _add_copies(airflow: LiveAirflow, source: str, name: str, slots: int, **numbers: int) -> None:
    """A chosen copy of the DAG file and one that is not, each with a pool of its own."""
    for side in SIDES:
        body = {"name": f"order_{name}_{side}", "slots": slots, "include_deferred": False}
        airflow.rest("POST", "/pools", body)
    airflow.add_dags(**{f"{name}_{s}": source.format(side=s, tags=tags, **numbers) for s, tags in SIDES.items()})


def _run_both(airflow: LiveAirflow, dag: str) -> dict[str, list[dict[str, Any]]]:
    """Run both copies of a DAG at once; their task instances as they were started."""
    runs = {side: airflow.trigger(f"{dag}_{side}") for side in SIDES}
    for side, run in runs.items():
        assert airflow.wait_run(f"{dag}_{side}", run) == "success"
    return {side: airflow.task_instances(f"{dag}_{side}", run) for side, run in runs.items()}


def _kept(airflow: LiveAirflow, dag_id: str) -> list[dict[str, Any]]:
    """What Airflow's log of events says was kept for tasks of the DAG."""
    found = airflow.rest("GET", f"/eventLogs?dag_id={dag_id}&limit=100")["event_logs"]
    return [json.loads(one["extra"]) for one in found if one["event"] == "egs kept slots"]


def _weights(airflow: LiveAirflow, dag_id: str) -> dict[str, int]:
    run = airflow.trigger(dag_id)
    return {ti["task_id"]: ti["priority_weight"] for ti in airflow.task_instances(dag_id, run)}


def _pools(airflow: LiveAirflow, dag_id: str) -> dict[str, tuple[str, int]]:
    run = airflow.trigger(dag_id)
    found = wait_until(lambda: airflow.task_instances(dag_id, run), f"tasks of {dag_id}")
    return {ti["task_id"]: (ti["pool"], ti["pool_slots"]) for ti in found}


def _wait_states(airflow: LiveAirflow, dag_id: str, run: str, states: list[str]) -> None:
    """Wait until the run's tasks are in these states, in alphabetical order."""
    wait_until(lambda: sorted(str(ti["state"]) for ti in airflow.task_instances(dag_id, run)) == states, dag_id)
