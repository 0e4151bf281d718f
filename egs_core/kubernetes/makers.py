"""What made a pod, by the labels that well-known controllers write into theirs: of which run it is, and which pods
start together. Labels of EGS's own go first, and without `egs.io/workload` no pod is ordered.

    made by                          run                                    start together
    JobSet, also for a TrainJob      the JobSet                             all of its pods; those of each part, where
                                                                            parts begin one after another; none where
                                                                            each job has a place of its own
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

from egs_core.kubernetes import names
from egs_core.kubernetes.objects import Object, items, number, part, text

JOBSET, RAY_CLUSTER = "JobSet", "RayCluster"
SAY_GANGS = {JOBSET: ("jobset.x-k8s.io", "v1alpha2", "jobsets"), RAY_CLUSTER: ("ray.io", "v1", "rayclusters")}
"""Where the API server has what says how many start together: group, version and plural, by kind."""
_JOBSET, _RAY = "jobset.sigs.k8s.io/", "ray.io/"
_JOBSET_NAME, _JOBSET_PART = f"{_JOBSET}jobset-name", f"{_JOBSET}replicatedjob-name"
_JOBSET_ATTEMPT = f"{_JOBSET}restart-attempt"
_RAY_CLUSTER, _RAY_GROUP, _RAY_FOR = f"{_RAY}cluster", f"{_RAY}group", f"{_RAY}originated-from-cr-name"
_EXCLUSIVE, _BY_SELECTOR = (f"alpha.{_JOBSET}{name}" for name in ("exclusive-topology", "node-selector"))
_EXPERIMENT, _TRIAL = "katib.kubeflow.org/experiment", "katib.kubeflow.org/trial"
_NOTEBOOK = "notebook-name"
MOST = 1 << 31


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
    """A JobSet's. Its parts, the replicated jobs, begin one after another where they depend on others. Where each job
    has a place of its own no pods start together: JobSet makes those that follow when the first one has its node."""
    spec = part(raw, "spec")
    jobs = items(spec, "replicatedJobs")
    in_order = text(part(spec, "startupPolicy"), "startupPolicyOrder") == "InOrder"
    sizes = {
        text(one, "name"): _count(one.get("replicas"), 1) * _pods_of(part(one, "template"))
        for one in jobs
        if _is_ordered(part(part(part(one, "template"), "spec"), "template"))
    }
    if any(_waits_for_its_place(one) for one in (raw, *(part(one, "template") for one in jobs))):
        sizes = {}
    return _gangs(raw, sizes, is_whole=not (in_order or any(items(one, "dependsOn") for one in jobs)))


def _is_ordered(template: Object) -> bool:
    """Whether pods of it have the label without which they are nobody's."""
    return bool(text(part(part(template, "metadata"), "labels"), names.WORKLOAD))


def _waits_for_its_place(raw: Object) -> bool:
    notes = part(part(raw, "metadata"), "annotations")
    return _EXCLUSIVE in notes and _BY_SELECTOR not in notes


def ray_cluster_of(raw: Object) -> Gangs:
    """A RayCluster's: the head, and of each group its replicas, within their bounds. Workers that come later find the
    others running."""
    spec = part(raw, "spec")
    sizes = {"headgroup": 1} if _is_ordered(part(part(spec, "headGroupSpec"), "template")) else {}
    for one in items(spec, "workerGroupSpecs"):
        least = _count(one.get("minReplicas"), 0)
        count = max(least, min(_count(one.get("replicas"), 0), _count(one.get("maxReplicas"), MOST)))
        if _is_ordered(part(one, "template")) and one.get("suspend") is not True:
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
    return usual if found is None else min(MOST, max(0, int(found)))
