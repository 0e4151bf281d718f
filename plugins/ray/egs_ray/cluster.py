"""What Ray's nodes offer, as events for the engine: nodes come, change and go while runs are under way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray

from egs_core.engine import messages as m
from egs_core.engine.specs import usual_process_slots
from egs_ray.labels import ACCELERATOR, RAYS_OWN


class Cluster:
    """Remembers what it saw last. `news` asks Ray, which takes about a millisecond.

    flavor_label: the label of a node whose value is its flavor. memory_of: bytes of one GPU of a flavor, where somebody
    knows: Ray does not.
    """

    def __init__(
        self, flavor_label: str = ACCELERATOR, memory_of: Callable[[str], int | None] = lambda _flavor: None
    ) -> None:
        self._nodes: dict[str, m.NodeAdded] = {}
        self._accelerators: tuple[str, ...] = ()
        self._flavor_label, self._memory_of = flavor_label, memory_of

    @property
    def nodes(self) -> list[m.NodeAdded]:
        """What each node offers."""
        return list(self._nodes.values())

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Flavors that nodes offer as a resource of their own."""
        return self._accelerators

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self._nodes.values())

    @property
    def units(self) -> int:
        """CPUs and GPUs together."""
        return sum(int(node.cpus) + node.gpus for node in self._nodes.values())

    def news(self) -> list[m.Event]:
        """What has changed since the last call."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        found = {node["NodeID"]: _offer(node, self._flavor_label, self._memory_of) for node in alive}
        self._accelerators = tuple(sorted({a for node in alive if (a := _flavor(node["Resources"], {}, ACCELERATOR))}))
        changed: list[m.Event] = [event for name, event in found.items() if self._nodes.get(name) != event]
        gone: list[m.Event] = [m.NodeLost(name) for name in self._nodes if name not in found]
        self._nodes = found
        return changed + gone


def preload_slots() -> int:
    """How many processes may load at once on a node: loading is real work, whatever num_cpus says."""
    return max(2, (os.cpu_count() or 2) // 2)


def _offer(node: dict[str, Any], flavor_label: str, memory_of: Callable[[str], int | None]) -> m.NodeAdded:
    offered: dict[str, float] = node["Resources"]
    labels: dict[str, str] = node.get("Labels") or {}
    cpus, gpus = offered.get("CPU", 0.0), int(offered.get("GPU", 0))
    memory = int(offered["memory"]) if "memory" in offered else None
    slots = usual_process_slots(cpus, gpus, memory)
    flavor, topology = _flavor(offered, labels, flavor_label), _topology(labels)
    gpu_memory = memory_of(flavor) if gpus else None
    size = str(node["NodeID"]), cpus, gpus, memory, gpu_memory, preload_slots(), slots
    # CPUs are held by a process beside the one that loads.
    return m.NodeAdded(*size, flavor=flavor, topology=topology, loads_apart=True)


def _flavor(offered: dict[str, float], labels: dict[str, str], label: str) -> str:
    """The label's value; for accelerators also what Ray has found, as in `accelerator_type="A100"`; "" for neither."""
    if label != ACCELERATOR or label in labels:
        return labels.get(label, "")
    return next((name.partition(":")[2] for name in sorted(offered) if name.startswith("accelerator_type:")), "")


def _topology(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Every label is a level at which a gang may have to be together: `rack`, say, or Ray's own `availability-zone`."""
    return tuple(sorted((name.removeprefix(RAYS_OWN), value) for name, value in labels.items() if value))
