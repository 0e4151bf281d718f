"""Who is deleted for another, and that nobody is whom nothing makes again; on an emulated API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.retries import may_be_covered, why_not_argo, why_not_job
from egs_core.kubernetes.workflows import workflow_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import EXECUTOR, IMPL, executor, task, workflow
from tests.unit.kubernetes.made_workflows import node as begun
from tests.unit.kubernetes.test_pausing import notes
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture

PREEMPTED = "egs.io/preempted"


def job(name: str = "j", failed: int = 0, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": spec.pop("restarts", "Never")}}
    meta = {"name": name, "namespace": "team"}
    return {"metadata": meta, "spec": {"template": template} | spec, "status": {"failed": failed} if failed else {}}


def of_job(name: str, job_name: str = "j", **stated: Any) -> dict[str, Any]:
    """A pod that runs on n1, with its GPU."""
    spec = {"nodeName": "n1", "restartPolicy": "Never"}
    made = pod(name, gpus=1, gate=False, spec=spec, predicted=5000, run="low", **stated)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job_name, "uid": "1", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made


def urgent(name: str = "urgent", priority: int = 10) -> dict[str, Any]:
    return pod(name, gpus=1, run="high", predicted=5, hints={"priority": priority})


# --- who is made again ---


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (job(), ""),
        (job(failed=5), ""),
        (job(backoffLimit=1), ""),
        (job(failed=6), "its Job has no retry left"),
        (job(failed=1, backoffLimit=1), "its Job has no retry left"),
        (job(backoffLimit=0), "its Job has no retry left"),
        (job(restarts="OnFailure"), "its Job restarts containers, not pods"),
        (job(completionMode="Indexed"), "its Job has indices or a policy of failures"),
        (job(podFailurePolicy={"rules": []}), "its Job has indices or a policy of failures"),
        (job(suspend=True), "its Job makes no pods now"),
    ],
)
def test_a_job_that_makes_its_pods_again(made: dict[str, Any], why: str) -> None:
    """As the object says: a pod for a pod, and retries left."""
    assert why_not_job(made) == why


def argo(strategy: dict[str, Any] | None, tries: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run whose executors have this retry strategy, and its pod of that try."""
    path = f"root.a.executor({tries})"
    made = workflow("low", {"a": task(5000)}, [begun(path, "Running", templateName=IMPL)])
    if strategy is not None:
        next(one for one in made["spec"]["templates"] if one["name"] == IMPL)["retryStrategy"] = strategy
    one = executor("low", "a", gate=False, gpus=1, predicted=5000, spec={"nodeName": "n1"})
    one["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = f"low.{path}"
    return made, one


@pytest.mark.parametrize(
    ("strategy", "tries", "why"),
    [
        ({"retryPolicy": "Always"}, 7, ""),
        ({"retryPolicy": "Always", "limit": "2"}, 1, ""),
        ({"retryPolicy": "Always", "limit": 2}, 2, "it is its last try"),
        ({"retryPolicy": "OnError", "limit": 2}, 0, "its template has no retryStrategy with retryPolicy: Always"),
        ({"limit": 2}, 0, "its template has no retryStrategy with retryPolicy: Always"),
        ({"retryPolicy": "Always", "expression": "x"}, 0, "its template has no retryStrategy with retryPolicy: Always"),
        ({"retryPolicy": "Always", "limit": "{{x}}"}, 0, "its template has no retryStrategy with retryPolicy: Always"),
        (None, 0, "its template has no retryStrategy with retryPolicy: Always"),
    ],
)
def test_a_workflow_that_makes_its_pods_again(strategy: dict[str, Any] | None, tries: int, why: str) -> None:
    """Under Always alone: KFP's own OnError misses a pod that ended in time when it was told to."""
    made, one = argo(strategy, tries)
    assert why_not_argo(pod_of(one), workflow_of(made)) == why


def test_what_is_not_known_is_not_covered() -> None:
    """A node that its Workflow does not note, a run that is over, an own template for a DAG, no owner, a gang."""
    made, one = argo({"retryPolicy": "Always"})
    assert may_be_covered(pod_of(one), workflow_of(made))
    assert not may_be_covered(pod_of(one), None)
    made["status"]["nodes"] = {}
    assert why_not_argo(pod_of(one), workflow_of(made)) == "its Workflow does not say how it was made"
    assert not may_be_covered(pod_of(pod("alone")), None)
    assert may_be_covered(pod_of(of_job("a")), None)
    assert not may_be_covered(pod_of(of_job("a", gang="g", size=2)), None)
    made, one = argo(None)
    next(t for t in made["spec"]["templates"] if t["name"] == EXECUTOR)["retryStrategy"] = {"retryPolicy": "Always"}
    assert not may_be_covered(pod_of(one), workflow_of(made))


# --- who is deleted ---


def test_a_pod_that_is_made_again_makes_way(api: EmulatedApi) -> None:
    """It is told so first, and there is an event; then the one of higher priority starts, and what is made in its place
    waits."""
    told: list[dict[str, str]] = []
    api.add("nodes", node("n1", gpus=1))
    api.add("jobs", job())
    api.add("pods", of_job("low"))
    said: list[str] = []
    with controlled(api, preempts=True, says="pod team/low: deleted", said=said):
        api.add("pods", urgent())
        api.until(lambda: "low" not in api.all("pods"))
        told = [body["metadata"]["annotations"] for name, body in api.patches if name == "low"]
        again = pod("low-again", gpus=1, run="low", predicted=5000)
        again["metadata"]["ownerReferences"] = of_job("x")["metadata"]["ownerReferences"]
        api.add("pods", again)
        api.until(lambda: "urgent" in api.opened())
        assert api.gated() == {"low-again"}
    assert [one.keys() for one in told] == [{PREEMPTED}]
    (event,) = api.all("events").values()
    assert event["reason"] == "Preempted"
    assert len(said) == 1


def stays(api: EmulatedApi, until: Callable[[], object]) -> None:
    api.until(until)
    assert "low" in api.all("pods")
    assert "urgent" in api.gated()
    assert PREEMPTED not in notes(api, "low")


def test_a_retry_that_was_used_up_meanwhile_keeps_its_pod(api: EmulatedApi) -> None:
    """The owner is read anew just before: one line, nothing is deleted, and what waits goes on to be ordered."""
    api.add("nodes", node("n1", gpus=1, cpu=4))
    api.add("jobs", job(backoffLimit=0))
    api.add("pods", of_job("low"))
    said: list[str] = []
    with controlled(api, preempts=True, says="is not preempted: its Job has no retry left", said=said):
        api.add("pods", urgent())
        stays(api, lambda: said)
        api.add("pods", pod("small", run="another"))
        api.until(lambda: "small" in api.opened())
        assert "low" in api.all("pods")
    assert len(said) == 1


def test_nobody_is_deleted_for_an_equal_or_without_leave(api: EmulatedApi) -> None:
    """Equal priority, a pod that nothing makes again, and a controller that was not told to."""
    api.add("nodes", node("n1", gpus=1))
    api.add("jobs", job())
    api.add("pods", of_job("low", hints={"priority": 10}))
    with controlled(api, preempts=True):
        api.add("pods", urgent())
        api.add("pods", pod("small", run="another"))
        stays(api, lambda: "small" in api.opened())
    api.change("pods", "low", lambda one: one["metadata"]["annotations"].pop("egs.io/hints"))
    with controlled(api):
        api.add("pods", pod("small-2", run="another"))
        stays(api, lambda: "small-2" in api.opened())
    api.change("pods", "low", lambda one: one["metadata"].pop("ownerReferences"))
    with controlled(api, preempts=True):
        api.add("pods", pod("small-3", run="another"))
        stays(api, lambda: "small-3" in api.opened())


def test_a_right_that_is_missing_is_said_and_ends_it(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests without --preempt: one line, and gates are opened as before."""

    def refuses(cluster: Cluster, kind: Kind, name: str, namespace: str = "") -> Any:
        if kind.plural == "jobs":
            raise ApiError(403, "jobs is forbidden")
        return get(cluster, kind, name, namespace)

    get = Cluster.get
    monkeypatch.setattr(Cluster, "get", refuses)
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", of_job("low"))
    said: list[str] = []
    with controlled(api, preempts=True, says="nothing is preempted any more", said=said):
        api.add("pods", urgent())
        stays(api, lambda: said)
        api.add("pods", pod("small", run="another"))
        api.until(lambda: "small" in api.opened())
    assert len(said) == 1


def test_a_run_of_argo_makes_way(api: EmulatedApi) -> None:
    """Where its template says Always, found by the node that its Workflow notes."""
    api.add("nodes", node("n1", gpus=1))
    made, one = argo({"retryPolicy": "Always", "limit": 3})
    api.add("workflows", made)
    api.add("pods", one)
    with controlled(api, preempts=True, says="deleted"):
        api.add("pods", urgent())
        api.until(lambda: "urgent" in api.opened())
    assert api.deleted == [f"pods/{one['metadata']['name']}"]
