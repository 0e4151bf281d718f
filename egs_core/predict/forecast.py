"""Durations from everything that is known before a phase starts: its category, labels, numbers and run.

Several opinions are asked, each a distribution; what is not known to one is answered by the one it hangs on:

    all durations
     └ category    all of it │ since the last shift │ the newest five
        ├ feature  one each: a label (resource shape, user, model …), or a number within a factor of about 1.4
        ├ features all together │ the newest three of these
        ├ line     through log(numbers), with an offset for each label
        └ run      what is usual, times what this run is slower │ this category in this run │ its newest two

A weighted mean of them, by their losses so far, is moved until the promised share of durations is below its upper
quantiles. Everything is learned one observation at a time and is deterministic; no clock, no input or output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.predict.mixing import Calibration, Mixer, mixed_by
from egs_core.predict.run import Run
from egs_core.predict.trend import Trend
from egs_core.predict.window import Triple, Window, blended

FORMAT = "egs-forecaster"
VERSION = 1
SHORTEST_S, LONGEST_S = 1e-3, 1e9  # durations outside are taken as these
UNSEEN: Triple = (math.log(10.0), math.log(80.0), math.log(120.0))  # before anything was seen

_ALL, _RECENT, _NEWEST, _FEATURE, _SAME = 400, 200, 5, 60, 3  # sizes of windows
_MAX_WINDOWS = 2_000  # of a category's features; the first ones made go first
_MAX_RUNS = 1_000
_SPREADS_FROM, _UNSEEN_TAIL = 20, (math.log(1.5), math.log(2.0))  # until so many were seen
_SPREAD_STEP = 0.05
_ERROR_COUNT = 50
_REACH = math.log(4.0)  # how far beyond everything seen of a category a line is believed
_MATURITY = (3, 10, 30)  # observations of a category at which it gets another calibration
_WATCHED = 1  # place of the opinion that features hang on
_SEPARATOR = "\x1f"
_LOWEST, _HIGHEST = math.log(SHORTEST_S), math.log(LONGEST_S)

T = TypeVar("T")


class Traits(msgspec.Struct, frozen=True):
    """What is known of a phase before it starts.

    category: phases with one category are runs of the same code. labels: words that may matter, always in the same
    order ("" unknown). numbers: sizes and counts that may matter, likewise (negative or NaN: unknown). run: the
    workload that it is part of, "" for none.
    """

    category: str
    run: str = ""
    labels: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


class Forecast(msgspec.Struct, frozen=True):
    """Quantiles in seconds; n: observations of the category so far."""

    p50_s: float
    p90_s: float
    p95_s: float
    n: int = 0


class Category(msgspec.Struct):
    """What is known of one category. spread: usual distance of log(duration) from its predicted median; error_s: the
    usual error in seconds."""

    steady: Window = msgspec.field(default_factory=lambda: Window(_ALL))
    watched: Window = msgspec.field(default_factory=lambda: Window.watched(_RECENT))
    newest: Window = msgspec.field(default_factory=lambda: Window(_NEWEST))
    features: dict[str, Window] = {}
    trend: Trend | None = None
    mixer: Mixer | None = None
    spread: float = 0.5
    error_s: float = 0.0
    n: int = 0


class State(msgspec.Struct):
    """Everything that was learned."""

    everything: Window = msgspec.field(default_factory=lambda: Window(_ALL))
    spreads: Window = msgspec.field(default_factory=lambda: Window(_ALL))  # log(duration / median of its category)
    categories: dict[str, Category] = {}
    runs: dict[str, Run] = {}
    mixers: dict[str, Mixer] = {}  # by the form of traits: counts of labels and numbers, with or without a run
    calibrations: list[Calibration] = msgspec.field(
        default_factory=lambda: [Calibration() for _ in range(len(_MATURITY) + 1)]
    )


describe(State)


class _View(msgspec.Struct):
    """One question about a known category: what each opinion says and what was made of them, all logarithms."""

    opinions: list[Triple]
    common: Mixer
    own: Mixer | None
    calibration: Calibration
    raw: Triple  # before calibration
    answer: Triple  # and after it


class Forecaster:
    """Learns (traits, seconds) in the order in which they become known, and answers with distributions."""

    def __init__(self) -> None:
        self._state = State()

    def predict(self, traits: Traits) -> Forecast:
        """The distribution of the duration: finite, positive, p50 <= p90 <= p95."""
        category = self._state.categories.get(traits.category)
        if category is None:
            p50, p90, p95 = map(_seconds, self._top())
            return Forecast(p50, p90, p95)
        p50, p90, p95 = map(_seconds, self._view(traits, category).answer)
        return Forecast(p50, p90, p95, category.n)

    def learn(self, traits: Traits, seconds: float) -> bool:
        """Learn one duration. A negative or non-finite one is ignored (False): a clock may be wrong."""
        if not (math.isfinite(seconds) and seconds >= 0):
            return False
        category = self._state.categories.get(traits.category)
        if category is None:  # the first of its kind says nothing about the opinions
            category = self._state.categories[traits.category] = Category()
        else:
            _learn_answer(category, self._view(traits, category), seconds)
        self._learn_value(traits, category, _log(seconds))
        return True

    def recent(self, category: str) -> Sequence[float]:
        """Logarithms of the category's durations since its last shift, sorted; empty for one never seen."""
        found = self._state.categories.get(category)
        return found.watched.ranked if found else ()

    def to_dict(self) -> dict[str, Any]:
        """A versioned snapshot of plain lists, numbers and text."""
        return {"format": FORMAT, "version": VERSION, "state": msgspec.to_builtins(self._state, str_keys=True)}

    @classmethod
    def from_dict(cls, snapshot: Mapping[str, Any]) -> Forecaster:
        """The forecaster that made the snapshot; InputError for one of another format, version or form."""
        if snapshot.get("format") != FORMAT or snapshot.get("version") != VERSION:
            found = f"{snapshot.get('format')!r} version {snapshot.get('version')!r}"
            raise InputError("forecaster snapshot", f"{found} is not readable", f"known: {FORMAT} version {VERSION}")
        forecaster = cls()
        try:
            forecaster._state = msgspec.convert(snapshot.get("state"), State, str_keys=True)
        except msgspec.ValidationError as error:
            raise InputError("forecaster snapshot", str(error)) from error
        return forecaster

    def _top(self) -> Triple:
        everything = self._state.everything
        return everything.quantiles if everything.recent else UNSEEN

    def _tail(self) -> tuple[float, float]:
        """How far P90 and P95 are above the median in a usual category, as logarithms."""
        p50, p90, p95 = self._state.spreads.quantiles
        return (p90 - p50, p95 - p50) if len(self._state.spreads.recent) >= _SPREADS_FROM else _UNSEEN_TAIL

    def _view(self, traits: Traits, category: Category) -> _View:
        state = self._state
        opinions = self._opinions(traits, category)
        form = f"{len(traits.labels)} {len(traits.numbers)} {traits.run != ''}"
        common = state.mixers.get(form)
        if common is None:
            common = state.mixers[form] = Mixer.of(len(opinions))
        own = category.mixer
        if own is not None and own.size != len(opinions):
            own = None
        raw = mixed_by(own, common, opinions)
        calibration = state.calibrations[sum(category.n >= limit for limit in _MATURITY)]
        return _View(opinions, common, own, calibration, raw, calibration.moved(raw, category.spread))

    def _opinions(self, traits: Traits, category: Category) -> list[Triple]:
        """Always the same number for one form of traits."""
        tail = self._tail()
        watched = _with_tail(category.watched, tail)
        opinions = [_with_tail(category.steady, tail), watched, blended(category.newest, watched)]
        known = category.features
        for key, _, above in _feature_windows(traits):
            window = known.get(key)
            opinions.append(opinions[above] if window is None else blended(window, opinions[above]))
        if traits.numbers:
            line = category.trend.quantiles(_logs(traits.numbers), traits.labels) if category.trend else None
            opinions.append(_within(line, category) if line else watched)
        if traits.run:
            run = self._state.runs.get(traits.run)
            opinions += run.opinions(traits.category, watched) if run else [watched] * 3
        return opinions

    def _learn_value(self, traits: Traits, category: Category, value: float) -> None:
        """Run, windows and line: what the duration was."""
        if traits.run:
            run = _made(self._state.runs, traits.run, Run, _MAX_RUNS)
            run.learn(traits.category, category.watched.quantiles if category.n else None, value)
        if category.n:
            self._state.spreads.add(value - category.watched.quantiles[0])
        category.n += 1
        self._state.everything.add(value)
        for window in (category.steady, category.watched, category.newest):
            window.add(value)
        for key, size, _ in _feature_windows(traits):
            if key:
                _made(category.features, key, partial(Window, size), _MAX_WINDOWS).add(value)
        logs = _logs(traits.numbers)
        if logs and category.trend is None:
            category.trend = Trend.starting(logs, value)
        elif logs and category.trend is not None and len(category.trend.centre) == len(logs):
            category.trend.learn(logs, traits.labels, value)


