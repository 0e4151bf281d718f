"""What an Airflow's site is told and asked: order, what may start, for what slots are kept, what is to be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_airflow.agent import session as session_module
from egs_airflow.agent.instances import Instance
from egs_airflow.agent.picture import Picture, Pool, Run
from egs_airflow.agent.session import Session
from egs_airflow.order.published import Order
from egs_airflow.order.weights import guess_s, remaining_path_s, weights
from egs_core.engine import messages as m
from egs_core.site.embedded import EmbeddedSite
from egs_core.testing.wire_site import WireSite

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
    """By a site that is told for the first time."""
    session = Session()
    try:
        return session.order(Picture(pools, runs, 1.0, reserve_after_s), NOW_S)
    finally:
        session.close()


def test_the_spread_of_what_was_learned_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tasks that were learned their 95th percentile, when the run is told of and when it changes; of others, and
    where nothing has changed, nothing."""
    told: list[m.Event] = []
    session = Session()
    report = session.site.report

    def noted(event: m.Event) -> None:
        told.append(event)
        report(event)

    monkeypatch.setattr(session.site, "report", noted)
    try:
        for known, p95 in (({"a": 2.0, "c": 3.0}, {"a": 5.0}), ({"a": 2.0}, {"a": 5.0}), ({"a": 2.0}, {"a": 7.0})):
            seen = replace(run([instance("a"), instance("c", state="")], known_s=known), p95_s=p95)
            session.order(Picture((Pool("p", 1),), [seen], 1.0, 30.0), NOW_S)
    finally:
        session.close()
    found = [event.values for event in told if isinstance(event, m.Estimates)]
    of_first = [one[1:] for values in found for one in values if one[0] == 1]  # 0 stands for the run itself
    assert of_first == [(2.0, 5.0), (2.0, 7.0)]


def ids(order: Order) -> list[str]:
    return [turn.id for turn in order.turns]


def test_inside_a_run_the_longest_remaining_path_goes_first() -> None:
    """As the weights from creation say."""
    downstream = {"a": ["b"], "b": [], "c": ["d"], "d": []}
    known = {"a": 60.0, "b": 600.0, "c": 600.0, "d": 10.0}
    waiting = [instance("a"), instance("c"), instance("b", state=""), instance("d", state="")]
    order = decided(run(waiting, downstream=downstream, known_s=known))
    assert ids(order) == ["r.a", "r.c"]
    assert weights(downstream, known)["a"] > weights(downstream, known)["c"]
    assert [turn.may_start for turn in order.turns] == [True, False]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_one_run_alone_is_ordered_as_its_weights_say(data: st.DataObject) -> None:
    """Whatever its edges and durations: what waits goes by the longest remaining path, of which its weights are the
    logarithm in steps."""
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
    assert len(paths) == sum(task not in above for task in downstream)


def test_between_runs_the_one_with_less_work_left_goes_first() -> None:
    """The weights from creation alone would let the longest path of all go first, so all runs end late."""
    known = {"a": 600.0, "b": 600.0, "c": 600.0}
    fresh = run([instance("a", "new"), instance("b", "new", ""), instance("c", "new", "")], "new", 500.0, known_s=known)
    ending = run([instance("c", "old")], "old", 600.0, known_s=known)
    by_weight = weights(CHAIN, known)
    assert by_weight["a"] > by_weight["c"]
    order = decided(fresh, ending)
    assert ids(order) == ["old.c", "new.a"]
    assert order.turns[0].why == "would start now, by remaining_work"


def stating(task: str, run: str, **stated: object) -> Instance:
    """An instance that waits and has said that under our key, as REST shows it."""
    return instance(task, run, config=str({"egs": stated}))


def test_a_hinted_priority_goes_before_every_rule_of_order() -> None:
    """A run with more work left, that began later, goes first with a higher priority; inside a run too."""
    known = {"a": 600.0, "b": 600.0, "c": 5.0}
    more = [stating("a", "more", priority=1), instance("b", "more", "")]
    assert (
        ids(decided(run([instance("c", "less")], "less", 1.0, known_s=known), run(more, "more", 2.0, known_s=known)))[0]
        == "more.a"
    )
    alike = [instance("a"), stating("c", "r", priority=1)]
    assert ids(decided(run(alike, downstream={"a": [], "c": []}, known_s=known))) == ["r.c", "r.a"]
    alike[1] = stating("c", "r", priority=-1)
    assert ids(decided(run(alike, downstream={"a": [], "c": []}, known_s={"a": 5.0, "c": 600.0}))) == ["r.a", "r.c"]


