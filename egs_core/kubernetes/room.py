"""What a node has for pods of ours, as the engine is told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from egs_core.engine import messages as m
from egs_core.kubernetes import places
from egs_core.kubernetes.devices import Tier, stands_for
from egs_core.kubernetes.pods import Node, Pod

MANY = 1_000_000


def room_of(
    node: Node,
    kind: str,
    ours: Iterable[Pod],
    others: Iterable[Pod],
    told: Collection[str],
    *,
    is_open: bool,
    before: m.NodeAdded | None = None,
) -> m.NodeAdded:
    """Without what others hold there. One that is closed has what ours hold there, and nothing more. told: uids
    of ours whose devices the engine counts itself; before: what it was told of the node last. Devices that the node
    offers no longer, as they have failed, stay closed while ours hold some: which of them have failed nobody says."""
    on, foreign = list(ours), list(others)
    gone = _gone(node, kind, on, before)
    if is_open:
        cpu_milli = max(0, node.cpu_milli - sum(pod.shape.cpu_milli for pod in foreign))
        memory = max(0, node.memory_bytes - sum(pod.shape.memory_bytes for pod in foreign))
        closed = _closed(node, on, foreign, told)
    else:
        cpu_milli, memory = sum(pod.shape.cpu_milli for pod in on), sum(pod.shape.memory_bytes for pod in on)
        closed = tuple(range(node.gpus))
    gpus = node.gpus + len(gone)
    is_known = len(node.devices) == node.gpus > 0 and all(one.memory_bytes for one in node.devices)
    of_each = tuple(one.memory_bytes for one in node.devices) if is_known else ()
    return m.NodeAdded(
        node.name,
        cpu_milli / 1000,
        gpus,
        memory,
        max(of_each, default=None),
        flavor=kind,
        closed=(*closed, *range(node.gpus, gpus)),
        process_slots=MANY,
        device_flavors=(*places.device_names(kind, node), *gone) if node.is_apart else (),
        device_memory_bytes=(*of_each, *(max(of_each) for _ in gone)) if of_each else (),
        counts_closed=True,
    )


def _gone(node: Node, kind: str, ours: Iterable[Pod], before: m.NodeAdded | None) -> tuple[str, ...]:
    """Of each device that the engine was told of, or that ours hold, and that the node offers no longer, its flavor as
    the engine knows it. None of a node on which ours hold no device."""
    holding = [pod for pod in ours if pod.shape.gpu_milli]
    if not holding:
        return ()
    if not node.is_apart:
        held = sum(pod.shape.gpu_milli for pod in holding) // 1000
        return (kind,) * (max(held, 0 if before is None else before.gpus) - node.gpus)
    gone = [places.flavor_of_device(name) for name in (before.device_flavors if before else ())[node.gpus :]]
    if not node.devices:  # else some of its driver's may stand for what ours hold
        plugins = sum((Counter(dict(pod.resources)) for pod in holding), Counter[str]())
        gone += sorted((plugins - Counter((*node.flavors, *gone))).elements())
    return tuple(places.device_name(kind, flavor) for flavor in gone)


def is_renumbered(before: Node | None, now: Node | None, on: Iterable[Pod]) -> bool:
    """Whether what runs on a node would have another kind of device, by its number, than the engine was told of."""
    if before is None or now is None or not any(pod.run and pod.shape.gpu_milli for pod in on):
        return False
    return any(was != flavor for was, flavor in zip(before.flavors, now.flavors, strict=False))


def _closed(node: Node, ours: Iterable[Pod], foreign: Iterable[Pod], told: Collection[str]) -> tuple[int, ...]:
    """The last of each flavor: so many of it are held by others, or by ours beyond what the engine counts of these.
    Which they are no list of pods says: the engine takes others where it has given these to ours."""
    held = Counter[str]()
    of_claims: dict[str, Counter[str]] = {}
    for device, by in zip(node.devices, node.held, strict=True):
        if by is not None:
            of_claims.setdefault(by, Counter())[device.flavor] += 1
    for uid, flavors in of_claims.items():
        if uid not in told:
            held += flavors
    for pod in foreign:
        held += _of_plugins(node, pod)
    for pod in ours if node.is_apart else ():
        if pod.uid in told:
            held += _uncounted(node, pod, of_claims.get(pod.uid, Counter()) + _of_plugins(node, pod))
    found = []
    for number, flavor in reversed(list(enumerate(node.flavors)) if held else []):
        if held[flavor] > 0:
            held[flavor] -= 1
            found.append(number)
    return tuple(sorted(found))


def _of_plugins(node: Node, pod: Pod) -> Counter[str]:
    """What it has there by its limits. Of what a driver offers too it is one of the devices that nobody has claimed."""
    found, offered = Counter[str](), dict(node.resources)
    for name, count in pod.resources:
        if name in offered:
            found[name] = min(count, offered[name])
            tier = Tier(1, resource=name)
            free = [
                d.flavor for d, by in zip(node.devices, node.held, strict=True) if by is None and stands_for(tier, d)
            ]
            found.update(free[: count - found[name]])
    return found


def _uncounted(node: Node, pod: Pod, has: Counter[str]) -> Counter[str]:
    """Of what it has there what is of other kinds than those that are told of it, and what is more than was told."""
    counted = pod.shape.gpu_milli // 1000
    for flavor in places.flavors_of(pod.where, node):
        taken = min(counted, has[flavor])
        counted -= taken
        has[flavor] -= taken
    return has
