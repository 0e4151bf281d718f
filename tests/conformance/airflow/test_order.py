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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from egs_airflow.agent.commands import order_lines
from egs_airflow.executors.health import State, read_states
from egs_airflow.history.read import read_airflow
from egs_airflow.history.records import past_of
from egs_airflow.order.weights import weight, weights
from egs_airflow.rest import Rest
from egs_core.runlog.records import Held
from tests.conformance.airflow.agents import an_agent
from tests.conformance.airflow.holding import held_runs, make_pool, released
from tests.conformance.airflow.live import LiveAirflow, wait_until

AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).with_name("plugins")),
    "EGS_POOLS": "order_gpu=2",
    "EGS_RESERVE_AFTER": "0.0001",
}
SIDES = {"egs": ["egs-on"], "native": []}

CHAIN = """
    @task(pool={name!r}, priority_weight=100, weight_rule="absolute")
    def second():
        pass

    @task(pool={name!r}, priority_weight=1, weight_rule="absolute")
    def leaf():
        pass

    held >> second()
    begun >> leaf()
"""

LARGE = """
    begun >> [large(), small.expand(number=[0])]
"""

ONE_BY_ONE = """
import time
from airflow.sdk import DAG, task

with DAG("order_one_by_one", tags=["egs-on"], schedule=None):
    @task(pool="order_one_by_one")
    def hold(number):
        time.sleep(3.0)  # the scheduler has nothing more to do, and sleeps

    hold.expand(number=[0, 1, 2, 3])
"""

WEIGHTS = """
import egs_core as egs
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

with DAG("order_hinted", tags=["egs-on"], schedule=None):
    @task
    @egs.task(priority=3, expect="60s")
    def first():
        pass

    first() >> task(step, task_id="second")()
"""

GPUS = """
import egs_core as egs
from airflow.sdk import DAG, task

for dag_id, tags in (("order_gpus_egs", ["egs-on"]), ("order_gpus_native", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        @task
        @egs.task(gpus=2, memory="1GiB")
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

HINTED = """
    import egs_core as egs

    def nothing():
        pass

    hinted = dict(
        leaf={{}}, middle={{}}, long=dict(expect="30m"), path={{}}, due=dict(deadline="90m"),
        overdue=dict(max_wait="1ms"), urgent=dict(priority=1),
    )
    for task_id, hints in hinted.items():
        @task(pool={name!r}, task_id=task_id)
        @egs.task(**hints)
        def made():
            pass

        begun >> (one := made())
        if task_id == "path":
            one >> task(nothing, task_id="after")()
"""

FAULT = """
    @task(pool={name!r})
    def passes():
        Path({passing!r}).touch()
        wait(Path({passed!r}))

    begun >> [large(), passes(), small.expand(number=[0])]
"""

HASHES = """
import sys
from pathlib import Path
from egs_airflow import compat, shared
from egs_airflow.order.durations import packed
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.variable import Variable

hashes = set()
for number in range(20):
    text = packed({"order_egs": {"one": number, "four": number ** 2}})
    Variable.set(shared.DURATIONS, text, shared.described("", text))
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


@pytest.mark.proves("airflow executor", "order")
def test_a_successor_gets_the_slot_that_its_predecessor_freed(airflow: LiveAirflow) -> None:
    """apache/airflow#26933: a task ends between the scheduler's look and its handing out of slots. Natively a leaf
    takes the slot before the heavier successor; in a chosen DAG it is kept for that."""
    egs, native = "order_chain_egs", "order_chain_native"
    rests = {name: CHAIN.format(name=name) for name in (egs, native)}
    with held_runs(airflow, rests, slots=1, tags={native: ()}) as runs:
        for name, run in runs.items():
            wait_until(lambda n=name, r=run: _waiting(airflow, n, r) == ["leaf"], "a leaf that waits")  # type: ignore[misc]  # mypy has no types for such a lambda
        with held_pass(airflow, runs, "holder"):
            for name in runs:
                released(name, airflow.home).touch()
        _check_sides(airflow, runs, "second", "leaf", "successor")