def test_what_has_waited_for_its_max_wait_goes_first() -> None:
    """A small task behind a long path: it goes first once it has waited for as long as it said (here for 5 s)."""
    known = {"a": 600.0, "b": 600.0, "leaf": 5.0}
    downstream = {"a": ["b"], "b": [], "leaf": []}
    for max_wait, first in (("1min", "r.a"), ("4s", "r.leaf")):
        waiting = [instance("a"), instance("b", state=""), stating("leaf", "r", max_wait=max_wait)]
        assert ids(decided(run(waiting, downstream=downstream, known_s=known)))[0] == first, max_wait


def test_a_deadline_counts_from_the_beginning_of_the_run() -> None:
    """A leaf that would miss its deadline goes before the longest path; one with time left does not. The run began
    1,000 s ago, so a deadline of 1,008 s is in 8 s; one that cannot be met any more changes nothing."""
    known = {"a": 600.0, "b": 600.0, "leaf": 5.0}
    downstream = {"a": ["b"], "b": [], "leaf": []}
    for deadline, first in ((1e6, "r.a"), (NOW_S + 8.0, "r.leaf"), (NOW_S - 500.0, "r.a")):
        waiting = [instance("a"), instance("b", state=""), stating("leaf", "r", deadline=deadline)]
        assert ids(decided(run(waiting, downstream=downstream, known_s=known)))[0] == first, deadline


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


@pytest.fixture(params=[EmbeddedSite, WireSite])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Order]]:
    """One look after the other of one agent, on either kind of site, at which stands what the looks before told."""
    monkeypatch.setattr(session_module, "connect", request.param)
    session = Session()

    def look(*runs: Run, pools: Sequence[Pool] = (Pool("p", 1),), now_s: float = NOW_S) -> Order:
        return session.order(Picture(pools, runs, 1.0, 30.0), now_s)

    yield look
    session.close()


def told(order: Order) -> list[tuple[str, bool]]:
    return [(turn.id, turn.may_start) for turn in order.turns]


def test_airflow_starts_another_than_the_site_would(looks: Callable[..., Order]) -> None:
    """What runs has its slot, whoever would have had it; when it is over, the first one would start again. A run that
    has ended leaves nothing behind."""
    known = {"a": 600.0, "c": 5.0}
    first, leaf = run([instance("c", "x")], "x", known_s=known), run([instance("a", "y")], "y", 1.0, known_s=known)
    assert told(looks(first, leaf)) == [("x.c", True), ("y.a", False)]
    began = run([instance("a", "y", "running")], "y", 1.0, known_s=known)
    assert told(looks(first, began)) == [("x.c", False)]
    assert told(looks(first)) == [("x.c", True)]
    assert looks() == Order()


def test_a_run_goes_on(looks: Callable[..., Order]) -> None:
    """From task to task; a try that failed waits for the next one, which has another id; what was cleared begins again,
    and so does a task that has become several."""
    chain = [instance("a"), instance("b", state=""), instance("c", state="")]
    assert told(looks(run(chain))) == [("r.a", True)]
    assert told(looks(run([instance("a", state="running"), *chain[1:]]))) == []
    assert told(looks(run([instance("a", state="up_for_retry", id="try2"), *chain[1:]]))) == []
    assert told(looks(run([instance("a", id="try2"), *chain[1:]]))) == [("try2", True)]
    assert told(looks(run(chain[1:]))) == []  # before Airflow has looked
    assert told(looks(run([instance("b"), chain[2]]))) == [("r.b", True)]
    assert told(looks(run([chain[2]]))) == []
    assert told(looks(run([instance("a", id="again"), *chain[1:]]))) == [("again", True)]
    several = [instance("b", map_index=number) for number in range(3)]
    expanded = looks(run([*several, chain[2]]), pools=[Pool("p", 2)])
    assert told(expanded) == [("r.b[0]", True), ("r.b[1]", True), ("r.b[2]", False)]
    assert told(looks(run([instance("c")]), pools=[Pool("p", 2)])) == [("r.c", True)]


