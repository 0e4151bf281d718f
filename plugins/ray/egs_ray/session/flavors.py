"""Of which flavors Ray's GPUs are, for a site that chooses between them, and how long a run's tasks take on each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.graph.columns import Graph
from egs_core.notices import MAX_COST_UNUSED, warn_once
from egs_core.site import Learning, Site
from egs_ray.payload import Converted

OBJECTIVES = ("finish", "cost")


class Flavors:
    """file: of prices and speeds, if there is one. names: of those that the site knows: none where all GPUs are of one.
    Raises InputError."""

    def __init__(self, file: str | None) -> None:
        self._specs = _read(Path(file)) if file else ()
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


def _read(file: Path) -> tuple[FlavorSpec, ...]:
    from egs_core.flavors import (
        load_flavors,
    )  # brings pydantic, which takes its time to import: each driver waits for it

    return load_flavors(file)


def _specs_for(names: Iterable[str], specs: tuple[FlavorSpec, ...]) -> tuple[FlavorSpec, ...]:
    from egs_core.flavors import spec_for  # as above

    return tuple([spec_for(name, specs) for name in names])


def checked_objective(name: str) -> str:
    """Raises InputError."""
    if name not in OBJECTIVES:
        raise InputError("objective", f"{name!r} is unknown", f"one of {', '.join(OBJECTIVES)}")
    return name
