"""Pods as people make them who are new to this, or careless: nothing of one is in the way of another's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.engine.messages import Reason
from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.pods import Pod, node_of, pod_of, shape_of
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.stuck import Stuck
from egs_core.kubernetes.telling import texts
from egs_core.kubernetes.webhook import Webhook
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    "notes",
    [
        {names.HINTS: "[" * 100_000},
        {names.RUN_LIMITS: "[" * 100_000},
        {names.RELEASE_BY: "0001-01-01T00:00:00+23:59", names.OPENED: "9999-12-31T23:59:59-23:59 order"},
    ],
    ids=["hints", "limits", "moments"],
)
def test_one_pod_that_cannot_be_read_keeps_no_other_gated(
    api: EmulatedApi, notes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Annotations are anybody's to write, and all that is listed is read together: JSON too deep for a reader, or a
    moment outside of all calendars, does not end the list for the rest, neither of the controller nor of the others."""
    api.add("nodes", node("n1", gpus=2))
    api.add("pods", pod("odd", notes=notes))
    api.add("pods", pod("plain", gpus=1))
    api.add("pods", pod("late", gpus=1, notes={names.RELEASE_BY: OLD}))
    kubeconfig = ["--kubeconfig", str(api.kubeconfig)]
    assert run(["kubernetes", "open-overdue", *kubeconfig]) == 0
    assert api.opened() == ["late"]
    with controlled(api, says="limits: "):
        api.until(lambda: {"odd", "plain"} <= set(api.opened()))
    assert run(["kubernetes", "ps", "-A", *kubeconfig]) == 0
    assert "odd" in capsys.readouterr().out