def _learn_answer(category: Category, view: _View, seconds: float) -> None:
    """Weights, calibration and spread: how good the answer was."""
    value = _log(seconds)
    own = view.own
    if own is None:
        own = category.mixer = Mixer.of(len(view.opinions))
    guess = _seconds(view.raw[0])
    category.error_s += (abs(seconds - guess) - category.error_s) / min(category.n, _ERROR_COUNT)
    scale_s = max(category.error_s, 1e-3 * guess, SHORTEST_S)
    view.common.learn(view.raw, view.opinions, value, scale_s)
    own.learn(view.raw, view.opinions, value, scale_s)
    view.calibration.learn(view.answer, value)
    category.spread += (abs(value - view.raw[0]) - category.spread) * max(_SPREAD_STEP, 1 / (category.n + 1))


def _with_tail(window: Window, tail: tuple[float, float]) -> Triple:
    """Its own median; the fewer its values, the more its upper quantiles follow what is usual elsewhere."""
    level = window.quantiles[0]
    return blended(window, (level, level + tail[0], level + tail[1]))


def _within(line: Triple, category: Category) -> Triple:
    """Not far beyond what was seen: a line through few points may point anywhere."""
    ranked = category.steady.ranked
    low, high = ranked[0] - _REACH, ranked[-1] + _REACH
    p50, p90, p95 = line
    return min(max(p50, low), high), min(max(p90, low), high), min(max(p95, low), high)