def test_what_is_learned_meanwhile_turns_the_order_round(looks: Callable[..., Order]) -> None:
    """Of tasks that wait already: no new task, no restart."""
    flat: dict[str, list[str]] = {"a": [], "b": []}
    for known, expected in (({"a": 90.0, "b": 5.0}, ["r.a", "r.b"]), ({"a": 5.0, "b": 90.0}, ["r.b", "r.a"])):
        waiting = run([instance("a"), instance("b")], downstream=flat, known_s=known)
        assert ids(looks(waiting)) == expected


def test_pools_come_go_and_change(looks: Callable[..., Order]) -> None:
    """What waits for a pool that is gone waits; a larger one lets more start, a smaller one nothing."""
    flat: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    waiting = run([instance(name) for name in flat], downstream=flat)
    for slots, expected in ((1, 1), (3, 3), (2, 2)):
        assert sum(start for _, start in told(looks(waiting, pools=[Pool("p", slots)]))) == expected
    assert not [start for _, start in told(looks(waiting, pools=[])) if start]
    assert sum(start for _, start in told(looks(waiting, pools=[Pool("p", 2, is_gpu=True)]))) == 2


def reads(path: Path) -> dict[str, str]:
    return {"config": str({"egs": {"files": [str(path)]}})}


@pytest.mark.parametrize(("is_gpu", "is_ordered"), [(False, True), (True, True), (False, False)])
def test_files_are_loaded_just_before(
    looks: Callable[..., Order], tmp_path: Path, is_gpu: bool, is_ordered: bool
) -> None:
    """When a task is expected to start as soon as its files can be read, and not when it is far off; also in a DAG
    whose order is the user's. A task that has begun needs nothing any more."""
    file = tmp_path / "model"
    file.write_bytes(b"x" * 1000)
    last = [instance("b", state="", **reads(file)), instance("c", state="", **reads(file))]
    pools = [Pool("p", 2, is_gpu=is_gpu)]

    def at(seconds: float, *instances: Instance) -> list[str]:
        a_run = run([*instances], known_s={"a": 60.0, "b": 60.0, "c": 60.0})
        a_run = Run(a_run.dag_id, a_run.run_id, 0.0, CHAIN, a_run.instances, a_run.known_s, is_ordered)
        found = looks(a_run, pools=pools, now_s=NOW_S + seconds)
        assert is_ordered or not found.turns
        return [task for _, _, task in found.loads]

    assert at(0.0, instance("a", state="running"), *last) == []
    late = instance("a", state="running", started_s=NOW_S - 58.0)
    assert at(0.0, instance("a", "r", "", id="again"), *last) == []
    assert at(0.0, late, *last) == ["b"]
    assert at(1.0, instance("b", **reads(file)), last[1]) == ["b"]
    assert at(1.0, instance("b", state="running", **reads(file)), last[1]) == []


def test_behind_what_nobody_knows_files_are_loaded_at_once(looks: Callable[..., Order], tmp_path: Path) -> None:
    """As soon as that runs: of its length there is a guess only."""
    known = {"a": 600.0, "c": 600.0}
    last = instance("c", state="", **reads(tmp_path / "none"))
    assert looks(run([instance("a", state="running"), instance("b", state=""), last], known_s=known)).loads == ()
    assert looks(run([instance("b", state="running"), last], known_s=known)).loads == (("d", "r", "c"),)


def test_a_site_is_left_when_it_was_told_of_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets nothing, so a busy Airflow would fill it; one with as much under way at once stays."""
    monkeypatch.setattr(session_module, "MOST_TOLD", 10)
    session = Session()
    try:
        for number in range(12):
            picture = Picture([Pool("p", 1)], [run([instance("a", f"{number}")], f"{number}")], 1.0, 30.0)
            assert session.is_full == (number > 5)  # a run is told as its task and itself
            assert told(session.order(picture, NOW_S)) == [(f"{number}.a", True)]
    finally:
        session.close()


def test_a_site_that_is_lost_is_said() -> None:
    """Once: whoever hosts it lets another agent try."""
    session = Session()
    try:
        session.site_lost(ZeroDivisionError("injected"))
        with pytest.raises(ConnectionError, match="the site is lost: ZeroDivisionError: injected"):
            session.order(Picture((), (), 1.0, 30.0), NOW_S)
    finally:
        session.close()