def test_what_a_pod_asks_as_a_whole_counts() -> None:
    """Since Kubernetes 1.34 a pod may say its CPUs and memory for all of its containers: the scheduler goes by that,
    and by the containers' for what it does not name."""
    container: dict[str, Any] = {"resources": {"requests": {"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "1"}}}
    spec = {"containers": [container, container], "resources": {"requests": {"cpu": "6"}}, "overhead": {"cpu": "250m"}}
    assert shape_of(spec) == Shape(6250, 2000, 2 << 30)


REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no claim of volumes"}


def test_what_gets_no_node_keeps_no_room_from_others(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU, and the first in the order needs what the engine knows nothing of, such as a volume: the scheduler has
    had it for a while and says no. The GPU goes to the next one then, and not first when the pod is deleted. When what
    it lacks is there, and it has its node, it counts as what runs there."""
    monkeypatch.setattr("egs_core.kubernetes.stuck.AFTER_S", 2.0)
    api.add("nodes", node("n1", gpus=1))
    for name, rank in (("lacks", 99), ("next", 50), ("last", 10)):
        api.add("pods", pod(name, gpus=1, rank=rank, predicted=5))
    said: list[str] = []
    with controlled(api, says="scheduler: team/lacks ", said=said):
        api.until(lambda: api.opened() == ["lacks"])
        api.change("pods", "lacks", lambda pod: pod.setdefault("status", {}).update(conditions=[REFUSED]))
        api.until(lambda: api.opened() == ["lacks", "next"])
        assert said
        api.bind("next", "n1")
        api.bind("lacks", "n1")  # as its volume has come, and a GPU that nobody knew of
        api.end("next")
        api.add("pods", pod("newest", gpus=1, rank=500, predicted=5))
        api.end("lacks")
        api.until(lambda: api.opened() == ["lacks", "next", "newest"])


def looked(stuck: Stuck, now: float, *pods: Pod, granted: bool = True) -> list[str]:
    found = stuck.look({pod.uid: pod for pod in pods}, lambda _: granted, now)
    return [pod.name for pod in found]


def test_who_gets_no_node() -> None:
    """Only what is granted for half a minute, and refused for as long: not what waits for a node that is full, nor for
    others to make way; and no longer when it has its node."""
    refused = pod_of(pod("a", uid="a", gate=False, status={"conditions": [REFUSED]}))
    nominated = pod_of(pod("n", uid="n", gate=False, status={"conditions": [REFUSED], "nominatedNodeName": "n1"}))
    stuck = Stuck()
    assert looked(stuck, 0.0, refused, nominated) == []
    assert looked(stuck, 29.0, refused, nominated) == []
    assert looked(stuck, 31.0, refused, nominated) == ["a"]
    assert looked(stuck, 32.0, refused, granted=False) == []
    assert stuck.among({"a": refused}, 32.0) == {"a"}
    assert stuck.among({}, 33.0) == set()
    assert looked(stuck, 40.0, refused) == []  # the time begins anew
    assert looked(stuck, 60.0, refused, granted=False) == []
    assert looked(stuck, 75.0, refused) == []


def test_what_gets_no_node_has_its_turn_again() -> None:
    """As its volume may have come: after ten minutes, then twenty, and at most an hour, so that its room is kept for it
    for half a minute of each. A tenth of that where the scheduler says something else, but for numbers and order."""

    def says(message: str) -> Pod:
        return pod_of(pod("a", uid="a", gate=False, status={"conditions": [REFUSED | {"message": message}]}))

    stuck, now, waited = Stuck(), 0.0, []
    volume = says("0/3 nodes are available: 1 has no volume, 2 Insufficient cpu")
    same = says("0/4 nodes are available: 1 Insufficient cpu, 3 has no volume")
    for pod_now in (volume, same, volume, same, volume):
        assert looked(stuck, now, pod_now) == []
        found_at = now = now + 30.0
        assert looked(stuck, now, pod_now) == ["a"]
        while stuck.among({"a": same}, now):
            assert looked(stuck, now, same) == []
            now += 10.0
        waited.append(now - found_at)
        assert stuck.among({"a": says("other")}, now) == set()
    assert waited == [600.0, 1200.0, 2400.0, 3600.0, 3600.0]
    stuck = Stuck()
    assert (looked(stuck, 0.0, volume), looked(stuck, 30.0, volume)) == ([], ["a"])
    other = says("0/3 nodes are available: 3 Insufficient cpu")
    assert stuck.among({"a": other}, 89.0) == {"a"}
    assert stuck.among({"a": other}, 90.0) == set()
    assert stuck.among({"a": volume}, 91.0) == set()


def test_small_pods_do_not_keep_a_large_one_from_its_turn_for_ever() -> None:
    """Both GPUs were granted to the large one, which lacked its volume for 40 s. Ten minutes later it is the first to
    be granted what becomes free, before a small one that has come."""
    nodes, stuck, session = [node_of(node("n1", gpus=2))], Stuck(), ClusterSession()
    large = pod_of(pod("large", uid="large", gpus=2, rank=99, gate=False, status={"conditions": [REFUSED]}))
    small, late = (pod_of(pod(name, uid=name, gpus=1, rank=9, predicted=5)) for name in ("small", "late"))
    runs = pod_of(pod("small", uid="small", gpus=1, rank=9, predicted=5, gate=False, spec={"nodeName": "n1"}))

    def step(now: float, *pods: Pod) -> list[str]:
        there = {one.uid: one for one in pods}
        out = stuck.among({"large": large}, now)
        told = {uid: one for uid, one in there.items() if uid not in out}
        session.tell(told, nodes)
        session.prune(told)
        session.order()
        stuck.look({"large": large}, session.has_grant, now)
        return session.granted()

    try:
        assert step(0.0, large, small) == ["large"]
        assert step(30.0, large, small) == ["large"]
        assert step(31.0, large, small) == ["small"]
        assert "large" not in step(600.0, large, runs)
        step(630.0, large, runs)
        assert session.order() == ["large"]
        assert step(640.0, large, late) == ["large"]
    finally:
        session.close()


def review(raw: dict[str, Any]) -> dict[str, Any]:
    return {"request": {"uid": "u", "operation": "CREATE", "namespace": "team", "object": raw}}


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"rank": "high"}, 'egs.io/rank: "high" is no number of seconds'),
        ({"predicted": "2h"}, 'egs.io/predicted-s: "2h" is no number of seconds'),
        (
            {"gang": "g", "labels": {names.GANG_SIZE: "2"}},
            "egs.io/gang-size is a label here",
        ),
        ({"gang": "g"}, "egs.io/gang is without the annotation egs.io/gang-size: its pods start one by one"),
        ({"gang": "g", "size": "four"}, 'egs.io/gang-size: "four" is no number of pods'),
        ({"notes": {names.RANK: "9"}}, "egs.io/rank is an annotation here, and has to be a label"),
        ({"notes": {names.HINTS: "{priority: 3}"}}, 'egs.io/hints: "{priority: 3}" is no object of JSON'),
        ({"hints": {"priority": "urgent"}}, "priority in egs.io/hints is no number from -499 to 499"),
        ({"notes": {names.RELEASE_BY: "tomorrow"}}, 'egs.io/release-by: "tomorrow" is no moment'),
        ({"notes": {names.RUN_LIMITS: '{"max_runtme": "2h"}'}}, "egs.io/run-limits: max_runtme is no limit"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_said_to_who_made_the_pod(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], stated: dict[str, Any], says: str
) -> None:
    """The webhook answers with it as a warning, and gates the pod all the same; `egs kubernetes why` says it, too. A
    pod of the same kind with nothing wrong has neither."""
    plain = pod("plain", gate=False, rank=9, predicted=5, gang="g", size=2, hints={"priority": 3, "max_runtime_s": 60})
    raw = pod("odd", gate=False, **stated)
    said: list[str] = []
    hook = Webhook(Cluster(api.kubeconfig), Rules(), ["hook"], lambda: True, said.append, ("127.0.0.1", 0))
    hook.start()
    try:
        response, other = (hook.answer(review(one))["response"] for one in (raw, plain))
    finally:
        hook.stop()
    assert response["patch"]
    assert other["patch"]
    assert "warnings" not in other
    assert len(response["warnings"]) == 1
    assert response["warnings"][0].startswith(f"EGS: {says}")
    assert any(says in line for line in said)
    api.add("pods", raw)
    assert run(["kubernetes", "why", "odd", "-n", "team", "--kubeconfig", str(api.kubeconfig)]) == 0
    assert says in capsys.readouterr().out


def test_nobody_begins_a_line_of_their_own_in_a_log(api: EmulatedApi) -> None:
    """Whatever is in an annotation, in its JSON, or in the name of a pod that is yet to be refused for that."""
    forged, limits = "9\r\npod team/forged: \x1b[2K\u2028", json.dumps({"a\nb": "2h"})
    raw = pod("odd\nline", gate=False, rank=forged, notes={names.RUN_LIMITS: limits, names.RELEASE_BY: "déjà vu"})
    said: list[str] = []
    hook = Webhook(Cluster(api.kubeconfig), Rules(), ["hook"], lambda: True, said.append, ("127.0.0.1", 0))
    hook.start()
    try:
        warnings = hook.answer(review(raw))["response"]["warnings"]
    finally:
        hook.stop()
    lines = [line for line in said if "odd" in line]
    assert all(line.isprintable() for line in [*lines, *warnings])
    assert r'"9\r\npod team/forged: \x1b[2K\u2028"' in lines[0]
    assert "déjà vu" in lines[0]


def test_a_gang_that_fits_nowhere_together_says_so() -> None:
    """Each of its pods would fit a node: to say that none could take it would send its user to the wrong place."""
    member, alone = (pod_of(one) for one in (pod("m", uid="m", gang="g", size=8), pod("a", uid="a")))
    why = {uid: Reason(uid, "ready", "infeasible") for uid in "ma"}
    found = texts([member, alone], ["m", "a"], {(member.run, "g"): 8}, why.get, 0.0)
    assert found["m"] == "place 1 of 2: its gang has no room together, even if nothing else were there"
    assert found["a"] == "place 2 of 2: no node could ever take it"


def test_a_gate_without_the_label_is_said_and_opened_in_the_end(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its author has written the gate and forgotten the label: nobody orders it, so it would wait for ever where only a
    controller runs. One line names it, `egs kubernetes why` says it, and its release-by time holds."""
    stray, late = pod("stray", labels={names.WORKLOAD: ""}), pod("late", notes={names.RELEASE_BY: OLD})
    del late["metadata"]["labels"][names.WORKLOAD]
    for one in (node("n1"), stray, late):
        api.add("nodes" if one["kind"] == "Node" else "pods", one)
    said: list[str] = []
    with controlled(api, says="gate: team/", said=said):
        api.until(lambda: api.opened() == ["late"])
        api.until(lambda: any("gate: team/stray has the gate egs.io/order without the label" in line for line in said))
        assert api.gated() == {"stray"}
    assert run(["kubernetes", "why", "stray", "-n", "team", "--kubeconfig", str(api.kubeconfig)]) == 2
    assert "its gate egs.io/order is opened at its release-by time only" in capsys.readouterr().err
