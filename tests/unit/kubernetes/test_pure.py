"""What is decided for a cluster's pods, as functions of lists: pods and nodes, gates, priorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egs_core.graph.columns import Shape
from egs_core.kubernetes import gates, places, priorities, seen
from egs_core.kubernetes.pods import Pod, node_of, pod_of
from egs_core.kubernetes.session import ClusterSession
from tests.unit.kubernetes.made_pods import node, pod


def made(name: str, **stated: Any) -> Pod:
    return pod_of(pod(name, uid=name, **stated))


# --- pods, nodes, places ---


def test_a_pods_needs_are_those_of_the_scheduler() -> None:
    """Containers together or the largest before them, sidecars with both, overhead, limits where no request is."""
    raw = pod("p", cpu=2, gpus=1)
    raw["spec"]["initContainers"] = [
        {"name": "first", "resources": {"requests": {"cpu": "5", "memory": "1Gi"}}},
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "4"}}},
    ]
    raw["spec"]["overhead"] = {"cpu": "250m"}
    assert pod_of(raw).shape == Shape(5250, 1000, 1 << 30)


@pytest.mark.parametrize(
    ("field", "value"),
    [("labels", {"egs.io/rank": "soon"}), ("labels", {"egs.io/predicted-s": "-1"}), ("notes", {"egs.io/hints": "[1"})],
)
def test_what_cannot_be_read_is_not_stated(field: str, value: dict[str, str]) -> None:
    """A label that somebody mistyped never keeps a pod from being ordered."""
    found = made("p", **{field: value})
    assert (found.rank_s, found.predicted_s, found.own_priority) == (None, None, 0)


def test_runs_are_told_apart() -> None:
    """By our label, Argo's, or the object that makes the pods; a pod without our label is none of ours."""
    argo = pod("a", labels={"workflows.argoproj.io/workflow": "wf-1"})
    del argo["metadata"]["labels"]["egs.io/run"]
    job = pod("b")
    del job["metadata"]["labels"]["egs.io/run"]
    job["metadata"]["ownerReferences"] = [{"uid": "job-1"}]
    assert [pod_of(one).run for one in (argo, job)] == ["team/w/wf-1", "team/w/job-1"]
    assert not pod_of({"metadata": {"name": "x", "labels": {}}}).is_ours
    assert not made("preload", labels={"egs.io/preload": "k"}).is_ours


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


TAINT = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("spec", "labels", "taints", "may"),
    [
        ({}, {}, {}, True),
        ({"nodeSelector": {"pool": "a"}}, {"pool": "a"}, {}, True),
        ({"nodeSelector": {"pool": "a"}}, {"pool": "b"}, {}, False),
        (affinity({"key": "pool", "operator": "NotIn", "values": ["b"]}), {}, {}, True),
        (affinity({"key": "pool", "operator": "NotIn", "values": ["b"]}), {"pool": "b"}, {}, False),
        (affinity({"key": "size", "operator": "Gt", "values": ["4"]}), {"size": "8"}, {}, True),
        (affinity({"key": "size", "operator": "Exists"}), {}, {}, False),
        ({}, {}, TAINT, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, {}, TAINT, True),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, {}, TAINT, False),
        ({"tolerations": [{"operator": "Exists"}]}, {}, TAINT, True),
    ],
)
def test_nodes_that_take_a_pod(spec: dict[str, Any], labels: dict[str, str], taints: dict[str, Any], may: bool) -> None:
    """Selector, required affinity, taints."""
    found = node_of(node("n", labels=labels, spec=taints))
    assert places.allows(made("p", spec=spec).where, found) is may
    assert places.may_ever_run(made("p", spec=spec), [found]) is may


def test_only_named_labels_tell_kinds_of_nodes_apart() -> None:
    """A node's own name makes no kind of its own."""
    nodes = [node_of(node(f"n{number}", labels={"pool": "a" if number < 2 else "b"})) for number in range(4)]
    assert len({places.flavor_of(one, ()) for one in nodes}) == 1
    keys = places.keys_of([made("p", spec={"nodeSelector": {"pool": "a"}}).where])
    assert len({places.flavor_of(one, keys) for one in nodes}) == 2


# --- what a list means ---


