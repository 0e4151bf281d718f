"""The fields that an audit reads of Argo's Workflow and of Kubernetes' Pod and Node, under their own names.

Fields that are not named here are passed over; a named one of another type is an error of msgspec's, with its place.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]
Amounts = dict[str, str | int | float]


class _Shape(msgspec.Struct, rename="camel", frozen=True):
    """Base of them all: Kubernetes writes camelCase, and null for what is not there."""


class Owner(_Shape, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(_Shape, frozen=True):
    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    owner_references: list[Owner] | None = None
    generate_name: str | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Resources(_Shape, frozen=True):
    limits: Amounts | None = None
    requests: Amounts | None = None


class Container(_Shape, frozen=True):
    """restart_policy: Always for an init container that stays beside the others."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class Named(_Shape, frozen=True):
    name: str = ""


class PodSpec(_Shape, frozen=True):
    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    scheduling_gates: list[Named] | None = None
    resource_claims: list[Named] | None = None


class Stretch(_Shape, frozen=True):
    """A container's state `running` (without an end) or `terminated`. reason: of its end, as `OOMKilled`."""

    started_at: Time | None = None
    finished_at: Time | None = None
    reason: str | None = None


class State(_Shape, frozen=True):
    running: Stretch | None = None
    terminated: Stretch | None = None


class ContainerStatus(_Shape, frozen=True):
    name: str = ""
    state: State | None = None


class Condition(_Shape, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: Time | None = None
    last_heartbeat_time: Time | None = None


class PodStatus(_Shape, frozen=True):
    phase: str | None = None
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Shape, frozen=True, tag_field="kind", tag="Pod"):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(_Shape, frozen=True):
    unschedulable: bool | None = None


class NodeStatus(_Shape, frozen=True):
    allocatable: Amounts | None = None
    conditions: list[Condition] | None = None


class Node(_Shape, frozen=True, tag_field="kind", tag="Node"):
    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Parameter(_Shape, frozen=True):
    name: str = ""
    value: Any = None


class Inputs(_Shape, frozen=True):
    parameters: list[Parameter] | None = None


class WorkflowNode(_Shape, frozen=True):
    """One entry of `status.nodes`. started_at: of a pod, when Argo made it, not when its container started.

    resources_duration: seconds times amount of each resource, over the pod's containers.
    """

    name: str
    type: str
    phase: str | None = None
    message: str | None = None
    template_name: str | None = None
    host_node_name: str | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    resources_duration: dict[str, float] | None = None
    inputs: Inputs | None = None
    children: list[str] | None = None


class Template(_Shape, frozen=True):
    name: str = ""
    container: Container | None = None
    script: Container | None = None


class WorkflowSpec(_Shape, frozen=True):
    shutdown: str | None = None
    templates: list[Template] | None = None


class WorkflowStatus(_Shape, frozen=True):
    phase: str | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    nodes: dict[str, WorkflowNode] | None = None
    compressed_nodes: str | None = None
    offload_node_status_version: str | None = None
    stored_workflow_template_spec: WorkflowSpec | None = None


class Workflow(_Shape, frozen=True, tag_field="kind", tag="Workflow"):
    metadata: Meta
    spec: WorkflowSpec = WorkflowSpec()
    status: WorkflowStatus = WorkflowStatus()


Exported = Workflow | Pod | Node


class ObjectList(_Shape, frozen=True, tag_field="kind", tag="List"):
    """As `kubectl get` prints several objects, of one kind or of several."""

    items: list[Exported] | None = None
