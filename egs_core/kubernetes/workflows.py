"""Workflows of Argo as values: which templates there are, what stands before what, and how far a run has come.

Of what a framework compiles to Argo only names are known here: the parameters by which a task's labels come to its pod,
and the role of pods that only prepare others, its drivers. What cannot be read whole is not readable, and no order is
taken from it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import msgspec

from egs_core.flavor_names import is_gpu_resource
from egs_core.kubernetes import names
from egs_core.kubernetes.images import full_name
from egs_core.kubernetes.objects import Object, items, length_s, number, part, quantity, seconds_of, text
from egs_core.kubernetes.pods import Counts, hints_of, pod_of
from egs_core.kubernetes.readings import Mount, Reading, reading

OVER = frozenset(("Succeeded", "Failed", "Error", "Skipped", "Omitted"))
DRIVER = "-driver"
"""So the names of drivers end."""
ROLE = "/runtime-role"
"""So the annotation ends that says it."""
LABEL_KEY, LABEL_VALUE = "pod-metadata-label-key", "pod-metadata-label-val"
MOST_BYTES = 64 << 20
"""Of a status that was compressed: who may write a Workflow may write one that grows without end."""
_NEED = re.compile(r"([A-Za-z0-9_-]+)(?:\.[A-Za-z]+)?")
MOST_GPUS = 1000
_ARGUMENT = re.compile(r"\{\{\s*workflow\.parameters\.([A-Za-z0-9_.-]+)\s*\}\}")
_OUTPUT = re.compile(r"\{\{\s*tasks\.([A-Za-z0-9_-]+)\.outputs\.parameters\.([A-Za-z0-9_.-]+)\s*\}\}")


class Loop(msgspec.Struct, frozen=True):
    """How often a step runs: so many times, or as an output of another step of its template will say."""

    count: int | None = None
    step: str = ""
    output: str = ""


class Asks(msgspec.Struct, frozen=True):
    """What the pod of a step will be made of, as its driver is told or its template says: its container's image and
    amounts, of nodes what `Pod.where` says, and what it reads when it begins. gpus: of all kinds; devices: how many of
    each, where their resources are named."""

    image: str = ""
    gpus: float = 0.0
    cpu_milli: int = 0
    memory_bytes: int = 0
    where: str = ""
    pull_secrets: tuple[str, ...] = ()
    devices: Counts = ()
    reading: Reading | None = None


NOTHING = Asks()


class Step(msgspec.Struct, frozen=True):
    """A task of a DAG template. needs: names that its condition mentions; on_exit: a template that runs at its end;
    predicted_s: as the label says that its pod will have."""

    name: str
    template: str
    needs: tuple[str, ...] = ()
    loop: Loop | None = None
    on_exit: str = ""
    predicted_s: float | None = None
    asks: Asks = NOTHING


class Template(msgspec.Struct, frozen=True):
    """steps: of a DAG; None: one pod, or what needs none. at_once: so many at the same time; 0: any number. retries: so
    often its pod is made again, whatever has ended it. asks: of its pod, where no driver says it."""

    steps: tuple[Step, ...] | None = None
    at_once: int = 0
    is_driver: bool = False
    predicted_s: float | None = None
    retries: float = 0.0
    asks: Asks = NOTHING


class Node(msgspec.Struct, frozen=True):
    """What has begun. counts: outputs that are numbers, or the lengths of those that are lists."""

    name: str
    template: str = ""
    phase: str = ""
    took_s: float = 0.0
    counts: Mapping[str, int] = {}

    @property
    def is_over(self) -> bool:
        return self.phase in OVER


class Workflow(msgspec.Struct, frozen=True):
    """One run. nodes: by name; is_stopped: somebody has ended it."""

    uid: str
    namespace: str
    name: str
    entry: str = ""
    templates: Mapping[str, Template] = {}
    nodes: Mapping[str, Node] = {}
    is_over: bool = False
    is_readable: bool = False
    is_stopped: bool = False


def workflow_of(raw: Object) -> Workflow:
    """A Workflow as the API server has it. Never raises: what is not understood is not readable."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    who = text(meta, "uid"), text(meta, "namespace"), text(meta, "name")
    if text(status, "phase") in OVER or text(spec, "shutdown"):
        return Workflow(*who, is_over=True, is_stopped=bool(text(spec, "shutdown")))
    if "workflowTemplateRef" in spec:  # what it has come to, as Argo has noted it
        spec = part(status, "storedWorkflowTemplateSpec")
    stated = items(part(spec, "arguments"), "parameters")
    arguments = {text(one, "name"): text(one, "value") for one in stated}
    templates = {text(one, "name"): _template(one, spec, arguments) for one in items(spec, "templates")}
    nodes = nodes_of(status)
    if nodes is None or None in templates.values():
        return Workflow(*who)
    found = {name: one for name, one in templates.items() if one is not None}
    return Workflow(*who, text(spec, "entrypoint"), found, nodes, is_readable=True)


