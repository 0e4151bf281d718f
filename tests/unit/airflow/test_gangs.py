"""When a gang begins, as a catalogue and as properties of random pools; what is a gang, and what is left to Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.sdk import DAG, task
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import egs_core as egs
from egs_airflow import compat, config
from egs_airflow.agent.declare import declare
from egs_airflow.agent.limits import stated_limits
from egs_airflow.executors import gang_rows
from egs_airflow.executors.admitting import Gang, Turn, compute_turn
from egs_airflow.executors.gang_rows import Company, Members, gangs_in_cycle
from egs_airflow.executors.gangs import LEFT_EVENT, MOST_REFUSALS, Gangs
from egs_airflow.executors.gate import Gate
from egs_airflow.executors.keeping import Claim, compute_kept

HERE = ("dag", "run")
GATE = Gate(lambda **_: None)
ROOM = 32


def gang(name: str, weight: int, is_due: bool = False, /, **needs: int) -> Gang:
    """A gang of members of one slot."""
    return Gang((*HERE, name), name, frozenset({name}), needs, sum(needs.values()), (-weight, -1, 0), is_due)


def waits(key: str, weight: int, slots: int = 1) -> Claim:
    """A single task."""
    return Claim(key, slots, (-weight, 0, 0))


def told(turn: Turn, open_slots: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """Who begins, and how many slots are kept of each pool."""
    if turn.gang is not None:
        return turn.gang.name[2], {}
    kept = {pool: compute_kept(open_slots[pool], claims) for pool, claims in turn.claims.items()}
    return "", {pool: sum(one.slots for one in several) for pool, several in kept.items() if several}


@pytest.mark.parametrize(
    ("open_slots", "claims", "gangs", "expected"),
    [
        pytest.param({"p": 3}, {}, [gang("a", 5, p=3)], ("a", {}), id="it fits"),
        pytest.param({"p": 2}, {}, [gang("a", 5, p=3)], ("", {}), id="it does not fit: no part of it begins"),
        pytest.param({"p": 4}, {}, [gang("a", 5, p=3), gang("b", 4, p=3)], ("a", {}), id="one after the other"),
        pytest.param({"p": 3}, {"p": [waits("x", 9)]}, [gang("a", 5, p=3)], ("", {}), id="who weighs more goes first"),
        pytest.param({"p": 3}, {"p": [waits("x", 5)]}, [gang("a", 5, p=3)], ("a", {}), id="an equal one goes later"),
        pytest.param({"p": 2}, {"p": [waits("x", 1)]}, [gang("a", 5, p=3)], ("", {}), id="it has not waited long"),
        pytest.param({"p": 2}, {"p": [waits("x", 1)]}, [gang("a", 5, True, p=3)], ("", {"p": 2}), id="kept for it"),
        pytest.param(
            {"p": 2}, {"p": [waits("x", 9)]}, [gang("a", 5, True, p=3)], ("", {}), id="not from a heavier one"
        ),
        pytest.param(
            {"p": 2}, {"p": []}, [gang("a", 5, True, p=3), gang("b", 4, p=2)], ("", {}), id="nor for a later one"
        ),
        pytest.param(
            {"p": 3}, {"p": []}, [gang("a", 5, p=4), gang("b", 4, p=2)], ("b", {}), id="a small one meanwhile"
        ),
        pytest.param(
            {"p": 3, "q": 1},
            {"p": [waits("x", 1), waits("y", 1)], "q": [waits("z", 1)]},
            [gang("a", 5, True, p=2, q=2)],
            ("", {"p": 2, "q": 1}),
            id="of two pools, in neither a part",
        ),
        pytest.param({"p": 9}, {"p": []}, [gang("a", 5, p=ROOM + 1)], ("", {}), id="too few processes"),
    ],
)
def test_whose_turn_it_is(
    open_slots: dict[str, int], claims: dict[str, list[Claim]], gangs: list[Gang], expected: tuple[str, dict[str, int]]
) -> None:
    """A gang begins where it fits beside what goes before it; else what is open is kept, once it has waited."""
    filled = {pool: claims.get(pool, []) for pool in open_slots}
    if expected[1]:  # takers enough that something is to be kept from them
        filled = {pool: [*several, *several] for pool, several in filled.items()}
    assert told(compute_turn(open_slots, ROOM, filled, gangs), open_slots) == expected


def test_processes_are_kept_too() -> None:
    """Where a gang that has waited lacks processes, nobody who goes after it starts, in any pool."""
    turn = compute_turn({"p": 9, "q": 9}, 2, {"q": [waits("x", 1)]}, [gang("a", 5, True, p=3), gang("b", 4, p=2)])
    assert (turn.gang, turn.floor) == (None, 5)


@dataclass(eq=False)
class Job:
    """A single task, which comes again when it has ended, or a gang that has begun. passes: how many it still takes."""

    needs: Mapping[str, int]
    tasks: int = 1
    weight: int = 1
    passes: int = 0
    is_single: bool = True

    @property
    def claim(self) -> Claim:
        return Claim(id(self), next(iter(self.needs.values())), (-self.weight, 0, id(self)))


POOLS = {"p": 4, "q": 3}
LASTS = 2
amounts = st.fixed_dictionaries({}, optional={"p": st.integers(1, 4), "q": st.integers(1, 3)}).filter(bool)
single = st.builds(Job, st.builds(lambda pool, slots: {pool: slots}, st.sampled_from("pq"), st.integers(1, 3)))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(amounts, st.integers(1, 3)), min_size=1, max_size=4),
    st.lists(single, max_size=8),
    st.integers(0, 2),
)
def test_every_gang_begins_and_never_in_part(
    wanted: list[tuple[dict[str, int], int]], ready: list[Job], more: int
) -> None:
    """Random gangs of two pools, beside single tasks that come again and again: no gang begins where it does not fit,
    no pool is overdrawn, and all gangs have begun after some passes: none starves, none is for ever in the way."""
    left = [gang(str(n), weight, True, **needs) for n, (needs, weight) in enumerate(wanted)]
    parallelism = max(one.size for one in left) + more
    running: list[Job] = []
    for _ in range(200):
        ready += [job for job in running if not job.passes and job.is_single]
        running = [replace(job, passes=job.passes - 1) for job in running if job.passes]
        open_slots = {pool: size - sum(job.needs.get(pool, 0) for job in running) for pool, size in POOLS.items()}
        room = parallelism - sum(job.tasks for job in running)
        assert min(*open_slots.values(), room) >= 0
        claims = {pool: [job.claim for job in ready if pool in job.needs] for pool in POOLS}
        turn = compute_turn(open_slots, room, claims, left)
        if turn.gang is not None:
            assert turn.gang.size <= room
            assert all(slots <= open_slots[pool] for pool, slots in turn.gang.needs.items())
            left.remove(turn.gang)
            running.append(Job(turn.gang.needs, turn.gang.size, is_single=False, passes=LASTS))
        else:
            started = natively(ready, open_slots, room, turn)
            ready = [job for job in ready if job not in started]
            running += [replace(job, passes=LASTS) for job in started]
        if not left:
            return
    raise AssertionError(f"gangs that never began: {left}")


def natively(ready: list[Job], open_slots: dict[str, int], room: int, turn: Turn) -> list[Job]:
    """The single tasks that Airflow starts in one pass, with what it is told of the open slots."""
    told_open = {
        pool: slots - sum(one.slots for one in compute_kept(slots, turn.claims.get(pool, ())))
        for pool, slots in open_slots.items()
    }
    started: list[Job] = []
    for job in sorted(ready, key=lambda one: one.claim.place):
        (pool,) = job.needs
        may_start = len(started) < room and (turn.floor is None or job.weight > turn.floor)
        if may_start and job.needs[pool] <= told_open[pool]:
            told_open[pool] -= job.needs[pool]
            started.append(job)
    return started


@pytest.mark.parametrize(
    ("downstream", "expected"),
    [
        ({"a": [], "b": []}, set()),
        ({"a": ["b"], "b": []}, {"g"}),
        ({"a": ["x"], "x": ["b"], "b": []}, {"g"}),
        ({"a": ["c"], "d": ["b"], "b": [], "c": []}, {"g", "h"}),
        ({"a": ["c"], "b": ["d"], "c": [], "d": ["x"], "x": []}, set()),
    ],
)
def test_gangs_that_wait_for_themselves_or_each_other(downstream: dict[str, list[str]], expected: set[str]) -> None:
    """Directly, through a single task, or through another gang: such gangs could never begin."""
    assert gangs_in_cycle(downstream, {"a": "g", "b": "g", "c": "h", "d": "h"}) == expected


def test_a_hint_is_stored_with_the_dag() -> None:
    """Of plain and mapped tasks, also where a task has limits, which the agent goes on reading."""
    with DAG("stored", schedule=None) as dag:

        @task
        @egs.task(gang="shards", max_runtime="1h")
        def fit(number: int) -> None:
            pass

        fit.override(task_id="plain")(1)
        fit.expand(number=[1, 2])
        task(task_id="single")(egs.task(gpus=1)(lambda: None))()
    for one in dag.tasks:
        declare(one)
    tasks = compat.serialize(dag)["dag"]["tasks"]
    found = {one["__var"]["task_id"]: compat._stored_gang(one["__var"]) for one in tasks}
    assert found == {"plain": "shards", "fit": "shards", "single": ""}
    assert stated_limits(str(dag.get_task("plain").executor_config), "plain").max_runtime_s == 3600.0


def member(number: int, state: str | None = "scheduled", pool: str = "p", age_s: float = 0.0) -> Members:
    """A member of one slot that has been ready for so long."""
    return Members(f"m{number}", state, pool, 1, 7, datetime.now(UTC) - timedelta(seconds=age_s))


def company(*members: Members, is_joined: bool = False, most_active: int = 16, active: int = 0) -> Company:
    """A gang of a run that goes on."""
    return Company((*HERE, "g"), frozenset({"t"}), members, is_joined, True, most_active, active)


@pytest.fixture
def gangs() -> Gangs:
    """For an executor with 8 processes; clock stands at 0."""
    events: list[dict[str, Any]] = []
    made = Gangs(8, lambda: 8, lambda **event: events.append(event), 30.0, lambda: 0.0)
    made.shapes["v"] = {"t": "g"}
    made.__dict__["events"] = events
    return made


@pytest.mark.parametrize(
    ("found", "is_hidden", "begins"),
    [
        pytest.param(company(member(1), member(2)), True, True, id="whole"),
        pytest.param(company(member(1), member(2, None)), True, False, id="a member is not ready"),
        pytest.param(company(member(1), member(2, "up_for_retry")), True, False, id="both begin again"),
        pytest.param(company(member(1), is_joined=True), False, False, id="a retry, while others run"),
        pytest.param(company(member(1), member(2), most_active=2, active=1), True, False, id="its DAG is busy"),
        pytest.param(company(), False, False, id="all are over"),
        pytest.param(company(member(1), member(2), most_active=1), False, False, id="more than its DAG may run"),
        pytest.param(company(*map(member, range(9))), False, False, id="more than the processes"),
        pytest.param(company(*map(member, range(5))), False, False, id="more than the pool"),
        pytest.param(company(member(1, pool="gone")), False, False, id="a pool that is not there"),
    ],
)
def test_what_the_scheduler_does_not_see(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch, found: Company, is_hidden: bool, begins: bool
) -> None:
    """A gang that is not whole is hidden and waits; one that could never begin is left to Airflow, and said to be."""
    monkeypatch.setattr(gang_rows, "scheduled_runs", lambda _: [("v", *HERE)])
    monkeypatch.setattr(gang_rows, "companies", lambda *_: [found])
    pools = {"p": {"total": 4 if found.size == 5 else 99}}
    for _ in range(2):
        assert [one.size for one in gangs.look(None, pools)] == ([found.size] if begins else [])
    assert gangs.hidden == ({(*HERE, "t")} if is_hidden else frozenset())
    could_never = bool(found.waiting) and not found.is_joined and not is_hidden
    events = gangs.__dict__["events"]
    assert [event["event"] for event in events] == [LEFT_EVENT] * could_never
    assert all(json.loads(event["extra"])["problem"].startswith("it") for event in events)


def test_a_part_of_a_gang_is_rolled_back(gangs: Gangs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps the rest of it back; after some times the gang is left to Airflow."""
    config.warn.cache_clear()
    monkeypatch.setattr(Gangs, "prepare", lambda _: None)  # it asks Airflow's database
    asked: list[int] = []
    whole = gang("g", 7, p=3)

    def queue(most: int) -> list[Any]:
        asked.append(most)
        if gangs.admitted is None:
            gangs.take(Turn(whole, {}))
        return ["member"] if len(asked) % 2 else []

    with Session(create_engine("sqlite://")) as session:
        for _ in range(MOST_REFUSALS):
            assert not gangs.left
            session.begin()
            assert gangs.queue(queue, 16, session, GATE.guard) == []
            assert not session.in_transaction()
    assert asked == [16, 2] * MOST_REFUSALS
    assert gangs.left.keys() == {whole.name}


