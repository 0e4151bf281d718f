"""What pods hold and nodes offer, in CPUs, GPUs and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egs_core.errors import InputError
from egs_core.flavor_names import is_gpu_resource
from egs_core.units import parse_quantity
from egs_kubeflow.audit.shapes import Amounts, Container, PodSpec

MOST = 1e6  # CPUs or GPUs of one node
Held = tuple[float, float, int]  # CPUs, GPUs, bytes of memory


def amounts_of(amounts: Mapping[str, str | int | float], place: str) -> Held:
    """CPUs, GPUs and memory of a list of resources. Raises InputError for an amount that is none."""
    cpus, gpus, memory = 0.0, 0.0, 0.0
    for name, amount in amounts.items():
        if name == "cpu":
            cpus = _bounded(amount, MOST, f"{place}: cpu")
        elif name == "memory":
            memory = _bounded(amount, 2.0**62, f"{place}: memory")
        elif is_gpu_resource(name):  # a slice of a GPU counts as one
            gpus += _bounded(amount, MOST, f"{place}: {name}")
    return cpus, gpus, int(memory)


def _bounded(amount: str | int | float, most: float, place: str) -> float:
    if (found := parse_quantity(str(amount), place)) > most:
        raise InputError(place, f"{str(amount)[:40]!r} is more than a node can have")
    return found


def held_by(spec: PodSpec, place: str) -> Held:
    """What the scheduler sets aside for a pod: of its containers the sum, of an init container at least its own."""
    inits = spec.init_containers or []
    beside = [one for one in inits if one.restart_policy == "Always"]
    together = _sum(requested(one, place) for one in [*(spec.containers or []), *beside])
    alone = [requested(one, place) for one in inits if one.restart_policy != "Always"]
    cpus, gpus, memory = (max(values) for values in zip(together, *alone, strict=True))
    return cpus, gpus, int(memory)


def requested(container: Container, place: str) -> Held:
    """A container's requests; what it only limits is requested as well, as Kubernetes has it."""
    resources = container.resources
    if resources is None:
        return 0.0, 0.0, 0
    wanted: Amounts = {**(resources.limits or {}), **(resources.requests or {})}
    return amounts_of(wanted, place)


def _sum(found: Iterable[Held]) -> Held:
    cpus, gpus, memory = 0.0, 0.0, 0
    for one in found:
        cpus, gpus, memory = cpus + one[0], gpus + one[1], memory + one[2]
    return cpus, gpus, memory
