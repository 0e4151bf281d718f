"""Runs of Argo whose pods are ordered by what is left of them; the controller over HTTP, on an emulated API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.paths import Traces
from egs_core.kubernetes.pods import Pod, node_of, pod_of
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.workflows import workflow_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, group, noted, packed, task, workflow
from tests.unit.kubernetes.made_workflows import node as begun


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


LONG = workflow("long", {"a": task(5), "b": task(100, ["a"], gpus="1")})
SHORT = workflow("short", {"a": task(5), "many": group({"x": task(10, gpus="1")}, ["a"], loops=True, at_once=1)})
ITEM = "many.iteration-iterations(0:0).iteration-item.x"


def grown(raw: dict[str, Any], iterations: int) -> None:
    """The loop's driver has said how often it goes round."""
    nodes = [
        begun("root.a", type="DAG"),
        begun("root.many.iteration-driver", outputs={"iteration-count": str(iterations)}),
    ]
    raw["status"] = {"phase": "Running", "compressedNodes": packed(noted("short", nodes))}


def test_two_runs_go_by_what_is_left_of_them(api: EmulatedApi) -> None:
    """One GPU. The labels of both say the contrary: the run that ends sooner goes first, until its loop turns out to be
    long; then the other."""
    api.add("nodes", node("n1", gpus=1))
    for raw in (LONG, SHORT):
        api.add("workflows", raw)
    api.add("pods", executor("long", "a", gpus=1, rank=6, predicted=5))
    api.add("pods", executor("short", "a", gpus=1, rank=500, predicted=5))
    with controlled(api) as found:
        api.until(lambda: api.opened() == ["short-a"])
        api.bind("short-a", "n1")
        api.add("pods", executor("short", ITEM, name="item", gpus=1, rank=11, predicted=10))
        api.change("workflows", "short", lambda raw: grown(raw, 40))
        api.until(lambda: found._workflows.items()["uid-short"].nodes)
        api.until(lambda: "uid-item" in found._pods.items())
        api.end("short-a")
        api.until(lambda: len(api.opened()) == 2)
        assert api.opened() == ["short-a", "long-a"]
        api.bind("long-a", "n1")
        api.change(
            "workflows",
            "short",
            lambda raw: raw["metadata"]["labels"].update({"workflows.argoproj.io/completed": "true"}),
        )
        api.until(lambda: "uid-short" not in found._workflows.items())


def test_without_argo_labels_order(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that knows no Workflows says 404: nobody hears of it. One that forbids to read them is said once."""
    listed, status = Cluster.list, [404]

    def refuses(cluster: Cluster, kind: Kind, *args: Any, **named: Any) -> tuple[list[dict[str, Any]], str]:
        if kind.plural == "workflows":
            raise ApiError(status[0], "workflows is forbidden")
        return listed(cluster, kind, *args, **named)

    monkeypatch.setattr(Cluster, "list", refuses)
    api.add("nodes", node("n1", gpus=1))
    for name, rank in (("later", 10), ("first", 99)):
        api.add("pods", pod(name, gpus=1, rank=rank, predicted=5))
    with controlled(api):
        api.until(lambda: api.opened() == ["first"])
    status[0] = 403
    said: list[str] = []
    with controlled(api, says="workflows: ", said=said) as found:
        api.until(lambda: said)
        api.until(lambda: found.is_healthy)
    assert said == ["workflows: ApiError: 403: workflows is forbidden; pods go by their labels"]


# --- the engine is told ---


def test_what_is_left_is_told_again_when_it_changes() -> None:
    """Two runs that wait: when the loop of one turns out to be long, the other goes before it, and back again."""
    session, traces = ClusterSession(), Traces()
    pods = {one.uid: one for one in map(pod_of, (executor("long", "a"), executor("short", ITEM)))}
    try:
        for count, first in ((1, "short"), (40, "long"), (2, "short"), (2, "short")):
            raw = {**SHORT}
            grown(raw, count)
            session.tell(traces.applied(pods, [workflow_of(LONG), workflow_of(raw)]))
            assert session.order()[0].startswith(f"uid-{first}")
            left = session.site.workload(pods[session.order()[0]].run)
            assert left is not None
            session.site.call(session.site._engine.validate_state, 60.0)  # type: ignore[attr-defined]  # the embedded one's
    finally:
        session.close()


def test_pods_of_a_run_that_come_one_by_one_share_what_is_behind_them() -> None:
    """Kubeflow makes each pod after its own driver: what comes after all of them is still there only once."""
    run = workflow("r", {**{f"t{n}": task(4) for n in range(6)}, "end": task(90, [f"t{n}" for n in range(6)])})
    other = pod_of(pod("other", run="o", uid="other", rank=150, predicted=1))
    session, traces, pods = ClusterSession(), Traces(), {"other": other}
    try:
        for number in range(6):
            one = pod_of(executor("r", f"t{number}"))
            pods[one.uid] = one
            session.tell(traces.applied(pods, [workflow_of(run)]))
        assert session.order()[-1] == "other"  # six times ninety seconds would be more than it has
    finally:
        session.close()


@st.composite
def lives(draw: st.DrawFn) -> list[dict[str, Pod]]:
    """A few pods whose runs go on for another time in each list, and which begin and end."""
    count, found = draw(st.integers(1, 4)), []
    stages = [0] * count
    for _ in range(draw(st.integers(1, 8))):
        stages = [draw(st.integers(stage, 3)) for stage in stages]
        pods = {}
        for number, stage in enumerate(stages):
            made = pod_of(pod(f"p{number}", uid=f"p{number}", run=f"r{number % 2}"))
            rank, own = draw(st.integers(0, 60)), draw(st.integers(0, 9))
            made = msgspec.structs.replace(
                made, rank_s=float(rank), predicted_s=float(own), is_traced=draw(st.booleans())
            )
            made = msgspec.structs.replace(made, rest_gpu_s=float(draw(st.integers(0, 3 * rank))))
            if stage:
                made = msgspec.structs.replace(made, is_gated=False, node="n1", phase="Succeeded" if stage == 2 else "")
            if stage < 3:
                pods[made.uid] = made
        found.append(pods)
    return found


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(lives())
def test_whatever_is_told_stays_sound(lists: list[dict[str, Pod]]) -> None:
    """However often ranks change: the engine is sound, what is behind a pod is as long as was said, to a second or a
    twentieth, and nothing is left when all pods have ended."""
    session, nodes = ClusterSession(), [node_of(node("n1", cpu=4))]
    try:
        for pods in [*lists, {}]:
            session.tell(pods, nodes)
            session.prune(pods)
            engine = session.site._engine  # type: ignore[attr-defined]  # the embedded one's
            session.site.call(engine.validate_state, 60.0)
            ranks = {uid: engine.state.rank_s[one.phase] for uid, one in session._known.items() if one.status != "over"}
            for uid, rank_s in ranks.items():
                told = pods[uid]
                longest = max(told.rank_s or 0.0, told.predicted_s or 0.0)
                assert abs(rank_s - longest) <= 2.1 + 0.11 * max(longest, rank_s)
        assert not session._rests
    finally:
        session.close()