def test_a_gang_larger_than_what_airflow_queues_at_once_is_queued_in_one_transaction(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several goes, of which only the first finds out whose turn it is."""
    monkeypatch.setattr(Gangs, "prepare", lambda _: None)  # it asks Airflow's database
    asked: list[int] = []

    def queue(most: int) -> list[Any]:
        asked.append(most)
        if gangs.admitted is None:
            gangs.take(Turn(gang("g", 7, p=5), {}))
        return ["member"] * min(most, 2)

    with Session(create_engine("sqlite://")) as session:
        session.begin()
        assert len(gangs.queue(queue, 2, session, GATE.guard)) == 5
        assert session.in_transaction()
    assert asked == [2, 3, 1]


def test_what_fails_in_gangs_ends_no_scheduler(gangs: Gangs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, around and after the scheduler's own step: what that queues is queued, each fault is a pause; what the
    step itself raises is the scheduler's, as natively."""
    clock = [0.0]

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    def lock(_: int) -> list[Any]:
        raise TimeoutError("the scheduler's own")

    for place, name in ((Gangs, "prepare"), (compat, "narrowed"), (Gangs, "_check")):
        gate = Gate(lambda **_: None, clock=lambda: clock[0])
        with monkeypatch.context() as patch, Session(create_engine("sqlite://")) as session:
            patch.setattr(Gangs, "prepare", lambda _: None)
            patch.setattr(place, name, fail)
            assert gangs.queue(lambda _: ["task"], 16, session, gate.guard) == ["task"]
            assert gate.health.faults == 1, name
            with pytest.raises(TimeoutError):
                gangs.queue(lock, 16, session, gate.guard)


def test_dags_are_read_before_pools_are_locked_and_only_chosen_ones(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the locked pass nothing is read but rows of what waits; a DAG that is not chosen is never read."""
    read: list[str] = []
    locked = [False]
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_DAGS", "chosen")
    config.settings.cache_clear()
    rows = [("v1", "chosen"), ("v2", "other")]
    stored = {"task_id": "t", "executor_config": {"egs": {"gang": "g"}}}

    def tasks(version: str) -> list[Any]:
        assert not locked[0]
        read.append(version)
        return [stored]

    monkeypatch.setattr(compat, "connect", lambda: nullcontext())
    monkeypatch.setattr(compat, "stored_tasks", tasks)
    monkeypatch.setattr(gang_rows, "scheduled_versions", lambda _: rows)
    monkeypatch.setattr(gang_rows, "scheduled_runs", lambda _: [(v, dag, "run") for v, dag in rows])
    asked: dict[Any, Any] = {}

    def companies(_: Any, gang_of: dict[Any, Any]) -> list[Company]:
        asked.update(gang_of)
        return []

    monkeypatch.setattr(gang_rows, "companies", companies)

    def step(_: int) -> list[Any]:
        locked[0] = True
        gangs.look(None, {})
        locked[0] = False
        return []

    with Session(create_engine("sqlite://")) as session:
        for _ in range(2):
            gangs.queue(step, 16, session, Gate(lambda **_: None).guard)
    assert read == ["v1"]
    assert asked == {("chosen", "run"): {"t": "g"}}
