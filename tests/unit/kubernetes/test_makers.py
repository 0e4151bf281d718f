"""What made a pod, by labels of well-known controllers: which run it is of, and which pods start together. The objects
are made up after JobSet 0.9, KubeRay 1.4 and Katib; `tests/cluster` has those that real controllers made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes.makers import jobset_of, maker_of, ray_cluster_of
from egs_core.kubernetes.pods import pod_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

OURS = {"metadata": {"labels": {"egs.io/workload": "w"}}}
JOBSET, RAY, KATIB = "jobset.sigs.k8s.io", "ray.io", "katib.kubeflow.org"


def jobset(name: str, parts: dict[str, tuple[int, int]], **spec: Any) -> dict[str, Any]:
    """parts: replicas and parallelism of each replicated job."""
    jobs: list[dict[str, Any]] = [
        {
            "name": part,
            "replicas": many,
            "template": {"spec": {"parallelism": pods, "completions": pods, "template": OURS}},
        }
        for part, (many, pods) in parts.items()
    ]
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"replicatedJobs": jobs} | spec}


def member(name: str, of: str, part: str, attempt: int = 0, **stated: Any) -> dict[str, Any]:
    """A pod as JobSet makes it, with the label of EGS's that its author wrote into the template."""
    labels = {
        f"{JOBSET}/jobset-name": of,
        f"{JOBSET}/replicatedjob-name": part,
        f"{JOBSET}/restart-attempt": str(attempt),
    }
    found = pod(name, labels=labels | stated.pop("labels", {}), **stated)
    for key in ("egs.io/run", "egs.io/task"):
        del found["metadata"]["labels"][key]
    return found


def test_a_run_is_what_made_its_pods() -> None:
    """The JobSet, the RayJob of a RayCluster, the experiment of a trial, the notebook; of EGS's own labels one that is
    there goes first, and without `egs.io/workload` a pod is nobody's."""
    one = pod_of(member("p", "train", "worker"))
    assert (one.run, one.task) == ("team/w/train", "worker")
    assert pod_of(pod("p", run="mine", labels={f"{JOBSET}/jobset-name": "train"})).run == "team/w/mine"
    stranger = member("p", "train", "worker")
    del stranger["metadata"]["labels"]["egs.io/workload"]
    assert pod_of(stranger).run == ""
    ray = {f"{RAY}/cluster": "job-x7f2-raycluster-9k", f"{RAY}/group": "gpu", f"{RAY}/originated-from-cr-name": "job"}
    assert (maker_of(ray).run, maker_of(ray).task, maker_of(ray).name) == ("job", "gpu", "job-x7f2-raycluster-9k")
    trial = pod_of(member("p", "sweep-a1", "worker", labels={f"{KATIB}/experiment": "sweep", f"{KATIB}/trial": "a1"}))
    assert (trial.run, trial.maker.name) == ("team/w/sweep", "sweep-a1")
    assert maker_of({f"{KATIB}/experiment": "sweep", f"{KATIB}/trial": "a1"}).task == "a1"
    assert maker_of({"notebook-name": "ann"}).is_notebook
    desk = pod_of(pod("p", run="r", labels={"notebook-name": "ann"}))
    assert desk.run != pod_of(pod("q", run="r")).run, "nobody comes into its queue by the name of its run"


