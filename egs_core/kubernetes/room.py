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
    node: Node, kind: str, ours: Iterable[Pod], others: Iterable[Pod], told: Collection[str], *, is_open: bool
) -> m.NodeAdded:
    """Without what others hold there. One that is closed has what ours hold there, and nothing more. told: uids
    of ours whose devices the engine counts itself."""
    on, foreign = list(ours), list(others)
    if is_open:
        cpu_milli = max(0, node.cpu_milli - sum(pod.shape.cpu_milli for pod in foreign))
        memory = max(0, node.memory_bytes - sum(pod.shape.memory_bytes for pod in foreign))
        closed = _closed(node, on, foreign, told)
    else:
        cpu_milli, memory = sum(pod.shape.cpu_milli for pod in on), sum(pod.shape.memory_bytes for pod in on)
        closed = tuple(range(node.gpus))
    is_known = len(node.devices) == node.gpus > 0 and all(one.memory_bytes for one in node.devices)
    of_each = tuple(one.memory_bytes for one in node.devices) if is_known else ()
    return m.NodeAdded(
        node.name,
        cpu_milli / 1000,
        node.gpus,
        memory,
        max(of_each, default=None),
        flavor=kind,
        closed=closed,
        process_slots=MANY,
        device_flavors=places.device_names(kind, node),
        device_memory_bytes=of_each,
        counts_closed=True,
    )


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
