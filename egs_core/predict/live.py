"""Beliefs about a workload while it runs: what has ended says how long its like will take.

Nothing is known before it could be: a duration once its phase has ended, the size of a task's input once all tasks that
write of it have ended (at once where none does). A category is asked again each time it has grown by a quarter, so a
workload of n phases is asked of the order of n · log(n) times in all.
"""

from __future__ import annotations

from egs_core.graph.columns import Graph
from egs_core.predict.estimate import UNKNOWN_INPUT, Signature, signature_of
from egs_core.predict.predictor import Features, Predictor

GROWTH = 1.25  # of a category's ended phases, until its other phases are asked about again
Belief = tuple[int, float, float]  # phase, median and 95th percentile in seconds


class LiveBeliefs:
    """What a predictor says of the phases of one graph, which are numbered as there. The predictor learns with it."""

    def __init__(self, predictor: Predictor, graph: Graph, pipeline: str) -> None:
        self._predictor = predictor
        self._signatures: list[Signature] = []  # by phase
        self._task: list[int] = []
        self._open: dict[Signature, set[int]] = {}  # phases that have not ended
        self._ended: dict[Signature, int] = {}
        self._due: dict[Signature, int] = {}  # ended phases at which the others are asked about again
        self._last_phase = [offset - 1 for offset in graph.phase_offsets[1:]]
        for task in range(graph.n_tasks):
            for number, p in enumerate(graph.phases_of(task)):
                signature = signature_of(pipeline, graph.names[task], number, graph.shapes[graph.phase_shape[p]])
                self._signatures.append(signature)
                self._task.append(task)
                self._open.setdefault(signature, set()).add(p)
        sizes = [sum(graph.file_sizes[f] for f in graph.inputs.get(task, ())) for task in range(graph.n_tasks)]
        self._size_bytes = [size or UNKNOWN_INPUT for size in sizes]
        self._readers: dict[int, list[int]] = {}
        self._unwritten = _count_writers(graph, self._readers)

    def believe(self, _workload: object, phase: int) -> tuple[float, float]:
        """Median and 95th percentile of a phase, by what is known now; a simulation's estimator for one workload."""
        return self._belief(phase)[1:]

    def learn(self, _workload: object, phase: int, seconds: float) -> list[Belief]:
        """A phase has succeeded: what is believed anew of phases that have not; a simulation's learner for one."""
        signature, task = self._signatures[phase], self._task[phase]
        changed = self._written(task) if phase == self._last_phase[task] else set()
        self.observe(phase, seconds)
        same = self._open[signature]
        same.discard(phase)
        count = self._ended[signature] = self._ended.get(signature, 0) + 1
        if count >= self._due.get(signature, 1):
            self._due[signature] = max(count + 1, round(count * GROWTH))
            changed |= same
        return [self._belief(p) for p in sorted(changed)]

    def observe(self, phase: int, seconds: float) -> None:
        """Teach the predictor a phase that has ended, so the size of what it has read is known."""
        features = Features(input_bytes=self._size_bytes[self._task[phase]])
        self._predictor.observe(self._signatures[phase], seconds, features)

    def _written(self, task: int) -> set[int]:
        """The task has ended: phases whose input is now there as a whole."""
        changed: set[int] = set()
        for reader in self._readers.pop(task, ()):
            self._unwritten[reader] -= 1
            if not self._unwritten[reader]:
                changed.update(range(self._first_phase(reader), self._last_phase[reader] + 1))
        return changed

    def _first_phase(self, task: int) -> int:
        return self._last_phase[task - 1] + 1 if task else 0

    def _belief(self, phase: int) -> Belief:
        task = self._task[phase]
        size = UNKNOWN_INPUT if self._unwritten[task] else self._size_bytes[task]
        estimate = self._predictor.estimate(self._signatures[phase], features=Features(input_bytes=size))
        return phase, estimate.p50_s, estimate.p95_s


def _count_writers(graph: Graph, readers: dict[int, list[int]]) -> list[int]:
    """By task, how many others write of its input; fills in who reads of each."""
    writer = {file: task for task, files in graph.outputs.items() for file in files}
    counts = [0] * graph.n_tasks
    for task, files in graph.inputs.items():
        writers = {writer[file] for file in files if file in writer} - {task}
        counts[task] = len(writers)
        for other in writers:
            readers.setdefault(other, []).append(task)
    return counts
