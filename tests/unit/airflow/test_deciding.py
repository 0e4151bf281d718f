"""The engine's decisions for a whole Airflow: order, what may start, and for whom slots are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_airflow.agent.deciding import Pool, Run, Site, decide
from egs_airflow.agent.instances import Instance
from egs_airflow.order.published import Order
from egs_airflow.order.weights import guess_s, remaining_path_s, weights

NOW_S = 1000.0
CHAIN = {"a": ["b"], "b": ["c"], "c": []}


def instance(task: str, run: str = "r", state: str = "scheduled", **more: object) -> Instance:
    """A task instance in the pool `p`; its id is its run and task."""
    index = more.get("map_index", -1)
    ready = {"ready_s": NOW_S - 5.0} if state in ("scheduled", "running") else {}
    begun = {"started_s": NOW_S - 2.0} if state == "running" else {}
    name = f"{run}.{task}" + (f"[{index}]" if index != -1 else "")
    fields = {"dag_id": "d", "run_id": run, "task_id": task, "state": state, "pool": "p"}
    return Instance(**{"id": name, **fields, **ready, **begun, **more})  # type: ignore[arg-type]  # fields of several types


def run(
    instances: Sequence[Instance],
    run_id: str = "r",
    started_s: float = 0.0,
    downstream: Mapping[str, Sequence[str]] = CHAIN,
    known_s: Mapping[str, float] | None = None,
) -> Run:
    return Run("d", run_id, started_s, downstream, instances, known_s or {})


def decided(*runs: Run, pools: Sequence[Pool] = (Pool("p", 1),), reserve_after_s: float = 30.0) -> Order:
    return decide(Site(pools, runs, 1.0, reserve_after_s), NOW_S)


def ids(order: Order) -> list[str]:
    return [turn.id for turn in order.turns]


def test_inside_a_run_the_longest_remaining_path_goes_first() -> None:
    """The weights from creation say the same: the engine deals them out as they are."""
    downstream = {"a": ["b"], "b": [], "c": ["d"], "d": []}
    known = {"a": 60.0, "b": 600.0, "c": 600.0, "d": 10.0}
    waiting = [instance("a"), instance("c"), instance("b", state=""), instance("d", state="")]
    order = decided(run(waiting, downstream=downstream, known_s=known))
    assert ids(order) == ["r.a", "r.c"]
    expected = weights(downstream, known)
    assert [turn.weight for turn in order.turns] == [expected["a"], expected["c"]]
    assert [turn.may_start for turn in order.turns] == [True, False]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_one_run_alone_is_ordered_as_its_weights_say(data: st.DataObject) -> None:
    """Whatever its edges and durations: what waits goes by the longest remaining path, of which its weights are the
    logarithm in steps; and it shares the weights that it was made with, the largest first."""
    count = data.draw(st.integers(1, 8))
    edges = data.draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=12))
    downstream = {f"t{n}": sorted({f"t{b}" for a, b in edges if a == n and a < b}) for n in range(count)}
    known = data.draw(st.dictionaries(st.sampled_from(sorted(downstream)), st.floats(0.001, 1e5)))
    above = {child for after in downstream.values() for child in after}
    instances = [instance(task, state="" if task in above else "scheduled") for task in downstream]
    order = decided(run(instances, downstream=downstream, known_s=known))
    usual = guess_s(downstream, known, 1.0)
    path_s = remaining_path_s(downstream, {task: known.get(task, usual) for task in downstream})
    paths = [path_s[turn.id.removeprefix("r.")] for turn in order.turns]
    assert paths == pytest.approx(sorted(paths, reverse=True))
    made = weights(downstream, known, 1.0)
    assert [turn.weight for turn in order.turns] == sorted((made[t] for t in made.keys() - above), reverse=True)


def test_between_runs_the_one_with_less_work_left_goes_first() -> None:
    """The weights from creation alone would let the longest path of all go first, so all runs end late; the engine
    turns them round, and takes not one weight more than there were."""
    known = {"a": 600.0, "b": 600.0, "c": 600.0}
    fresh = run([instance("a", "new"), instance("b", "new", ""), instance("c", "new", "")], "new", 500.0, known_s=known)
    ending = run([instance("c", "old")], "old", 600.0, known_s=known)
    by_weight = weights(CHAIN, known)
    assert by_weight["a"] > by_weight["c"]
    order = decided(fresh, ending)
    assert ids(order) == ["old.c", "new.a"]
    assert [turn.weight for turn in order.turns] == [by_weight["a"], by_weight["c"]]
    assert order.turns[0].why == "would start now, by remaining_work"


def test_runs_of_one_class_go_as_they_arrived() -> None:
    """A DAG run is one submission: the one that began first goes first, whatever the order in which it is told."""
    runs = [run([instance("c", name)], name, began, known_s={"c": 5.0}) for name, began in (("z", 1.0), ("a", 2.0))]
    assert ids(decided(*runs)) == ids(decided(*reversed(runs))) == ["z.c", "a.c"]


def test_what_runs_has_its_slots() -> None:
    """Also where the engine would have started another; slots of DAGs that EGS does not order are not offered; a pool
    that was made smaller than what runs in it offers nothing."""
    known = {"a": 1.0, "b": 1.0, "c": 900.0}
    busy = run([instance("c", "x", "running"), instance("c", "y", "queued")], "x", known_s=known)
    waits = run([instance("a", "w"), instance("b", "w", ""), instance("c", "w", "")], "w", known_s=known)
    may_start = {
        slots: decided(busy, waits, pools=[Pool("p", slots, taken=1)]).turns[0].may_start for slots in (1, 3, 4)
    }
    assert may_start == {1: False, 3: False, 4: True}


def test_a_task_of_several_slots_that_has_waited_has_slots_kept() -> None:
    """Only after `reserve_after`; then nothing that would still run starts in what is open, and it is first."""
    known = {"a": 50.0, "b": 50.0, "c": 50.0}
    flat: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    held = instance("a", state="running")
    large = instance("b", slots=2, ready_s=NOW_S - 40.0)
    of = run([held, large, instance("c")], downstream=flat, known_s=known)
    kept = decided(of, pools=[Pool("p", 2)])
    assert [(turn.id, turn.may_start, turn.keeps) for turn in kept.turns] == [
        ("r.b", False, True),
        ("r.c", False, False),
    ]
    patient = decided(of, pools=[Pool("p", 2)], reserve_after_s=60.0)
    assert {turn.id: turn.may_start for turn in patient.turns} == {"r.b": False, "r.c": True}
    assert not any(turn.keeps for turn in patient.turns)


def test_what_is_not_ready_takes_nothing() -> None:
    """A task that is to be tried again, deferred, or whose predecessors have ended and Airflow has yet to see it: none
    of them is granted what is open."""
    others = [instance("c", "x", state) for state in ("", "up_for_retry", "deferred", "up_for_reschedule")]
    waits = run([instance("c", "w")], "w", 900.0)
    order = decided(run(others, "x"), waits)
    assert [(turn.id, turn.may_start) for turn in order.turns] == [("w.c", True)]
    keeps = decided(run(others, "x"), waits, pools=[Pool("p", 1, keeps_deferred=True)])
    assert [(turn.id, turn.may_start) for turn in keeps.turns] == [("w.c", False)]


def test_mapped_tasks_and_pools() -> None:
    """Many instances before many others; GPU pools and pools without a limit; a pool that is not there, and
    an instance of a task that the DAG no longer has."""
    downstream = {"a": ["b"], "b": []}
    many = [instance("a", map_index=number) for number in range(200)]
    many += [instance("b", state="", map_index=number) for number in range(200)]
    many += [instance("a", pool="gone"), instance("dropped"), instance("a", pool="free", map_index=5000)]
    pools = [Pool("p", 4, is_gpu=True), Pool("free", -1)]
    order = decided(run(many, downstream=downstream, known_s={"a": 1.0}), pools=pools)
    assert len(order.turns) == 202
    assert sum(turn.may_start for turn in order.turns) == 5
    assert not [turn for turn in order.turns if ".b" in turn.id]


@pytest.mark.parametrize("runs", [(), (run([]),), (run([instance("a", state="running")]),)])
def test_nobody_waits(runs: Sequence[Run]) -> None:
    """An empty site has an empty order."""
    assert decided(*runs) == Order()
