"""How long the tasks of a run are believed to take, by what is known by now: the history, what has ended in this run,
and of a task its arguments once they are there.

    opened ─► as its like has taken ─► its arguments are there: as its like with such has taken ─► it has ended: that is
                                                        ▲                                          learned, and the
                                                        └───────── others of its kind are asked again, also running ones

What is told is median and 95th percentile; of a task of which no history and nothing in this run knows, nothing is.
Features are the bytes of its artifacts, its numbers and its short texts, each by the order of their names. A history
keeps the bytes; numbers and texts count within a run, as in a loop over them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from egs_core.predict import Estimate, Features, Predictor, Signature, signature_of
from egs_core.predict.live import GROWTH, Belief
from egs_kubeflow.run.plan import Plan
from egs_kubeflow.run.scope import Node

LONGEST_TEXT = 64
MOST_FILES = 1_000
MOST_ASKED = 256
"""Of a kind of which one has ended: those that came first, which run or are next."""


class Beliefs:
    """See the module. predictor: it learns with the run; job: the run's name."""

    def __init__(self, predictor: Predictor, plan: Plan, job: str) -> None:
        self._predictor, self._plan, self._job = predictor, plan, job
        self._open: dict[str, dict[int, Node]] = {}  # by kind, those that have not ended, by number
        self._features: dict[int, Features] = {}  # of those whose arguments are there
        self._ended: dict[str, int] = {}
        self._due: dict[str, int] = {}  # how many of a kind have ended when the others are asked again

    def opened(self, nodes: Sequence[Node]) -> list[Belief]:
        """Tasks have come."""
        for node in nodes:
            self._open.setdefault(node.kind, {})[node.number] = node
        return self._asked(nodes)

    def ready(self, node: Node, arguments: Mapping[str, Any]) -> list[Belief]:
        """Its arguments are there."""
        self._features[node.number] = features_of(arguments, self._job)
        return self._asked([node])

    def input_bytes(self, node: Node) -> int:
        """Of its artifacts; -1: it has none, or they are not there."""
        found = self._features.get(node.number)
        return -1 if found is None else int(found.input_bytes)

    def succeeded(self, node: Node, seconds: float) -> list[Belief]:
        """It has taken that long; what is believed anew of others."""
        features = self._features.get(node.number, Features(run=self._job))
        self.over(node)
        self._predictor.observe(self._signature(node), seconds, features)
        count = self._ended[node.kind] = self._ended.get(node.kind, 0) + 1
        if count < self._due.get(node.kind, 1):
            return []
        self._due[node.kind] = max(count + 1, round(count * GROWTH))
        return self._asked(list(islice(self._open[node.kind].values(), MOST_ASKED)))

    def over(self, node: Node) -> None:
        """It will not be asked about any more."""
        self._open.get(node.kind, {}).pop(node.number, None)
        self._features.pop(node.number, None)

    def _asked(self, nodes: Sequence[Node]) -> list[Belief]:
        found: list[Belief] = []
        answers: dict[tuple[str, Features], Estimate] = {}
        for node in nodes:
            features = self._features.get(node.number, Features(run=self._job))
            if (one := answers.get((node.kind, features))) is None:
                one = self._predictor.estimate(self._signature(node), features=features)
                answers[node.kind, features] = one
            if one.source == "history":
                found.append((node.phase, one.p50_s, one.p95_s))
        return found

    def _signature(self, node: Node) -> Signature:
        return signature_of(self._plan.name, node.kind, 0, self._plan.phase(node.kind)[1])


def features_of(arguments: Mapping[str, Any], job: str) -> Features:
    """Of a task's arguments: plain values, and artifacts, which have a path."""
    numbers: list[float] = []
    labels: list[str] = []
    sizes: list[int] = []
    for _, value in sorted(arguments.items()):
        if isinstance(value, bool) or (isinstance(value, str) and len(value) <= LONGEST_TEXT):
            labels.append(str(value))
        elif isinstance(value, (int, float)):
            numbers.append(float(value) if math.isfinite(value) else -1.0)
        else:
            sizes += [_bytes_of(path) for path in _paths_of(value)]
    size = sum(sizes) if sizes and min(sizes) >= 0 else -1
    return Features(job, tuple(labels), tuple(numbers), float(size))


def _paths_of(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [path for one in values if isinstance(path := getattr(one, "path", None), str)]


def _bytes_of(path: str) -> int:
    """Of a file or a folder; -1 where nobody can tell."""
    try:
        if not os.path.isdir(path):
            return os.path.getsize(path)
        total = 0
        for count, file in enumerate(Path(path).rglob("*")):
            if count >= MOST_FILES:
                return -1
            total += file.lstat().st_size
        return total
    except OSError:
        return -1
