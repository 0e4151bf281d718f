"""Devices that drivers offer by ResourceSlices, and what pods ask of them by ResourceClaims (DRA, resource.k8s.io/v1).

    ResourceSlice ─► devices of a node, each with a flavor            DeviceClass ─┐
    ResourceClaim ─► what it asks, and which devices it has been allocated         ├─► what of a node's devices would do
    Pod           ─► its claims; limits of a resource that a class stands for ─────┘

GPUs are counted, and slices of them that are there: devices of a driver whose name begins with `gpu.`, but none that
are shared, passed through to virtual machines, or partitions that are yet to be made (which share counters with the
whole GPU). Of all others the scheduler alone knows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.flavor_names import flavor_of_product
from egs_core.kubernetes.objects import Object, items, number, part, quantity, text
from egs_core.kubernetes.pods import Device, Facts, Node
from egs_core.kubernetes.selectors import Quantity, is_selected, version_of
from egs_core.kubernetes.texts import kept, kept_within, length_of

OF_GPUS = "gpu."
PRODUCTS = ("productName", "model", "product")
"""Attributes that name what a device is, by driver."""
FOR_LIMIT = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that the scheduler made for a limit of a resource that a class stands for."""
ALL = 0
MOST_LETTERS = 4 << 20
"""Of all selectors of which it is kept which devices they take."""
KEPT_OFF = ("NoSchedule", "NoExecute")


class Slice(msgspec.Struct, frozen=True, eq=False):
    """A ResourceSlice: a part of what a pool has. devices: those that count, by node; partitions: of others the
    counters that they share, by name; uncounted: of these one of each flavor, by why they do not count."""

    pool: str
    generation: int
    devices: Mapping[str, tuple[Device, ...]]
    partitions: Mapping[str, tuple[str, ...]]
    uncounted: Mapping[str, tuple[Device, ...]] = {}


class DeviceClass(msgspec.Struct, frozen=True):
    """resource: what stands for it among a pod's limits, "" for nothing."""

    name: str
    selectors: tuple[str, ...] = ()
    resource: str = ""


