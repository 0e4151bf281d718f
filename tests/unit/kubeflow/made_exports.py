"""Exports of a cluster, made here: no cluster was asked, nothing is copied from one.

The shapes are those of the upstream types: Argo's `Workflow` and `NodeStatus` (pkg/apis/workflow/v1alpha1), with the
nodes that a workflow compiled by KFP's backend gets (X-driver, then X with its executor), and Kubernetes' `Pod` and
`Node` (core/v1). Times are whole seconds, as Kubernetes writes them; second 0 is `BEGIN`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
Fields = dict[str, Any]


@dataclass(frozen=True)
class Try:
    """One attempt's pod: when it was made, scheduled, its main container started, and it ended; None: not yet."""

    made: int
    scheduled: int | None = None
    code: int | None = None
    ended: int | None = None
    failed: bool = False
    disrupted: bool = False


@dataclass(frozen=True)
class Step:
    """One task of a pipeline. A step with more than one try is retried, so Argo gives it a node of type Retry."""

    name: str
    tries: Sequence[Try]
    after: Sequence[str] = ()
    gpus: int = 0
    node: str = "gpu-1"


@dataclass
class Export:
    """What `kubectl get workflows,pods,nodes -o json` would print."""

    workflows: list[Fields] = field(default_factory=list)
    pods: list[Fields] = field(default_factory=list)
    nodes: list[Fields] = field(default_factory=list)

    def run(self, name: str, steps: Sequence[Step], ended: int | None, phase: str = "Succeeded") -> Fields:
        """Add a run of a pipeline: its workflow and all of its pods."""
        nodes: dict[str, Fields] = {name: _node(name, "DAG", 0)}
        self._pod_node(nodes, name, "root-driver", Step("root-driver", [Try(0, 0, 1, 2)]), Try(0, 0, 1, 2))
        nodes[f"{name}.root"] = _node(f"{name}.root", "DAG", 2)
        _link(nodes, name, f"{name}.root-driver")
        _link(nodes, f"{name}.root-driver", f"{name}.root")
        for step in steps:
            self._step(nodes, name, step)
        status = {"phase": phase if ended is not None else "Running", "startedAt": at(0), "finishedAt": at(ended)}
        metadata = {"name": name, "generateName": name[:-5], "namespace": "team", "creationTimestamp": at(0)}
        workflow = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": metadata,
            "spec": {"entrypoint": "entrypoint", "templates": [DRIVER]},
            "status": {**status, "nodes": nodes},
        }
        self.workflows.append(workflow)
        return workflow

    def node(self, name: str, gpus: int, cpus: int = 8) -> None:
        """Add a node that was there before second 0."""
        allocatable = {"cpu": str(cpus), "memory": "64Gi", "nvidia.com/gpu": str(gpus), "pods": "110"}
        metadata = {"name": name, "creationTimestamp": at(-86_400)}
        conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": at(300)}]
        body = {"spec": {}, "status": {"allocatable": allocatable, "conditions": conditions}}
        self.nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata, **body})

    def other_pod(self, name: str, gpus: int, scheduled: int, ended: int | None) -> None:
        """Add a pod that belongs to no pipeline."""
        step = Step(name, [], gpus=gpus)
        self.pods.append(_pod(name, {}, {}, step, Try(scheduled, scheduled, scheduled, ended)))

    def own_pod(self, name: str, labels: Fields, one: Try, gpus: int = 1, owner: str = "", **notes: str) -> Fields:
        """Add a pod with EGS's labels, each without its prefix, and annotations so, too. owner: uid of its Job."""
        said = {f"egs.io/{key}": value for key, value in notes.items()}
        pod = _pod(
            name, {f"egs.io/{key}": value for key, value in labels.items()}, said, Step(name, [], gpus=gpus), one
        )
        pod["metadata"]["uid"] = f"uid-{name}"
        if owner:
            by = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner, "controller": True}
            pod["metadata"]["ownerReferences"] = [by]
        if "opened" not in notes and one.scheduled is None:
            pod["spec"]["schedulingGates"] = [{"name": "egs.io/order"}]
        self.pods.append(pod)
        return pod

    def write(self, file: Path, *parts: str) -> Path:
        """As a list of those parts: workflows, pods, nodes; all of them where none is named."""
        items = [one for part in parts or ("workflows", "pods", "nodes") for one in getattr(self, part)]
        listed = {"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}}
        file.write_text(json.dumps(listed))
        return file

    def _step(self, nodes: dict[str, Fields], run: str, step: Step) -> None:
        path, made = f"{run}.root.{step.name}", step.tries[0].made
        driver = Try(made - 2, made - 2, made - 1, made)
        self._pod_node(nodes, run, f"root.{step.name}-driver", Step("driver", [driver]), driver)
        nodes[path] = _node(path, "DAG", made)
        for before in [f"{_last(nodes, run, name)}" for name in step.after] or [f"{run}.root"]:
            _link(nodes, before, f"{path}-driver")
        _link(nodes, f"{path}-driver", path)
        if len(step.tries) == 1:
            self._pod_node(nodes, run, f"root.{step.name}.executor", step, step.tries[0])
            _link(nodes, path, f"{path}.executor")
            return
        nodes[f"{path}.executor"] = _node(f"{path}.executor", "Retry", made)
        _link(nodes, path, f"{path}.executor")
        for number, one in enumerate(step.tries):
            self._pod_node(nodes, run, f"root.{step.name}.executor({number})", step, one)
            _link(nodes, f"{path}.executor", f"{path}.executor({number})")

    def _pod_node(self, nodes: dict[str, Fields], run: str, path: str, step: Step, one: Try) -> None:
        name = f"{run}.{path}"
        node = nodes[name] = {**_node(name, "Pod", one.made), "finishedAt": at(one.ended), "phase": _phase(one)}
        node["templateName"] = "system-container-impl" if "executor" in path else "system-container-driver"
        if one.scheduled is not None:
            node["hostNodeName"] = step.node
        if one.ended is not None and one.code is not None:
            held = {"cpu": one.ended - one.code, "memory": 10}
            node["resourcesDuration"] = held | (
                {"nvidia.com/gpu": step.gpus * (one.ended - one.code)} if step.gpus else {}
            )
        if "executor" in path:
            patch = {"containers": [{"name": "main", "resources": _resources(step)}]}
            node["inputs"] = {"parameters": [{"name": "pod-spec-patch", "value": json.dumps(patch)}]}
        annotations = {"workflows.argoproj.io/node-name": name}
        labels = {"workflows.argoproj.io/workflow": run, "pipelines.kubeflow.org/v2_component": "true"}
        self.pods.append(_pod(f"{run}-{len(self.pods)}", labels, annotations, step, one))


DRIVER = {"name": "system-container-driver", "container": {"name": "", "resources": {"requests": {"cpu": "100m"}}}}


def at(second: int | None) -> str | None:
    """A second as Kubernetes writes a time."""
    return None if second is None else (BEGIN + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _phase(one: Try) -> str:
    if one.ended is None:
        return "Running" if one.code is not None else "Pending"
    return "Failed" if one.failed else "Succeeded"


def _node(name: str, kind: str, started: int) -> Fields:
    shown = name.rpartition(".")[2]
    return {"id": name, "name": name, "displayName": shown, "type": kind, "startedAt": at(started), "children": []}


def _link(nodes: dict[str, Fields], parent: str, child: str) -> None:
    nodes[parent]["children"].append(child)


def _last(nodes: dict[str, Fields], run: str, step: str) -> str:
    """The node that Argo ties what follows to: of a retried step its last attempt."""
    executor = f"{run}.root.{step}.executor"
    return nodes[executor]["children"][-1] if nodes[executor]["type"] == "Retry" else executor


def _resources(step: Step) -> Fields:
    if step.gpus:
        return {"limits": {"cpu": "2", "nvidia.com/gpu": str(step.gpus)}, "requests": {"cpu": "1500m", "memory": "1Gi"}}
    return {"requests": {"cpu": "100m"}}


def _pod(name: str, labels: Fields, annotations: Fields, step: Step, one: Try) -> Fields:
    """As the API server gives it; the wait container of Argo needs nothing here."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(one.scheduled)}
    if one.scheduled is None:
        scheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": at(one.made),
        }
    conditions = [scheduled]
    if one.disrupted:
        gone = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        conditions.append({**gone, "lastTransitionTime": at(one.ended)})
    state: Fields = {"waiting": {"reason": "ContainerCreating"}}
    if one.code is not None:
        state = {"running": {"startedAt": at(one.code)}}
        if one.ended is not None:
            exit_code = 1 if one.failed else 0
            state = {"terminated": {"startedAt": at(one.code), "finishedAt": at(one.ended), "exitCode": exit_code}}
    metadata = {"name": name, "namespace": "team", "creationTimestamp": at(one.made)}
    spec: Fields = {"containers": [{"name": "main", "resources": _resources(step)}, {"name": "wait", "resources": {}}]}
    if one.scheduled is not None:
        spec["nodeName"] = step.node
    statuses = [{"name": "wait", "state": {}}, {"name": "main", "state": state}] if one.scheduled is not None else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels, "annotations": annotations},
        "spec": spec,
        "status": {"phase": _phase(one), "conditions": conditions, "containerStatuses": statuses},
    }


def two_runs() -> Export:
    """Two runs of one pipeline on one GPU. In the second, `fit` waits from 20 to 120 for it, and pulls its image till
    130; in the first, `fit` was preempted at 50 and had it again from 60, so from 50 to 60 it was idle."""
    export = Export()
    export.node("gpu-1", gpus=1)
    first_tries = [Try(14, 14, 20, 50, failed=True, disrupted=True), Try(60, 60, 70, 120)]
    prepare = Step("prepare", [Try(4, 4, 5, 12)])
    first = Step("fit", first_tries, after=["prepare"], gpus=1)
    export.run("train-x7k2p", [prepare, first, Step("report", [Try(122, 122, 123, 130)], after=["fit"])], 130)
    second = Step("fit", [Try(20, 120, 130, 180)], after=["prepare"], gpus=1)
    export.run("train-b9d4z", [prepare, second], 182)
    return export