def test_how_many_pods_of_a_jobset_start_together() -> None:
    """All of them; each part by itself where parts wait for others; none of one pod; those of a later attempt are
    another gang, as pods of the one before may still be listed."""
    first = maker_of(member("p", "j", "a")["metadata"]["labels"])
    second = maker_of(member("p", "j", "b", 1)["metadata"]["labels"])
    together = jobset_of(jobset("j", {"a": (1, 1), "b": (2, 4)}))
    assert (together.of(first), together.of(second)) == (("j.0", 9), ("j.1", 9))
    waiting = jobset("j", {"a": (1, 1), "b": (2, 4)})
    waiting["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "a", "status": "Complete"}]
    for apart in (
        waiting,
        jobset("j", {"a": (1, 1), "b": (2, 4)}, startupPolicy={"startupPolicyOrder": "InOrder"}),
    ):
        assert (jobset_of(apart).of(first), jobset_of(apart).of(second)) == (("", 0), ("j.b.1", 8))
    assert jobset_of({"metadata": {}, "spec": {"replicatedJobs": [{"name": "a"}, "odd"]}}).of(first) == ("", 0)


def test_what_a_gang_would_wait_for_in_vain_is_not_of_it() -> None:
    """Parts without EGS's label are never seen; and JobSet makes the pods of a job that has a place of its own when its
    first one has a node, unless nodes are labelled for it."""
    second = maker_of(member("p", "j", "b")["metadata"]["labels"])
    part = jobset("j", {"a": (1, 1), "b": (2, 4)})
    part["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = {}
    assert jobset_of(part).of(second) == ("j.0", 8)
    exclusive = f"alpha.{JOBSET}/exclusive-topology"
    whole, one = jobset("j", {"b": (2, 4)}), jobset("j", {"b": (2, 4)})
    whole["metadata"]["annotations"] = {exclusive: "rack"}
    one["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"annotations": {exclusive: "rack"}}
    assert jobset_of(whole).of(second) == jobset_of(one).of(second) == ("", 0)
    whole["metadata"]["annotations"][f"alpha.{JOBSET}/node-selector"] = "true"
    assert jobset_of(whole).of(second) == ("j.0", 8)


def test_how_many_pods_of_a_ray_cluster_start_together() -> None:
    """As many as KubeRay makes: the head and the workers, hosts counted, within the bounds of each group; none of one
    that is suspended, and without the head where that is not EGS's."""
    groups: list[dict[str, Any]] = [
        {"groupName": "gpu", "replicas": 3, "minReplicas": 1, "numOfHosts": 2, "template": OURS},
        {"groupName": "off", "replicas": 5, "suspend": True, "template": OURS},
        {"groupName": "least", "minReplicas": 2, "template": OURS},
        {"groupName": "most", "replicas": 8, "maxReplicas": 4, "template": OURS},
        {"groupName": "others", "replicas": 9},
    ]
    raw = {
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": groups},
    }
    worker = maker_of({f"{RAY}/cluster": "c", f"{RAY}/group": "gpu"})
    head = maker_of({f"{RAY}/cluster": "c", f"{RAY}/group": "headgroup"})
    assert ray_cluster_of(raw).of(worker) == ray_cluster_of(raw).of(head) == ("c", 1 + 6 + 2 + 4)
    raw["spec"] = {"workerGroupSpecs": groups[:1]}
    assert (ray_cluster_of(raw).of(worker), ray_cluster_of(raw).of(head)) == (("c", 6), ("", 0))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def test_a_jobset_is_opened_whole(api: EmulatedApi) -> None:
    """Nothing of it while a member is missing or has no room, also where the JobSet is listed after its pods; a member
    that is made again while the others run starts by itself."""
    api.add("nodes", node("n1", gpus=2))
    api.add("pods", pod("other", gpus=1))
    api.add("pods", member("a", "train", "worker", gpus=1))
    with controlled(api):
        api.until(lambda: api.opened() == ["other"])
        api.bind("other", "n1")
        api.add("jobsets", jobset("train", {"worker": (1, 2)}))
        api.add("pods", member("b", "train", "worker", gpus=1))
        api.add("pods", pod("small"))
        api.until(lambda: "small" in api.opened())
        assert api.gated() == {"a", "b"}  # one GPU is free, which would be enough for one of them
        api.end("other")
        api.until(lambda: not api.gated())
        api.bind("a", "n1")
        api.bind("b", "n1")
        api.end("b", "Failed")
        api.remove("pods", "b")
        api.add("pods", member("c", "train", "worker", gpus=1))
        api.until(lambda: not api.gated())


def test_who_may_not_read_jobsets_says_so_and_pods_start_one_by_one(api: EmulatedApi) -> None:
    """Manifests of an earlier version give no right to."""
    api.forbidden.add("jobsets")
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", member("a", "train", "worker", gpus=1))
    api.add("pods", member("b", "train", "worker", gpus=1))
    said: list[str] = []
    with controlled(api, says="gangs: ", said=said):
        api.until(lambda: len(api.opened()) == 1)
        api.until(lambda: [line for line in said if "403" in line and "one by one" in line])
