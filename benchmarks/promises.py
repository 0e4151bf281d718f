"""What a queue's promise costs and gains: runs of one queue on GPUs, by an engine that is told of what is at risk, and
by one that is not.

    python -m benchmarks.promises [--seeds 4] [--runs 600]

Arrivals are a Poisson stream, lengths log-normal (mean 10 minutes, sigma 1.5, known to the engine), on 16 GPUs; *sets*:
a third of the runs asks for 2 or 4. The engine itself is driven, on a virtual clock, and every ten seconds the site
server's own reckoning says what is at risk. Printed: the share of runs that had their GPUs within what is promised, the
mean and the longest wait, and the mean time from submission to end, in seconds.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Iterator, Sequence
from math import log
from statistics import fmean
from typing import NamedTuple

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import SAFE, QueueSpec
from egs_core.server.promises import AGAIN_S, LOOK_S, Counted, risks_of
from egs_core.slo import Event, Slo
from egs_core.testing.engine_bench import gpu, graph_of

GPUS, MEAN_S, SIGMA = 16, 600.0, 1.5


class Job(NamedTuple):
    at: float
    length_s: float
    gpus: int


class Outcome(NamedTuple):
    in_time: float
    mean_wait_s: float
    longest_wait_s: float
    mean_jct_s: float


def jobs_of(seed: int, load: float, count: int, *, sets: bool) -> list[Job]:
    """load: work that comes, as a share of what the GPUs do."""
    rng = random.Random(seed)
    sizes = (1, 1, 1, 1, 2, 4) if sets else (1,)
    mu = log(MEAN_S) - SIGMA * SIGMA / 2
    work = [(min(max(rng.lognormvariate(mu, SIGMA), 5.0), 20_000.0), rng.choice(sizes)) for _ in range(count)]
    mean, at, found = fmean(length * gpus for length, gpus in work), 0.0, list[Job]()
    for length, gpus in work:
        at += rng.expovariate(load * GPUS / mean)
        found.append(Job(at, length, gpus))
    return found


class Site:
    """One engine and its clock. slo: what is promised; heeds: whether the engine is told when that is at risk."""

    def __init__(self, jobs: Sequence[Job], slo: Slo, *, heeds: bool) -> None:
        self._jobs, self._slo, self._heeds = jobs, slo, heeds
        self._risk, self._told_at = SAFE, 0.0
        self._engine = Engine(EngineConfig(search_placements=0))
        self._ends: list[tuple[float, m.PhaseEnded]] = []
        self._events: list[Event] = []
        self.waits: dict[int, float] = {}

    def run(self) -> Outcome:
        self._send(m.NodeAdded("node", 1000.0, GPUS), 0.0)
        self._send(m.QueuesChanged((QueueSpec("q"),)), 0.0)
        for number, at in self._arrivals():
            job, name = self._jobs[number], str(number)
            self._send(m.WorkloadSubmitted(name, queue="q"), at)
            self._send(m.TasksAdded(name, graph_of({name: ()}, default=(gpu(job.length_s, job.gpus),))), at)
        waits = list(self.waits.values())
        assert len(waits) == len(self._jobs), "some have never started"
        in_time = sum(wait <= (self._slo.target_s or 0.0) for wait in waits) / len(waits)
        return Outcome(in_time, fmean(waits), max(waits), fmean(waits) + fmean(job.length_s for job in self._jobs))

    def _arrivals(self) -> Iterator[tuple[int, float]]:
        """Each job when it is time for it; what happens before has happened."""
        look_at, number = 0.0, 0
        while number < len(self._jobs) or self._ends:
            arrives = self._jobs[number].at if number < len(self._jobs) else float("inf")
            ends = self._ends[0][0] if self._ends else float("inf")
            wakes = self._engine.next_wakeup() or float("inf")
            now = min(arrives, ends, wakes, look_at)
            if now == arrives:
                yield number, now
                number += 1
            elif now == ends:
                self._send(heapq.heappop(self._ends)[1], now)
            elif now == look_at:
                look_at += LOOK_S
                self._look(now)
            else:
                self._send(m.Tick(), now)

    def _look(self, now: float) -> None:
        target_s = self._slo.target_s or 0.0
        late = [n for n, job in enumerate(self._jobs) if job.at < now - target_s and n not in self.waits]
        events = (*self._events, *[Event(now, is_good=False) for _ in late])
        risk = risks_of([Counted("q", self._slo, events, now)]).get("q", SAFE) if self._heeds else SAFE
        if risk.waits_s != self._risk.waits_s or (risk and now - self._told_at >= AGAIN_S):
            self._risk, self._told_at = risk, now
            self._send(m.PromisesAtRisk("q", risk), now)

    def _send(self, event: m.Event, now: float) -> None:
        for decision in self._engine.handle(event, now):
            if isinstance(decision, m.Grant):
                number = int(self._engine.state.task_ids[decision.task])
                job = self._jobs[number]
                self.waits[number] = now - job.at
                self._events.append(Event(now, self.waits[number] <= (self._slo.target_s or 0.0)))
                ended = m.PhaseEnded(decision.phase, decision.attempt)
                heapq.heappush(self._ends, (now + job.length_s, ended))
                self._send(m.PhaseStarted(decision.phase, decision.attempt), now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--runs", type=int, default=600)
    asked = parser.parse_args()
    print("promised   GPUs   load   at risk is   in time    wait   longest      JCT")
    for target_s in (600.0, 1800.0):
        for sets in (False, True):
            for load in (0.9, 1.1):
                for heeds in (False, True):
                    slo, seeds = Slo("wait_p95", "wait", 0.95, target_s), range(asked.seeds)
                    all_jobs = [jobs_of(seed, load, asked.runs, sets=sets) for seed in seeds]
                    found = Outcome(*map(fmean, zip(*[Site(j, slo, heeds=heeds).run() for j in all_jobs], strict=True)))
                    told, size = "told    " if heeds else "not told", "sets" if sets else "one "
                    figures = f"{found.mean_wait_s:6.0f}   {found.longest_wait_s:7.0f}   {found.mean_jct_s:6.0f}"
                    print(
                        f"{target_s:6.0f} s   {size}   {load:4.1f}   {told}     {found.in_time:6.1%}   {figures}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
