"""A limit of GPUs as a claim of devices (DRA), with a tier for each flavor that a task may have, the wanted one first.

    egs.io/hints: {"flavors": ["a100", "t4"]}         the webhook's rules: a100=gpu.nvidia.com, t4=gpu.nvidia.com
    limits: {nvidia.com/gpu: 2}                  ──►  claim of a template: 2 of a100, else 2 of t4

Only where it says what a limit cannot: a limit of a pod whose task names no flavors, or one that no rule is for, is
what its author wants, and stays. So does one of a pod with claims of its own, with GPUs in several containers, that
chooses its product by nodes, or that Kueue counts. How many is what the limit says.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.flavor_names import LABELS
from egs_core.kubernetes import names
from egs_core.kubernetes.objects import Object, items, number, part, text
from egs_core.kubernetes.pods import hints_of

NAME = "egs-gpus"
"""Of the claim in its pod, and what names of templates begin with."""
VENDORS = ("nvidia", "tesla", "quadro", "geforce", "amd", "intel")
_FLAVOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_CLASS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
MOST_TIERS, MOST_DEVICES = 8, 32
Patch = list[dict[str, Any]]


class ClaimRule(msgspec.Struct, frozen=True):
    """GPUs of a flavor are claimed of this DeviceClass, which may have others, too. flavor: as people say it, the
    beginning of a product's name."""

    flavor: str
    device_class: str


class Claimed(msgspec.Struct, frozen=True):
    """What becomes of a pod. template: the ResourceClaimTemplate that has to be in its namespace; about: for people."""

    patch: Patch
    template: dict[str, Any]
    about: str


def rule_of(stated: str, place: str) -> ClaimRule:
    """Of `a100=gpu.nvidia.com`. Raises InputError that names the place."""
    flavor, _, device_class = stated.partition("=")
    if not (_FLAVOR.fullmatch(flavor) and _CLASS.fullmatch(device_class)):
        raise InputError(place, f"{stated!r} is no flavor and DeviceClass", "such as a100=gpu.nvidia.com")
    return ClaimRule(flavor, device_class)


def said(rule: ClaimRule) -> str:
    """As `rule_of` reads it."""
    return f"{rule.flavor}={rule.device_class}"


def claimed(pod: Object, rules: tuple[ClaimRule, ...]) -> Claimed | None:
    """A pod with a claim in the place of its limit; None where that stays."""
    spec, meta = part(pod, "spec"), part(pod, "metadata")
    by_flavor = {one.flavor.lower(): one for one in rules}
    wanted = hints_of(part(meta, "annotations")).get("flavors")
    flavors = [str(one) for one in wanted] if isinstance(wanted, list) else []
    found = [by_flavor[one.lower()] for one in dict.fromkeys(flavors) if one.lower() in by_flavor]
    if not found or len(found) < len(set(flavors)) or text(part(meta, "labels"), names.QUEUE):
        return None
    if items(spec, "resourceClaims") or _chooses_product(spec):
        return None
    asking = [(n, one, key) for n, one in enumerate(items(spec, "containers")) for key in _gpu_keys(one)]
    others = [
        key for kind in ("initContainers", "ephemeralContainers") for one in items(spec, kind) for key in _gpu_keys(one)
    ]
    if len(asking) != 1 or others:
        return None
    at, container, resource = asking[0]
    resources = part(container, "resources")
    count = number(part(resources, "limits").get(resource))
    if count is None or count != int(count) or not 0 < count <= MOST_DEVICES or items(resources, "claims"):
        return None
    template = template_of(found[:MOST_TIERS], int(count))
    name = template["metadata"]["name"]
    where, step = f"/spec/containers/{at}/resources", resource.replace("~", "~0").replace("/", "~1")
    gone = [kind for kind in ("limits", "requests") if resource in part(resources, kind)]
    patch: Patch = [{"op": "remove", "path": f"{where}/{kind}/{step}"} for kind in gone]
    patch.append({"op": "add", "path": f"{where}/claims", "value": [{"name": NAME}]})
    claim = {"name": NAME, "resourceClaimTemplateName": name}
    patch.append({"op": "add", "path": "/spec/resourceClaims", "value": [claim]})
    tiers = ", else ".join(one.flavor for one in found[:MOST_TIERS])
    return Claimed(patch, template, f"{resource}: {int(count)} is claimed of {name} ({tiers})")


def template_of(rules: list[ClaimRule], count: int) -> dict[str, Any]:
    """The ResourceClaimTemplate, by a name of its content: who finds it there need not look into it."""
    tiers = [
        {
            "name": f"tier-{number}",
            "deviceClassName": one.device_class,
            "allocationMode": "ExactCount",
            "count": count,
            "selectors": [{"cel": {"expression": _selector(one.flavor)}}],
        }
        for number, one in enumerate(rules)
    ]
    spec = {"spec": {"devices": {"requests": [{"name": "gpus", "firstAvailable": tiers}]}}}
    key = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]
    meta = {"name": f"{NAME}-{key}", "labels": {"app.kubernetes.io/name": "egs"}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}


def _selector(flavor: str) -> str:
    """Devices that people mean by that (`flavor_names`), by what their driver calls them."""
    parts = [re.escape(one) for one in re.split(r"[-\s]+", flavor.lower())]
    pattern = f"^({'|'.join(f'{one} ' for one in VENDORS)})?(geforce )?{'[^a-z0-9.]'.join(parts)}($|[^a-z0-9.])"
    return f"device.attributes[device.driver].productName.lowerAscii().matches(r'{pattern}')"


def _gpu_keys(container: Object) -> list[str]:
    resources = part(container, "resources")
    stated = {**part(resources, "limits"), **part(resources, "requests")}
    return [str(key) for key in stated if str(key).endswith("/gpu")]


def _chooses_product(spec: Object) -> bool:
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    required = part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = items(required, "nodeSelectorTerms")
    keys = [text(one, "key") for term in terms for one in items(term, "matchExpressions")]
    return any(key in LABELS for key in (*part(spec, "nodeSelector"), *keys))
