"""What is told of a cluster's queues, which Workloads wait for a cluster, and what is written for them. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from egs_core.client.outlooks import MOST_ASKED, MOST_WORK, Naming
from egs_core.kubernetes.bookings import MOST_BYTES, Booked, booked_of, outlook_of, takes_s
from egs_core.kubernetes.clusters import (
    ANSWER_S,
    OVERDUE_S,
    SETTLED_S,
    Choice,
    choices,
    clusters_of,
    nominations,
    overdue,
    question,
    status_with,
)
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.priorities import raises
from egs_core.server.outlooks import start_of
from tests.unit.kubernetes.made_clusters import BEGAN_S, CHECK, GPU, cluster_queue, local_queue, multikueue, workload
from tests.unit.kubernetes.made_pods import kueue_workload, pod

BOTH = {CHECK: ("blue", "green")}


def booked(*args: Any, **stated: Any) -> Booked:
    return booked_of(workload(*args, **stated))


def waiting(name: str, **stated: Any) -> Booked:
    """It waits for a cluster."""
    return booked(name, check="Pending", **stated)


def chosen(*found: Booked, at_s: float = 0.0) -> list[Choice]:
    return choices(found, BOTH, BEGAN_S + at_s)


# --- what is told ---


def test_a_clusters_queues() -> None:
    """Quotas by group and flavor; of what has quota how much and how long still, by its pods' labels and by what has
    passed since it began; of what waits how much it asks for, by priority, then age. What is over is not told."""
    has = workload("has", 2, 300.0, admitted=True)
    low, high = workload("low", 1, quota=False), workload("high", 4, 50.0, quota=False, priority=9)
    over = workload("over", admitted=True)
    over["status"]["conditions"].append({"type": "Finished", "status": "True"})
    found = outlook_of(
        "blue",
        map(booked_of, (low, over, has, high)),
        [local_queue(), local_queue("held", stopPolicy="Hold")],
        [cluster_queue(8), cluster_queue(1, "nobodys")],
        {},
        BEGAN_S + 100.0,
    )
    (queue,) = found.queues
    assert (found.cluster, queue.doors, queue.is_known, queue.is_strict) == ("blue", ("team/lq",), True, False)
    assert queue.groups == ({"any": {GPU: 8.0, "cpu": 64.0}},)
    assert [(one.name, one.takes, one.left_s) for one in queue.holding] == [
        ("team/has", {"any": {GPU: 2.0, "cpu": 1.0}}, 200.0)
    ]
    assert [(one.name, one.asks[0][GPU], one.takes_s) for one in queue.waiting] == [
        ("team/high", 4.0, 50.0),
        ("team/low", 1.0, None),
    ]
    assert start_of(queue.waiting[0], queue) == 0.0


@pytest.mark.parametrize(
    ("stated", "known", "borrows", "strict"),
    [
        ({}, True, False, False),
        ({"stopPolicy": "None", "cohortName": "all"}, True, True, False),
        ({"stopPolicy": "HoldAndDrain"}, False, False, False),
        ({"queueingStrategy": "StrictFIFO"}, True, False, True),
    ],
)
def test_what_a_queue_says_of_itself(stated: dict[str, str], known: bool, borrows: bool, strict: bool) -> None:
    """Of one that is stopped, or that Kueue says is not active, nothing is foretold."""
    (queue,) = outlook_of("blue", [], [local_queue()], [cluster_queue(1, **stated)], {}, BEGAN_S).queues
    assert (queue.is_known, queue.may_borrow, queue.is_strict) == (known, borrows, strict)
    inactive = cluster_queue(1) | {"status": {"conditions": [{"type": "Active", "status": "False"}]}}
    assert not outlook_of("blue", [], [local_queue()], [inactive], {}, BEGAN_S).queues[0].is_known


def test_of_too_much_nothing_is_foretold() -> None:
    """Of a queue with more work than is told; and shorter queues are told first, until the message would be too long.
    It is counted in bytes: names may be of any length."""
    names = [f"q{number}" for number in range(8)]
    local, cluster = [local_queue(one, one) for one in names], [cluster_queue(1, one) for one in names]
    work = [booked(f"{one}-{n}-{'x' * 200}", queue=one, quota=False) for one in names for n in range(MOST_WORK)]
    work += [booked("one-too-many", queue="q0", quota=False), booked("q9", queue="q9", quota=False)]
    found = outlook_of("blue", work, [*local, local_queue("q9", "q9")], [*cluster, cluster_queue(1, "q9")], {}, BEGAN_S)
    known = {one.doors[0]: one.is_known for one in found.queues}
    assert MOST_BYTES * 2 // 3 < len(msgspec.json.encode(found)) <= MOST_BYTES + 100
    assert (len(known), known["team/q9"], known["team/q1"], known["team/q0"]) == (9, True, True, False)
    assert 2 < sum(known.values()) < 8
    assert all(one.is_known or not (one.waiting or one.holding or one.groups) for one in found.queues)


def test_only_what_a_queue_has_is_told() -> None:
    """Of what has quota. What waits for something that its queue has none of waits on, and holds up a strict one."""
    has = workload("has", 2, 300.0, admitted=True)
    has["status"]["admission"]["podSetAssignments"][0]["flavors"]["memory"] = "gone"
    has["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] |= {"memory": "8Gi"}
    waits = workload("waits", 1, 50.0, quota=False)
    waits["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["limits"] |= {"example.com/x": "1"}
    found = outlook_of(
        "blue",
        map(booked_of, (has, waits)),
        [local_queue()],
        [cluster_queue(8, queueingStrategy="StrictFIFO")],
        {},
        BEGAN_S,
    )
    (queue,) = found.queues
    assert queue.holding[0].takes == {"any": {GPU: 2.0, "cpu": 1.0}}
    assert queue.waiting[0].asks[0].keys() == {GPU, "cpu", "example.com/x"}
    behind = msgspec.structs.replace(queue.waiting[0], name="team/behind", asks=({GPU: 1.0},))
    assert start_of(behind, queue) is None


def test_how_long_it_takes() -> None:
    """Its pods say it where they are there, as a run of Argo has told of them; else its template; at most what Kueue
    lets it run."""
    raw = kueue_workload("w", "u")
    raw["spec"]["podSets"] = [{"count": 2, "template": {"metadata": {"labels": {"egs.io/predicted-s": "70"}}}}]
    there: dict[str, Pod] = {"u": pod_of(pod("p", predicted=90, uid="u"))}
    assert takes_s(booked_of(raw).booking, {}) == 70.0
    assert takes_s(booked_of(raw).booking, there) == 90.0
    raw["spec"]["maximumExecutionTimeSeconds"] = 80
    assert takes_s(booked_of(raw).booking, there) == 80.0
    raw["spec"]["podSets"][0]["template"]["metadata"]["labels"] = {}
    assert takes_s(booked_of(raw).booking, {}) == 80.0
    del raw["spec"]["maximumExecutionTimeSeconds"]
    assert takes_s(booked_of(raw).booking, {}) is None


def test_what_sets_of_pods_ask_for() -> None:
    """Each as often as it says: what runs at once together, what runs before it one after another, and its overhead."""
    spec = pod("p", cpu=1, gpus=1)["spec"]
    spec["initContainers"] = [
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        {"name": "first", "resources": {"limits": {"cpu": "6"}}},
    ]
    spec["overhead"] = {"cpu": "250m"}
    raw = kueue_workload("w", "u")
    raw["spec"]["podSets"] = [{"count": 2, "template": {"spec": spec}}, {"template": {"spec": pod("q")["spec"]}}]
    workers, driver = booked_of(raw).booking.asks
    assert workers == {"pods": 2.0, "cpu": 2 * 6.75, GPU: 2.0}
    assert driver == {"pods": 1.0, "cpu": 1.0}


def test_what_another_cluster_has_sent_keeps_its_priority() -> None:
    """MultiKueue takes away what differs from what it has sent, so its order is that of its own cluster."""
    raw = kueue_workload("w", "u")
    quiet = {"team/lq": "cq"}
    assert raises([booked_of(raw)], ["u"], quiet)
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}
    assert raises([booked_of(raw)], ["u"], quiet) == []


# --- which of them wait, and what is written ---


def test_clusters_of_checks() -> None:
    """Of those of MultiKueue, the clusters that are connected, in their order."""
    found = multikueue("green", "blue", away=("red",))
    assert clusters_of(*found.values()) == {CHECK: ("green", "blue")}
    found["multikueueconfigs"] = []
    assert clusters_of(*found.values()) == {CHECK: ()}


def test_who_waits_for_a_cluster() -> None:
    """What has quota and whose check is pending; not what waits for quota or another check, or has long had a cluster.
    What has only just got one is remembered, first; then what waits somewhere, then the rest by priority."""
    settled = booked("settled", admitted=True, check="Ready", status={"clusterName": "blue"})
    named = waiting("named", status={"nominatedClusterNames": ["green"]})
    low, high = waiting("low"), waiting("high", priority=5)
    others = [booked("no-quota", quota=False), booked("retries", check="Retry"), booked("plain")]
    others += [booked("other", status={"admissionChecks": [{"name": "other", "state": "Pending"}]})]
    found = chosen(*others, low, high, named, settled, at_s=SETTLED_S)
    assert [one.name for one in found] == ["team/settled", "team/named", "team/high", "team/low"]
    assert [one.name for one in chosen(settled, at_s=SETTLED_S + 1)] == []
    asked = question(found, {}, BEGAN_S + 9.0, 0).candidates
    assert [(one.work.name, one.settled, one.present, one.waited_s) for one in asked] == [
        ("team/settled", "blue", (), 9.0),
        ("team/named", "", ("green",), 9.0),
        ("team/high", "", (), 9.0),
        ("team/low", "", (), 9.0),
    ]
    assert {one.door for one in asked} == {"team/lq"}
    assert asked[-1].clusters == ("blue", "green")


def test_more_than_are_asked_for_at_once_take_turns() -> None:
    """What waits for a first answer is in each question; all others come up in a few."""
    new = [waiting(f"new{n}") for n in range(3)]
    old = [waiting(f"old{n:03}", status={"nominatedClusterNames": ["blue"]}) for n in range(3 * MOST_ASKED)]
    found, seen = chosen(*new, *old), set[str]()
    for turn in range(8):
        names = {one.work.name for one in question(found, {}, BEGAN_S, turn).candidates}
        assert len(names) == MOST_ASKED
        assert {"team/new0", "team/new1", "team/new2"} <= names
        seen |= names
    assert len(seen) == len(found)
    many = chosen(*(waiting(f"new{n:03}") for n in range(2 * MOST_ASKED)), *old)
    assert len(question(many, {}, BEGAN_S, 0).candidates) == MOST_ASKED


def test_what_is_nominated() -> None:
    """What the server names, of what is connected. Without an answer: nothing for a moment, then all, as Kueue does by
    itself; what was named stays while the server is only quiet, and not when it is away. What is so already is not
    written again."""
    new = chosen(waiting("w"))
    named = chosen(waiting("w", status={"nominatedClusterNames": ["green"]}))
    answer = {"team/w": Naming("team/w", ("green",), {"green": 3.0, "blue": 70.0})}

    def written(found: list[Choice], *, at_s: float = 0.0, away: bool = False, **stated: Any) -> list[tuple[str, ...]]:
        made = nominations(found, stated.get("answers", {}), BEGAN_S + at_s, is_away=away)
        return [one.clusters for one in made]

    assert written(new, answers=answer) == [("green",)]
    assert (
        nominations(new, answer, BEGAN_S, is_away=False)[0].why == "foretold is a start on green in 3 s, blue in 70 s"
    )
    assert written(named, answers=answer) == []
    assert written(new, at_s=ANSWER_S) == []
    assert written(new, at_s=ANSWER_S + 1) == [("blue", "green")]
    assert written(new, away=True) == [("blue", "green")]
    assert written(named, at_s=99.0) == []
    assert written(named, at_s=99.0, away=True) == [("blue", "green")]
    gone = chosen(waiting("w", status={"nominatedClusterNames": ["red"]}))
    assert written(gone, at_s=99.0) == [("blue", "green")]
    only_red = {"team/w": Naming("team/w", ("red",))}
    assert written(new, at_s=99.0, answers=only_red) == [("blue", "green")]
    assert written(choices([waiting("w")], {CHECK: ()}, BEGAN_S), away=True) == []
    both = chosen(waiting("w", status={"nominatedClusterNames": ["green", "blue"]}))
    assert written(both, away=True) == []


def test_what_is_overdue() -> None:
    """For a second process: what has waited for a minute with nothing nominated that is connected."""
    none, gone = waiting("none"), waiting("gone", status={"nominatedClusterNames": ["red"]})
    named = waiting("named", status={"nominatedClusterNames": ["blue"]})
    assert overdue(chosen(none, gone, named), BEGAN_S + OVERDUE_S) == []
    found = overdue(chosen(none, gone, named), BEGAN_S + OVERDUE_S + 1)
    assert {one.choice.name: one.clusters for one in found} == dict.fromkeys(("team/none", "team/gone"), BOTH[CHECK])


def test_what_is_applied() -> None:
    """Its whole status, since it is applied by Kueue's own name for it, which takes away what is left out; of this very
    version of this very object; nothing where it has a cluster by now, has lost its quota or is another one."""
    raw = workload("w", check="Pending")
    raw["metadata"]["resourceVersion"] = "7"
    (one,) = nominations(chosen(booked_of(raw)), {}, BEGAN_S, is_away=True)
    found = status_with(raw, one)
    assert found is not None
    assert found["metadata"] == {"name": "w", "namespace": "team", "uid": "uid-w", "resourceVersion": "7"}
    assert found["status"] == raw["status"] | {"nominatedClusterNames": ["blue", "green"]}
    for later in (
        workload("w", check="Ready", status={"clusterName": "blue"}),
        workload("w", quota=False),
        workload("w", check="Pending") | {"metadata": {**raw["metadata"], "uid": "another"}},
    ):
        assert status_with(later, one) is None