def test_what_is_long_is_not_kept() -> None:
    """What pods say of nodes is read once each, but kept only where it is short: a text may be as long as a pod."""
    short, long = (made("p", spec={"nodeSelector": {"zone": "z" * length}}).where for length in (9, 5000))
    assert places._stated(short) is places._stated(short)
    assert places._stated(long) is not places._stated(long)
    assert places._stated(long) == places._stated(long)
    assert places.keys_of([short]) == places.keys_of([long]) == {"zone"}


def test_what_comes_after_counts_once() -> None:
    """Pods of one run that were seen together share what comes behind them: their ranks differ, and their run has the
    longest rest to do, not the sum."""
    pods = [made("a", rank=15, predicted=4), made("b", rank=9, predicted=4), made("c", rank=3, predicted=0)]
    graph, rests = seen.block_of(pods, {})
    behind = {graph.ids[task]: graph.work_s(task) for task in range(3, graph.n_tasks)}
    assert behind == {"a.a.rest": 6.0, "b.b.rest": 2.0, "c.c.rest": 3.0}
    assert [sum(graph.work_s(task) for task in of) for of in rests] == [11.0, 5.0, 3.0]


def test_pods_are_ranked_by_their_own_rest_whenever_they_come() -> None:
    """One by one or all at once: the same order."""
    pods = {f"p{rank}": made(f"p{rank}", rank=rank, predicted=2) for rank in (10, 40, 11, 13)}
    session, shown = ClusterSession(), dict[str, Pod]()
    try:
        for uid, one in pods.items():
            shown[uid] = one
            session.tell(shown)
        assert session.order() == ["p40", "p13", "p11", "p10"]
    finally:
        session.close()


def test_a_gang_is_new_when_it_is_whole() -> None:
    """Members are told together; where one runs already, or was opened by somebody, they are single pods."""
    first, second = made("a", gang="g", size=2), made("b", gang="g", size=2)
    assert seen.changes({"a": first}, {}).are_none
    news = seen.changes({"a": first, "b": second}, {}).new["team/w/r"]
    assert [one.uid for one in news] == ["a", "b"]
    assert seen.starts_together(news) == {"g"}
    assert seen.starts_together([msgspec.structs.replace(first, node="n"), second]) == frozenset()


def test_what_runs_of_a_gang_is_told_when_the_rest_is_not_there() -> None:
    """A new engine, while one of three gets no node and is left out: what the other two hold is not free, and a pod
    that needs it waits."""
    nodes = [node_of(node("n1", gpus=2))]
    placed = {"gate": False, "spec": {"nodeName": "n1"}}
    pods = {uid: made(uid, gpus=1, gang="g", size=3, **placed) for uid in "ab"}
    waits = made("c", gpus=1, gang="g", size=3, gate=False)
    assert [one.uid for one in seen.changes({**pods, "c": waits}, {}, "abc").new["team/w/r"]] == ["a", "b", "c"]
    assert [one.uid for one in seen.changes({"a": pods["a"], "c": waits}, {}).new["team/w/r"]] == ["a"]
    session, other = ClusterSession(), made("other", gpus=1, run="other")
    try:
        session.tell({**pods, "other": other}, nodes)
        assert session.order() == ["other"]
        assert session.granted() == []
    finally:
        session.close()