def test_a_task_that_needs_several_slots_does_not_starve(airflow: LiveAirflow) -> None:
    """apache/airflow#29474: natively small tasks take each slot that comes free; here the large one gets them, and the
    small one that waits meanwhile is held by a reservation in the run log."""
    since_s = time.time()
    egs, native = "order_large_egs", "order_large_native"
    with held_runs(airflow, {egs: LARGE, native: LARGE}, slots=2, tags={native: ()}) as runs:
        wait_until(lambda: _waiting(airflow, native, runs[native]) == ["large"], "a large task that a small one passes")
        wait_until(lambda: _is_kept(airflow, egs, runs[egs]), "a small one that waits")
        await_passes(airflow)
        assert _is_kept(airflow, egs, runs[egs])
        for name in runs:
            released(name, airflow.home).touch()
        _check_sides(airflow, runs, "large", "small", "reservation")
    seen = read_airflow(Rest(airflow.url, airflow.token), since_s, egs)
    held = [one for one in past_of(seen).records() if isinstance(one, Held) and one.kind == "reservation"]
    assert {one.task.partition("[")[0] for one in held} == {"small"}
    assert f"slots of pool {egs} were kept for {egs}.large (reservation)" in {one.reason for one in held}


@pytest.mark.proves("airflow agent", "order", "priority", "max_wait", "deadline", "expect")
@pytest.mark.slow  # an agent of its own
def test_hints_on_the_order_are_kept_in_a_running_airflow(
    airflow: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks wait for one slot: the agent reads their hints, the engine orders them, and the scheduler follows. The
    hinted priority is first, then what has waited for longer than it may, what its deadline presses, the longest path;
    `long` is before `middle` by its hint alone. Without hints the overdue and the due task would be behind the path, as
    by weight the overdue one is."""
    monkeypatch.setenv("XDG_DATA_HOME", airflow.environment["XDG_DATA_HOME"])
    name, rest = "order_max_wait", Rest(airflow.url, airflow.token)
    learned = {"path": 3600.0, "after": 3600.0, "due": 3600.0, "middle": 600.0}
    airflow.tell_durations({name: {"leaf": 1.0, "overdue": 1.0, "urgent": 1.0, **learned}})
    order = ["urgent", "overdue", "due", "path", "long", "middle", "leaf"]
    with (
        held_runs(airflow, {name: HINTED.format(name=name)}, slots=1) as runs,
        an_agent(airflow, tmp_path / "agent.log", airflow.url, EGS_LEARN_EVERY="never") as agent,
    ):
        wait_until(lambda: sorted(_waiting(airflow, name, runs[name])) == sorted(order), "those that wait")
        by_name = {ti["task_id"]: ti["priority_weight"] for ti in airflow.task_instances(name, runs[name])}
        assert by_name["path"] > by_name["overdue"]

        def decided() -> list[str]:
            lines = [line.split() for line in order_lines(rest) if f"{name}/{runs[name]} " in line]
            return [words[1] for words in lines]

        wait_until(lambda: decided() == order, f"the hinted order, not {decided()}: {agent.said()}")
        wait_until(lambda: any(state.follows for state in read_states(time.time())), "the scheduler to follow")
        released(name, airflow.home).touch()
        started = _started(airflow, name, runs[name])
    assert [task for task in started if task in order] == order, started


@pytest.mark.proves("airflow mode, executor", "order", "priority", "expect")
def test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag(airflow: LiveAirflow) -> None:
    """Weights of a chosen DAG follow the longest remaining path, with hinted priority and duration; others keep
    Airflow's, also one with a priority set by hand; new durations make no DAG version, in 20 readings of the file."""
    seconds = {"one": 5.0, "two": 5.0, "three": 10.0, "four": 600.0}
    airflow.add_dags(order_weights=WEIGHTS)
    airflow.tell_durations(dict.fromkeys(("order_egs", "order_native", "order_by_hand"), seconds))
    expected = weights({"one": ["two"], "two": [], "three": ["four"], "four": []}, seconds)
    assert _weights(airflow, "order_egs") == expected
    assert _weights(airflow, "order_native") == {"one": 2, "two": 1, "three": 2, "four": 1}
    assert _weights(airflow, "order_by_hand") == {"one": 8, "two": 1, "three": 2, "four": 1}
    assert _weights(airflow, "order_hinted") == {"first": 3000 + weight(120.0, True), "second": weight(60.0, False)}
    command = [sys.executable, "-c", HASHES, str(airflow.dags / "order_weights.py")]
    done = subprocess.run(command, env=airflow.environment, capture_output=True, text=True, timeout=600, check=False)
    assert "hashes: 1\n" in done.stdout, done.stdout + done.stderr
    airflow.reserialize()
    assert airflow.rest("GET", "/dags/order_egs/dagVersions")["total_entries"] == 1


@pytest.mark.proves("airflow mode, executor, agent", "gpus")
def test_gpu_tasks_of_chosen_dags_go_into_the_configured_pool(airflow: LiveAirflow) -> None:
    """The pool is there from the scheduler's start, with size and deferred tasks as told; what the user set stays. That
    a hint is not kept is said where DAG files are read, and in no task's log."""
    pool = airflow.rest("GET", "/pools/order_gpu")
    assert (pool["slots"], pool["include_deferred"]) == (2, True)
    airflow.add_dags(order_gpus=GPUS)
    found = {
        dag: {ti["task_id"]: (ti["pool"], ti["pool_slots"]) for ti in _created(airflow, dag)}
        for dag in ("order_gpus_egs", "order_gpus_native")
    }
    native = {"train": ("default_pool", 1), "by_hand": ("default_pool", 3), "plain": ("default_pool", 1)}
    assert found == {"order_gpus_egs": native | {"train": ("order_gpu", 2)}, "order_gpus_native": native}
    airflow.run("order_gpus_egs")
    logs = [path.read_text() for path in (airflow.home / "logs" / "dag_id=order_gpus_egs").rglob("*.log")]
    assert logs
    assert not [text for text in logs if "is not kept" in text]


def test_a_deferred_task_keeps_its_gpu_slots(airflow: LiveAirflow) -> None:
    """A deferrable pod operator gives the process away while its pod holds the GPUs: the next one waits, which natively
    starts meanwhile. (Nothing here resumes deferred tasks.)"""
    make_pool(airflow, "order_defers_native", 2)
    airflow.add_dags(order_defers=DEFERS)
    runs = {side: airflow.trigger(f"order_defers_{side}") for side in SIDES}
    for side, states in (("native", ["deferred", "deferred"]), ("egs", ["deferred", "scheduled"])):
        _wait_states(airflow, f"order_defers_{side}", runs[side], states)
    pool = airflow.rest("GET", "/pools/order_gpu")
    assert (pool["deferred_slots"], pool["open_slots"]) == (2, 0)
    for side, run in runs.items():
        airflow.rest("PATCH", f"/dags/order_defers_{side}/dagRuns/{run}", {"state": "failed"})


def test_slot_keeping_comes_back_after_a_fault(airflow: LiveAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of the gate fails in the scheduler: a task passes the one for which its slot would be kept, as without
    EGS; another process sees that the gate is paused and why, and events say so. Then slots are kept again."""
    monkeypatch.setenv("XDG_DATA_HOME", airflow.environment["XDG_DATA_HOME"])
    name, fault = "order_fault", airflow.home / "gate_raises"
    passing, passed = airflow.home / "passing", airflow.home / "passed"
    for path in (passing, passed):
        path.unlink(missing_ok=True)

    def gate() -> State:
        (state,) = read_states(time.time())
        return state

    def said_by_events() -> list[str]:
        """Problems, "" for none, of this try's events."""
        path = f"/eventLogs?event=egs%20slot%20keeping&limit=100&order_by=when&dag_id={name}&run_id={quote(run)}"
        return [json.loads(one["extra"])["problem"] for one in airflow.rest("GET", path)["event_logs"]]

    airflow.tell_durations({name: {"large": 600.0, "passes": 60.0, "small": 1.0}})
    rest = FAULT.format(name=name, passing=str(passing), passed=str(passed))
    with held_runs(airflow, {name: rest}, slots=2) as runs:
        run = runs[name]
        fault.touch()  # not before: each pause is twice as long as the one before, and DAG files may be read late
        try:
            wait_until(lambda: gate().problem == "SystemExit: injected", "a pause of the gate")
            is_well, said = gate().check(time.time())
            assert not is_well
            assert said.endswith(": SystemExit: injected)"), said
            wait_until(passing.exists, "a task that passes the large one")
        finally:
            fault.unlink()
        wait_until(lambda: not gate().problem, "the gate to work again")
        assert re.search(r"works(, in the engine's order .*)?, after faults: \d+$", gate().check(time.time())[1])
        passed.touch()
        wait_until(lambda: _is_kept(airflow, name, run), "a slot that is open")
        await_passes(airflow)
        assert _is_kept(airflow, name, run)
        released(name, airflow.home).touch()
        started = _started(airflow, name, run)
    assert started.index("passes") < started.index("large") < started.index("small"), started
    assert {one["reason"] for one in _kept(airflow, name)} == {"reservation"}
    wait_until(lambda: said_by_events()[-1:] == [""], "an event that says that the gate works again")
    assert set(said_by_events()) == {"SystemExit: injected", ""}


@contextmanager
def held_pass(airflow: LiveAirflow, runs: Mapping[str, str], task: str) -> Iterator[None]:
    """Within it the scheduler stands between its look and its handing out of slots, until this task has succeeded in
    these runs (run by DAG); see `plugins/held_pass.py`."""
    held = airflow.home / "pass_held"
    _hold_pass(airflow, [(dag, run, task) for dag, run in runs.items()])
    wait_until(held.exists, "the scheduler to stand in its pass")
    yield
    wait_until(lambda: not held.exists(), "the scheduler to go on")


def await_passes(airflow: LiveAirflow) -> None:
    """Until the scheduler has handed out slots once from now on: the second pass begins after the first one's end."""
    for _ in range(2):
        wanted = _hold_pass(airflow, [])
        wait_until(lambda p=wanted: not p.exists(), "a pass of the scheduler")  # type: ignore[misc]  # mypy has no types for such a lambda


def _hold_pass(airflow: LiveAirflow, wanted: list[tuple[str, str, str]]) -> Path:
    """Write the file for `plugins/held_pass.py` at once and whole; its path."""
    path = airflow.home / "hold_pass"
    path.with_suffix(".new").write_text(json.dumps(wanted))
    return path.with_suffix(".new").rename(path)


def _waiting(airflow: LiveAirflow, dag_id: str, run: str) -> list[str]:
    """The tasks of a run that wait for a slot."""
    return [ti["task_id"] for ti in airflow.task_instances(dag_id, run) if ti["state"] == "scheduled"]


def _started(airflow: LiveAirflow, dag_id: str, run: str) -> list[str]:
    """The tasks of a run as they were started; it is to end in success."""
    assert airflow.wait_run(dag_id, run) == "success"
    return [ti["task_id"] for ti in airflow.task_instances(dag_id, run)]


def _check_sides(airflow: LiveAirflow, runs: Mapping[str, str], one: str, other: str, reason: str) -> None:
    """Of two runs, by DAG, the first one's DAG is chosen: `one` has started before `other`, for a slot that was kept;
    natively it was the other way round."""
    order = {name: _started(airflow, name, run) for name, run in runs.items()}
    kept = {name: _kept(airflow, name) for name in runs}
    print(f"started: {order}; kept: {kept}")
    egs, native = runs
    assert order[egs].index(one) < order[egs].index(other), order
    assert order[native].index(other) < order[native].index(one), order
    assert {slot["reason"] for slot in kept[egs]} == {reason}
    assert not kept[native]


def _is_kept(airflow: LiveAirflow, dag_id: str, run: str) -> bool:
    """Whether both the large task and the small one still wait, and the slot for the latter is open."""
    waiting = sorted(_waiting(airflow, dag_id, run))
    return waiting == ["large", "small"] and airflow.rest("GET", f"/pools/{dag_id}")["open_slots"] == 1


def _kept(airflow: LiveAirflow, dag_id: str) -> list[dict[str, Any]]:
    """What Airflow's log of events says was kept for tasks of the DAG."""
    found = airflow.rest("GET", f"/eventLogs?dag_id={dag_id}&limit=100")["event_logs"]
    return [json.loads(one["extra"]) for one in found if one["event"] == "egs kept slots"]


def _weights(airflow: LiveAirflow, dag_id: str) -> dict[str, int]:
    return {ti["task_id"]: ti["priority_weight"] for ti in _created(airflow, dag_id)}


def _created(airflow: LiveAirflow, dag_id: str) -> list[dict[str, Any]]:
    """The task instances of a run that does not run: its DAG is paused."""
    run = airflow.rest("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": {}})["dag_run_id"]
    found = airflow.task_instances(dag_id, run)
    airflow.rest("DELETE", f"/dags/{dag_id}/dagRuns/{run}")
    return found


def _wait_states(airflow: LiveAirflow, dag_id: str, run: str, states: list[str]) -> None:
    """Wait until the run's tasks are in these states, in alphabetical order."""
    wait_until(lambda: sorted(str(ti["state"]) for ti in airflow.task_instances(dag_id, run)) == states, dag_id)


def test_a_slot_is_given_again_before_dag_runs_are_looked_at(airflow: LiveAirflow) -> None:
    """Four tasks of a pool of one slot, without successors: as soon as one has ended the next one is queued, and not
    only when the scheduler has looked at all DAG runs, as Airflow does. No two have the slot at once."""
    make_pool(airflow, "order_one_by_one", 1)
    airflow.add_dags(order_one_by_one=ONE_BY_ONE)
    steps = airflow.home / "steps"
    steps.touch()
    try:
        run = airflow.run("order_one_by_one")
        noted = steps.read_text().splitlines()
    finally:
        steps.unlink()
    first = [step for before, step in pairwise(noted) if before != "looks" and step.startswith("queues")]
    assert "queues 1" in first
    tasks = airflow.task_instances("order_one_by_one", run)
    assert len(tasks) == 4
    spans = [tuple(datetime.fromisoformat(one[name]) for name in ("start_date", "end_date")) for one in tasks]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
