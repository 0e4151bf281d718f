"""Pods that are one gang, made by real controllers of JobSet, Kubeflow's Trainer and KubeRay, on a real API server with
its scheduler (`test_real_cluster`). The kubelet is played: no container runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import ApiError, Kind
from egs_core.kubernetes.objects import Object, items, part
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.steering import Asked, abort
from tests.cluster.played import hooked, played, why_not
from tests.cluster.real import HERE, Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]

JOBSETS = Kind("/apis/jobset.x-k8s.io/v1alpha2", "jobsets")
TRAIN_JOBS = Kind("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs")
RUNTIMES = Kind("/apis/trainer.kubeflow.org/v1alpha1", "trainingruntimes")
RAY_CLUSTERS = Kind("/apis/ray.io/v1", "rayclusters")
Raw = dict[str, Any]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with applied(tmp_path, gpus=3) as found, hooked(found):
        yield found


def template(site: Site) -> Raw:
    """Of pods with a GPU each, of which nothing says that they are a gang."""
    limits = {"cpu": "1", "nvidia.com/gpu": "1"}
    spec: Raw = {"containers": [{"name": "node", "image": "image:1", "resources": {"limits": limits}}]}
    spec |= {**HERE, "nodeSelector": {"egs-test": site.name}}
    return {"metadata": {"labels": {names.WORKLOAD: "w"}}, "spec": spec}


def job(name: str, pods: int, made: Raw) -> Raw:
    """Of a JobSet."""
    made = {**made, "spec": {**made["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": made}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def jobset(name: str, jobs: list[Raw], restarts: int = 0) -> Raw:
    spec = {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": restarts}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def need_jobset(site: Site) -> None:
    asked = jobset("asked", [job("a", 1, {"spec": {"containers": [{"name": "a", "image": "image:1"}]}})])
    asked["spec"]["suspend"] = True
    if problem := why_not(site.admin, "jobsets.jobset.x-k8s.io", JOBSETS, asked, site.name, _conditions):
        pytest.skip(f"JobSet's controller is not in the cluster: {problem}")


def there(site: Site) -> list[Pod]:
    return [one for one in site.pods().values() if one.maker.kind and not one.is_leaving]


def opens_whole(site: Site, size: int) -> None:
    """A gang that does not fit waits behind its gates with all of its pods; a node comes, and all of them have one."""
    until(lambda: len(there(site)) == size)
    until(lambda: all(one.waits for one in there(site)))
    assert all(one.is_gated for one in there(site))
    site.add_node(f"{site.name}-new", 3)
    until(lambda: len([one for one in there(site) if one.holds]) == size)


def test_the_jobs_of_a_jobset_are_one_gang(site: Site) -> None:
    """Its pods say nothing of a gang. One of them fails, and the JobSet makes all anew: they start together again, each
    for its turn."""
    need_jobset(site)
    jobs = [job("driver", 1, template(site)), job("workers", 3, template(site))]
    with played(site) as kubelet, controlled(site):
        site.admin.create(JOBSETS, jobset("ranks", jobs, restarts=1), site.name)
        opens_whole(site, 4)
        assert len({one.run for one in there(site)}) == 1
        before = {one.uid for one in there(site)}
        kubelet.end(next(one.name for one in there(site) if "driver" in one.name), exit_code=1)
        until(lambda: len([one for one in there(site) if one.holds and one.uid not in before]) == 4)
        assert {one.opened_for for one in there(site)} == {"order"}
        for one in there(site):
            kubelet.end(one.name)
        until(lambda: _is_completed(site, JOBSETS, "ranks"))


def test_who_aborts_the_pods_of_a_jobset_is_told_of_it(site: Site) -> None:
    """And not of its Jobs alone, which it would make again."""
    need_jobset(site)
    with played(site), controlled(site):
        site.admin.create(JOBSETS, jobset("ranks", [job("workers", 2, template(site))], restarts=5), site.name)
        until(lambda: len([one for one in there(site) if one.holds]) == 2)
        first = {one.uid for one in there(site)}
        done = abort(site.admin, Asked(site.name, "ranks"))
        assert (len(done.pods), done.makers) == (2, ("JobSet ranks",))
        until(lambda: [one for one in there(site) if one.uid not in first])
        site.admin.delete(JOBSETS, "ranks", site.name)
        until(lambda: not there(site))


def test_a_trainjob_is_one_gang(site: Site) -> None:
    """Kubeflow's Trainer makes a JobSet of it, by a runtime whose template has the labels."""
    need_jobset(site)
    made = job("node", 1, template(site))
    made["template"] = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        **made["template"],
    }
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "ranks"}}
    runtime["spec"] = {"mlPolicy": {"numNodes": 4}, "template": {"spec": {"replicatedJobs": [made]}}}
    asked = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "asked"}}
    spec = {"runtimeRef": {"name": "ranks", "kind": "TrainingRuntime"}}
    try:
        site.admin.create(RUNTIMES, runtime, site.name)
    except ApiError as error:
        pytest.skip(f"Kubeflow's Trainer is not in the cluster: {error}")
    suspended = {**asked, "spec": {**spec, "suspend": True}}
    if problem := why_not(site.admin, "trainjobs.trainer.kubeflow.org", TRAIN_JOBS, suspended, site.name, _conditions):
        pytest.skip(f"Kubeflow's Trainer is not in the cluster: {problem}")
    with played(site), controlled(site):
        site.admin.create(TRAIN_JOBS, {**asked, "metadata": {"name": "train"}, "spec": spec}, site.name)
        opens_whole(site, 4)
        assert abort(site.admin, Asked(site.name, "train")).makers == ("TrainJob train",)
        site.admin.delete(TRAIN_JOBS, "train", site.name)
        until(lambda: not there(site))


def test_a_ray_cluster_is_one_gang(site: Site) -> None:
    """Its head and its workers, as KubeRay makes them."""
    made = template(site)
    group = {
        "groupName": "workers",
        "replicas": 3,
        "minReplicas": 3,
        "maxReplicas": 3,
        "rayStartParams": {},
        "template": made,
    }
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": made}, "workerGroupSpecs": [group]}
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "asked"}}
    asked = {**body, "spec": {**spec, "suspend": True}}
    if problem := why_not(site.admin, "rayclusters.ray.io", RAY_CLUSTERS, asked, site.name, _status):
        pytest.skip(f"KubeRay's operator is not in the cluster: {problem}")
    with played(site), controlled(site):
        site.admin.create(RAY_CLUSTERS, {**body, "metadata": {"name": "ray"}, "spec": spec}, site.name)
        opens_whole(site, 4)
        assert abort(site.admin, Asked(site.name, "ray")).makers == ("RayCluster ray",)
        site.admin.delete(RAY_CLUSTERS, "ray", site.name)
        until(lambda: not there(site))


def _is_completed(site: Site, kind: Kind, name: str) -> bool:
    conditions = items(part(site.admin.get(kind, name, site.name), "status"), "conditions")
    return any(one["type"] == "Completed" and one["status"] == "True" for one in conditions)


def _status(raw: Object) -> object:
    return part(raw, "status")


def _conditions(raw: Object) -> object:
    return part(raw, "status").get("conditions")
