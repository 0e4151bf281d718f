"""What a run under way says of its own tasks: how long its like took, while the rest of it is still to come.

Ended, succeeded ─► its seconds, by the rule of the history ─► learned ─► what is believed now of phases like it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from egs_core.graph.columns import Graph
from egs_core.history.from_runlog import history_from_runlog
from egs_core.predict import Predictor
from egs_core.predict.live import Belief, LiveBeliefs
from egs_core.runlog import records as r

_Key = tuple[str, int, int]  # task, phase, attempt


class Followed:
    """A workload that is known whole. first: the site's number of its first phase. learned: makes a predictor that has
    learned the pipeline's history, for this run alone, which teaches it: called when a task has ended, not before, as
    nothing is to stand in front of a user's first tasks."""

    def __init__(self, pipeline: str, graph: Graph, first: int, learned: Callable[[], Predictor]) -> None:
        self._pipeline, self._graph, self._first, self._learned = pipeline, graph, first, learned
        self._tasks = {task: index for index, task in enumerate(graph.ids)}
        self._open: dict[_Key, list[r.Record]] = {}  # of attempts under way
        self._beliefs: LiveBeliefs | None = None

    @staticmethod
    def has_likes(graph: Graph) -> bool:
        """Whether one task of the graph can tell of another."""
        return any(count > 1 for count in Counter(graph.names).values())

    def take(self, record: r.Record) -> list[Belief]:
        """A line of its run log; what is believed anew: the site's numbers of phases, with median and 95th percentile
        in seconds."""
        if not isinstance(record, r.Started | r.ColdStart | r.Used | r.Ended):
            return []
        key = (record.task, record.phase, record.attempt)
        if not isinstance(record, r.Ended):
            self._open.setdefault(key, []).append(record)
            return []
        rows = history_from_runlog([*self._open.pop(key, ()), record])
        task = self._tasks.get(record.task)
        if not rows or task is None or record.phase >= len(self._graph.phases_of(task)):
            return []
        if self._beliefs is None:
            self._beliefs = LiveBeliefs(self._learned(), self._graph, self._pipeline)
        phase = self._graph.phases_of(task)[record.phase]
        revised = self._beliefs.learn(None, phase, rows[0].seconds)
        return [(self._first + other, p50_s, p95_s) for other, p50_s, p95_s in revised]
