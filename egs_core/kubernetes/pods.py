"""Pods and nodes as values, from the objects of the API server. What cannot be read counts as not stated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from egs_core.flavor_names import is_gpu_resource
from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.makers import NOBODY, Maker, maker_of
from egs_core.kubernetes.objects import (
    Object,
    items,
    length_s,
    number,
    object_of,
    part,
    quantity,
    seconds_of,
    text,
)
from egs_core.kubernetes.readings import Reading
from egs_core.kubernetes.stated import NOTHING, Stated, stated_of

Counts = tuple[tuple[str, int], ...]
"""How many of each resource, by its name."""
OF_DRIVERS = ""
"""In the place of a resource's name: devices that are claimed (DRA)."""
OVER = ("Succeeded", "Failed")
MOST_PRIORITY = 499
NOTEBOOK = "notebook"


class Facts(msgspec.Struct, frozen=True, eq=False):
    """What a selector may ask of a device. attributes, capacity: by domain and name; one object a device, which is what
    makes it another one."""

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Any]]


class Device(msgspec.Struct, frozen=True, eq=False):
    """One device that a driver offers (DRA). name: unique in the cluster; flavor: what it is, as people say it;
    counters: those that it shares with others; taints: key, value, effect."""

    name: str
    flavor: str
    facts: Facts
    memory_bytes: int = 0
    counters: tuple[str, ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()


class Pod(msgspec.Struct, frozen=True):
    """One pod. run: of its workload, unique in the cluster; "" where the pod is none of ours. created, release_by,
    opened_at: Unix time; 0: not stated. opened_for: why its gate was opened, as `gates` has it. rank_s, predicted_s:
    as its labels say. where: what it says of nodes. workflow: the one of Argo that made it, argo_node: as what;
    ran_s: how long its containers ran; is_traced: rank_s and predicted_s are of its run's graph, and so is
    rest_gpu_s, how long GPUs are needed behind it. waits: why, as was written into it at waits_at. started, ended:
    Unix time, 0: not yet; deadline_s: after so long it ends, from started on. job: that made it and may make it
    again; index: of that. may_restart: for all that is known of it. paused: what was paused with it, since when and
    by whom; is_paused: it is, or its stage or run is (`with_pauses`); resumed_at: when that was taken back. images,
    pull_secrets: what its containers are made of, and with whose rights that is pulled (`images.pod_with_images`
    alone); reading: what its task reads when it begins (`readers` alone). resources: GPUs and parts of them that it
    asks device plugins for; is_placeholder: by its label and its class, it stands for others. refusal: the scheduler
    has no node for it, the words it says that in. claims: names of its ResourceClaims; lacks_claims: some of them are
    not made yet; claimed: how many devices it asks for by them. Of several kinds `shape` has the GPUs of the first
    alone (claimed and that: `claiming` alone). maker: what made it, which may say its gang (`grouping`). has_task: its
    task is called the same in all runs; learned_from: so many pods of earlier runs say how long it takes, 0: its labels
    do (`learned.as_learned` alone)."""

    uid: str
    name: str
    namespace: str
    run: str = ""
    task: str = ""
    phase: str = ""
    node: str = ""
    is_gated: bool = False
    has_other_gates: bool = False
    is_leaving: bool = False
    created: float = 0.0
    release_by: float = 0.0
    opened_at: float = 0.0
    opened_for: str = ""
    priority: int = 0
    own_priority: int = 0
    rank_s: float | None = None
    predicted_s: float | None = None
    gang: str = ""
    gang_size: int = 0
    queue: str = ""
    shape: Shape = Shape(0)
    where: str = ""
    workflow: str = ""
    argo_node: str = ""
    ran_s: float | None = None
    is_traced: bool = False
    rest_gpu_s: float = 0.0
    waits: str = ""
    waits_at: float = 0.0
    stage: str = ""
    limits: Stated = NOTHING
    started: float = 0.0
    ended: float = 0.0
    deadline_s: int | None = None
    job: str = ""
    index: str = ""
    may_restart: bool = True
    paused: str = ""
    is_paused: bool = False
    resumed_at: float = 0.0
    images: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    reading: Reading | None = None
    resources: Counts = ()
    is_placeholder: bool = False
    refusal: str = ""
    claims: tuple[str, ...] = ()
    lacks_claims: bool = False
    claimed: int = 0
    maker: Maker = NOBODY
    has_task: bool = False
    learned_from: int = 0

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def holds(self) -> bool:
        """Whether it has its place on a node."""
        return bool(self.node) and not self.is_over

    @property
    def is_ours(self) -> bool:
        return bool(self.run)

    @property
    def devices(self) -> Counts:
        """Of all kinds that it asks for."""
        return ((OF_DRIVERS, self.claimed), *self.resources) if self.claimed else self.resources

    @property
    def gpus(self) -> int:
        """How many these are."""
        return sum(count for _, count in self.devices)

    @property
    def rank(self) -> int:
        """What the user says of its importance: the priority class first, which the scheduler goes by too."""
        own = max(-MOST_PRIORITY, min(MOST_PRIORITY, self.own_priority))
        return self.priority * (2 * MOST_PRIORITY + 1) + own


class Node(msgspec.Struct, frozen=True):
    """One node: what pods may ask for, its labels, the taints that keep pods off, and whether it takes new ones.
    images: those that it has, as far as it lists them (`images.node_with_images` alone). resources: its GPUs and parts
    of them that device plugins offer. devices: those that a driver offers, like ones together; held: of each, uid of
    the pod that has it, "" of nobody known, None: it is free; is_apart: it is in a cluster with several kinds of GPUs,
    so that each goes by its kind (the three `claiming` alone)."""

    name: str
    cpu_milli: int = 0
    resources: Counts = ()
    memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()
    is_open: bool = True
    images: frozenset[str] = frozenset()
    devices: tuple[Device, ...] = ()
    held: tuple[str | None, ...] = ()
    is_apart: bool = False

    @property
    def gpus(self) -> int:
        return len(self.devices) + sum(count for _, count in self.resources)

    @property
    def flavors(self) -> tuple[str, ...]:
        """Of each GPU: the name of its resource, of a driver's its flavor."""
        by_plugin = [name for name, count in self.resources for _ in range(count)]
        return (*by_plugin, *(device.flavor for device in self.devices))


def pod_of(raw: Object) -> Pod:
    """A pod as the API server has it."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    labels, notes = part(meta, "labels"), part(meta, "annotations")
    gates = [text(one, "name") for one in items(spec, "schedulingGates")]
    waits_at, _, waits = text(notes, names.WAITS).partition(" ")
    opened_at, _, opened_for = text(notes, names.OPENED).partition(" ")
    hints, deadline_s = hints_of(notes), number(spec.get("activeDeadlineSeconds"))
    asked, claims, maker = asked_of(spec), _claims(spec, status), maker_of(labels)
    return Pod(
        uid=text(meta, "uid"),
        name=text(meta, "name"),
        namespace=text(meta, "namespace"),
        run=_run_of(meta, labels),
        task=text(labels, names.TASK) or maker.task or text(meta, "name"),
        phase=text(status, "phase"),
        node=text(spec, "nodeName"),
        is_gated=names.GATE in gates,
        has_other_gates=any(gate != names.GATE for gate in gates),
        is_leaving="deletionTimestamp" in meta,
        created=seconds_of(meta.get("creationTimestamp")),
        release_by=seconds_of(notes.get(names.RELEASE_BY)),
        opened_at=seconds_of(opened_at),
        opened_for=opened_for,
        priority=int(number(spec.get("priority")) or 0),
        own_priority=int(number(hints.get("priority")) or 0),
        rank_s=length_s(labels.get(names.RANK)),
        predicted_s=length_s(labels.get(names.PREDICTED_S)),
        gang=text(labels, names.GANG),
        gang_size=int(number(notes.get(names.GANG_SIZE)) or 0),
        queue=text(labels, names.QUEUE),
        shape=_shape(asked),
        where=_where(spec),
        workflow=text(labels, names.ARGO_RUN),
        argo_node=text(notes, names.ARGO_NODE),
        ran_s=_ran_s(status),
        waits=waits,
        waits_at=seconds_of(waits_at),
        stage=text(hints, "stage"),
        limits=stated_of(notes, hints),
        started=seconds_of(status.get("startTime")),
        ended=_ended(status),
        deadline_s=None if deadline_s is None else int(deadline_s),
        job=_job(meta) if text(spec, "restartPolicy") == "Never" else "",
        index=text(notes, names.JOB_INDEX),
        paused=text(notes, names.PAUSED),
        resumed_at=seconds_of(notes.get(names.RESUMED)),
        resources=gpus_of(asked),
        is_placeholder=names.PLACEHOLDER in labels and text(spec, "priorityClassName") == names.PLACEHOLDER_CLASS,
        refusal=_refusal(status),
        claims=tuple(name for name in claims if name),
        lacks_claims="" in claims,
        maker=maker,
        has_task=bool(text(labels, names.TASK) or maker.part),
    )


def node_of(raw: Object) -> Node:
    """A node as the API server has it. One that is not ready, or is cordoned, takes nothing new."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    offered = {str(name): quantity(amount) for name, amount in part(status, "allocatable").items()}
    ready = [text(one, "status") for one in items(status, "conditions") if text(one, "type") == "Ready"]
    taints = [(text(t, "key"), text(t, "value"), text(t, "effect")) for t in items(spec, "taints")]
    return Node(
        name=text(meta, "name"),
        cpu_milli=math.floor(1000 * offered.get("cpu", 0.0)),
        resources=gpus_of(offered),
        memory_bytes=math.floor(offered.get("memory", 0.0)),
        labels=tuple(sorted((str(key), str(value)) for key, value in part(meta, "labels").items())),
        taints=tuple(sorted(taint for taint in taints if taint[2] in ("NoSchedule", "NoExecute"))),
        is_open=not spec.get("unschedulable") and ready != ["False"] and ready != ["Unknown"],
    )


def run_name(labels: Object) -> str:
    """What a user calls the run, by our label or a maker's; "": by nothing of the pod itself."""
    return text(labels, names.RUN) or text(labels, names.ARGO_RUN) or maker_of(labels).run


def _run_of(meta: Object, labels: Object) -> str:
    """Of which run it is: by our label, else by what makes its pods, else by itself."""
    workload = text(labels, names.WORKLOAD)
    if not workload or names.PRELOAD in labels:
        return ""
    owner = next((text(one, "uid") for one in items(meta, "ownerReferences")), "")
    name = run_name(labels) or owner or text(meta, "uid")
    if maker_of(labels).is_notebook:
        name = f"{NOTEBOOK} {name}"  # as no label can say: no other pod comes into its queue with it
    return "/".join((text(meta, "namespace"), workload, name))


def _job(meta: Object) -> str:
    owners = [one for one in items(meta, "ownerReferences") if one.get("controller")]
    return next((text(one, "name") for one in owners if text(one, "kind") == "Job"), "")


def with_pauses(pods: Mapping[str, Pod]) -> dict[str, Pod]:
    """By uid, those that wait and are paused marked so: by themselves, or as any pod of their stage or run says. One
    that has ended says it too, as long as it is listed."""
    found = dict(pods)
    said = [(pod.paused.partition(" ")[0], pod) for pod in pods.values() if pod.paused and pod.is_ours]
    runs = {pod.run for what, pod in said if what == "run"}
    stages = {(pod.run, pod.stage) for what, pod in said if what == "stage"}
    for uid, pod in pods.items() if said else ():
        if pod.is_gated and pod.is_ours and (pod.paused or pod.run in runs or (pod.run, pod.stage) in stages):
            found[uid] = msgspec.structs.replace(pod, is_paused=True)
    return found


def _refusal(status: Object) -> str:
    """Without numbers and order, which are of how many nodes. "": it is none. One that is nominated for a node waits
    for others that leave it: it is as good as there."""
    said = [one for one in items(status, "conditions") if text(one, "type") == "PodScheduled"]
    no = [one for one in said if text(one, "status") == "False" and text(one, "reason") == "Unschedulable"]
    if not no or status.get("nominatedNodeName"):
        return ""
    return " ".join(sorted({"Unschedulable", *re.findall(r"[^\W\d]+", text(no[0], "message"))}))


def _ended(status: Object) -> float:
    """When its last container ended, of a pod that is over."""
    if text(status, "phase") not in OVER:
        return 0.0
    ended = [part(part(one, "state"), "terminated") for one in items(status, "containerStatuses")]
    return max((seconds_of(one.get("finishedAt")) for one in ended), default=0.0)


def _ran_s(status: Object) -> float | None:
    """From the first container's start to the last one's end, of a pod that has succeeded."""
    ended = [part(part(one, "state"), "terminated") for one in items(status, "containerStatuses")]
    begun = [at for at in (seconds_of(one.get("startedAt")) for one in ended) if at]
    if text(status, "phase") != "Succeeded" or not begun:
        return None
    return max(0.0, max(seconds_of(one.get("finishedAt")) for one in ended) - min(begun))


def shape_of(spec: Object) -> Shape:
    """What it asks the scheduler for."""
    return _shape(asked_of(spec))


def _shape(asked: Mapping[str, float]) -> Shape:
    cpu_milli, gpus = math.ceil(1000 * asked.get("cpu", 0.0) - 1e-6), sum(count for _, count in gpus_of(asked))
    return Shape(cpu_milli, 1000 * gpus, math.ceil(asked.get("memory", 0.0)))


def gpus_of(amounts: Mapping[str, float]) -> Counts:
    """Of amounts by resource those of GPUs and parts of them, by name."""
    found = ((name, math.ceil(amount)) for name, amount in amounts.items() if is_gpu_resource(name))
    return tuple(sorted((name, count) for name, count in found if count))


def asked_of(spec: Object) -> dict[str, float]:
    """What it asks the scheduler for, by resource: containers together, or the most that is needed before them; and its
    overhead."""
    found: dict[str, float] = {}
    before: list[dict[str, float]] = []
    for one in items(spec, "initContainers"):
        if one.get("restartPolicy") == "Always":
            found = _sum(found, _requests(one))
        else:
            before.append(_sum(found, _requests(one)))
    for one in items(spec, "containers"):
        found = _sum(found, _requests(one))
    for most in before:
        found |= {name: max(amount, found.get(name, 0.0)) for name, amount in most.items()}
    # of the pod as a whole: it holds in the place of the sum; the API server has written what its limits mean for it
    stated = part(part(spec, "resources"), "requests")
    found |= {name: quantity(stated[name]) for name in ("cpu", "memory") if name in stated}
    return _sum(found, part(spec, "overhead"))


def _requests(container: Object) -> Object:
    stated = part(container, "resources")
    return {**part(stated, "limits"), **part(stated, "requests")}


def _sum(found: Mapping[str, float], more: Object) -> dict[str, float]:
    return {**found, **{str(name): found.get(name, 0.0) + quantity(amount) for name, amount in more.items()}}


def _claims(spec: Object, status: Object) -> list[str]:
    """Names of its ResourceClaims, "" for one that is not made yet; also of the one that the scheduler makes for a
    limit."""
    made = {text(one, "name"): text(one, "resourceClaimName") for one in items(status, "resourceClaimStatuses")}
    found = []
    for one in items(spec, "resourceClaims"):
        name = text(one, "name")
        if stated := text(one, "resourceClaimName") or made.get(name, ""):
            found.append(stated)
        elif name not in made:  # of one that is not needed the status has no name
            found.append("")
    extended = text(part(status, "extendedResourceClaimStatus"), "resourceClaimName")
    return [*found, extended] if extended else found


def _where(spec: Object) -> str:
    """What it says of nodes, the same text for equal demands."""
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    required = part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    tolerations = [one for one in items(spec, "tolerations") if not text(one, "key").startswith("node.kubernetes.io/")]
    stated = {
        "select": part(spec, "nodeSelector"),
        "terms": items(required, "nodeSelectorTerms"),
        "tolerate": tolerations,
    }
    return json.dumps({key: value for key, value in stated.items() if value}, sort_keys=True, default=str)


def hints_of(notes: Object) -> Object:
    """What compilers write of a task, from its annotations; empty where that cannot be read."""
    return object_of(text(notes, names.HINTS)) or {}
