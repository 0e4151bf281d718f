"""What a task holds while it runs: its executor's resources and its hints.

An executor says them twice: as numbers (`cpuLimit: 2.0`, memory in GB) and as texts of Kubernetes
(`resourceCpuLimit: '2'`), which win and may hold placeholders. A request is what is held; without one it is the limit.
A hint counts for what the executor does not state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.hints import TaskHints
from egs_core.units import parse_quantity
from egs_kubeflow.convert.values import Scope, as_text

_NUMBERS_OF = {"cpu": 1.0, "memory": 1e9}  # the unit of the numeric field, memory in GB


class Needs(msgspec.Struct, frozen=True):
    """What a task holds; None: not stated. accelerator: the name of its resource, "" for none.

    unknown: of cpus, memory_bytes, accelerator and gpus those that are fixed at run time only; they are None here.
    defaulted: those that the default of a pipeline's parameter decides, each with the parameter: a run may set it.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    accelerator: str = ""
    gpus: float | None = None
    unknown: tuple[str, ...] = ()
    defaulted: tuple[tuple[str, str], ...] = ()

    def without_defaults(self) -> Needs:
        """What is sure, whatever arguments a run is given."""
        fields = dict.fromkeys(field for field, _ in self.defaulted)
        nothing = {field: "" if field == "accelerator" else None for field in fields}
        return msgspec.structs.replace(self, **nothing, unknown=(*self.unknown, *fields), defaulted=())


def needs_of(container: Any, hints: TaskHints, inputs: Scope, place: str) -> Needs:
    """The needs of a task that runs this container. Raises InputError for an amount that is none."""
    found = _Found(inputs, place)
    resources = container.resources
    cpus, memory = found.held(resources, "cpu"), found.held(resources, "memory")
    accelerator, gpus = _accelerator(resources.accelerator, found)
    unknown = tuple(found.unknown)
    if cpus is None and "cpus" not in unknown:
        cpus = hints.cpus
    if memory is None and "memory_bytes" not in unknown:
        memory = hints.memory_bytes
    if not accelerator and not gpus and not {"accelerator", "gpus"} & set(unknown):
        gpus = None if hints.gpus is None else float(math.ceil(hints.gpus))  # Kubernetes hands out whole devices
    return Needs(
        cpus, None if memory is None else round(memory), accelerator, gpus, unknown, tuple(sorted(found.defaulted))
    )


def common_needs(found: Sequence[Needs]) -> Needs:
    """The needs of a task that is there several times; what they do not have in common is unknown."""
    first = found[0]
    fields: dict[str, Any] = {"cpus": None, "memory_bytes": None, "accelerator": "", "gpus": None}
    unknown = {name for needs in found for name in needs.unknown}
    for name in fields:
        if any(getattr(needs, name) != getattr(first, name) for needs in found):
            unknown.add(name)
        elif name not in unknown:
            fields[name] = getattr(first, name)
    defaulted = sorted({one for needs in found for one in needs.defaulted if one[0] not in unknown})
    return Needs(**fields, unknown=tuple(name for name in fields if name in unknown), defaulted=tuple(defaulted))


def _accelerator(stated: Any, found: _Found) -> tuple[str, float | None]:
    """The name of the accelerator's resource and how many; the backend reads a type without a count as none."""
    name = found.text("accelerator", stated.resource_type or stated.type) or ""
    if stated.resource_count:
        return name, found.amount("gpus", stated.resource_count)
    return name, float(stated.count) if stated.count else None


class _Found:
    """Amounts of one task, and which of them are unknown, or decided by a default."""

    def __init__(self, inputs: Scope, place: str) -> None:
        self._inputs, self._place = inputs, place
        self.unknown: list[str] = []
        self.defaulted: set[tuple[str, str]] = set()

    def held(self, resources: Any, what: str) -> float | None:
        """CPUs, or bytes of memory."""
        field = {"cpu": "cpus", "memory": "memory_bytes"}[what]
        for bound in ("request", "limit"):
            if text := getattr(resources, f"resource_{what}_{bound}"):
                return self.amount(field, text)
            if number := getattr(resources, f"{what}_{bound}"):
                return _checked(number * _NUMBERS_OF[what], number, f"{self._place}: {what}_{bound}")
        return None

    def text(self, field: str, text: str) -> str | None:
        """A text without placeholders; None where it is unknown, or no value was given for it."""
        found = self._inputs.fill(text)
        if found is None or len(found) != 1:
            self.unknown.append(field)
            return None
        self.defaulted.update((field, name) for name in self._inputs.defaults_in(text))
        return as_text(found[0]) if found[0] is not None else None

    def amount(self, field: str, text: str) -> float | None:
        """A quantity as Kubernetes writes them."""
        found = self.text(field, text)
        return None if found is None else parse_quantity(found, f"{self._place}: {field}")


def _checked(amount: float, stated: object, place: str) -> float:
    if not 0 <= amount < math.inf:
        raise InputError(place, f"{str(stated)[:40]!r} is no amount of zero or more")
    return amount