def _feature_windows(traits: Traits) -> list[tuple[str, int, int]]:
    """(key, size, opinion that it hangs on) of a category's windows of features; the key is "" for what is unknown."""
    words = [*traits.labels, *map(_bucket, traits.numbers)] if traits.numbers else traits.labels
    if not words:
        return []
    found = []
    if len(words) > 1:
        found = [(word and f"{at}{_SEPARATOR}{word}", _FEATURE, _WATCHED) for at, word in enumerate(words)]
    together = _SEPARATOR.join(words)
    found.append((f"all{_SEPARATOR}{together}", _FEATURE, _WATCHED))
    found.append((f"same{_SEPARATOR}{together}", _SAME, len(found) + 2))
    return found


def _bucket(number: float) -> str:
    return str(round(2 * math.log2(1 + number))) if 0 <= number < math.inf else ""


def _logs(numbers: Sequence[float]) -> list[float]:
    """Logarithms of numbers; empty unless all are known."""
    if all(0 <= number < math.inf for number in numbers):
        return [math.log1p(number) for number in numbers]
    return []


def _made(kept: dict[str, T], key: str, make: Callable[[], T], most: int) -> T:
    """The entry of a key, made when new; the first one made goes when there are too many."""
    found = kept.get(key)
    if found is None:
        if len(kept) >= most:
            del kept[next(iter(kept))]
        found = kept[key] = make()
    return found


def _log(seconds: float) -> float:
    return math.log(min(max(seconds, SHORTEST_S), LONGEST_S))


def _seconds(log: float) -> float:
    return math.exp(min(max(log, _LOWEST), _HIGHEST))
