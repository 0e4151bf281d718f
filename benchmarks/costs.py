"""What single calls cost that every task pays: a forecast, an estimate, Airflow's listener; and the figures of a log.

    python -m benchmarks.costs [--json]

By the processor's clock. Bounds that were set: 50 µs an estimate or forecast, 10 ms (99th percentile) the listener.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from random import Random
from types import SimpleNamespace

from egs_core.graph.columns import Shape
from egs_core.predict import Forecaster, Predictor, Traits, signature_of
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Capacity, Ended, Ready, Record, Started, Used, WorkloadSubmitted


def seconds_of(call: Callable[[], object]) -> float:
    """Processor time of this thread."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


def forecast_s() -> float:
    """With a run, three labels and three numbers, after 2,000 durations: the median question's best of seven times."""
    forecaster, rng = Forecaster(), Random(1)
    asked = []
    for i in range(2000):
        labels = (f"m{rng.randrange(9)}", f"g{rng.randrange(99)}", "x")
        traits = Traits(f"c{i % 20}", f"run{i // 50}", labels, (rng.uniform(1, 1e9), 30.0, float(rng.randrange(8))))
        forecaster.learn(traits, rng.lognormvariate(3, 1))
        asked.append(traits)
    return statistics.median(
        min(seconds_of(partial(forecaster.predict, traits)) for _ in range(7)) for traits in asked[-200:]
    )


def estimate_s() -> float:
    """The dearest kind of question among 1,000 signatures, the best of 1,000 times."""
    predictor, known, unseen = Predictor(), *(signature_of(name, "t", 0, Shape(1000, 1000)) for name in "pq")
    for i in range(1300):
        signature = known if i < 300 else signature_of("p", f"t{i}", 0, Shape(1000, 1000))
        predictor.observe(signature, float(i % 91))
    hint = predictor.estimate(unseen, hint_s=3.0)
    calls: list[Callable[[], object]] = [
        lambda: predictor.estimate(known),
        lambda: predictor.estimate(unseen),
        lambda: predictor.estimate(unseen, hint_s=3.0),
        lambda: predictor.remaining(known, 5.0),
        lambda: predictor.remaining(hint, 5.0),
    ]
    return max(min(seconds_of(call) for _ in range(1000)) for call in calls)


def listener_s() -> float:
    """Of 1,000 tasks on Airflow, the 99th percentile; its thread counts."""
    from egs_airflow.observe.listener import TaskListener

    start = datetime(2026, 1, 1, tzinfo=UTC)
    task = SimpleNamespace(pool="gpus", pool_slots=2)
    names = {"dag_id": "train", "run_id": "manual", "task_id": "fit", "map_index": -1, "try_number": 1}
    instance = SimpleNamespace(**names, start_date=start, end_date=start.replace(second=5), task=task)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EGS_RUNLOG"] = folder
        for _ in range(1000):
            began, listener = time.process_time(), TaskListener()
            listener.on_task_instance_running(task_instance=instance)
            listener.on_task_instance_success(task_instance=instance)
            took.append(time.process_time() - began)
    return sorted(took)[990]


def figures_s(phases: int = 100_000) -> float:
    """All figures of a log with four records a phase."""
    records: list[Record] = [WorkloadSubmitted(0, "w"), Capacity(0, "n", cpus=64, gpus=8)]
    for number in range(phases):
        task, t = str(number), number / 10
        records += [
            Ready(t, "w", task),
            Started(t + 0.5, "w", task, node="n", devices=(number % 8,), cpus=1.0, gpus=1.0),
            Used(t + 0.6, t + 0.7, "w", task),
            Ended(t + 0.75, "w", task),
        ]
    return seconds_of(lambda: summarise(records))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = {
        "forecast_us": round(1e6 * forecast_s(), 1),
        "estimate_us": round(1e6 * estimate_s(), 1),
        "airflow_listener_p99_ms": round(1e3 * listener_s(), 2),
        "figures_of_100000_phases_s": round(figures_s(), 2),
    }
    print(json.dumps(found, indent=None if parser.parse_args().json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
