"""What is kept from look to look is what a look from scratch would find, and costs what has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.kubernetes import gates, looked, places, seen, session
from egs_core.kubernetes.cluster import PODS, Cluster
from egs_core.kubernetes.compared import changed
from egs_core.kubernetes.learned import NOTHING, Learned, Learnt
from egs_core.kubernetes.looked import Looked
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.workflows import Workflow, workflow_of
from egs_core.site import Grown, Site
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.protocol import Holder
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, task, workflow

LONGEST_S = 1000.0
TAINT = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
ELSEWHERE = {"nodeSelector": {"pool": "z"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
STAND_IN = {"priorityClassName": "egs-controller-placeholder"}


class Listed(msgspec.Struct, frozen=True):
    """What there is at one time."""

    pods: dict[str, Pod]
    nodes: list[Node]
    workflows: list[Workflow]
    now: float
    learnt: Learnt = NOTHING


def bare(name: str, **stated: Any) -> dict[str, Any]:
    """A pod without labels of ours."""
    made = pod(name, uid=name, gate=False, **stated)
    made["metadata"]["labels"] = stated.get("labels", {})
    return made


RAWS = [
    pod("a", uid="a", run="r", gpus=1, rank=50, predicted=5),
    pod("b", uid="b", run="r", gpus=1, rank=20, predicted=5, notes={"egs.io/run-limits": '{"max_runtime": "2h"}'}),
    pod("c", uid="c", run="s", gpus=1, hints={"stage": "fit"}, notes={"egs.io/release-by": "1970-01-01T00:05:00Z"}),
    pod("d", uid="d", run="s", gpus=2, rank=9, predicted=1, spec=ELSEWHERE),
    pod("g", uid="g", run="t", gpus=1, gang="g", size=2),
    pod("h", uid="h", run="t", gpus=1, gang="g", size=2),
    pod("q", uid="q", run="u", gpus=1, labels={"kueue.x-k8s.io/queue-name": "lq"}),
    pod("e", uid="e", run="u", namespace="other", gpus=1),
    executor("wf", "a", uid="wf-a", gpus=1, rank=30),
    executor("wf", "b", uid="wf-b", gpus=1, rank=30),
    bare("x", gpus=1),
    bare("y", gpus=1, labels={"egs.io/placeholder": "controller"}, spec=STAND_IN),
]
BASES = {raw["metadata"]["uid"]: msgspec.structs.replace(pod_of(raw), created=at) for at, raw in enumerate(RAWS, 1)}
STAGES: list[dict[str, Any]] = [
    {},
    {"is_gated": False, "opened_at": 5.0, "opened_for": "order"},
    {"is_gated": False, "node": "n1"},
    {"is_gated": False, "node": "n1", "phase": "Succeeded", "ran_s": 7.0},
]
WAITS: list[dict[str, Any]] = [
    {},
    {},
    {"paused": "pod now"},
    {"paused": "run now"},
    {"paused": "stage now"},
    {"resumed_at": 30.0},
    {"waits": "place 1"},
]
NODES = [
    node_of(node("n1", gpus=2)),
    node_of(node("n2", gpus=2, labels={"pool": "z"}, spec=TAINT)),
    node_of(node("n3", gpus=1)),
    msgspec.structs.replace(node_of(node("n3", gpus=1)), is_open=False),
]
RUNS = [
    workflow_of(workflow("wf", {"a": task(5), "b": task(seconds, ["a"], gpus="1")})) for seconds in (10.0, 10.0, 99.0)
]


def taught(*took: tuple[str, float]) -> Learnt:
    """What earlier runs of the pipeline of all these pods took, by step."""
    found = Learned()
    about = {"namespace": "team", "run": "team/w/before", "has_task": True, "phase": "Succeeded", "ended": 9.0}
    found.take(Pod(uid=step, name="x", task=step, ran_s=seconds, **about) for step, seconds in took)  # type: ignore[arg-type]  # of this test
    found.renew()
    return found.learnt


LEARNT = [NOTHING, taught(("a", 5.0), ("root.b.executor", 70.0)), taught(("a", 60.0), ("c", 9.0), ("h", 30.0))]


@st.composite
def lives(draw: st.DrawFn) -> list[Listed]:
    """Pods that come, wait, are paused, opened, bound to nodes that may not be listed yet, end and go, in any order and
    with states left out; nodes, Workflows and what was learned that come, change and go. What has not changed is the
    same object."""
    made: dict[Pod, Pod] = {}
    at, found, now = dict.fromkeys(BASES, -1), [], 0.0
    for _ in range(draw(st.integers(1, 7))):
        pods = {}
        for uid in draw(st.permutations(sorted(BASES))):
            at[uid] += draw(st.sampled_from((0, 0, 0, 1, 1, 2)))
            stage = at[uid]
            if not 0 <= stage < len(STAGES):
                continue
            how = STAGES[stage] if stage else draw(st.sampled_from(WAITS)) if BASES[uid].is_gated else {}
            if stage > 1:
                how = {**how, "node": draw(st.sampled_from(("n1", "n1", "n2", "n3"))) if stage == 2 else "n1"}
            rank = {"rank_s": draw(st.sampled_from((None, 5.0, 90.0)))} if draw(st.booleans()) else {}
            one = msgspec.structs.replace(BASES[uid], **how, **rank)
            pods[uid] = made.setdefault(one, one)
        nodes = [one for one in NODES if draw(st.integers(0, 3))]
        nodes = list({one.name: one for one in nodes}.values())
        runs = draw(st.sampled_from(([], RUNS[:1], RUNS[1:2], RUNS[2:])))
        now += draw(st.sampled_from((0.0, 20.0, 400.0)))
        found.append(Listed(pods, nodes, runs, now, draw(st.sampled_from(LEARNT))))
    return found


def new_looked() -> Looked:
    def serves(one: Pod) -> bool:
        return bool(one.run) and one.namespace == "team"

    return Looked(serves, lambda one: one.is_placeholder, LONGEST_S)


def shown(found: Looked, there: Listed) -> dict[str, Any]:
    """All that it says."""
    names = ("all", "ordered", "served", "in_queues", "queued", "unplaced", "stand_ins", "runs", "limited")
    return {name: getattr(found, name) for name in names} | {
        "overdue": found.overdue(there.now),
        "placeless": found.placeless(there.nodes),
        "traced": {one.workflow.uid: one.ranked for one in found.traced()},
    }


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(lives())
def test_a_look_finds_what_one_from_scratch_would(lists: list[Listed]) -> None:
    """Whatever has come, changed and gone in between; and what is the same as before is the same object."""
    kept, before = new_looked(), dict[str, Pod]()
    for there in lists:
        kept.look(there.pods, there.workflows, there.learnt)
        scratch = new_looked()
        scratch.look(there.pods, there.workflows, there.learnt)
        assert shown(kept, there) == shown(scratch, there)
        assert shown(kept, there)["overdue"] == gates.overdue(kept.served.values(), there.now, LONGEST_S)
        assert all(one is before[uid] for uid, one in kept.ordered.items() if one == before.get(uid))
        before = dict(kept.ordered)


class Heard(EmbeddedSite):
    """Notes what it is told. heard: into this."""

    def __init__(self, holder: Holder, heard: list[str]) -> None:
        super().__init__(EngineConfig(preload=False), holder, logs_waits=False)
        self._heard = heard
        heard.append("begun")

    def report(self, *events: m.Event) -> None:
        if self._is_here():
            self._heard += map(repr, events)
        super().report(*events)

    def grow(self, workload: str, at: int, graph: Graph, begun: tuple[m.Begun, ...] = ()) -> Grown:
        self._heard.append(f"{workload} {at} {graph!r}")
        return super().grow(workload, at, graph, begun)


class Told:
    """A session as the controller tells it. heard: by its site."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.looked = new_looked()

        def connect(holder: Holder) -> Site:
            return Heard(holder, self.heard)

        self.session = ClusterSession(connect)

    def tell(self, there: Listed) -> tuple[list[str], list[str], list[str]]:
        """What waits then, what is granted, and what of that waits at its gate."""
        self.looked.look(there.pods, there.workflows, there.learnt)
        placeless = self.looked.placeless(there.nodes)
        told = {uid: one for uid, one in self.looked.ordered.items() if uid not in placeless}
        self.session.tell(told, there.nodes)
        self.session.prune(told)
        order = self.session.order()
        gated = {uid for uid, one in told.items() if one.is_gated}
        return order, self.session.granted(), [uid for uid in self.session.unopened() if uid in gated]


