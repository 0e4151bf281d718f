"""The controller, over HTTP, on an emulated API server: what it opens, in which order, and what its faults do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi
from tests.unit.kubernetes.made_pods import kueue_workload, node, pod

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def test_pods_start_in_the_order_of_their_rest_of_the_run(api: EmulatedApi) -> None:
    """One GPU: the pod with most of its run behind it is opened first, the next when the GPU is free."""
    api.add("nodes", node("n1", gpus=1))
    for name, rank in (("short", 10), ("long", 99), ("middle", 50)):
        api.add("pods", pod(name, gpus=1, rank=rank, predicted=5))
    with controlled(api):
        for number, name in enumerate(("long", "middle", "short"), 1):
            api.until(lambda n=number: len(api.opened()) == n)  # type: ignore[misc]  # one each
            assert api.opened()[-1] == name
            api.bind(name, "n1")
            assert len(api.gated()) == 3 - number
            api.end(name)


def test_other_gates_and_other_pods_are_left_alone(api: EmulatedApi) -> None:
    """Our gate goes; a gate of the author's stays. Pods without our label are not touched, and take their room."""
    api.add("nodes", node("n1", gpus=1))
    stranger = pod("stranger", gpus=1, spec={"nodeName": "n1"})
    stranger["metadata"]["labels"] = {}
    api.add("pods", stranger)
    both = [{"name": "theirs"}, {"name": "egs.io/order"}]
    api.add("pods", pod("both", notes={"egs.io/release-by": OLD}, spec={"schedulingGates": both}))
    api.add("pods", pod("waits", gpus=1))
    with controlled(api):
        api.until(lambda: api.opened() == ["both"])
        assert api.all("pods")["both"]["spec"]["schedulingGates"] == [{"name": "theirs"}]
        assert api.gated() == {"waits", "stranger"}
        api.end("stranger")
        api.until(lambda: "waits" in api.opened())
        assert "stranger" in api.gated()


def test_a_gang_is_opened_whole(api: EmulatedApi) -> None:
    """Nothing of it before all members are there and fit, then all of it."""
    api.add("nodes", node("n1", gpus=2))
    api.add("pods", pod("a", gpus=1, gang="g", size=2))
    api.add("pods", pod("other", gpus=1))
    with controlled(api):
        api.until(lambda: api.opened() == ["other"])
        api.bind("other", "n1")
        api.add("pods", pod("b", gpus=1, gang="g", size=2))
        api.add("pods", pod("small"))
        api.until(lambda: "small" in api.opened())
        assert api.gated() == {"a", "b"}  # one GPU is free, which would be enough for one of them
        api.end("other")
        api.until(lambda: not api.gated())


def test_what_no_node_could_take_is_opened(api: EmulatedApi) -> None:
    """An autoscaler, or the scheduler's event, has to see it."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("huge", gpus=8))
    with controlled(api):
        api.until(lambda: not api.gated())
    assert api.all("pods")["huge"]["metadata"]["annotations"]["egs.io/opened"].endswith(" nowhere")


def test_nothing_is_gated_past_its_release_by_time(api: EmulatedApi) -> None:
    """A full cluster: the gate is opened when its moment has come, by a controller that lives."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("runs", gpus=1, gate=False, spec={"nodeName": "n1"}))
    api.add("pods", pod("waits", gpus=1))
    api.add("pods", pod("late", gpus=1, notes={"egs.io/release-by": OLD}))
    with controlled(api):
        api.until(lambda: api.opened() == ["late"])
        assert api.gated() == {"waits"}


