"""Which preload pods are made now, and which of those that are there have to go. All that is known of one is in it.

    a pod will start ──► on that node, and not its image ──► due ──► one preload pod for the node and the image
                         its image, and what it reads was not read there ──► due ──► one that reads it
                                                                       │
      the image is there, or cannot be pulled ◄── removed ─────────────┤
      nothing is to start there with it any more ◄── withdrawn ────────┤
      what it is for is deleted ◄── Kubernetes takes it away, too ─────┘

A pod has an image when a container of it has started, or could not be started for another reason than the image: that
is pulled first. So an image needs nothing in it: the command `true`, where there is one, ends at once. Files and
modules are read by a container (`readers`) that has to end well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.kubernetes import names, readers
from egs_core.kubernetes.foreseen import Start, Wanted, is_opened
from egs_core.kubernetes.images import images_of
from egs_core.kubernetes.objects import Object, items, part, seconds_of, text
from egs_core.kubernetes.places import NAME_FIELD
from egs_core.kubernetes.pods import Pod

AT_ONCE, ON_ONE_NODE = 20, 2
"""So many are there at most, in all and on one node: a kubelet pulls one image after the other."""
LEAD_FACTOR, LEAD_S = 1.2, 5.0
"""A pull takes a little longer than believed, and its pod has to be scheduled."""
SOONER = 0.7
"""A start may be so much sooner than it is predicted: what is in ten minutes may be in seven."""
DEADLINE_S = 600
"""What has not been pulled by then is given up."""
AGAIN_S, FAILED_S = 3600.0, 600.0
"""So long it is believed that a node keeps an image that it does not list; and so long one is not tried again that it
could not pull."""
READ_AGAIN_S = 600.0
"""So long it is believed that what was read is still in a node's memory."""
NAME = "preload"
NOBODY = 65534
LIMITS = {"cpu": "100m", "memory": "64Mi"}
RESOURCES = {"requests": {"cpu": "0", "memory": "0"}, "limits": LIMITS}
"""It asks for nothing, so that it fits on a node that is full."""
COMMAND = ["true"]
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
MOST_IMAGES = 10
"""In one pod; of a task with more only the first."""
MOST_SAID = 200
LOADING, LOADED, FAILED = "loading", "loaded", "failed"
_NOT_PULLED = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_NOT_YET = ("", "ContainerCreating", "PodInitializing")
NO_SIDECAR = "sidecar.istio.io/inject"
"""A sidecar would bring volumes and never end."""


class Preload(msgspec.Struct, frozen=True):
    """A preload pod of the controller's. node: for which it is made; loads: images, or what it reads (`Reading.key`);
    is_there: it has its place on that node; took_s: how long that has taken, of one that has loaded them; said: why
    something could not be read."""

    uid: str
    name: str
    namespace: str
    node: str
    loads: tuple[str, ...]
    state: str = LOADING
    created: float = 0.0
    is_there: bool = False
    is_leaving: bool = False
    took_s: float | None = None
    is_reader: bool = False
    said: str = ""


class Steps(msgspec.Struct, frozen=True):
    """What to do: objects to make, each with the node that it is for; preloads that are over, and that are not wanted
    any more."""

    make: tuple[Start, ...] = ()
    over: tuple[Preload, ...] = ()
    withdraw: tuple[Preload, ...] = ()