def nodes_of(status: Object) -> dict[str, Node] | None:
    """What has begun, by name; None where it is kept elsewhere, or packed in a way that is not known here."""
    stated = part(status, "nodes")
    if not stated and status.get("offloadNodeStatusVersion"):
        return None
    if not stated and status.get("compressedNodes"):
        unpacked = unpacked_nodes(text(status, "compressedNodes"))
        if unpacked is None:
            return None
        stated = unpacked
    made = [_node(one) for one in stated.values() if isinstance(one, Mapping)]
    return {node.name: node for node in made if node.name}


def unpacked_nodes(packed: str) -> Object | None:
    """Nodes as Argo packs them where a Workflow would be too large: JSON in gzip in base64. Its other ways, zstd and
    brotli, are not read."""
    try:
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        plain = unzip.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
        found = json.loads(plain) if unzip.eof else None
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


# --- templates ---


def _template(raw: Object, spec: Object, arguments: Mapping[str, str]) -> Template | None:
    """None: of a kind that is not followed. spec, arguments: of the Workflow."""
    if any(raw.get(kind) for kind in ("steps", "inline")):
        return None
    meta = part(raw, "metadata")
    if "dag" not in raw:
        roles = [value for key, value in part(meta, "annotations").items() if str(key).endswith(ROLE)]
        is_driver = "driver" in roles or text(raw, "name").endswith(DRIVER)
        likely_s = length_s(part(meta, "labels").get(names.PREDICTED_S))
        retries = _retries(part(raw, "retryStrategy"))
        asks = _sound(_written, raw, spec)
        return Template(is_driver=is_driver, predicted_s=likely_s, retries=retries, asks=asks)
    listed = items(part(raw, "dag"), "tasks")
    drivers = [one for one in listed if text(one, "name").endswith(DRIVER)]
    told = {text(one, "name").removesuffix(DRIVER): _parameters(one) for one in drivers}
    asked = {name: _sound(_asks, parameters, arguments) for name, parameters in told.items()}
    steps = [_step(one, asked.get(text(one, "name"), NOTHING)) for one in listed]
    if None in steps:
        return None
    at_once = number(raw.get("parallelism")) or 0
    return Template(tuple(step for step in steps if step is not None), max(0, int(at_once)))


def _retries(stated: Object) -> float:
    """Under another policy than Always, or with an expression, it is not sure for each way in which a pod may end."""
    if text(stated, "retryPolicy") != "Always" or stated.get("expression"):
        return 0.0
    return math.inf if stated.get("limit") is None else max(0.0, number(stated["limit"]) or 0.0)


