"""What a node has for pods of ours, as the engine is told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from egs_core.engine import messages as m
from egs_core.kubernetes import places
from egs_core.kubernetes.pods import Node, Pod

MANY = 1_000_000


def room_of(
    node: Node, kind: str, ours: Iterable[Pod], others: Iterable[Pod], told: Collection[str], *, is_open: bool
) -> m.NodeAdded:
    """Without what others hold there. One that is closed has what ours hold there, and nothing more. told: uids
    of ours whose devices the engine counts itself."""
    held, foreign = [pod.shape for pod in ours], list(others)
    if is_open:
        cpu_milli = max(0, node.cpu_milli - sum(pod.shape.cpu_milli for pod in foreign))
        memory = max(0, node.memory_bytes - sum(pod.shape.memory_bytes for pod in foreign))
        closed = _closed(node, foreign, told)
    else:
        cpu_milli, memory = sum(s.cpu_milli for s in held), sum(s.memory_bytes for s in held)
        closed = tuple(range(node.gpus))
    is_known = bool(node.devices) and not node.plugin_gpus and all(one.memory_bytes for one in node.devices)
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
    )


def _closed(node: Node, foreign: Iterable[Pod], told: Collection[str]) -> tuple[int, ...]:
    """The last of each flavor: so many of it are held by others."""
    plugin = node.plugin_gpus
    used = min(plugin, sum(pod.shape.gpu_milli // 1000 - pod.claimed for pod in foreign))
    found = [*range(plugin - used, plugin)]
    held = Counter(
        one.flavor for one, by in zip(node.devices, node.held, strict=True) if by is not None and by not in told
    )
    for number, device in reversed(list(enumerate(node.devices, plugin)) if held else []):
        if held[device.flavor]:
            held[device.flavor] -= 1
            found.append(number)
    return tuple(sorted(found))
