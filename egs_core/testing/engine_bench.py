"""Drives an engine by hand in tests: names instead of numbers, and every invariant held after every event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.state.journal import Transition, fold
from egs_core.engine.state.lifecycle import STATUS_NAMES
from egs_core.engine.state.state import State
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions

PhaseSpec = tuple[int, Shape, float | None]


def cpu(seconds: float | None = 1.0, cpus: float = 1.0, memory_bytes: int = 0) -> PhaseSpec:
    """A CPU phase for `graph_of`."""
    return CPU, Shape(round(cpus * 1000), 0, memory_bytes), seconds


def gpu(seconds: float | None = 1.0, gpus: float = 1.0, cpus: float = 0.0, gpu_memory_bytes: int = 0) -> PhaseSpec:
    """A GPU phase for `graph_of`."""
    return GPU, Shape(round(cpus * 1000), round(gpus * 1000), 0, gpu_memory_bytes), seconds


def graph_of(
    tasks: Mapping[str, Sequence[str]],
    phases: Mapping[str, Sequence[PhaseSpec]] | None = None,
    options: Mapping[str, TaskOptions] | None = None,
    default: Sequence[PhaseSpec] | None = None,
    known: Sequence[str] = (),
) -> Graph:
    """A graph from task -> parents; `known` are the tasks of the workload's earlier blocks, in order."""
    graph, numbers = Graph(), {name: number for number, name in enumerate(known)}
    for number, name in enumerate(tasks, start=len(known)):
        numbers[name] = number
    for name, parents in tasks.items():
        spec = tuple((phases or {}).get(name, default or (cpu(),)))
        graph.add_task(name, tuple(numbers[p] for p in parents), spec, options=(options or {}).get(name))
    return graph


def canonical(state: State) -> bytes:
    """Equal states give equal bytes, in whatever order their sets and dictionaries were filled."""
    return msgspec.json.encode(msgspec.to_builtins(state, str_keys=True, order="deterministic"))


class EngineBench:
    """See the module. log: every (event, now, transitions) so far; decisions: all that were given out."""

    def __init__(self, cpus: float | None = None, gpus: int = 0, *, config: EngineConfig | None = None) -> None:
        self.engine = Engine(msgspec.structs.replace(config or EngineConfig(), record=True))
        self.now = 0.0
        self.log: list[tuple[m.Event, float, list[Transition]]] = []
        self.decisions: list[m.Decision] = []
        self.folded = State()
        if cpus is not None:
            self.send(m.NodeAdded("n0", cpus, gpus))

    @property
    def state(self) -> State:
        return self.engine.state

    # --- events ---

    def send(self, event: m.Event, at: float | None = None) -> list[m.Decision]:
        """Hand over an event, hold every invariant, and hold that the transitions fold to the same state."""
        self.now = max(self.now, self.now if at is None else at)
        decisions = self.engine.handle(event, self.now if at is None else at)
        transitions = self.engine.take_transitions()
        self.log.append((event, self.now, transitions))
        self.decisions += decisions
        self.engine.validate_state()
        fold(self.folded, event, transitions)  # without one it stays as the state was before the event
        is_folded = canonical(self.folded) == canonical(self.state)
        assert is_folded or transitions, "the state changed without a transition"
        assert is_folded, "the transitions do not fold to the state"
        return decisions

    def submit(self, graph: Graph, workload: str = "w", at: float | None = None) -> list[m.Decision]:
        """A workload with its first, or one more, block of tasks."""
        if workload not in self.state.workload_numbers:
            self.send(m.WorkloadSubmitted(workload), at)
        return self.send(m.TasksAdded(workload, graph), at)

    def start(self, name: str, at: float | None = None) -> list[m.Decision]:
        task = self.task(name)
        return self.send(m.PhaseStarted(self.state.cursor[task], self.state.attempt[task]), at)

    def end(self, name: str, at: float | None = None, outcome: str = "succeeded") -> list[m.Decision]:
        """The current phase of the task ends."""
        task = self.task(name)
        return self.send(m.PhaseEnded(self.state.cursor[task], self.state.attempt[task], outcome), at)

    def abort(self, scope: str, target: str, actor: str = "", reason: str = "") -> list[m.Decision]:
        """scope task takes the task's name."""
        target = str(self.task(target)) if scope == "task" else target
        return self.send(m.AbortRequested(scope, target, actor, reason))

    # --- questions ---

    def task(self, name: str) -> int:
        """The engine's number of the latest task of this name."""
        return len(self.state.task_ids) - 1 - self.state.task_ids[::-1].index(name)

    def status(self, name: str) -> str:
        """Of the task's current phase."""
        return STATUS_NAMES[self.state.status[self.state.cursor[self.task(name)]]]

    def grant_of(self, name: str) -> m.Grant:
        """The latest grant of the task."""
        task = self.task(name)
        return next(d for d in reversed(self.decisions) if isinstance(d, m.Grant) and d.task == task)

    def granted(self) -> list[str]:
        """Names of the tasks in the order of their grants, one entry a phase."""
        return [self.state.task_ids[d.task] for d in self.decisions if isinstance(d, m.Grant)]

    def preload_of(self, name: str) -> m.Preload:
        """The latest preload of the task."""
        task = self.task(name)
        return next(d for d in reversed(self.decisions) if isinstance(d, m.Preload) and d.task == task)

    def preloaded(self) -> list[str]:
        """Names of the tasks in the order of their preloads."""
        return [self.state.task_ids[d.task] for d in self.decisions if isinstance(d, m.Preload)]

    def reason(self, name: str) -> m.Reason:
        task = self.task(name)
        reason, never = self.engine.explain(task), self.engine.why_never(task)
        assert never == (reason if reason.kind == "infeasible" else None), (reason, never)
        return reason