class Tier(msgspec.Struct, frozen=True):
    """So many devices that all of these selectors take, ALL: as many as the node has; or, without any selectors, so
    many of that resource of a device plugin, whose flavor is its name."""

    count: int
    selectors: tuple[str, ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    resource: str = ""
    device_class: str = ""


Ask = tuple[Tier, ...]
"""One request: the first tier that can be had is."""


class Claim(msgspec.Struct, frozen=True):
    """A ResourceClaim. owner: uid of the pod it was made for, "" of one that was made by hand; allocated: names of
    devices."""

    uid: str
    namespace: str
    name: str
    owner: str = ""
    asks: tuple[Ask, ...] = ()
    allocated: tuple[str, ...] = ()


# --- as the API server has them ---


def slice_of(raw: Object) -> Slice:
    """A ResourceSlice. One that is not of GPUs, or of no single node, has no device that counts."""
    spec = part(raw, "spec")
    driver, pool = text(spec, "driver"), part(spec, "pool")
    where = f"{driver}/{text(pool, 'name')}"
    devices: dict[str, list[Device]] = defaultdict(list)
    partitions: dict[str, tuple[str, ...]] = {}
    uncounted: dict[str, dict[str, Device]] = defaultdict(dict)
    for one in items(spec, "devices") if driver.startswith(OF_GPUS) else ():
        node, name = text(spec, "nodeName") or text(one, "nodeName"), f"{where}/{text(one, 'name')}"
        counters = tuple(f"{where}/{text(shared, 'counterSet')}" for shared in items(one, "consumesCounters"))
        facts = _facts(driver, one)
        own = facts.attributes.get(driver, {})
        if counters and "profile" in own:
            partitions[name] = counters
        taints = tuple((text(t, "key"), text(t, "value"), text(t, "effect")) for t in items(one, "taints"))
        taints = tuple(sorted(taint for taint in taints if taint[2] in KEPT_OFF))
        memory = facts.capacity.get(driver, {}).get("memory")
        bytes_ = 0 if memory is None else int(memory.value)
        device = Device(name, _flavor(own, driver, taints), facts, bytes_, counters, taints)
        if why := _why_uncounted(one, own, node, is_partition=name in partitions):
            uncounted[why].setdefault(device.flavor, device)
        else:
            devices[node].append(device)
    generation = int(number(pool.get("generation")) or 0)
    counted = {node: tuple(found) for node, found in devices.items()}
    return Slice(where, generation, counted, partitions, {why: tuple(one.values()) for why, one in uncounted.items()})


def _why_uncounted(device: Object, own: Mapping[str, Any], node: str, *, is_partition: bool) -> str:
    """What a device is that does not count; "" of one that does."""
    if is_partition:
        return "a partition that its driver makes when it is asked for"
    if own.get("type") == "vfio":
        return "a device for virtual machines"
    if device.get("allowMultipleAllocations"):
        return "a device that several share"
    return "" if node else "a device that is of no single node"


def class_of(raw: Object) -> DeviceClass:
    """A DeviceClass."""
    spec, name = part(raw, "spec"), text(part(raw, "metadata"), "name")
    return DeviceClass(name, _selectors(spec), text(spec, "extendedResourceName"))


def claim_of(raw: Object) -> Claim:
    """A ResourceClaim. What asks for the rights of an administrator is not counted and takes nothing; nor is what the
    scheduler makes for a limit, which counts itself."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    owners = [one for one in items(meta, "ownerReferences") if text(one, "kind") == "Pod" and one.get("controller")]
    is_of_limit = text(part(meta, "annotations"), FOR_LIMIT) == "true"
    requests = [] if is_of_limit else items(part(part(raw, "spec"), "devices"), "requests")
    asks = [_ask(one) for one in requests]
    results = items(part(part(status, "allocation"), "devices"), "results")
    return Claim(
        text(meta, "uid"),
        text(meta, "namespace"),
        text(meta, "name"),
        next((text(one, "uid") for one in owners), ""),
        tuple(ask for ask in asks if ask),
        tuple(
            "/".join(text(one, key) for key in ("driver", "pool", "device"))
            for one in results
            if not one.get("adminAccess")
        ),
    )


def _ask(request: Object) -> Ask:
    stated = items(request, "firstAvailable") or [part(request, "exactly")]
    if any(one.get("adminAccess") for one in stated):
        return ()
    return tuple(
        Tier(
            ALL if text(one, "allocationMode") == "All" else max(1, int(number(one.get("count")) or 1)),
            _selectors(one),
            tuple(
                (text(t, "key"), text(t, "operator") or "Equal", text(t, "value"), text(t, "effect"))
                for t in items(one, "tolerations")
            ),
            device_class=text(one, "deviceClassName"),
        )
        for one in stated
    )


def _selectors(spec: Object) -> tuple[str, ...]:
    return tuple(text(part(one, "cel"), "expression") for one in items(spec, "selectors"))


def _facts(driver: str, device: Object) -> Facts:
    """Names without a domain are in the driver's own."""
    attributes: dict[str, dict[str, Any]] = defaultdict(dict)
    capacity: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, stated in part(device, "attributes").items():
        domain, _, own = name.rpartition("/")
        found = _attribute(stated) if isinstance(stated, Mapping) else None
        if found is not None:
            attributes[domain or driver][own] = found
    for name, stated in part(device, "capacity").items():
        domain, _, own = name.rpartition("/")
        amount = stated.get("value") if isinstance(stated, Mapping) else None
        capacity[domain or driver][own] = Quantity(quantity(amount))
    return Facts(driver, dict(attributes), dict(capacity))


def _attribute(stated: Object) -> Any:
    if "version" in stated:
        return version_of(text(stated, "version"))
    return next((stated[kind] for kind in ("string", "int", "bool") if kind in stated), None)


def _flavor(own: Mapping[str, Any], driver: str, taints: Sequence[tuple[str, str, str]]) -> str:
    """A slice's begins with its kind: a wish for `a100` does not mean a seventh of one."""
    product = next((own[name] for name in PRODUCTS if isinstance(own.get(name), str)), "")
    found = flavor_of_product(product) or driver
    found = f"MIG-{own['profile']}-{found}" if own.get("profile") else found
    return "+".join((found, *(f"{key}={value}:{effect}" for key, value, effect in taints)))


# --- what is there, and what of it is taken ---


def newest(slices: Iterable[Slice]) -> list[Slice]:
    """Those of each pool's newest generation: the others are about to go."""
    found = list(slices)
    generations: dict[str, int] = {}
    for one in found:
        generations[one.pool] = max(one.generation, generations.get(one.pool, 0))
    return [one for one in found if one.generation == generations[one.pool]]


def by_node(slices: Iterable[Slice]) -> dict[str, tuple[Device, ...]]:
    """Devices of each node, like ones together."""
    found: dict[str, list[Device]] = defaultdict(list)
    for one in slices:
        for node, devices in one.devices.items():
            found[node] += devices
    return {node: tuple(sorted(devices, key=lambda d: (d.flavor, d.name))) for node, devices in found.items()}


def taken(claims: Iterable[Claim], holders: Mapping[str, str], slices: Iterable[Slice]) -> dict[str, str]:
    """By name of what is allocated, uid of the pod that asked for it, "" where that is no one pod. holders: by uid of
    the claim. A partition takes the counters that it shares, each under its name."""
    partitions = {name: counters for one in slices for name, counters in one.partitions.items()}
    found = {}
    for claim in claims:
        for name in claim.allocated:
            found[name] = holders.get(claim.uid, "")
            found.update(dict.fromkeys(partitions.get(name, ()), ""))
    return found


def holder_of(device: Device, allocated: Mapping[str, str]) -> str | None:
    """The pod that has a device, "" where that is nobody known; None: it is free. allocated: as `taken` says."""
    return next((allocated[name] for name in (device.name, *device.counters) if name in allocated), None)


# --- what a pod asks ---


def resolved(asks: Iterable[Ask], classes: Mapping[str, DeviceClass]) -> tuple[Ask, ...]:
    """With the selectors of their classes. A tier of a class that is not there cannot be had."""
    found = [
        tuple(
            msgspec.structs.replace(tier, selectors=(*classes[tier.device_class].selectors, *tier.selectors))
            for tier in ask
            if tier.device_class in classes
        )
        for ask in asks
    ]
    return tuple(ask for ask in found if ask)


def limit_as_ask(resource: str, count: int, classes: Iterable[DeviceClass]) -> Ask:
    """A limit of a resource: of a device plugin, else by a class that stands for it."""
    theirs = [Tier(count, one.selectors, device_class=one.name) for one in classes if one.resource == resource]
    return (Tier(count, resource=resource), *theirs)


def apart(asks: Sequence[Ask], there: Sequence[Device]) -> tuple[list[Ask], list[Ask]]:
    """Requests that count together, those of which some device may be the first one's, too; and those of other kinds,
    beside which. there: devices of all nodes."""
    first, *others = asks
    kinds = _kinds(first, there) if others else set()
    together = [first, *(ask for ask in others if kinds & _kinds(ask, there))]
    return together, [ask for ask in others if ask not in together]


def _kinds(ask: Ask, there: Sequence[Device]) -> set[str]:
    found = {tier.resource for tier in ask if tier.resource}
    return found | {one.flavor for one in there if any(takes(tier, one) or stands_for(tier, one) for tier in ask)}


def said(together: Iterable[Ask], beside: Iterable[Ask]) -> dict[str, list[list[dict[str, Any]]]]:
    """As JSON has it, for `Pod.where`; `asked` and `asked_beside` read it again."""
    found = {"devices": together, "beside": beside}
    listed = {key: [[msgspec.to_builtins(tier) for tier in ask] for ask in asks] for key, asks in found.items()}
    return {key: asks for key, asks in listed.items() if asks}


def asked(where: str) -> tuple[Ask, ...]:
    """What `Pod.where` says of devices: those that count."""
    return _asked(where)[0]


def asked_beside(where: str) -> tuple[Ask, ...]:
    """The same, of other kinds: a node has to offer them, too."""
    return _asked(where)[1]


@kept
def _asked(where: str) -> tuple[tuple[Ask, ...], tuple[Ask, ...]]:
    found = json.loads(where) if '"devices"' in where else {}
    first, beside = (msgspec.convert(found.get(key, ()), tuple[Ask, ...]) for key in ("devices", "beside"))
    return first, beside


def takes(tier: Tier, device: Device) -> bool:
    """Whether the device would do, as far as that is known here."""
    if tier.resource or not all(_tolerates(tier, taint) for taint in device.taints):
        return False
    return _are_met(tier.selectors, device.facts)


@kept_within(1 << 17, MOST_LETTERS, length_of)
def _are_met(selectors: tuple[str, ...], facts: Facts) -> bool:
    return all(is_selected(one, facts) is not False for one in selectors)


def _tolerates(tier: Tier, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    return any(
        (not t_effect or t_effect == effect)
        and (
            (operator == "Exists" and t_key in ("", key)) or (operator == "Equal" and (t_key, t_value) == (key, value))
        )
        for t_key, operator, t_value, t_effect in tier.tolerations
    )


def stands_for(tier: Tier, device: Device) -> bool:
    """Whether a driver's device is of what a plugin's resource names, where both speak of the same node: by the domain
    of their vendor, and by the profile of a slice. Then it is one device, and who asks either of them may get it."""
    domain, _, name = tier.resource.rpartition("/")
    driver = device.facts.driver
    profile = str(device.facts.attributes.get(driver, {}).get("profile", "")).replace("+", ".")
    return f".{driver}".endswith(f".{domain}") and name == (f"mig-{profile}" if profile else "gpu")


def with_numbers(ask: Ask, offered: Iterable[Sequence[Device]]) -> Ask | None:
    """A request with the number of devices that ALL means: as many as each node has that has any. None where nodes have
    different numbers: what is asked for is known when a node is chosen. offered: devices, a node each."""
    found, nodes = [], list(offered) if any(tier.count == ALL for tier in ask) else []
    for tier in ask:
        if tier.count == ALL:
            numbers = {number for there in nodes if (number := sum(takes(tier, one) for one in there))}
            if len(numbers) > 1:
                return None
            tier = msgspec.structs.replace(tier, count=max(numbers, default=1))
        found.append(tier)
    return tuple(found)


def count(asks: Iterable[Ask]) -> int:
    """How many devices all requests need together: of each its first tier."""
    return sum(ask[0].count for ask in asks)


def flavors_for(asks: Iterable[Ask], node: Node) -> tuple[str, ...]:
    """Flavors of those of a node's devices of which each request may have some; none where one of them may have
    none. Tiers of more devices than the first are the scheduler's to choose."""
    found: set[str] = set()
    for ask in asks:
        own = set[str]().union(*(_flavors(tier, node) for tier in ask if tier.count <= ask[0].count))
        if not own:
            return ()
        found |= own
    return tuple(sorted(found))


def _flavors(tier: Tier, node: Node) -> set[str]:
    if not tier.resource:
        return {one.flavor for one in node.devices if takes(tier, one)}
    offered = dict(node.resources)
    if tier.resource not in offered:
        return set()
    own = {tier.resource} if offered[tier.resource] else set[str]()
    return own | {one.flavor for one in node.devices if stands_for(tier, one)}