def preload_of(raw: Object) -> Preload | None:
    """A preload pod as the API server has it; None for any other pod, whatever its labels say."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    is_ours = text(part(meta, "labels"), names.PRELOAD) == names.BY_CONTROLLER
    if not is_ours or text(spec, "priorityClassName") != names.PRELOAD_CLASS:
        return None
    reading = readers.reading_in(raw)
    state = _state(status, len(items(spec, "containers"))) if reading is None else _read_state(status)
    began, ended = seconds_of(status.get("startTime")), _loaded_at(status)
    return Preload(
        text(meta, "uid"),
        text(meta, "name"),
        text(meta, "namespace"),
        _node_of(spec),
        images_of(spec) if reading is None else (reading.key,),
        state,
        seconds_of(meta.get("creationTimestamp")),
        bool(text(spec, "nodeName")),
        "deletionTimestamp" in meta,
        max(0.0, ended - began) if state == LOADED and began and ended else None,
        reading is not None,
        _said(status) if state == FAILED else "",
    )


def select_steps(
    starts: Sequence[Start],
    there: Collection[Preload],
    had: Mapping[str, Collection[str]],
    pods: Iterable[Pod],
    now: float,
    lead_s: Mapping[tuple[str, ...], float],
    refused: Collection[tuple[str, bool]] = (),
) -> Steps:
    """starts: what is predicted; there: preloads that are there; had: by node, what it has or what is not to be tried
    there; pods: of the cluster. lead_s: by what is loaded, so long before a start it has to be begun. refused: of which
    `kind_of` none is made, so that others have their places."""
    is_late = {one.uid for one in there if one.created + 2 * DEADLINE_S < now}  # no node has taken it
    over = tuple(one for one in there if (one.state != LOADING or one.uid in is_late) and not one.is_leaving)
    at_work = [one for one in there if one not in over and not one.is_leaving]
    still = {(start.node, load) for start in starts for load in start.wanted.loads}
    # Its pod has come to the node, or will in a moment, and waits for the same pull, which a deletion would break off.
    found = [pod for pod in pods if pod.images]
    still |= {(pod.node, load) for pod in found if pod.holds for load in loads_of(pod)}
    still |= {(one.node, load) for pod in found if is_opened(pod) for load in loads_of(pod) for one in at_work}
    unwanted = [one for one in at_work if not any((one.node, load) in still for load in one.loads)]
    loading = {(one.node, load) for one in there if one not in unwanted for load in one.loads}
    by_node: dict[str, int] = {}
    for one in there:
        by_node[one.node] = by_node.get(one.node, 0) + 1
    make: list[Start] = []
    for start in starts:
        wanted, has = start.wanted, had.get(start.node, ())
        lacks = [load for load in wanted.loads if load not in has]
        missing = _first_of(wanted, [load for load in lacks if (start.node, load) not in loading], lacks)
        if not missing.loads or SOONER * (start.at - now) > lead_s[wanted.loads]:
            continue
        if kind_of(missing) in refused:
            continue
        if len(there) + len(make) >= AT_ONCE:
            break
        if by_node.get(start.node, 0) < ON_ONE_NODE:
            make.append(Start(missing, start.node, start.at))
            loading.update((start.node, load) for load in missing.loads)
            by_node[start.node] = by_node.get(start.node, 0) + 1
    return Steps(tuple(make), over, tuple(unwanted))


def _first_of(wanted: Wanted, missing: Collection[str], lacks: Collection[str]) -> Wanted:
    """What is loaded first of what is missing: the images, else what is read in one of them. lacks: also what is on its
    way."""
    images = tuple(image for image in wanted.images if image in missing)[:MOST_IMAGES]
    reads = wanted.reading is not None and wanted.reading.key in missing and not any(i in lacks for i in wanted.images)
    return msgspec.structs.replace(wanted, images=images, reading=wanted.reading if reads else None)


def kind_of(wanted: Wanted) -> tuple[str, bool]:
    """Its namespace, and whether it reads: the API server may refuse preloads of one kind alone."""
    return wanted.namespace, wanted.reading is not None


def loads_of(pod: Pod) -> tuple[str, ...]:
    """What is to be on its node."""
    return pod.images if pod.reading is None else (*pod.images, pod.reading.key)


def lead_of(images: Iterable[str], took_s: Mapping[str, float], pull_s: float, read_s: float = 0.0) -> float:
    """How long before a start its images have to be begun. took_s: by image, what was seen; pull_s: of all others
    together; read_s: what is read after that takes so long."""
    found = list(images)
    seconds = sum(took_s.get(image, 0.0) for image in found) + read_s
    return LEAD_S + LEAD_FACTOR * (seconds + (0.0 if all(image in took_s for image in found) else pull_s))


def horizon(leads: Iterable[float], now: float) -> float:
    """What starts later than this is not looked at: in twice the time in which something is due, so that what is under
    way is not withdrawn, and made again, as predictions move."""
    return now + 2 * max(leads, default=0.0) / SOONER


def made(start: Start, most_bytes: int = 0) -> dict[str, Any]:
    """The pod: one that reads, or that loads images. Its name says what it is for, so that there is one of it. Its
    owner takes it with it, and nothing else adopts it. most_bytes: of files that it may read."""
    wanted, node = start.wanted, start.node
    named = hashlib.sha256("\n".join((node, *sorted(wanted.loads))).encode()).hexdigest()[:16]
    owner = wanted.owner
    reference = {"apiVersion": owner.api, "kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": True}
    labels = {names.PRELOAD: names.BY_CONTROLLER, NO_SIDECAR: "false"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"egs-preload-{named}",
            "namespace": wanted.namespace,
            "labels": labels,
            "ownerReferences": [reference],
        },
        "spec": {
            **without_rights(names.PRELOAD_CLASS, DEADLINE_S),
            **_placed(wanted, node),
            **(
                {"containers": [_container(number, image) for number, image in enumerate(wanted.images)]}
                if wanted.reading is None
                else readers.made(wanted.reading, most_bytes, CONFINED)
            ),
        },
    }


def without_rights(priority_class: str, life_s: int) -> dict[str, Any]:
    """Of the spec of a pod that the controller makes: it may do nothing, and ends by itself."""
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": life_s,
        "terminationGracePeriodSeconds": 0,
        "priorityClassName": priority_class,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _container(number: int, image: str) -> dict[str, Any]:
    return {
        "name": f"{NAME}-{number}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": COMMAND,
        "resources": RESOURCES,
        "securityContext": CONFINED,
    }


def _placed(wanted: Wanted, node: str) -> dict[str, Any]:
    """As the task says, and on this node, by its name: a label may say another one. The scheduler places it."""
    stated = json.loads(wanted.where) if wanted.where else {}
    here = {"key": NAME_FIELD, "operator": "In", "values": [node]}
    terms = [term for term in stated.get("terms") or () if term] or [{}]  # an empty one is met by no node
    both = [{**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": both}}
    found: dict[str, Any] = {"affinity": {"nodeAffinity": required}}
    if stated.get("select"):
        found["nodeSelector"] = stated["select"]
    if stated.get("tolerate"):
        found["tolerations"] = stated["tolerate"]
    if wanted.pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in wanted.pull_secrets]
    return found


def _node_of(spec: Object) -> str:
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    terms = items(part(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms")
    fields = [field for term in terms for field in items(term, "matchFields")]  # ours is the last one of each term
    return next((str(value) for field in reversed(fields) for value in field.get("values") or ()), "")


def _state(status: Object, count: int) -> str:
    states = [part(one, "state") for one in items(status, "containerStatuses")]
    reasons = [text(part(one, "waiting"), "reason") for one in states if "waiting" in one]
    if any(reason in _NOT_PULLED for reason in reasons):
        return FAILED
    has_all = len(states) == count and not any(reason in _NOT_YET for reason in reasons)
    if has_all and states:
        return LOADED
    return FAILED if text(status, "phase") in ("Succeeded", "Failed") else LOADING


def _read_state(status: Object) -> str:
    """Of one that reads: it has to come to its end."""
    states = [part(one, "state") for one in items(status, "containerStatuses")]
    ended = [part(one, "terminated") for one in states if "terminated" in one]
    if ended:
        return FAILED if any(one.get("exitCode") for one in ended) else LOADED
    reasons = [text(part(one, "waiting"), "reason") for one in states if "waiting" in one]
    is_over = text(status, "phase") in ("Succeeded", "Failed")
    return FAILED if is_over or any(reason not in _NOT_YET for reason in reasons) else LOADING


def _said(status: Object) -> str:
    """In one line, by whoever has ended it or keeps it from starting."""
    states = [part(one, "state") for one in items(status, "containerStatuses")]
    ends = [part(one, kind) for one in states for kind in ("terminated", "waiting") if kind in one]
    found = [text(one, "message") or text(one, "reason") for one in [*ends, status]]
    return " ".join(next((one for one in found if one), "").split())[:MOST_SAID]


def _loaded_at(status: Object) -> float:
    """When the last of its containers had its image: where it started or, where it could not, when it ended."""
    found = []
    for one in items(status, "containerStatuses"):
        stated = part(one, "state")
        ended, runs = part(stated, "terminated"), part(stated, "running")
        found.append(max(seconds_of(runs.get("startedAt")), seconds_of(ended.get("finishedAt"))))
    return max(found, default=0.0) if all(found) else 0.0
