"""What really happens in a simulation, whatever the engine believes: durations, warm-ups and transfers of a trace."""

from __future__ import annotations

import msgspec

from egs_core.engine.state.state import State
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.sim.config import SimConfig


def prepared(workload: LoadedWorkload, config: SimConfig) -> LoadedWorkload:
    """The workload as it is run: phases merged without split, one slot each with slots, warm-ups scaled."""
    graph = workload.graph
    _require_durations(workload)
    if not config.split:
        graph = merge_phases(graph)
    if config.slots:
        graph = msgspec.structs.replace(graph, shapes=[Shape()], phase_shape=[0] * graph.n_phases)
    if config.warmup_factor != 1.0:
        factor = config.warmup_factor
        options = {t: msgspec.structs.replace(o, warmup_s=o.warmup_s * factor) for t, o in graph.options.items()}
        graph = msgspec.structs.replace(graph, options=options)
    return msgspec.structs.replace(workload, graph=graph)


def _require_durations(workload: LoadedWorkload) -> None:
    graph = workload.graph
    if None not in graph.phase_duration_s:
        return
    phase = graph.phase_duration_s.index(None)
    task = next(t for t in range(graph.n_tasks) if phase in graph.phases_of(t))
    place = f"{workload.id}: task {graph.ids[task]!r}"
    raise InputError(place, "its duration is unknown", "a simulation needs the duration_s of every phase")


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


class Trace:
    """The truth by the engine's own numbers. seconds: by phase; ended_at: by task, of its latest phase."""

    def __init__(self, state: State, config: SimConfig) -> None:
        self.seconds: list[float] = []
        self._flavor_s: dict[int, dict[str, float]] = {}  # phase -> flavor -> seconds there
        self.ended_at: dict[int, float] = {}
        self.phase_numbers: list[int] = []  # of the workload learned last: its phase -> the engine's
        self._state = state
        self._bandwidth = config.bandwidth_bytes_per_s
        self._bytes_in: dict[int, list[tuple[int, int]]] = {}  # task -> (parent, bytes)
        self._ran_on: dict[int, str] = {}

    def learn(self, workload: LoadedWorkload, number: int) -> None:
        """Take over a workload that the engine has just been given."""
        graph, state = workload.graph, self._state
        numbers = state.workloads[number].numbers
        self.seconds.extend([0.0] * (len(state.kind) - len(self.seconds)))
        self.phase_numbers = [0] * graph.n_phases
        for local, task in enumerate(numbers):
            offset = state.first_phase[task] - graph.phase_offsets[local]
            for p in graph.phases_of(local):
                self.phase_numbers[p] = p + offset
                self.seconds[p + offset] = graph.phase_duration_s[p] or 0.0
                if p in graph.phase_flavor_s:
                    self._flavor_s[p + offset] = graph.phase_flavor_s[p]
            if self._bandwidth and graph.inputs:
                sizes = [(numbers[parent], graph.edge_bytes(parent, local)) for parent in graph.parents[local]]
                self._bytes_in[task] = [(parent, size) for parent, size in sizes if size]

    def slowdown(self, phase: int, flavor: str) -> float:
        """How many times as long as on the reference the phase takes on this flavor."""
        own = self._flavor_s.get(phase, {}).get(flavor)
        if own is not None and self.seconds[phase]:
            return own / self.seconds[phase]
        spec = self._state.flavors.get(flavor)
        return 1.0 if spec is None or not self._state.shapes[self._state.shape[phase]].gpu_milli else 1.0 / spec.speed

    def warmup_s(self, task: int) -> float:
        return self._state.options_of(task).warmup_s

    def transfer_s(self, task: int, node: str) -> float:
        """Seconds until the task's input is on the node: what parents wrote elsewhere, over the bandwidth."""
        if not self._bandwidth:
            return 0.0
        self._ran_on[task] = node
        return sum(size for parent, size in self._bytes_in.get(task, ()) if self._ran_on.get(parent) != node) / (
            self._bandwidth
        )
