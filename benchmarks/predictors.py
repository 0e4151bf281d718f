"""How well durations are predicted: pinball loss, coverage and cost, in arrival order.

    EGS_DATA=<folder> python -m benchmarks.predictors --plot predictors.svg

Each observation is predicted, then learned, so no prediction knows what came after it. Methods, all in the same run:

    baseline     median and 90 % quantile of all earlier durations of the signature (numpy's default interpolation)
    predictor    `egs_core.predict.Predictor`, as `egs simulate` and the adapters use it, with all features of the data
    no features  the same predictor, told the signature only: what history alone, its newest part and shifts give
    boosted      with --peers: scikit-learn's gradient-boosted trees on the same features, trained anew every 500

Counted are observations with at least two earlier ones of their signature, for all methods alike; `second half` counts
those in the second half of the series only. Without EGS_DATA or --data: synthetic series by stated rules.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console

from benchmarks.predictors_data import PUBLIC, SYNTHETIC, Observation
from benchmarks.predictors_peers import Boosted
from benchmarks.predictors_plot import plot
from egs_core.errors import InputError
from egs_core.predict import Predictor, Signature
from egs_core.predict.mixing import pinball

MIN_EARLIER = 2
LEVELS = (0.5, 0.9, 0.95)
Answer = tuple[float, float, float]


class Method(Protocol):
    """What is compared: answers with quantiles at LEVELS, and learns."""

    def predict(self, observation: Observation) -> Answer: ...

    def learn(self, observation: Observation) -> None: ...


class Baseline:
    """Quantiles of all earlier durations of the signature."""

    def __init__(self) -> None:
        self._seen: dict[Signature, list[float]] = defaultdict(list)

    def predict(self, observation: Observation) -> Answer:
        values = self._seen.get(observation.signature)
        if not values:
            return 0.0, 0.0, 0.0
        p50, p90, p95 = (_quantile(values, level) for level in LEVELS)
        return p50, p90, p95

    def learn(self, observation: Observation) -> None:
        insort(self._seen[observation.signature], observation.seconds)


def _quantile(ranked: Sequence[float], level: float) -> float:
    position = level * (len(ranked) - 1)
    at = int(position)
    return ranked[at] + (ranked[min(at + 1, len(ranked) - 1)] - ranked[at]) * (position - at)


class Shipped:
    """The predictor, with features."""

    def __init__(self) -> None:
        self._predictor = Predictor()

    def predict(self, observation: Observation) -> Answer:
        found = self._predictor.estimate(observation.signature, features=observation.features)
        return found.p50_s, found.p90_s, found.p95_s

    def learn(self, observation: Observation) -> None:
        self._predictor.observe(observation.signature, observation.seconds, observation.features)


class SignatureOnly:
    """The predictor, without features."""

    def __init__(self) -> None:
        self._predictor = Predictor()

    def predict(self, observation: Observation) -> Answer:
        found = self._predictor.estimate(observation.signature)
        return found.p50_s, found.p90_s, found.p95_s

    def learn(self, observation: Observation) -> None:
        self._predictor.observe(observation.signature, observation.seconds)


METHODS: dict[str, Callable[[], Method]] = {"baseline": Baseline, "predictor": Shipped, "no features": SignatureOnly}


class Replayed(msgspec.Struct):
    """What a method answered for the counted observations, and the median cost of its calls."""

    answers: list[Answer]
    actual: list[float]
    late: list[bool]  # in the second half of the series
    predict_us: float = 0.0
    learn_us: float = 0.0


def replay(observations: Sequence[Observation], method: Method) -> Replayed:
    """Predict, then learn, one after the other; counted are those with enough learned before."""
    found = Replayed([], [], [])
    learned: Counter[Signature] = Counter()
    predicting, learning = [], []
    for number, observation in enumerate(observations):
        began = time.perf_counter()
        answer = method.predict(observation)
        middle = time.perf_counter()
        method.learn(observation)
        learning.append(time.perf_counter() - middle)
        predicting.append(middle - began)
        if learned[observation.signature] >= MIN_EARLIER:
            found.answers.append(answer)
            found.actual.append(observation.seconds)
            found.late.append(2 * number >= len(observations))
        learned[observation.signature] += 1
    found.predict_us = 1e6 * statistics.median(predicting)
    found.learn_us = 1e6 * statistics.median(learning)
    return found


def rows_of(
    data: str, observations: Sequence[Observation], methods: dict[str, Callable[[], Method]]
) -> list[dict[str, Any]]:
    """All methods on one series, all of it and its second half; changes are against the baseline's same part."""
    rows: list[dict[str, Any]] = []
    for method, make in methods.items():
        replayed = replay(observations, make())
        for part, chosen in (("all", [True] * len(replayed.late)), ("second half", replayed.late)):
            row = {"data": data, "part": part, "method": method} | _figures(replayed, chosen)
            base = next((r for r in rows if r["part"] == part), row)
            for key in ("pinball_0.5", "pinball_0.9"):
                row[f"{key}_change_percent"] = round(100 * (row[key] / base[key] - 1), 1) if base[key] else 0.0
            rows.append(row | {"us": round(replayed.predict_us, 1), "learn_us": round(replayed.learn_us, 1)})
    return rows


