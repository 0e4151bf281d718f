"""What loading for tasks to come costs the tasks that run: their durations with and without it, on all cores.

    python -m benchmarks.preload_beside --json

    spin (CPU work, one on each core) ──► use (imports pandas and scikit-learn, and works for 2 s to load)

Ray has as many CPUs as the machine has cores and every one is at work, so that loading takes its processor time from
somebody. Both variants run in one session each on the same Ray, in turn; `slower` is the median of pairs. A process of
EGS's loads in processor time that nobody wants, where it may come back from that (`may_lower`); see `worker.niceness`.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import ray
from ray.dag import MultiOutputNode

import egs_core as egs
from egs_ray.local import local_ray
from egs_ray.session.api import run
from egs_ray.session.session import Options, Session
from egs_ray.worker.niceness import Niceness

WORK_S, LOAD_S = 6.0, 2.0
CORES = os.cpu_count() or 2


def work(seconds: float) -> float:
    """So much of a core's time, in this thread; how long that took."""
    began, until = time.time(), time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(10_000))
    return time.time() - began


@ray.remote(num_cpus=1)
@egs.task(expect=WORK_S)
def spin(_number: int) -> float:
    return work(WORK_S)


def make_use(number: int) -> Any:
    """A task with a load of its own, so that no process of another run serves it."""

    def load() -> float:
        return work(LOAD_S) + number

    @ray.remote(num_cpus=1, runtime_env={"env_vars": {"EGS_BENCH_RUN": str(number)}})
    @egs.task(preload=[egs.modules("pandas", "sklearn.linear_model"), egs.call(load)], expect=0.1)
    def use(spun: float) -> float:
        egs.loaded(load)
        return spun

    return use


def round_s(session: Session, number: int) -> float:
    """One round: the mean duration of the tasks that ran while others' processes loaded, or did not."""
    nodes = [make_use(number * CORES + i).bind(spin.bind(i)) for i in range(CORES)]
    return statistics.fmean(run(MultiOutputNode(nodes), name="beside", session=session).get(120))


def measure(rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="egs-beside-") as folder, local_ray(CORES, 0):
        for number in range(2 * rounds):
            name = ("without", "with")[number % 2]
            runlog, history = f"{folder}/{number}.jsonl", f"sqlite:///{folder}/{number}.sqlite"
            with Session(Options(preload=name == "with", runlog=runlog, history=history)) as session:
                found[name].append(round_s(session, number))
            print(f"{name} preload: {found[name][-1]:.2f} s for {WORK_S:g} s of work", file=sys.stderr)
    pairs = [b / a - 1 for a, b in zip(found["without"], found["with"], strict=True)]
    return {
        "cores": CORES,
        "rounds": rounds,
        "may_lower": Niceness().may_lower,
        "work_s": WORK_S,
        **{f"{name}_s": round(statistics.median(seconds), 3) for name, seconds in found.items()},
        "slower": round(statistics.median(pairs), 4),
        "slower_most": round(max(pairs), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preload_beside", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("at least one round")
    print(json.dumps(measure(arguments.rounds), indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
