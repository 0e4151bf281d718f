"""How long a phase will take: a distribution from its own history, else the author's hint, else what is usual here.

history   of this signature: weighted quantiles of its last 200 durations
  │ none
hint      p50 = the hint, p95 = twice that
  │ none
prior     median over the signatures of the same (pipeline, task, phase) on other shapes or inputs,
  │ none  else over all signatures of the kind; p95 = 4 to 10 times that
fixed     10 s for a CPU phase, 60 s for a GPU phase
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Shape
from egs_core.predict.estimate import (
    MAX_SPREAD,
    Estimate,
    Signature,
    conditional_estimate,
    minus_elapsed,
    sample_estimate,
    signature_of,
    spread_estimate,
)

FORMAT = "egs-predictor"
VERSION = 1
NEWEST, OLDER = 50, 150  # the window: durations that weigh NEWEST_WEIGHT, and the ones before them that weigh 1
NEWEST_WEIGHT = 3
HINT_SPREAD = 2.0
PRIOR_SPREAD = 4.0
FIXED_PRIOR_S = {CPU: 10.0, GPU: 60.0}

_Pool = tuple[str, str, int] | int  # (pipeline, task, phase), or a kind


class HistoryLike(Protocol):
    """The part of a history that a predictor reads; rows as `egs_core.history.HistoryRow`, oldest first."""

    def load(self, pipeline: str) -> Iterable[Any]: ...


class _Window:
    """The last durations of one signature, sorted by value, the newest ones with more weight.

    Within the newest 50 and within the 150 before them order does not matter. Invariant: `ranked` holds exactly the
    values of `newest` (weight 3) and `older` (weight 1), sorted.
    """

    __slots__ = ("cumulative", "estimate", "newest", "older", "ranked", "values")

    def __init__(self) -> None:
        self.newest: deque[float] = deque()
        self.older: deque[float] = deque()
        self.ranked: list[tuple[float, int]] = []
        self.values: list[float] = []
        self.cumulative: list[int] = []
        self.estimate = Estimate(0.0, 0.0, 0.0)

    def add(self, seconds: float) -> None:
        self.newest.append(seconds)
        insort(self.ranked, (seconds, NEWEST_WEIGHT))
        if len(self.newest) > NEWEST:
            aged = self.newest.popleft()
            self._discard((aged, NEWEST_WEIGHT))
            self.older.append(aged)
            insort(self.ranked, (aged, 1))
        if len(self.older) > OLDER:
            self._discard((self.older.popleft(), 1))

    def refresh(self) -> None:
        """Recompute what estimates read; apart from `add`, so that loading a long history does it once."""
        self.values = [value for value, _ in self.ranked]
        self.cumulative = list(accumulate(weight for _, weight in self.ranked))
        self.estimate = sample_estimate(self.values, self.cumulative)

    def _discard(self, entry: tuple[float, int]) -> None:
        del self.ranked[bisect_left(self.ranked, entry)]


class Predictor:
    """Learns durations and answers with distributions. Pure: no clock and no input or output."""

    def __init__(self) -> None:
        self._windows: dict[Signature, _Window] = {}
        self._warmups: dict[tuple[str, str], _Window] = {}
        # Medians of the signatures of a pool, sorted; each signature's median is in exactly two pools.
        self._pools: dict[_Pool, list[float]] = {}

    @classmethod
    def from_history(cls, history: HistoryLike, pipelines: Iterable[str]) -> Predictor:
        """A predictor that has learned the succeeded rows of these pipelines."""
        predictor = cls()
        for pipeline in pipelines:
            predictor.learn(history.load(pipeline))
        return predictor

    def learn(self, rows: Iterable[Any]) -> int:
        """Observe history rows, oldest first, and return how many counted; the same as one `observe` a row."""
        changed: set[Signature] = set()
        counted = 0
        for row in rows:
            if row.outcome != "succeeded":
                continue
            signature = signature_of(row.pipeline, row.task, row.phase, row.shape, row.flavor, row.input_bytes)
            if self._add(signature, row.seconds):
                changed.add(signature)
                counted += 1
            if row.warmup_s > 0:
                self.observe_warmup(row.pipeline, row.task, row.warmup_s)
        for signature in changed:
            self._refresh(signature)
        return counted

    def observe(self, signature: Signature, seconds: float) -> bool:
        """Learn one warm duration. A negative or non-finite one is ignored (False): a clock may be wrong."""
        counted = self._add(signature, seconds)
        if counted:
            self._refresh(signature)
        return counted

    def observe_warmup(self, pipeline: str, task: str, seconds: float) -> bool:
        """Learn how long a task's cold start took."""
        if not _is_duration(seconds):
            return False
        window = self._warmups.setdefault((pipeline, task), _Window())
        window.add(seconds)
        window.refresh()
        return True

    def warmup(self, pipeline: str, task: str) -> Estimate | None:
        """The distribution of a task's cold starts, or None when none was seen."""
        window = self._warmups.get((pipeline, task))
        return window.estimate if window else None

    def estimate(self, signature: Signature, kind: int | None = None, hint_s: float | None = None) -> Estimate:
        """The distribution of a phase's duration. kind: CPU or GPU, by default what the signature's shape says."""
        window = self._windows.get(signature)
        if window is not None:
            return window.estimate
        if hint_s is not None and _is_duration(hint_s):
            return spread_estimate(hint_s, HINT_SPREAD, 0, "hint")
        kind = signature.kind if kind is None else kind
        pool = self._pools.get(_related(signature)) or self._pools.get(kind)
        return _pooled(pool) if pool else spread_estimate(FIXED_PRIOR_S[kind], MAX_SPREAD, 0, "prior")

    def remaining(self, known: Estimate | Signature, elapsed_s: float) -> Estimate:
        """What is left for a phase that already ran elapsed_s: its distribution given that it did not end before.

        With a signature's history: quantiles of the samples above elapsed_s. Beyond all of them, or with little left of
        an estimate, the Pareto tail with exponent 2: half of those that ran t end within another 0.41 t, 95 % within
        3.5 t. So elapsed + remaining never goes down as time passes.
        """
        elapsed_s = max(0.0, elapsed_s)
        if isinstance(known, Signature):
            window = self._windows.get(known)
            if window is not None:
                return minus_elapsed(sample_estimate(window.values, window.cumulative, elapsed_s), elapsed_s)
            known = self.estimate(known)
        return minus_elapsed(conditional_estimate(known, elapsed_s), elapsed_s)

    def signatures(self) -> list[Signature]:
        """All signatures with history, in the order in which they were first seen."""
        return list(self._windows)

    def to_dict(self) -> dict[str, Any]:
        """A versioned snapshot of plain lists, numbers and text; durations oldest first."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "signatures": [[*msgspec.to_builtins(s), [*w.older, *w.newest]] for s, w in self._windows.items()],
            "warmups": [[*key, [*w.older, *w.newest]] for key, w in self._warmups.items()],
        }

    @classmethod
    def from_dict(cls, snapshot: Mapping[str, Any]) -> Predictor:
        """The predictor that made the snapshot; InputError for one of another format, version or form."""
        if snapshot.get("format") != FORMAT or snapshot.get("version") != VERSION:
            found = f"{snapshot.get('format')!r} version {snapshot.get('version')!r}"
            raise InputError("predictor snapshot", f"{found} is not readable", f"known: {FORMAT} version {VERSION}")
        predictor = cls()
        try:
            rows = msgspec.convert(snapshot.get("signatures"), list[_SignatureRow])
            warmups = msgspec.convert(snapshot.get("warmups", []), list[tuple[str, str, list[float]]])
        except msgspec.ValidationError as error:
            raise InputError("predictor snapshot", str(error)) from error
        for pipeline, task, phase, shape, flavor, bucket, durations in rows:
            signature = Signature(pipeline, task, phase, shape, flavor, bucket)
            for seconds in durations:
                predictor._add(signature, seconds)
            if signature in predictor._windows:
                predictor._refresh(signature)
        for pipeline, task, durations in warmups:
            for seconds in durations:
                predictor.observe_warmup(pipeline, task, seconds)
        return predictor

    def _add(self, signature: Signature, seconds: float) -> bool:
        if not _is_duration(seconds):
            return False
        window = self._windows.get(signature)
        if window is None:
            window = self._windows[signature] = _Window()
        window.add(seconds)
        return True

    def _refresh(self, signature: Signature) -> None:
        window = self._windows[signature]
        was_known, old = bool(window.values), window.estimate.p50_s
        window.refresh()
        for key in (_related(signature), signature.kind):
            pool = self._pools.setdefault(key, [])
            if was_known:
                del pool[bisect_left(pool, old)]
            insort(pool, window.estimate.p50_s)


_SignatureRow = tuple[str, str, int, Shape, str, int, list[float]]


def _related(signature: Signature) -> _Pool:
    return signature.pipeline, signature.task, signature.phase


def _pooled(medians: list[float]) -> Estimate:
    """The median of the pool's medians, spread as they are, but at least PRIOR_SPREAD and at most MAX_SPREAD."""
    middle = sample_estimate(medians, range(1, len(medians) + 1))
    spread = middle.p95_s / middle.p50_s if middle.p50_s > 0 else PRIOR_SPREAD
    return spread_estimate(middle.p50_s, min(max(spread, PRIOR_SPREAD), MAX_SPREAD), len(medians), "prior")


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