def _step(raw: Object, asks: Asks) -> Step | None:
    if raw.get("templateRef") or raw.get("inline") or not text(raw, "template"):
        return None
    listed = raw.get("dependencies")
    needs = [str(one) for one in listed] if isinstance(listed, list) else []
    hook = part(part(raw, "hooks"), "exit")
    return Step(
        text(raw, "name"),
        text(raw, "template"),
        tuple(dict.fromkeys([*needs, *_NEED.findall(text(raw, "depends"))])),
        _loop(raw),
        text(hook, "template") or text(raw, "onExit"),
        length_s(_labels(_parameters(raw)).get(names.PREDICTED_S)),
        asks,
    )


def _sound(make: Callable[..., Asks], *of: Object) -> Asks:
    """Nothing where it makes what no pod could be made of: nobody has validated what Workflows say of nodes and images,
    and JSON has texts that no request can carry."""
    try:
        found = make(*of)
        stated = json.loads(found.where or "{}")
        msgspec.json.encode((found, stated))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return NOTHING
    return found if all(map(_is_term, stated.get("terms", ()))) else NOTHING


def _is_term(term: Object) -> bool:
    """Whether it has lists of conditions with lists of values, where it has any."""
    stated = [term.get(kind) or [] for kind in ("matchExpressions", "matchFields")]
    if not all(isinstance(one, list) for one in stated):
        return False
    return all(isinstance(one, Mapping) and isinstance(one.get("values") or [], list) for one in chain(*stated))


def _written(raw: Object, spec: Object) -> Asks:
    """Of a template whose pod is EGS's, and is made as the template says. spec: of the Workflow, where it says nothing
    itself."""
    container = part(raw, "container") or part(raw, "script")
    labels = {**part(part(spec, "podMetadata"), "labels"), **part(part(raw, "metadata"), "labels")}
    if not container or names.WORKLOAD not in labels or raw.get("podSpecPatch") or spec.get("podSpecPatch"):
        return NOTHING
    where = {key: raw.get(key) or spec.get(key) for key in ("nodeSelector", "affinity", "tolerations")}
    made = pod_of({"spec": {**where, "containers": [container, *items(raw, "sidecars")]}})
    secrets = tuple(text(one, "name") for one in items(spec, "imagePullSecrets"))
    amounts = made.gpus, made.shape.cpu_milli, made.shape.memory_bytes
    return Asks(text(container, "image"), *amounts, made.where, secrets, made.devices)


def _parameters(raw: Object) -> dict[str, str]:
    return {text(one, "name"): text(one, "value") for one in items(part(raw, "arguments"), "parameters")}


def _asks(parameters: Mapping[str, str], arguments: Mapping[str, str]) -> Asks:
    """Of the container that a driver is given, and of what it is told of nodes."""
    container = _argument(parameters.get("container", ""), arguments)
    platform = _argument(parameters.get("kubernetes-config", ""), arguments)
    if not container:
        return NOTHING
    resources = part(container, "resources")
    stated = {
        "select": part(part(platform, "nodeSelector"), "labels"),
        "terms": [one for one in items(platform, "nodeAffinity") if "weight" not in one],
        "tolerate": [_toleration(one) for one in items(platform, "tolerations")],
    }
    where = {key: value for key, value in stated.items() if value}
    secrets = (text(one, "secretName") for one in items(platform, "imagePullSecret"))
    gpus, gpu = _gpus(part(resources, "accelerator")), _gpu(part(resources, "accelerator"))
    return Asks(
        text(container, "image"),
        gpus,
        math.ceil(1000 * _amount(resources, "Cpu")),
        math.ceil(_amount(resources, "Memory")),
        json.dumps(where, sort_keys=True, default=str) if where else "",
        tuple(secret for secret in secrets if secret),
        ((gpu, math.ceil(gpus)),) if gpu else (),
        reading("", full_name(text(container, "image")), _hints(platform), _mounts(platform)),
    )


def _hints(platform: Object) -> Object:
    return hints_of(part(part(platform, "podMetadata"), "annotations"))


