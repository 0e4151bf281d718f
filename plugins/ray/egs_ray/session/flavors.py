"""Of which flavors Ray's GPUs are, for a site that chooses between them, and how long a run's tasks take on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.flavor_names import nearest
from egs_core.graph.columns import GIB, Graph
from egs_core.notices import MAX_COST_UNUSED, warn_once
from egs_core.site import Learning, Site
from egs_ray.payload import Converted

OBJECTIVES = ("finish", "cost")


class Flavors:
    """file: of prices, speeds and memory, if there is one. names: of those that the site knows: none where all GPUs are
    of one. Raises InputError."""

    def __init__(self, file: str | None) -> None:
        self._specs, self._memory = _read(Path(file)) if file else ((), {})
        self._told: tuple[FlavorSpec, ...] = ()

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self._told]

    def changed(self, nodes: Iterable[m.NodeAdded], has_tickets: bool) -> m.FlavorsChanged | None:
        """What the site does not know yet. has_tickets: a script's own tasks wait for a turn, and Ray places those: one
        that waited for a better GPU would not get it."""
        names = sorted({node.flavor for node in nodes if node.gpus})
        is_choice, is_priced = len(names) > 1, len(names) == 1 and names[0] and self._specs
        found = _specs_for(names, self._specs) if is_priced or (is_choice and not has_tickets) else ()
        if found == self._told:
            return None
        self._told = found
        return m.FlavorsChanged(found)

    def memory_of(self, flavor: str) -> int | None:
        """Bytes of one of its GPUs, where the file says it."""
        return self._memory.get(nearest(self._memory, flavor))

    def fitted(self, graph: Graph, nodes: Iterable[m.NodeAdded]) -> Graph:
        """Without what tasks need of a GPU's memory where no GPU has so much, with a warning for each: Ray alone would
        place them, and that does not know. nodes: with GPUs of unknown memory all may do."""
        there = [inf if one.gpu_memory_bytes is None else one.gpu_memory_bytes for one in nodes if one.gpus]
        most = max(there, default=inf)
        large = {number for number, shape in enumerate(graph.shapes) if shape.gpu_memory_bytes > most}
        if not large:
            return graph
        found = msgspec.structs.replace(graph, shapes=list(graph.shapes), phase_shape=list(graph.phase_shape))
        for task in range(graph.n_tasks):
            for phase in [phase for phase in graph.phases_of(task) if graph.phase_shape[phase] in large]:
                shape = graph.shapes[graph.phase_shape[phase]]
                found.phase_shape[phase] = found.intern_shape(msgspec.structs.replace(shape, gpu_memory_bytes=0))
                stated = f"gpu_memory of {shape.gpu_memory_bytes / GIB:g} GiB"
                warn_once(f"{graph.names[task]}: its {stated} is not kept: the largest GPU has {most / GIB:g} GiB")
        return found

    def applied(self, graph: Graph) -> Graph:
        """Without `max_cost` where the GPUs have no prices, with one warning: no cost would ever be reached."""
        if any(spec.gpu_hour or spec.cpu_hour for spec in self._told):
            return graph
        stated = {index: one for index, one in graph.options.items() if one.max_cost is not None}
        if stated:
            warn_once(MAX_COST_UNUSED)
        without = {index: msgspec.structs.replace(one, max_cost=None) for index, one in stated.items()}
        return msgspec.structs.replace(graph, options={**graph.options, **without}) if without else graph

    def tell_estimates(self, site: Site, learning: Learning, converted: Converted, first: int) -> None:
        """From the history, of a graph whose first phase the site knows by this number."""
        found = learning.on_flavors(converted.name, converted.graph, self.names)
        values = [(first + phase, flavor, *times) for phase, known in found.items() for flavor, times in known.items()]
        if values:
            site.report(m.FlavorEstimates(tuple(values)))


def _read(file: Path) -> tuple[tuple[FlavorSpec, ...], Mapping[str, int]]:
    # Brings pydantic, which takes its time to import: each driver waits for it.
    from egs_core.flavors import load_flavors, load_memory

    return load_flavors(file), load_memory(file)


def _specs_for(names: Iterable[str], specs: tuple[FlavorSpec, ...]) -> tuple[FlavorSpec, ...]:
    from egs_core.flavors import spec_for  # as above

    return tuple([spec_for(name, specs) for name in names])


def checked_objective(name: str) -> str:
    """Raises InputError."""
    if name not in OBJECTIVES:
        raise InputError("objective", f"{name!r} is unknown", f"one of {', '.join(OBJECTIVES)}")
    return name