def copied(there: Listed) -> Listed:
    """The same as other objects: all of it has changed."""
    pods = {uid: msgspec.structs.replace(one) for uid, one in there.pods.items()}
    nodes = [msgspec.structs.replace(one) for one in there.nodes]
    return Listed(pods, nodes, [msgspec.structs.replace(one) for one in there.workflows], there.now, there.learnt)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)  # two engines each
@given(lives())
def test_an_engine_is_told_the_same_in_the_same_order(lists: list[Listed]) -> None:
    """By a controller that looks at what has changed, and by one to which all has changed each time, in a list of any
    order: each event and each graph. What is granted and gated is what `unopened` names."""
    kept, scratch = Told(), Told()
    try:
        for there in lists:
            waits, granted, unopened = kept.tell(there)
            scratch.looked = new_looked()
            assert scratch.tell(copied(there)) == (waits, granted, unopened)
            assert kept.heard == scratch.heard
            there_gated = [uid for uid in granted if uid in there.pods and there.pods[uid].is_gated]
            assert sorted(unopened) == sorted(there_gated)
    finally:
        kept.session.close()
        scratch.session.close()


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)  # two engines each
@given(lives())
def test_a_new_controller_knows_what_the_old_one_knew(lists: list[Listed]) -> None:
    """After a restart: of the last list the same pods wait and run, as far as lists say it (who had been told of a
    paused pod, or of part of a gang, is not there any more)."""

    def known(of: Told) -> dict[str, str]:
        there = {one.name for one in lists[-1].nodes}
        plain = {uid for uid, one in of.looked.ordered.items() if not one.gang and (not one.node or one.node in there)}
        states = {uid: one.status for uid, one in of.session._known.items() if uid in plain}
        return {uid: state for uid, state in states.items() if state in (seen.READY, seen.RUNNING)}

    old, new = Told(), Told()
    try:
        for there in lists:
            waits, granted, _ = old.tell(there)
        begins, grants, _ = new.tell(lists[-1])
        assert known(old) == known(new)
        ready = {uid for uid, state in known(old).items() if state == seen.READY}
        assert ready <= {*waits, *granted}
        assert ready <= {*begins, *grants}
    finally:
        old.session.close()
        new.session.close()


