"""How long a phase will take: a distribution from its own history, else the author's hint, else what is usual here.

history   of this signature, whatever the input size: its first two durations as they are, then a `Forecaster` that
  │       weighs several views of them, size, labels and run included
  │ none
hint      p50 = the hint, p95 = twice that
  │ none
prior     median over the signatures of the same (pipeline, task, phase) on other shapes,
  │       else what a task of this name, phase, shape and flavor takes in another pipeline,
  │ none  else the median over all signatures of the kind; of medians p95 = 4 to 10 times that
fixed     10 s for a CPU phase, 60 s for a GPU phase
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.predict.estimate import (
    MAX_SPREAD,
    UNKNOWN_INPUT,
    Estimate,
    Signature,
    conditional_estimate,
    minus_elapsed,
    sample_estimate,
    signature_of,
    spread_estimate,
)
from egs_core.predict.forecast import Forecaster, Traits
from egs_core.predict.window import Window

FORMAT = "egs-predictor"
VERSION = 2
READABLE = (1, VERSION)
HINT_SPREAD = 2.0
PRIOR_SPREAD = 4.0
FIXED_PRIOR_S = {CPU: 10.0, GPU: 60.0}
FORECAST_FROM = 3  # durations of a signature; fewer say nothing about which view of them is good
LEARNED_ROWS = 200  # of a signature, the newest ones, when rows are learned in bulk
_WARMUPS = 200

_Name = tuple[str, int, Shape, str]  # task, phase, shape, flavor
_Pool = tuple[str, str, int] | int  # (pipeline, task, phase), or a kind


class Features(msgspec.Struct, frozen=True):
    """What else is known of one phase before it starts, and may matter to how long it takes.

    run: the workload that it is part of. labels: words, always in the same order ("" unknown), such as user or model.
    numbers: sizes and counts, likewise (negative: unknown). input_bytes: -1 takes the size from the signature.
    """

    run: str = ""
    labels: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    input_bytes: float = -1.0


NO_FEATURES = Features()


class HistoryLike(Protocol):
    """The part of a history that a predictor reads; rows as `egs_core.history.HistoryRow`, oldest first."""

    def load(self, pipeline: str) -> Iterable[Any]: ...


class _Known(msgspec.Struct):
    """A signature with history: its name as a category, and its median as it is in the pools."""

    category: str
    median_s: float


class Predictor:
    """Learns durations and answers with distributions. Pure: no clock and no input or output."""

    def __init__(self) -> None:
        self._forecaster = Forecaster()
        self._known: dict[Signature, _Known] = {}  # without the input's size, which is a feature
        self._named: dict[_Name, str] = {}  # the category of a task's name that was seen last, whatever its pipeline
        self._warmups: dict[tuple[str, str], Window] = {}  # in seconds
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
        """Observe history rows, oldest first, and return how many counted: of a signature at most the newest
        LEARNED_ROWS, each as one `observe`. One with a flavor counts for that flavor, and for the task wherever it
        runs."""
        good = [row for row in rows if row.outcome == "succeeded" and _is_duration(row.seconds)]
        signatures = [signature_of(row.pipeline, row.task, row.phase, row.shape, row.flavor) for row in good]
        left, left_anywhere = Counter(signatures), Counter([_anywhere(signature) for signature in signatures])
        counted = 0
        for row, signature in zip(good, signatures, strict=True):
            features, anywhere = Features(input_bytes=row.input_bytes), _anywhere(signature)
            left[signature] -= 1
            left_anywhere[anywhere] -= 1
            if left_anywhere[anywhere] < LEARNED_ROWS:
                counted += self.observe(anywhere, row.seconds, features)
            if signature != anywhere and left[signature] < LEARNED_ROWS:
                self.observe(signature, row.seconds, features)
            if row.warmup_s > 0:
                self.observe_warmup(row.pipeline, row.task, row.warmup_s)
        return counted

    def observe(self, signature: Signature, seconds: float, features: Features = NO_FEATURES) -> bool:
        """Learn one warm duration. A negative or non-finite one is ignored (False): a clock may be wrong."""
        if not _is_duration(seconds):
            return False
        plain = _without_size(signature)
        known = self._known.get(plain)
        if known is None:
            self._known[plain] = known = _Known(_category(plain), math.nan)
        self._named[_name(plain)] = known.category
        self._forecaster.learn(_traits(known.category, signature, features), seconds)
        self._pool(plain, known)
        return True

    def observe_warmup(self, pipeline: str, task: str, seconds: float) -> bool:
        """Learn how long a task's cold start took."""
        if not _is_duration(seconds):
            return False
        self._warmups.setdefault((pipeline, task), Window(_WARMUPS)).add(seconds)
        return True

    def warmup(self, pipeline: str, task: str) -> Estimate | None:
        """The distribution of a task's cold starts, or None when none was seen."""
        window = self._warmups.get((pipeline, task))
        return _sampled(window.ranked) if window else None

    def estimate(
        self,
        signature: Signature,
        kind: int | None = None,
        hint_s: float | None = None,
        features: Features = NO_FEATURES,
    ) -> Estimate:
        """The distribution of a phase's duration. kind: CPU or GPU, by default what the signature's shape says."""
        known = self._known.get(_without_size(signature))
        if known is not None:
            return self._from_history(known.category, signature, features)
        if hint_s is not None and _is_duration(hint_s):
            return spread_estimate(hint_s, HINT_SPREAD, 0, "hint")
        return self._prior(signature, signature.kind if kind is None else kind, features)

    def believed_s(self, graph: Graph, pipeline: str, tasks: Sequence[str]) -> list[float | None]:
        """Median seconds of each phase of a graph as history has them, else as hinted; None for what is unknown.

        tasks: what each task of the graph is called in the history.
        """
        found = self.estimates(graph, pipeline, tasks)
        return [one.p50_s if one.source in ("history", "hint") else None for one in found]

    def estimates(self, graph: Graph, pipeline: str, tasks: Sequence[str]) -> list[Estimate]:
        """The distribution of each phase of a graph. tasks: as above."""
        found: list[Estimate] = []
        for task, name in enumerate(tasks):
            for number, phase in enumerate(graph.phases_of(task)):
                signature = signature_of(pipeline, name, number, graph.shapes[graph.phase_shape[phase]])
                found.append(self.estimate(signature, graph.phase_kind[phase], graph.phase_duration_s[phase]))
        return found

    def remaining(self, known: Estimate | Signature, elapsed_s: float, features: Features = NO_FEATURES) -> Estimate:
        """What is left for a phase that already ran elapsed_s: its distribution given that it did not end before.

        Of a signature with history and no features: quantiles of its durations above elapsed_s, at least the estimate.
        Otherwise a log-normal distribution through the estimate, since durations of other inputs say little about this
        one. Beyond all of either the Pareto tail with exponent 2: half of those that ran t end within another 0.41 t,
        95 % within 3.5 t. So elapsed + remaining never goes down as time passes.
        """
        elapsed_s = max(0.0, elapsed_s)
        if isinstance(known, Estimate):
            return minus_elapsed(conditional_estimate(known, elapsed_s), elapsed_s)
        estimate = self.estimate(known, features=features)
        history = self._known.get(known) if features == NO_FEATURES else None
        if history is None or not elapsed_s:
            return minus_elapsed(conditional_estimate(estimate, elapsed_s), elapsed_s)
        return minus_elapsed(_later(estimate, self._survivors(history.category, elapsed_s)), elapsed_s)

    def signatures(self) -> list[Signature]:
        """All signatures with history, in the order in which they were first seen; their input sizes are left out."""
        return list(self._known)

    def to_dict(self) -> dict[str, Any]:
        """A versioned snapshot of plain lists, numbers and text."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "signatures": [msgspec.to_builtins(signature) for signature in self._known],
            "warmups": [[*key, list(window.recent)] for key, window in self._warmups.items()],
            "forecaster": self._forecaster.to_dict(),
        }

    @classmethod
    def from_dict(cls, snapshot: Mapping[str, Any]) -> Predictor:
        """The predictor that made the snapshot; InputError for one of another format, version or form."""
        if snapshot.get("format") != FORMAT or snapshot.get("version") not in READABLE:
            found = f"{snapshot.get('format')!r} version {snapshot.get('version')!r}"
            raise InputError("predictor snapshot", f"{found} is not readable", f"known: {FORMAT} up to {VERSION}")
        predictor = cls()
        try:
            warmups = msgspec.convert(snapshot.get("warmups", []), list[tuple[str, str, list[float]]])
            if snapshot["version"] == 1:
                predictor._take_version_1(msgspec.convert(snapshot.get("signatures"), list[_RowOfVersion1]))
            else:
                predictor._take(snapshot)
        except msgspec.ValidationError as error:
            raise InputError("predictor snapshot", str(error)) from error
        for pipeline, task, durations in warmups:
            for seconds in durations:
                predictor.observe_warmup(pipeline, task, seconds)
        return predictor

    def _take(self, snapshot: Mapping[str, Any]) -> None:
        signatures = msgspec.convert(snapshot.get("signatures"), list[Signature])
        self._forecaster = Forecaster.from_dict(msgspec.convert(snapshot.get("forecaster"), dict[str, Any]))
        for signature in signatures:
            self._known[signature] = known = _Known(_category(signature), math.nan)
            self._named[_name(signature)] = known.category
            if not self._forecaster.recent(known.category):
                raise InputError("predictor snapshot", f"no durations of {signature.task!r}")
            self._pool(signature, known)

    def _take_version_1(self, rows: Iterable[_RowOfVersion1]) -> None:
        for pipeline, task, phase, shape, flavor, bucket, durations in rows:
            for seconds in durations:
                self.observe(Signature(pipeline, task, phase, shape, flavor, bucket), seconds)

    def _prior(self, signature: Signature, kind: int, features: Features) -> Estimate:
        if pool := self._pools.get(_related(signature)):
            return _pooled(pool)
        if (category := self._named.get(_name(signature))) is not None:
            return msgspec.structs.replace(self._from_history(category, signature, features), source="prior")
        pool = self._pools.get(kind)
        return _pooled(pool) if pool else spread_estimate(FIXED_PRIOR_S[kind], MAX_SPREAD, 0, "prior")

    def _from_history(self, category: str, signature: Signature, features: Features) -> Estimate:
        recent = self._forecaster.recent(category)
        if len(recent) < FORECAST_FROM:
            return _sampled([math.exp(value) for value in recent])
        found = self._forecaster.predict(_traits(category, signature, features))
        return Estimate(found.p50_s, found.p90_s, found.p95_s, len(recent), "history")

    def _survivors(self, category: str, elapsed_s: float) -> Estimate:
        recent = self._forecaster.recent(category)
        values = [math.exp(value) for value in recent[bisect_right(recent, math.log(elapsed_s)) :]]
        return sample_estimate(values, range(1, len(values) + 1), elapsed_s)

    def _pool(self, signature: Signature, known: _Known) -> None:
        """Keep the signature's median up to date in its two pools."""
        recent = self._forecaster.recent(known.category)
        old, known.median_s = known.median_s, math.exp((recent[(len(recent) - 1) // 2] + recent[len(recent) // 2]) / 2)
        for key in (_related(signature), signature.kind):
            pool = self._pools.setdefault(key, [])
            if not math.isnan(old):
                del pool[bisect_left(pool, old)]
            insort(pool, known.median_s)


_RowOfVersion1 = tuple[str, str, int, Shape, str, int, list[float]]
describe(Signature, _RowOfVersion1)


def _without_size(signature: Signature) -> Signature:
    if signature.input_bucket == UNKNOWN_INPUT:
        return signature
    return msgspec.structs.replace(signature, input_bucket=UNKNOWN_INPUT)


def _category(signature: Signature) -> str:
    return msgspec.json.encode(signature).decode()


def _traits(category: str, signature: Signature, features: Features) -> Traits:
    size = features.input_bytes
    if size < 0 and signature.input_bucket != UNKNOWN_INPUT:
        size = 0.75 * 2.0**signature.input_bucket if signature.input_bucket else 0.0  # the middle of the bucket
    numbers = (size, *features.numbers) if size >= 0 else features.numbers
    return Traits(category, features.run, features.labels, numbers)


def _anywhere(signature: Signature) -> Signature:
    """Of the same phase whatever it runs on."""
    return msgspec.structs.replace(signature, flavor="") if signature.flavor else signature


def _name(signature: Signature) -> _Name:
    return signature.task, signature.phase, signature.shape, signature.flavor


def _related(signature: Signature) -> _Pool:
    return signature.pipeline, signature.task, signature.phase


def _sampled(ranked: list[float]) -> Estimate:
    return sample_estimate(ranked, range(1, len(ranked) + 1))


def _later(one: Estimate, other: Estimate) -> Estimate:
    p50_s, p90_s, p95_s = max(one.p50_s, other.p50_s), max(one.p90_s, other.p90_s), max(one.p95_s, other.p95_s)
    return Estimate(p50_s, p90_s, p95_s, other.n, other.source)


def _pooled(medians: list[float]) -> Estimate:
    """The median of the pool's medians, spread as they are, but at least PRIOR_SPREAD and at most MAX_SPREAD."""
    middle = sample_estimate(medians, range(1, len(medians) + 1))
    spread = middle.p95_s / middle.p50_s if middle.p50_s > 0 else PRIOR_SPREAD
    return spread_estimate(middle.p50_s, min(max(spread, PRIOR_SPREAD), MAX_SPREAD), len(medians), "prior")


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