def test_an_engine_is_made_anew_after_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what has ended, also what is deleted and pruned here: pods come and go, one at a time. With more pods
    than that at once it is not made anew each time."""
    monkeypatch.setattr("egs_core.kubernetes.session.MOST_TASKS", 10)
    session = ClusterSession()
    sites = [session.site]
    try:
        for number in range(12):
            pods = {str(number): made(str(number), run=f"r{number}", rank=9, predicted=3)}
            session.tell(pods)
            session.prune(pods)
            sites += [session.site] if session.site is not sites[-1] else []
            assert sum(session._sizes.values()) <= 14
            assert len(session._live) == 1
        assert len(sites) in (2, 3)
        many = {f"m{n}": made(f"m{n}", rank=9 + n, predicted=3) for n in range(20)}
        session.tell(many)
        assert session.outgrown(many) is None
    finally:
        session.close()


@st.composite
def lives(draw: st.DrawFn) -> list[dict[str, Pod]]:
    """Lists of a few pods that come, are opened, bound, ended and deleted, in any order, some states left out."""
    stages: list[Callable[[Pod], Pod]] = [
        lambda one: one,
        lambda one: msgspec.structs.replace(one, is_gated=False),
        lambda one: msgspec.structs.replace(one, is_gated=False, node="n1"),
        lambda one: msgspec.structs.replace(one, is_gated=False, node="n1", phase="Succeeded"),
    ]
    count = draw(st.integers(1, 5))
    gang = draw(st.booleans())
    pods = [
        made(
            f"p{n}",
            cpu=1,
            rank=draw(st.integers(0, 99)),
            predicted=3,
            **({"gang": "g", "size": 2} if gang and n < 2 else {}),
        )
        for n in range(count)
    ]
    at = [-1] * count
    found = []
    for _ in range(draw(st.integers(1, 8))):
        at = [draw(st.integers(stage, 4)) for stage in at]
        found.append({pod.uid: stages[stage](pod) for pod, stage in zip(pods, at, strict=True) if 0 <= stage < 4})
    return found


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(lives())
def test_no_list_is_told_twice(lists: list[dict[str, Pod]]) -> None:
    """Whatever pods do: the same list again changes nothing, the engine stays sound, and nothing is granted twice."""
    session, nodes = ClusterSession(), [node_of(node("n1", cpu=4))]
    try:
        for pods in lists:
            session.tell(pods, nodes)
            assert session.tell(pods, nodes).are_none
            session.prune(pods)
            assert session.tell(pods, nodes).are_none
            granted = session.granted()
            assert len(granted) == len(set(granted))
            session.site.call(session.site._engine.validate_state, 60.0)  # type: ignore[attr-defined]  # the embedded one's
            assert session.is_alive
    finally:
        session.close()


def test_a_grant_that_is_taken_back_is_followed_no_longer() -> None:
    """Two pods were granted a GPU each; before either is opened, a third one stands where one of them was to be. That
    one waits for a grant again, and has one when the third has ended."""
    session, nodes = ClusterSession(), [node_of(node(name, gpus=1)) for name in ("n1", "n2")]
    pods = {name: made(name, gpus=1) for name in ("a", "b")}
    try:
        session.tell(pods, nodes)
        session.order()  # an answer: it has decided by now
        assert sorted(session.granted()) == ["a", "b"]
        placed = msgspec.structs.replace(made("c", gpus=1, gate=False), node="n1")
        session.tell({**pods, "c": placed}, nodes)
        assert len(session.granted()) == 1
        over = msgspec.structs.replace(placed, phase="Succeeded")
        session.tell({**pods, "c": over}, nodes)
        session.order()
        assert sorted(session.granted()) == ["a", "b"]
        session.tell({**pods, "c": over}, nodes[:1])  # a node is gone
        session.order()
        assert len(session.granted()) == 1
    finally:
        session.close()


# --- gates ---


def test_a_window_at_a_time_in_the_order_of_grants() -> None:
    """What was opened and has no node yet counts, unless it is stuck; a gang is opened whole, also past the window."""
    pods = {name: made(name) for name in "abcd"}
    pods |= {name: made(name, gang="g", size=2) for name in "gh"}
    opened = msgspec.structs.replace(made("o", gate=False), opened_at=100.0)

    def names(now: float, window: int, granted: str = "bacd") -> list[str]:
        found = gates.releases(granted, (), {**pods, "o": opened}, now, window=window)
        return [one.pod.uid for one in found]

    assert names(101.0, 3) == ["b", "a"]
    assert names(101.0, 1) == []
    assert names(100.0 + gates.STUCK_S, 3) == ["b", "a", "c"]
    assert names(101.0, 2, "gbha") == ["g", "h"]


def test_what_was_opened_without_a_grant_is_waited_for() -> None:
    """By a controller before this one: what it opened for its turn gets its node in a moment, with room that this
    engine may have given to another. Not what was opened for other reasons, nor what got stuck."""
    opened = msgspec.structs.replace(made("o", gate=False), opened_at=100.0, opened_for=gates.ORDER)
    pods = {"a": made("a"), "o": opened}

    def names(now: float, *granted: str, **stated: Any) -> list[str]:
        seen = {**pods, "o": msgspec.structs.replace(opened, **stated)}
        return [one.pod.uid for one in gates.releases(granted, (), seen, now, window=9)]

    assert names(101.0, "a") == []
    assert names(101.0, "a", "o") == ["a"]
    assert names(101.0, "a", node="n1") == ["a"]
    assert names(101.0, "a", opened_for=gates.AHEAD) == ["a"]
    assert names(100.0 + gates.STUCK_S, "a") == ["a"]


def test_so_many_are_opened_ahead() -> None:
    """Beyond what has room, in order: an autoscaler sees them. Members of gangs wait to be granted."""
    pods = {name: made(name) for name in "abc"} | {"g": made("g", gang="g", size=2)}
    found = gates.releases(["a"], ["g", "c", "b"], pods, 0.0, window=9, ahead=2)
    assert [(one.pod.uid, one.why) for one in found] == [("a", "order"), ("c", "ahead")]


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=20), st.integers(0, 9000))
def test_nothing_is_gated_past_its_release_by_time(times: list[tuple[int, int]], now: int) -> None:
    """After what is overdue was opened, no gated pod is past its moment, or older than the longest there is."""
    pods = [
        msgspec.structs.replace(made(f"p{number}"), created=created, release_by=release_by)
        for number, (created, release_by) in enumerate(times)
    ]
    late = {one.pod.uid for one in gates.overdue(pods, now, 1000.0)}
    for one in pods:
        if one.uid not in late:
            assert not one.release_by or now < one.release_by
            assert now < one.created + 1000.0


# --- Kueue ---

QUIET = {"q": "cluster queue"}


def waiting(name: str, base: int = 0, priority: int | None = None, queue: str = "q") -> priorities.Workload:
    return priorities.Workload("ns", name, queue, base, base if priority is None else priority, (name,))


def test_what_waits_is_raised_and_no_further_than_the_next_user() -> None:
    """The first so many of each user's priority, below the next one; the rest keeps its own."""
    low = [waiting(f"a{number}") for number in range(4)]
    high = [waiting(f"b{number}", 10) for number in range(3)]
    order = ["b2", "a3", "a1", "b0", "a0", "b1", "a2"]
    found = {one.name: one.priority for one in priorities.raises([*low, *high], order, QUIET, ahead=3)}
    assert 10 > found["a3"] > found["a1"] > found["a0"] > 0
    assert found["b2"] > found["b0"] > found["b1"] > 10
    assert "a2" not in found
    assert priorities.raises([*low, *high], order, {}) == []