# --- what a look costs ---


class Calls(Counter[str]):
    """How often functions are called."""

    def count(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def counted(*args: Any, **named: Any) -> Any:
            self[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(where, name, counted)


def test_a_look_costs_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 pods on 30 nodes: when nothing has, no pod and no node is looked at; when one has got its node, that one
    and that node; a node that is another one is one node."""
    calls = Calls()
    nodes = [node_of(node(f"n{number}", gpus=8)) for number in range(30)]
    pods = {one.uid: one for one in (pod_of(pod(f"p{n}", uid=f"p{n}", run=f"r{n % 9}", gpus=1)) for n in range(300))}
    told, there = Told(), Listed(pods, nodes, [], 0.0)
    try:
        told.tell(there)
        for where, name in (
            (session, "room_of"),
            (seen, "status_of"),
            (looked, "with_pauses"),
            (places, "may_ever_run"),
            (places, "flavor_of"),
            (gates, "due_of"),
        ):
            calls.count(monkeypatch, where, name)
        told.tell(there)
        assert not calls
        bound = msgspec.structs.replace(pods["p7"], is_gated=False, node="n3")
        told.tell(Listed({**pods, "p7": bound}, nodes, [], 0.0))
        assert calls == {"room_of": 1, "status_of": 1}
        calls.clear()
        closed = msgspec.structs.replace(nodes[4], is_open=False)
        told.tell(Listed({**pods, "p7": bound}, [*nodes[:4], closed, *nodes[5:]], [], 0.0))
        assert calls == {"room_of": 1, "flavor_of": 1, "may_ever_run": 1}
    finally:
        told.session.close()


def test_what_says_nothing_new_stays_the_same_object(tmp_path: Any) -> None:
    """A kubelet writes much into a pod that is of no interest here; nor is anything new when all is listed again."""
    (tmp_path / "config").write_text(CONFIG)
    raw, other = pod("a", uid="a"), pod("b", uid="b")
    found = Mirror(Cluster(tmp_path / "config"), PODS, pod_of, lambda: None)
    found._take([raw, other])
    before = found.items()
    written = {**raw, "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
    found._take_event({"type": "MODIFIED", "object": written})
    assert changed(before, found.items()) == []
    found._take([other, raw])
    assert changed(before, found.items()) == []
    found._take([pod("a", uid="a", rank=9), pod("c", uid="c")])
    assert changed(before, found.items()) == ["a", "c", "b"]


CONFIG = """
apiVersion: v1
kind: Config
current-context: none
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
"""
