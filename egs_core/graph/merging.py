"""A graph whose tasks are not split: what a framework without EGS runs."""

from __future__ import annotations

import msgspec

from egs_core.graph.columns import CPU, Graph, Shape


def merge_phases(graph: Graph) -> Graph:
    """The same graph with one phase a task, holding the largest of every resource for the whole time."""
    columns = {
        "phase_flavor_s": {},
        "phase_offsets": [0],
        "phase_kind": [],
        "phase_shape": [],
        "phase_duration_s": [],
        "shapes": [],
    }
    merged = msgspec.structs.replace(graph, **columns)
    for task in range(graph.n_tasks):
        phases = graph.phases_of(task)
        shapes = [graph.shapes[graph.phase_shape[p]] for p in phases]
        whole = Shape(*(max(getattr(s, f) for s in shapes) for f in Shape.__struct_fields__))
        seconds = [graph.phase_duration_s[p] for p in phases]
        known = None if None in seconds else sum(s for s in seconds if s is not None)
        if any(p in graph.phase_flavor_s for p in phases):
            merged.phase_flavor_s[merged.n_phases] = _merged_flavors(graph, phases)
        merged.phase_kind.append(max((graph.phase_kind[p] for p in phases), default=CPU))
        merged.phase_shape.append(merged.intern_shape(whole))
        merged.phase_duration_s.append(known)
        merged.phase_offsets.append(len(merged.phase_kind))
    return merged


def _merged_flavors(graph: Graph, phases: range) -> dict[str, float]:
    """Seconds of all phases on each flavor that is known for every one of them that is known on any."""
    known = [graph.phase_flavor_s[p] for p in phases if p in graph.phase_flavor_s]
    flavors = [flavor for flavor in known[0] if all(flavor in seconds for seconds in known)]
    rest = sum(graph.phase_duration_s[p] or 0.0 for p in phases if p not in graph.phase_flavor_s)
    return {flavor: rest + sum(seconds[flavor] for seconds in known) for flavor in flavors}