def test_what_cannot_be_looked_at_keeps_no_gate_closed(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """By something that a tenant has written: each gate is opened when its moment has come."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("egs_core.kubernetes.looked.Looked.look", broken)
    api.add("nodes", node("n1"))
    api.add("pods", pod("waits"))
    api.add("pods", pod("late", notes={"egs.io/release-by": OLD}))
    with controlled(api, says="step: RuntimeError: broken"):
        api.until(lambda: api.opened() == ["late"])
        assert api.gated() == {"waits"}


def test_the_second_process_opens_what_is_overdue(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs kubernetes open-overdue`, with no controller: by the pod's own moment, or its age."""
    api.add("pods", pod("late", notes={"egs.io/release-by": OLD}))
    api.add("pods", pod("old", creationTimestamp=OLD))
    api.add("pods", pod("new"))
    assert run(["kubernetes", "open-overdue", "--kubeconfig", str(api.kubeconfig), "--release-by", "1h"]) == 0
    assert api.gated() == {"new"}
    assert "team/late: opened (overdue)" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_a_watch_that_ends_is_followed_by_a_list(api: EmulatedApi, fault: str) -> None:
    """410, or a connection that breaks: what came meanwhile is opened."""
    api.add("nodes", node("n1"))
    with controlled(api):
        for number in range(4):
            if fault == "gone":
                api.gone = 3
            api.cut()
            api.add("pods", pod(f"p{number}"))
            api.until(lambda: not api.gated())


def test_one_leads_and_the_next_takes_over(api: EmulatedApi) -> None:
    """Two controllers: each gate is opened once. The Lease is given back at the end, and the other goes on."""
    api.add("nodes", node("n1"))
    with controlled(api, "two") as second:
        api.until(lambda: second.leader.leads)
        with controlled(api, "one") as first:
            api.add("pods", pod("a"))
            api.until(lambda: not api.gated())
            assert not first.leader.leads
            second.stop()
            api.until(lambda: first.leader.leads)
            api.add("pods", pod("b"))
            api.until(lambda: not api.gated())
    assert sorted(api.opened()) == ["a", "b"]


def test_a_new_leader_takes_gates_as_its_state(api: EmulatedApi) -> None:
    """What the one before had opened is not opened again, and its room is not given twice."""
    api.add("nodes", node("n1", gpus=1))
    for name, rank in (("first", 9), ("second", 5)):
        api.add("pods", pod(name, gpus=1, rank=rank, predicted=1))
    with controlled(api):
        api.until(lambda: api.opened() == ["first"])
    api.bind("first", "n1")
    with controlled(api, "other") as other:
        api.until(lambda: other.is_healthy)
        api.add("pods", pod("small", cpu=1))
        api.until(lambda: "small" in api.opened())
        assert api.gated() == {"second"}
        api.end("first")
        api.until(lambda: not api.gated())


def test_without_an_engine_all_gates_are_opened(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which the pods were made."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(ClusterSession, "tell", broken)
    api.add("nodes", node("n1"))
    for number in range(3):
        api.add("pods", pod(f"p{number}", creationTimestamp=f"2026-01-01T00:00:0{number}Z"))
    with controlled(api, says="engine: RuntimeError: broken", longest_s=1e12):
        api.until(lambda: not api.gated())
    assert api.opened() == ["p0", "p1", "p2"]


def kueue(api: EmulatedApi, preempts: str = "Never") -> None:
    spec = {"preemption": {"withinClusterQueue": preempts, "reclaimWithinCohort": "Never"}}
    api.add("clusterqueues", {"metadata": {"name": "cq"}, "spec": spec})
    api.add("localqueues", {"metadata": {"name": "lq", "namespace": "team"}, "spec": {"clusterQueue": "cq"}})
    for name, rank in (("short", 10), ("long", 99), ("middle", 50)):
        queue = {"kueue.x-k8s.io/queue-name": "lq"}
        made = api.add("pods", pod(name, gate=False, rank=rank, predicted=1, labels=queue))
        api.add("workloads", kueue_workload(f"pod-{name}", made["metadata"]["uid"]))


def priorities(api: EmulatedApi) -> dict[str, int]:
    return {name: one["spec"]["priority"] for name, one in api.all("workloads").items()}


def test_what_waits_in_kueue_is_raised_in_the_engines_order(api: EmulatedApi) -> None:
    """Its own priority is kept beside it; no gate of ours is needed, and no pod is patched."""
    kueue(api)
    with controlled(api):
        api.until(lambda: all(priorities(api).values()))
        api.until(lambda: (f := priorities(api))["pod-long"] > f["pod-middle"] > f["pod-short"] > 0)
    assert {one["metadata"]["annotations"]["egs.io/base-priority"] for one in api.all("workloads").values()} == {"0"}
    assert not api.opened()


def test_a_priority_is_not_written_again_before_the_watch_tells_it(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the API server has answered counts: Kueue looks again at each Workload that is written."""
    watched, ended = Cluster.watch, threading.Event()

    def watch(cluster: Cluster, kind: Kind, *args: Any, **named: Any) -> Iterator[dict[str, Any]]:
        if kind.plural == "workloads":
            ended.wait(LIMIT_S)
        else:
            yield from watched(cluster, kind, *args, **named)

    monkeypatch.setattr(Cluster, "watch", watch)
    kueue(api)
    api.add("nodes", node("n1"))
    try:
        with controlled(api):
            api.until(lambda: all(priorities(api).values()))
            for name in ("shows-a-step", "shows-another"):
                api.add("pods", pod(name))
                api.until(lambda n=name: n in api.opened())  # type: ignore[misc]  # one each
    finally:
        ended.set()
    written = sorted(name for name, body in api.patches if "priority" in body.get("spec", {}))
    assert written == ["pod-long", "pod-middle", "pod-short"]


def test_a_workload_of_somebody_else_keeps_its_priority_before_ours(api: EmulatedApi) -> None:
    """Its pods have no label of EGS's; what its user gave it bounds what is raised."""
    kueue(api)
    api.add("workloads", kueue_workload("other", "a-job", 10))
    with controlled(api):
        api.until(lambda: all(priorities(api).values()))
        api.until(lambda: (f := priorities(api))["pod-long"] > f["pod-middle"] > f["pod-short"] > 0)
    found = priorities(api)
    assert found.pop("other") == 10
    assert max(found.values()) < 10


def test_a_list_that_is_refused_is_said(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nodes nothing is opened; a right that is missing is one line."""
    listed = Cluster.list

    def list_pods_only(cluster: Cluster, kind: Kind, *args: Any, **named: Any) -> tuple[list[dict[str, Any]], str]:
        if kind.plural == "nodes":
            raise ApiError(403, "nodes is forbidden")
        return listed(cluster, kind, *args, **named)

    monkeypatch.setattr(Cluster, "list", list_pods_only)
    said: list[str] = []
    found = Controller(Cluster(api.kubeconfig), Settings(identity="one"), said.append, watch_s=5)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        api.until(lambda: said)
    finally:
        found.stop()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert said == ["list: ApiError: 403: nodes is forbidden"]


def test_a_cluster_queue_that_preempts_is_left_alone(api: EmulatedApi) -> None:
    """A raised Workload would evict one that runs."""
    kueue(api, "LowerPriority")
    api.add("nodes", node("n1"))
    with controlled(api, says="preempts"):
        api.add("pods", pod("shows-a-step"))
        api.until(lambda: api.opened())
    assert set(priorities(api).values()) == {0}


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the file named."""
    missing = tmp_path / "none"
    assert run(["kubernetes", "open-overdue", "--kubeconfig", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


class Slow(Controller):
    """One whose look at all that is listed takes a while, as with ten thousand pods. steps: looks that opened any."""

    steps = 0

    def _order_gates(self, *given: Any) -> None:
        time.sleep(0.5)  # that long is what is tested
        super()._order_gates(*given)

    def _open_granted(self, *given: Any) -> None:
        before = self.opened
        super()._open_granted(*given)
        self.steps += self.opened > before


def test_a_slow_look_opens_more_than_one_window(api: EmulatedApi) -> None:
    """One pod at a time may wait for its node, and twelve have room: they need fewer looks than one each, as the next
    is opened when the one before has its node."""
    api.add("nodes", node("n1", cpu=12))
    names = [f"p{number}" for number in range(12)]
    for name in names:
        api.add("pods", pod(name))
    said: list[str] = []
    found = Slow(Cluster(api.kubeconfig), Settings(identity="slow", window=1), said.append, watch_s=5)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        while gated := api.gated():
            api.until(lambda before=gated: api.gated() < before)  # type: ignore[misc]  # one each
            assert len(gated - api.gated()) == 1
            for name in gated - api.gated():
                api.bind(name, "n1")
    finally:
        found.stop()
        thread.join(LIMIT_S)
    assert sorted(api.opened()) == sorted(names)
    assert found.steps < len(names)
    assert said == []
