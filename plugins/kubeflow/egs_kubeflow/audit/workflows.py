"""Argo's Workflow as a run: its tasks, what each waited for, and its attempts as far as Argo keeps them.

A Workflow has when a pod was made and when it had ended, not when it got its resources. Where the pod itself is not in
the export, a GPU task's start is its end less its GPU seconds (`resourcesDuration`); of other tasks it is not known.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.flavor_names import is_gpu_resource
from egs_kubeflow.audit.amounts import Held, held_by
from egs_kubeflow.audit.pods import seconds
from egs_kubeflow.audit.seen import PodSeen, Seen, name_of, task_of
from egs_kubeflow.audit.shapes import PodSpec, Workflow, WorkflowNode

OUTCOMES = {"Succeeded": "succeeded", "Failed": "failed", "Error": "failed"}
PATCH = "pod-spec-patch"  # what KFP's driver tells the executor's pod to hold
MOST_NODES_BYTES = 256 << 20
Nodes = dict[str, WorkflowNode]


def take_workflow(seen: Seen, workflow: Workflow) -> None:
    """Add a workflow. Raises InputError for nodes that cannot be read or that wait for each other."""
    meta, status = workflow.metadata, workflow.status
    namespace, place = meta.namespace or "", f"workflow {meta.name}"
    run = seen.run(f"{namespace}/{meta.name}".lstrip("/"), meta.name, namespace)
    if meta.generate_name:
        run.name = meta.generate_name.rstrip("-")
    run.submitted_s = seconds(meta.creation_timestamp or status.started_at)
    run.ended_s = seconds(status.finished_at)
    run.outcome = _outcome(status.phase, "", workflow) if run.ended_s is not None else ""
    nodes = status.nodes or _decompressed(status.compressed_nodes or "", place)
    run.offloaded = not nodes and bool(status.offload_node_status_version)
    run.parents = None if run.offloaded else _parents(nodes, meta.name, place)
    for node in nodes.values():
        if node.type == "Pod":
            one = _attempt(node, workflow, run.key)
            one.name = name_of(run, one.task)
            seen.pods[one.run, one.task, one.attempt] = one
    times = [run.submitted_s, run.ended_s]
    times += [seconds(time) for node in nodes.values() for time in (node.started_at, node.finished_at)]
    seen.now_s = max([seen.now_s, *(time for time in times if time is not None)])


def _attempt(node: WorkflowNode, workflow: Workflow, run: str) -> PodSeen:
    task, attempt = task_of(node.name, workflow.metadata.name)
    one = PodSeen(run, task, attempt, ready_s=seconds(node.started_at), node=node.host_node_name or "")
    one.cpus, one.gpus, one.memory_bytes = _held(node, workflow)
    one.ended_s = seconds(node.finished_at)
    one.outcome = _outcome(node.phase, node.message or "", workflow)
    one.scheduled_s, one.start_known = one.ready_s, False
    gpu_s = sum(amount for name, amount in (node.resources_duration or {}).items() if is_gpu_resource(name))
    if one.gpus and gpu_s > 0 and one.ended_s is not None:
        one.scheduled_s, one.start_known = one.ended_s - gpu_s / one.gpus, True
    if not (one.node or node.resources_duration or one.outcome == "succeeded"):
        one.scheduled_s, one.start_known = None, True  # it never got to a node
    return one


def _outcome(phase: str | None, message: str, workflow: Workflow) -> str:
    outcome = OUTCOMES.get(phase or "", "")
    if outcome == "failed" and workflow.spec.shutdown:
        return "aborted"
    return "preempted" if phase == "Error" and "pod deleted" in message else outcome


def _held(node: WorkflowNode, workflow: Workflow) -> Held:
    """From the driver's patch; else from the template."""
    place = f"workflow {workflow.metadata.name}: node {node.name}"
    for parameter in (node.inputs.parameters if node.inputs else None) or []:
        if parameter.name == PATCH and parameter.value:
            return held_by(_patch(parameter.value, f"{place}: {PATCH}"), place)
    stored = workflow.status.stored_workflow_template_spec
    templates = [*(workflow.spec.templates or []), *((stored.templates if stored else None) or [])]
    template = next((one for one in templates if one.name == node.template_name), None)
    container = (template.container or template.script) if template else None
    return held_by(PodSpec(containers=[container] if container else []), place)


def _patch(value: Any, place: str) -> PodSpec:
    try:
        return msgspec.json.decode(str(value), type=PodSpec)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(place, f"is no patch of a pod: {error}") from None


def _decompressed(text: str, place: str) -> Nodes:
    """`compressedNodes`: gzip in base64."""
    if not text:
        return {}
    unzip = zlib.decompressobj(wbits=31)
    try:
        data = unzip.decompress(base64.b64decode(text, validate=True), MOST_NODES_BYTES)
        if unzip.unconsumed_tail:
            raise InputError(f"{place}: compressedNodes", "is too large", f"at most {MOST_NODES_BYTES >> 20} MiB")
        return msgspec.json.decode(data, type=Nodes)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{place}: compressedNodes", f"cannot be read: {error}") from None


# --- edges ------------------------------------------------------------------------------------------------------------


def _parents(nodes: Nodes, workflow: str, place: str) -> dict[str, tuple[str, ...]]:
    """The tasks with a pod that each task waited for; nodes without one (a DAG, a skipped task) pass on theirs."""
    above: dict[str, list[str]] = {key: [] for key in nodes}
    for key, node in nodes.items():
        for child in node.children or []:
            if child in above:  # Argo may name a child before it has made it
                above[child].append(key)
    try:
        order = list(TopologicalSorter(above).static_order())
    except CycleError as error:
        raise InputError(place, f"its nodes wait for each other: {', '.join(map(str, error.args[1][:4]))}") from None
    passed: dict[str, tuple[str, ...]] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for key in order:
        node = nodes[key]
        found = tuple(dict.fromkeys(task for parent in above[key] for task in passed[parent]))
        passed[key] = found
        if node.type == "Pod":
            task, _ = task_of(node.name, workflow)
            kept = [one for one in (*parents.get(task, ()), *found) if one != task]
            parents[task] = tuple(dict.fromkeys(kept))
            passed[key] = (task,)
    return parents