def _figures(replayed: Replayed, chosen: Sequence[bool]) -> dict[str, Any]:
    pairs = [(a, y) for a, y, c in zip(replayed.answers, replayed.actual, chosen, strict=True) if c]
    row: dict[str, Any] = {"counted": len(pairs)}
    for at, level in enumerate(LEVELS[:2]):
        row[f"pinball_{level:g}"] = round(_mean([pinball(level, answer[at], y) for answer, y in pairs]), 4)
    for at, level in enumerate(LEVELS):
        row[f"coverage_{level:g}"] = round(_mean([float(y <= answer[at]) for answer, y in pairs]), 4)
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def load(folder: str | None, names: Sequence[str]) -> tuple[dict[str, list[Observation]], str]:
    """The series, and where they are from."""
    if not folder:
        return {name: make() for name, make in SYNTHETIC.items()}, "SYNTHETIC series by stated rules"
    return {name: PUBLIC[name](Path(folder)) for name in names}, "public data, in arrival order"


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """What fits a table of 80 columns."""
    return {
        "data": row["data"].removeprefix("synthetic "),
        "part": "all" if row["part"] == "all" else "2nd",
        "method": row["method"],
        "loss50": row["pinball_0.5"],
        "%50": f"{row['pinball_0.5_change_percent']:+.1f}",
        "loss90": row["pinball_0.9"],
        "%90": f"{row['pinball_0.9_change_percent']:+.1f}",
        "in90": f"{row['coverage_0.9']:.3f}",
        "µs": f"{row['us']:.1f}",
    }


def table_text(found: dict[str, Any]) -> str:
    """The figures as lines of text."""
    lines = [found["source"]]
    head = "pinball .5          pinball .9      coverage 50/90/95   µs predict, learn (medians)"
    lines.append(f"{'data':21}{'part':13}{'method':13}{'counted':>7}     {head}")
    for row in found["details"]:
        losses = "".join(
            f"{row[key]:12.3f} {row[key + '_change_percent']:+6.1f}%" for key in ("pinball_0.5", "pinball_0.9")
        )
        covered = " ".join(f"{row[f'coverage_{level:g}']:.3f}" for level in LEVELS)
        cost = f"{row['us']:6.1f} {row['learn_us']:6.1f}"
        lines.append(f"{row['data']:21}{row['part']:13}{row['method']:13}{row['counted']:7}{losses}   {covered} {cost}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("EGS_DATA"), help="default: EGS_DATA")
    parser.add_argument("--only", default=",".join(PUBLIC), help="of the public series, comma separated")
    parser.add_argument("--peers", action="store_true", help="also gradient-boosted trees (needs scikit-learn)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--plot", metavar="FILE.svg")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    try:
        if unknown := set(names) - set(PUBLIC):
            raise InputError("--only", f"unknown {sorted(unknown)}", f"of {', '.join(PUBLIC)}")
        data, source = load(args.data, names)
    except InputError as error:
        Console(stderr=True).print(str(error), markup=False, highlight=False)
        return 2
    methods = METHODS | ({"boosted": Boosted} if args.peers else {})
    rows = [row for name, observations in data.items() for row in rows_of(name, observations, methods)]
    found = {"source": source, "rows": [_short(row) for row in rows], "details": rows}
    if args.plot:
        Path(args.plot).parent.mkdir(parents=True, exist_ok=True)
        Path(args.plot).write_text(plot(rows), encoding="utf-8")
    print(json.dumps(found) if args.json else table_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