def _mounts(platform: Object) -> tuple[Mount, ...]:
    """Of volume claims whose names are known before the run, and of others, of which nothing is read."""
    found = []
    for one in items(platform, "pvcMount"):
        claim = text(one, "constant") or text(part(part(one, "pvcNameParameter"), "runtimeValue"), "constant")
        found.append(Mount(claim, text(one, "mountPath"), text(one, "subPath")))
    others = [one for kind in ("genericEphemeralVolume", "emptyDirMounts") for one in items(platform, kind)]
    return (*found, *(Mount("", text(one, "mountPath")) for one in others))


def _argument(value: str, arguments: Mapping[str, str]) -> Object:
    """The object that an argument of the Workflow is, where a parameter names one."""
    named = _ARGUMENT.fullmatch(value.strip())
    try:
        found = json.loads(arguments.get(named[1]) or "{}") if named else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _gpu(asked: Object) -> str:
    """Where it is no input of the pipeline."""
    found = text(asked, "resourceType") or text(asked, "type")
    return found if is_gpu_resource(found) and "{{" not in found else ""


def _gpus(asked: Object) -> float:
    """One, where an input says how many."""
    if not (asked.get("type") or asked.get("resourceType")):
        return 0.0
    count = number(asked.get("resourceCount") or asked.get("count"))
    return 1.0 if count is None or not 0 < count < MOST_GPUS else count


def _amount(resources: Object, kind: str) -> float:
    """What it asks for, or its limit where that is all: as a quantity or, by older compilers, in CPUs or GB."""
    for what in ("Request", "Limit"):
        if asked := quantity(resources.get(f"resource{kind}{what}")):
            return asked
        if asked := quantity(resources.get(f"{kind.lower()}{what}")):
            return asked * (1e9 if kind == "Memory" else 1.0)
    return 0.0


def _toleration(one: Object) -> dict[str, Any]:
    """Its compiler writes whole numbers of 64 bits as text."""
    seconds = number(one.get("tolerationSeconds"))
    return {**one, **({} if seconds is None else {"tolerationSeconds": int(seconds)})}


def _labels(parameters: Mapping[str, str]) -> dict[str, str]:
    """The labels that a compiler gives to a task's pod by pairs of parameters."""
    keys = {name.removeprefix(LABEL_KEY): key for name, key in parameters.items() if name.startswith(LABEL_KEY)}
    return {key: parameters.get(LABEL_VALUE + which, "") for which, key in keys.items()}


def _loop(raw: Object) -> Loop | None:
    if isinstance(raw.get("withItems"), list):
        return Loop(len(raw["withItems"]))
    if raw.get("withParam"):
        return _stated(raw["withParam"])
    if not isinstance(raw.get("withSequence"), Mapping):
        return None
    sequence = part(raw, "withSequence")
    if "count" in sequence:
        return _stated(sequence["count"])
    first, last = number(sequence.get("start", "0")), number(sequence.get("end"))
    return Loop() if first is None or last is None else Loop(abs(int(last) - int(first)) + 1)


def _stated(value: object) -> Loop:
    found = _OUTPUT.fullmatch(str(value).strip())
    return Loop(step=found[1], output=found[2]) if found else Loop(_count(value))


def _count(value: object) -> int | None:
    """A number, or the length of a list, as outputs state them; None: neither."""
    stated = str(value).strip()
    if stated.startswith("["):
        try:
            return len(json.loads(stated))
        except (ValueError, RecursionError):
            return None
    found = number(stated)
    return int(found) if found is not None and found >= 0 else None


# --- nodes ---


def _node(raw: Object) -> Node:
    began, ended = seconds_of(raw.get("startedAt")), seconds_of(raw.get("finishedAt"))
    outputs = items(part(raw, "outputs"), "parameters")
    counts: dict[str, Any] = {text(one, "name"): _count(one.get("value")) for one in outputs if "value" in one}
    return Node(
        text(raw, "name"),
        text(raw, "templateName"),
        text(raw, "phase"),
        max(0.0, ended - began) if began and ended else 0.0,
        {name: count for name, count in counts.items() if count is not None},
    )
