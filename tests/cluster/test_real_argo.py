"""Runs that Argo's own controller makes pods of, on a real API server with its scheduler (`test_real_cluster`): in the
engine's order behind gates that the webhook has added, with retries, limits, pauses and ends. The kubelet and Argo's
executor are played: no container runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS, WORKFLOWS
from egs_core.kubernetes.pausing import pause, resume
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.steering import Asked, abort
from tests.cluster.argo_runs import leaf, node, outputs_of, phase, start, start_by_template, start_pipeline, why_no_argo
from tests.cluster.played import Kubelet, hooked, played
from tests.cluster.real import Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]

ENDED = ("Succeeded", "Failed", "Error")
TWO = PlaceholderSettings(most=2, node_s=60.0)
LOOP = "pipeline.root.many.iteration-iterations"
DRIVERS_S = 12.0
"""More than all drivers of a run take, which is known of those that have ended."""
STEPS: dict[str, dict[str, Any]] = {
    "prepare": {"seconds": 5, "gpus": 1},
    "many": {"seconds": 10, "gpus": 1, "after": ["prepare"], "many": True},
    "report": {"seconds": 3, "after": ["many"]},
}


@contextmanager
def with_argo(folder: Path, **more: Any) -> Iterator[Site]:
    """A site whose namespace Argo's controller looks after; its runs go before all else."""
    with applied(folder, **more) as site:
        if problem := why_no_argo(site):
            pytest.skip(f"Argo's controller is not in the cluster: {problem}")
        try:
            yield site
        finally:
            for one in site.admin.list(WORKFLOWS, site.name)[0]:
                site.admin.delete(WORKFLOWS, one["metadata"]["name"], site.name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with with_argo(tmp_path) as found, hooked(found):
        yield found


@pytest.fixture
def preempting(tmp_path: Path) -> Iterator[Site]:
    with with_argo(tmp_path, preempts=True) as found, hooked(found):
        yield found


def pod_of_node(site: Site, name: str) -> Pod | None:
    """The pod that Argo has made for this node of a run."""
    return next((one for one in site.pods().values() if one.argo_node == name and not one.is_leaving), None)


def fill(site: Site, kubelet: Kubelet) -> None:
    """A pod has the GPU, until the test ends it."""
    site.add("first", gpus=1, run="other", predicted=60)
    until(lambda: "first" in kubelet.begun)


def left_s(site: Site, name: str) -> float:
    """How long its run takes from it on, as its pod says while it waits; 0: nothing is said yet."""
    found = pod_of_node(site, name)
    said = re.search(r"its run takes ([0-9.]+) s", found.waits) if found is not None and found.is_gated else None
    return float(said[1]) if said else 0.0


def test_runs_go_by_what_is_left_of_them(site: Site) -> None:
    """The labels say that the long run has less left: its graph, as Argo's Workflow has it, says the contrary. All of
    their pods were gated as Argo made them, and were opened for their turn; Argo sees both runs succeed."""
    one = [leaf("a", gpus=1, predicted=5, rank=6, seconds=1), leaf("b", gpus=1, predicted=100, seconds=1)]
    with played(site) as kubelet, controlled(site):
        fill(site, kubelet)
        start(site, "long", {"a": (), "b": ("a",)}, one)
        until(lambda: left_s(site, "long.a") == 105)
        start(site, "short", {"a": ()}, [leaf("a", gpus=1, predicted=5, rank=500, seconds=1)])
        until(lambda: left_s(site, "short.a") == 5)
        kubelet.end("first")
        until(lambda: phase(site, "long") == phase(site, "short") == "Succeeded")
        assert kubelet.begun == ["first", "short.a", "long.a", "long.b"]
        assert {one.opened_for for one in site.pods().values()} == {"order"}


def test_a_run_by_a_template_is_followed(site: Site) -> None:
    """Its own spec names a WorkflowTemplate; what is left of it is in what Argo has noted of that."""
    leaves = [leaf("a", gpus=1, predicted=5, seconds=1), leaf("b", predicted=100, seconds=1)]
    with played(site) as kubelet, controlled(site):
        fill(site, kubelet)
        start_by_template(site, "stored", {"a": (), "b": ("a",)}, leaves)
        until(lambda: left_s(site, "stored.a") == 105)
        kubelet.end("first")
        until(lambda: phase(site, "stored") == "Succeeded")


def test_each_try_waits_for_its_turn(site: Site) -> None:
    """A container fails: Argo makes another pod, which has a gate of its own."""
    with played(site) as kubelet, controlled(site):
        start(site, "flaky", {"train": ()}, [leaf("train", gpus=1, predicted=5, retries=2)])
        until(lambda: "flaky.train(0)" in kubelet.begun)
        kubelet.end("flaky.train(0)", exit_code=1)
        until(lambda: "flaky.train(1)" in kubelet.begun)
        found = pod_of_node(site, "flaky.train(1)")
        assert found is not None
        assert found.opened_for == "order"
        kubelet.end("flaky.train(1)")
        until(lambda: phase(site, "flaky") == "Succeeded")


def test_who_aborts_a_run_ends_all_of_it(site: Site) -> None:
    """What runs, what waits, and what has not begun; Argo makes nothing more, and says that the run has failed."""
    leaves = [leaf("a", gpus=1, predicted=5), leaf("b", gpus=1, predicted=5), leaf("c", predicted=5)]
    with played(site) as kubelet, controlled(site):
        start(site, "gone", {"a": (), "b": (), "c": ("a",)}, leaves)
        until(lambda: kubelet.begun)
        until(lambda: len(site.pods()) == 2)
        done = abort(site.admin, Asked(site.name, "gone"))
        assert (done.workflow, len(done.pods), done.makers) == ("gone", 2, ())
        until(lambda: phase(site, "gone") in ENDED)
        assert phase(site, "gone") == "Failed"
        until(lambda: not [one for one in site.pods().values() if not one.is_over])
        assert node(site, "gone.c")["phase"] == "Omitted"


def test_argo_makes_a_pod_again_that_was_aborted_while_it_waited(site: Site) -> None:
    """Which is said: its Workflow goes on."""
    with played(site) as kubelet, controlled(site):
        fill(site, kubelet)
        start(site, "again", {"a": ()}, [leaf("a", gpus=1, predicted=5, seconds=0)])
        until(lambda: pod_of_node(site, "again.a"))
        first = pod_of_node(site, "again.a")
        assert first is not None
        assert abort(site.admin, Asked(site.name, first.name)).makers == ("Workflow again",)
        until(lambda: (found := pod_of_node(site, "again.a")) and found.uid != first.uid)
        kubelet.end("first")
        until(lambda: phase(site, "again") == "Succeeded")


def test_a_paused_run_makes_no_pods_until_it_is_resumed(site: Site) -> None:
    """What runs goes on to its end, what waits stays behind its gate, the next step is not made."""
    leaves = [leaf(name, gpus=1, predicted=5) for name in ("a", "b", "c")]
    with played(site) as kubelet, controlled(site):
        start(site, "held", {"a": (), "b": (), "c": ("a",)}, leaves)
        until(lambda: kubelet.begun and len(site.pods()) == 2)
        (first,) = kubelet.begun
        (other,) = {"held.a", "held.b"} - {first}
        pause(site.admin, Asked(site.name, "held", reason="a test"))
        kubelet.end(first)
        until(lambda: node(site, first).get("phase") == "Succeeded")
        site.add("small", cpu=1, run="another", predicted=1)  # the controller has looked at what is free since then
        until(lambda: "small" in kubelet.begun)
        assert len(kubelet.begun) == 2
        assert not node(site, "held.c")
        found = pod_of_node(site, other)
        assert found is not None
        assert found.is_gated
        resume(site.admin, Asked(site.name, "held"))
        for _ in range(2):
            until(lambda: [one for one in site.pods().values() if one.holds and one.argo_node])
            kubelet.end(next(one.name for one in site.pods().values() if one.holds and one.argo_node))
        until(lambda: phase(site, "held") == "Succeeded")


def test_a_limit_ends_a_task_and_argo_its_run(site: Site) -> None:
    """A task's own limit is a deadline of its pod, which Argo takes for a failure. A run's own, Argo's
    `activeDeadlineSeconds`, ends what waits behind its gate too: it is never opened."""
    with played(site) as kubelet, controlled(site):
        start(site, "limited", {"a": ()}, [leaf("a", gpus=1, predicted=5, hints={"max_runtime_s": 2})])
        until(lambda: phase(site, "limited") in ENDED)
        assert phase(site, "limited") == "Failed"
        assert node(site, "limited.a")["message"] == "DeadlineExceeded"
        fill(site, kubelet)
        start(site, "late", {"a": ()}, [leaf("a", gpus=1, predicted=5)], activeDeadlineSeconds=4)
        until(lambda: pod_of_node(site, "late.a"))
        until(lambda: phase(site, "late") in ENDED)
        assert phase(site, "late") == "Failed"
        until(lambda: not pod_of_node(site, "late.a"))
        assert "late.a" not in kubelet.begun


def test_what_made_way_is_tried_again(preempting: Site) -> None:
    """Under `retryPolicy: Always` on its template: its pod is deleted for one of higher priority, Argo makes the next
    try, which waits behind its gate, and both runs succeed."""
    site = preempting
    with played(site) as kubelet, controlled(site, "deleted for", preempts=True):
        start(site, "low", {"a": ()}, [leaf("a", gpus=1, predicted=5000, retries=3)])
        until(lambda: node(site, "low.a(0)").get("phase") == "Running")
        urgent = leaf("a", gpus=1, predicted=5, hints={"priority": 10})
        start(site, "urgent", {"a": ()}, [urgent])
        until(lambda: "urgent.a" in kubelet.begun)
        until(lambda: (found := pod_of_node(site, "low.a(1)")) and found.is_gated)
        kubelet.end("urgent.a")
        until(lambda: "low.a(1)" in kubelet.begun)
        kubelet.end("low.a(1)")
        until(lambda: phase(site, "low") == phase(site, "urgent") == "Succeeded")
        assert kubelet.begun == ["low.a(0)", "urgent.a", "low.a(1)"]


def test_a_pipeline_with_drivers_and_a_loop_is_followed(site: Site) -> None:
    """As Kubeflow's compiler writes it: a driver before each task, a loop that turns out to have three parts. Before
    the loop's driver has said so it counts once; then what is left is known, with what its parts took."""
    with played(site, outputs_of(STEPS, many=3)) as kubelet, controlled(site):
        fill(site, kubelet)
        start_pipeline(site, "pipeline", STEPS)
        until(lambda: 18 <= left_s(site, "pipeline.root.prepare.executor") < 18 + DRIVERS_S)
        kubelet.end("first")
        until(lambda: "pipeline.root.prepare.executor" in kubelet.begun)
        site.add("next", gpus=1, run="other", predicted=1, hints={"priority": 1})
        kubelet.end("pipeline.root.prepare.executor")
        until(lambda: "next" in kubelet.begun)
        until(lambda: 33 <= left_s(site, f"{LOOP}(0:0).x.executor") < 33 + DRIVERS_S)
        kubelet.end("next")
        for number in range(3):
            name = f"{LOOP}({number}:{number}).x.executor"
            until(lambda one=name: one in kubelet.begun)  # type: ignore[misc]  # one each
            kubelet.end(name)
        until(lambda: "pipeline.root.report.executor" in kubelet.begun)
        kubelet.end("pipeline.root.report.executor")
        until(lambda: phase(site, "pipeline") == "Succeeded")


def test_a_node_is_asked_for_before_argo_makes_the_pod(tmp_path: Path) -> None:
    """Two steps come after one that runs, on a node with one GPU: a placeholder stands for the second. It goes when the
    run is over."""
    steps = {"prepare": {"seconds": 20}} | {
        name: {"seconds": 600, "gpus": 1, "after": ["prepare"]} for name in ("one", "two")
    }
    label = f"{names.PLACEHOLDER}={names.BY_CONTROLLER}"
    with with_argo(tmp_path, placeholders=TWO) as site, hooked(site), contextlib.ExitStack() as more:
        kubelet = more.enter_context(played(site, outputs_of(steps)))
        more.enter_context(controlled(site, placeholders=TWO))
        start_pipeline(site, "ahead", steps)
        until(lambda: "ahead.root.prepare.executor" in kubelet.begun)
        until(lambda: site.admin.list(PODS, site.of.namespace, label)[0])
        assert not node(site, "ahead.root.one")
        assert not node(site, "ahead.root.two")
        kubelet.end("ahead.root.prepare.executor")
        until(lambda: len(kubelet.begun) > 4 and "executor" in kubelet.begun[-1])
        abort(site.admin, Asked(site.name, "ahead"))
        until(lambda: phase(site, "ahead") in ENDED)
        until(lambda: not site.admin.list(PODS, site.of.namespace, label)[0])