def test_nothing_is_raised_up_to_the_priority_of_who_is_not_ours() -> None:
    """A Workload of another user, with no pod of EGS, keeps its place before those of lower priority."""
    other = priorities.Workload("ns", "other", "somewhere", 10, 10, ("a job",))
    found = priorities.raises([waiting("a"), waiting("b"), other], ["b", "a"], QUIET)
    assert [one.name for one in sorted(found, key=lambda one: -one.priority)] == ["b", "a"]
    assert all(0 < one.priority < 10 for one in found)


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(st.lists(st.sampled_from([0, 3, 100]), min_size=1, max_size=30), st.randoms(), st.integers(1, 8))
def test_priorities_follow_any_order_and_settle(bases: list[int], random: Any, ahead: int) -> None:
    """Whatever was written before: afterwards the first of each user's priority stand in order, none reaches the next
    user's, no more is written for the same order, and one that goes first costs no more patches than it must."""
    found = {f"w{number}": waiting(f"w{number}", base) for number, base in enumerate(bases)}
    for _ in range(4):
        order = list(found)
        random.shuffle(order)
        for one in priorities.raises(found.values(), order, QUIET, ahead):
            found[one.name] = msgspec.structs.replace(found[one.name], priority=one.priority)
        assert priorities.raises(found.values(), order, QUIET, ahead) == []
        for base in set(bases):
            group = [found[name].priority for name in order if found[name].base == base]
            above = min((other for other in set(bases) if other > base), default=1 << 40)
            raised = [priority for priority in group if priority > base]
            assert raised == sorted(set(raised), reverse=True)
            first = group[: min(ahead, above - 1 - base)]
            assert raised[: len(first)] == first
            assert len(raised) <= 2 * ahead
            assert all(base <= priority < above for priority in group)


def test_one_that_is_admitted_costs_no_patch_of_the_others() -> None:
    """The others stand in the right order already; only who is now among the first is raised."""
    found = [waiting(f"w{number}") for number in range(300)]
    order = [one.name for one in found]
    found = written(found, order)
    for number in range(priorities.AHEAD, 300):
        found = found[1:]
        assert [one.name for one in priorities.raises(found, order, QUIET)] == [f"w{number}"]
        found = written(found, order)


