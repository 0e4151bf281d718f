"""What made a pod, by the labels that well-known controllers write into theirs: of which run it is, and which pods
start together. Labels of EGS's own go first, and without `egs.io/workload` no pod is ordered.

    made by                          run                                    start together
    JobSet, also for a TrainJob      the JobSet                             all of its pods; those of each part, where
                                                                            parts begin one after another
    RayCluster, also for a RayJob    the RayJob, RayService or RayCluster   the head and the workers that it begins with
    a trial of Katib, of any kind    the experiment                         what its trial makes says so
    a notebook of Kubeflow           the notebook                           it is one pod

How many there are is said by the JobSet or the RayCluster, not by the pods.

Source: labelAndAnnotateObject of JobSet 0.9, utils/constant.go of KubeRay 1.4, manager/util of Katib, the notebook
controller of Kubeflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from egs_core.kubernetes.objects import Object, items, number, part, text

JOBSET, RAY_CLUSTER = "JobSet", "RayCluster"
SAY_GANGS = {JOBSET: ("jobset.x-k8s.io", "v1alpha2", "jobsets"), RAY_CLUSTER: ("ray.io", "v1", "rayclusters")}
"""Where the API server has what says how many start together: group, version and plural, by kind."""
_JOBSET, _RAY = "jobset.sigs.k8s.io/", "ray.io/"
_JOBSET_NAME, _JOBSET_PART = f"{_JOBSET}jobset-name", f"{_JOBSET}replicatedjob-name"
_JOBSET_ATTEMPT = f"{_JOBSET}restart-attempt"
_RAY_CLUSTER, _RAY_GROUP, _RAY_FOR = f"{_RAY}cluster", f"{_RAY}group", f"{_RAY}originated-from-cr-name"
_EXPERIMENT, _TRIAL = "katib.kubeflow.org/experiment", "katib.kubeflow.org/trial"
_NOTEBOOK = "notebook-name"


class Maker(msgspec.Struct, frozen=True):
    """Of one pod. run: the name of its run there, "" where what owns it is all that is known; task: what the pod is in
    it, "": its name. kind, name: what says how many start together, "" where nothing does; part: which of its parts the
    pod is of; attempt: its pods are all made again with another one. is_notebook: it is somebody's, and stays."""

    run: str = ""
    task: str = ""
    kind: str = ""
    name: str = ""
    part: str = ""
    attempt: str = ""
    is_notebook: bool = False


NOBODY = Maker()


class Gangs(msgspec.Struct, frozen=True):
    """Of one JobSet or RayCluster: how many pods start together, by part; is_whole: all parts do."""

    namespace: str
    name: str
    sizes: Mapping[str, int]
    is_whole: bool

    def of(self, maker: Maker) -> tuple[str, int]:
        """The gang of a pod that this has made, and how many are in it; ("", 0): it begins by itself."""
        size = sum(self.sizes.values()) if self.is_whole else self.sizes.get(maker.part, 0)
        if size < 2 or maker.part not in self.sizes:
            return "", 0
        name = self.name if self.is_whole else f"{self.name}.{maker.part}"
        return f"{name}.{maker.attempt}" if maker.attempt else name, size


def maker_of(labels: Mapping[str, Any]) -> Maker:
    """Of a pod with these labels."""
    found = NOBODY
    if jobset := text(labels, _JOBSET_NAME):
        inside = text(labels, _JOBSET_PART)
        found = Maker(jobset, inside, JOBSET, jobset, inside, text(labels, _JOBSET_ATTEMPT))
    elif cluster := text(labels, _RAY_CLUSTER):
        group = text(labels, _RAY_GROUP)
        found = Maker(text(labels, _RAY_FOR) or cluster, group, RAY_CLUSTER, cluster, group)
    elif notebook := text(labels, _NOTEBOOK):
        found = Maker(notebook, notebook, is_notebook=True)
    if experiment := text(labels, _EXPERIMENT):
        found = msgspec.structs.replace(found, run=experiment, task=found.task or text(labels, _TRIAL))
    return found


def jobset_of(raw: Object) -> Gangs:
    """A JobSet's. Its parts, the replicated jobs, begin one after another where they depend on others."""
    spec = part(raw, "spec")
    jobs = items(spec, "replicatedJobs")
    in_order = text(part(spec, "startupPolicy"), "startupPolicyOrder") == "InOrder"
    sizes = {text(one, "name"): _count(one.get("replicas"), 1) * _pods_of(part(one, "template")) for one in jobs}
    return _gangs(raw, sizes, is_whole=not (in_order or any(items(one, "dependsOn") for one in jobs)))


def ray_cluster_of(raw: Object) -> Gangs:
    """A RayCluster's: with Ray's autoscaler a group begins with its least number of workers, and those that come later
    find the others running."""
    spec = part(raw, "spec")
    scaled = spec.get("enableInTreeAutoscaling") is True
    sizes = {"headgroup": 1}
    for one in items(spec, "workerGroupSpecs"):
        begins_with = one.get("minReplicas") if scaled else one.get("replicas", one.get("minReplicas"))
        count = 0 if one.get("suspend") is True else _count(begins_with, 0)
        sizes[text(one, "groupName")] = count * max(1, _count(one.get("numOfHosts"), 1))
    return _gangs(raw, sizes, is_whole=True)


def _gangs(raw: Object, sizes: Mapping[str, int], *, is_whole: bool) -> Gangs:
    meta = part(raw, "metadata")
    return Gangs(text(meta, "namespace"), text(meta, "name"), sizes, is_whole)


def _pods_of(job: Object) -> int:
    """So many pods of a Job are there at once."""
    spec = part(job, "spec")
    most = _count(spec.get("parallelism"), 1)
    return most if spec.get("completions") is None else min(most, _count(spec.get("completions"), most))


def _count(stated: object, usual: int) -> int:
    found = number(stated)
    return usual if found is None else max(0, int(found))
