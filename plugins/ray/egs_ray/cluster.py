"""What Ray's nodes offer, as events for the engine: nodes come, change and go while runs are under way."""

from __future__ import annotations

import os

import ray

from egs_core.engine import messages as m


class Cluster:
    """Remembers what it saw last. `news` asks Ray, which takes about a millisecond."""

    def __init__(self) -> None:
        self._nodes: dict[str, m.NodeAdded] = {}

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self._nodes.values())

    @property
    def process_slots(self) -> int:
        return sum(node.process_slots for node in self._nodes.values())

    def news(self) -> list[m.Event]:
        """What has changed since the last call."""
        found = {node["NodeID"]: _offer(node) for node in ray.nodes() if node["Alive"]}
        changed: list[m.Event] = [event for name, event in found.items() if self._nodes.get(name) != event]
        gone: list[m.Event] = [m.NodeLost(name) for name in self._nodes if name not in found]
        self._nodes = found
        return changed + gone


def preload_slots() -> int:
    """How many processes may load at once on a node: loading is real work, whatever num_cpus says."""
    return max(2, (os.cpu_count() or 2) // 2)


def _offer(node: dict[str, object]) -> m.NodeAdded:
    offered: dict[str, float] = node["Resources"]  # type: ignore[assignment]  # Ray is untyped here
    cpus, gpus = offered.get("CPU", 0.0), int(offered.get("GPU", 0))
    memory = int(offered["memory"]) if "memory" in offered else None
    slots = int(cpus) + gpus
    name, flavor = str(node["NodeID"]), _flavor(offered)
    return m.NodeAdded(name, cpus, gpus, memory, None, preload_slots(), slots, flavor=flavor)


def _flavor(offered: dict[str, float]) -> str:
    """The accelerator type that Ray has found, as in `accelerator_type="A100"`; "" for a node without."""
    return next((name.partition(":")[2] for name in sorted(offered) if name.startswith("accelerator_type:")), "")