def test_one_that_comes_and_goes_first_costs_one_patch() -> None:
    """Who is no longer among the first keeps what it has, so that it is not written down and up again."""
    found = [waiting(f"w{number}") for number in range(40)]
    order = [one.name for one in found]
    found = written(found, order)
    for number in range(100):
        order = [f"n{number}", *order]
        found = [waiting(f"n{number}"), *found]
        assert [one.name for one in priorities.raises(found, order, QUIET)] == [f"n{number}"]
        found = written(found, order)
        found = [one for one in found if one.name != f"n{number}"]
        assert priorities.raises(found, order, QUIET) == []


def test_each_queue_has_its_first_ones() -> None:
    """What waits in another one, and may never be admitted, is in nobody's way."""
    found = [*(waiting(f"a{number}", queue="a") for number in range(30)), waiting("b0", queue="b")]
    raised = priorities.raises(found, [one.name for one in found], {"a": "of a", "b": "of b"})
    assert [one.name for one in raised] == [*(f"a{number}" for number in range(priorities.AHEAD)), "b0"]


def test_as_many_are_raised_as_may_get_quota() -> None:
    """Each raised one is a look of Kueue's whenever quota frees: where three of a queue have some, three, and never
    less than two; where nobody has, or many, the first dozen."""
    found = [waiting(f"w{number}") for number in range(30)]
    order = [one.name for one in found]
    for holding, raised in ((0, priorities.AHEAD), (1, 2), (3, 3), (99, priorities.AHEAD)):
        held = [msgspec.structs.replace(waiting(f"h{n}"), waits=False, holds=True) for n in range(holding)]
        written = priorities.raises([*found, *held], order, QUIET)
        assert [one.name for one in written] == order[:raised], holding


def of_gpus(name: str, gpus: int, priority: int = 0, queue: str = "q") -> priorities.Workload:
    return msgspec.structs.replace(waiting(name, priority=priority, queue=queue), asks=Shape(1000, 1000 * gpus))


def test_the_first_that_has_room_in_what_was_freed_is_written_again() -> None:
    """Two GPUs were given back: the first one that asks for no more, and another that has room beside it. It keeps its
    place, or gets the one that it was to have anyway; nothing goes past who stands before it."""
    found = [of_gpus("big", 4, 900), of_gpus("one", 1, 500), of_gpus("new", 1), of_gpus("two", 2, 100)]
    order = ["big", "one", "new", "two"]
    raised = [priorities.Raise("ns", "new", 300, 0)]
    freed = {"cluster queue": Shape(2000, 2000)}
    written = priorities.hurried(freed, found, order, QUIET, raised)
    assert [(one.name, one.priority) for one in written] == [("one", 501), ("new", 300)]
    assert priorities.hurried({"another": Shape(9000, 9000)}, found, order, QUIET, raised) == []
    tight = [of_gpus("big", 4, 501), of_gpus("one", 1, 500)]
    assert priorities.hurried(freed, tight, order, QUIET) == []  # no number is between


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(st.lists(st.tuples(st.sampled_from([0, 3, 100]), st.integers(0, 3)), min_size=1, max_size=20), st.randoms())
def test_what_is_hurried_leaves_the_order_as_it_is(stated: list[tuple[int, int]], random: Any) -> None:
    """Whatever was freed: nothing passes another one of its queue and user's priority, or reaches the next user's."""
    found = {
        f"w{n}": msgspec.structs.replace(waiting(f"w{n}", base), asks=Shape(1000, 1000 * gpus))
        for n, (base, gpus) in enumerate(stated)
    }
    order = list(found)
    for _ in range(6):
        moved = priorities.raises(found.values(), order, QUIET, ahead=3)
        freed = {"cluster queue": Shape(9000, random.randrange(5000))}
        hurried = priorities.hurried(freed, found.values(), order, QUIET, moved)
        for one in (*moved, *hurried):
            found[one.name] = msgspec.structs.replace(found[one.name], priority=one.priority)
        for base in {base for base, _ in stated}:
            raised = [found[name].priority for name in order if found[name].base == base]
            raised = [priority for priority in raised if priority > base]
            above = min((other for other, _ in stated if other > base), default=1 << 40)
            assert raised == sorted(set(raised), reverse=True)
            assert all(priority < above for priority in raised)
        if random.random() < 0.5:
            random.shuffle(order)


def written(found: list[priorities.Workload], order: list[str]) -> list[priorities.Workload]:
    raised = {one.name: one.priority for one in priorities.raises(found, order, QUIET)}
    return [msgspec.structs.replace(one, priority=raised.get(one.name, one.priority)) for one in found]
