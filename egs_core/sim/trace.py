"""What really happens in a simulation, whatever the engine believes: durations, warm-ups and transfers of a trace."""

from __future__ import annotations

import msgspec

from egs_core.engine.state.state import State
from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.merging import merge_phases
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
    raise InputError(place, "its duration is unknown", "state it in the file, or give --history")


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
        offsets, first_phase = graph.phase_offsets, state.first_phase
        for local, task in enumerate(numbers):
            first = offsets[local]
            offset = first_phase[task] - first
            for p in range(first, offsets[local + 1]):
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
        return 1.0 if spec is None or not self._state.shape_of(phase).gpu_milli else 1.0 / spec.speed

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
