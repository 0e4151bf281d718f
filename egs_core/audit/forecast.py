"""What EGS would have saved, by simulation, and how sure that is.

The same graphs run twice on the observed capacity: natively (whatever is ready first and fits; a task holds all it has
throughout) and with EGS. A saving is the difference of the two, so what the graphs get wrong for both cancels out:

    expected = observed - (simulated natively - simulated with EGS)

The band is the range of that over the readings of the edges (`rebuild`) and over seeds: with EGS every task takes as
long as a random task of its name did; of the seeds it is where 8 of 10 further runs would end (Student's t). It is
widened by what the simulated native run misses of the observed one, at least by RUN_TO_RUN. A reading with which the
native run cannot be reproduced (PLAUSIBLE) is left out of all this.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from egs_core.audit.items import FIGURES, Figures, Item, figures_of_items
from egs_core.audit.rebuild import Reading, Rebuilt, rebuild
from egs_core.errors import counted
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.metrics import RunMetrics, summarise
from egs_core.runlog.records import Capacity
from egs_core.sim import Durations, SimConfig, SimNode, simulate

MOST_TASKS = 3000
SEEDS = 3
STARTS = "processes are taken to start as fast as they did: what EGS adds to the first start of a job is not forecast"
PREFERRED = (Reading.LIKELY, Reading.AS_SUBMITTED, Reading.AS_OBSERVED)
RUN_TO_RUN = 0.05  # of a figure: two runs of the same are no closer, whatever one run's durations say
T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383)
"""Quantile 0.9 of Student's t for 1, 2, 3 … degrees of freedom."""
HOPELESS = 0.5  # of the makespan: by more the best reading must not miss it, or a forecast says nothing
PLAUSIBLE = 0.1  # of the makespan: a reading whose native run misses the observed one by more is not believed


class Band(msgspec.Struct, frozen=True):
    """One figure: as observed, expected with EGS, and between what."""

    observed: float
    expected: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a figure that was reached lies in the band."""
        return self.low <= value <= self.high

    @property
    def saved(self) -> float:
        """Share of the observed figure that is expected to be saved."""
        return 1.0 - self.expected / self.observed if self.observed else 0.0


class Forecast(msgspec.Struct, frozen=True):
    """A forecast for `EGS_MODE=on` with unchanged code, and the expected figures once tasks have hints.

    native_error: share by which the simulated native makespan misses the observed one. tasks of all_tasks were
    simulated. hinted: no band, for what hints the code will get is not known.
    """

    makespan_s: Band
    wait_s: Band
    gpu_held_s: Band
    native_error: float
    tasks: int
    all_tasks: int
    seeds: int
    hinted: Figures | None = None
    notes: tuple[str, ...] = ()


def forecast(
    line: Timeline,
    items: Sequence[Item],
    edges_known: bool,
    seeds: int = SEEDS,
    most_tasks: int = MOST_TASKS,
    pinned: bool = False,
    may_split: bool = True,
) -> Forecast | None:
    """Simulate; None where there is nothing to simulate, nothing is known to run it on, or what was observed cannot be
    simulated even natively (HOPELESS). Options: see `Observed`."""
    nodes, notes = _nodes(line, pinned), [STARTS]
    chosen = sample([item for item in items if _fits(item, nodes)], most_tasks)
    if not chosen:
        return None
    if len(chosen) < len(items):
        notes.append(
            f"simulated {len(chosen)} of {counted(len(items), 'task')}: a stretch of whole jobs with the most waiting"
        )
    observed = figures_of_items(chosen)
    natively = {reading: _simulated(chosen, nodes, reading, edges_known, native=True) for reading in Reading}
    misses = {r: _missed(natively[r].makespan_s, observed.makespan_s) for r in Reading}
    if min(misses.values()) > HOPELESS:
        return None
    plausible = [r for r in PREFERRED if misses[r] <= max(PLAUSIBLE, 2 * min(misses.values()))]
    reading = plausible[0]
    runs = [(r, 0) for r in plausible] + [(reading, seed) for seed in range(1, seeds + 1)]
    pairs = [(natively[r], _simulated(chosen, nodes, r, edges_known, seed)) for r, seed in runs]
    hinted = None
    if may_split and _can_say(chosen, nodes, pinned):
        hints = _simulated(chosen, nodes, reading, edges_known, hints=True)
        hinted = _applied(observed, natively[reading], hints)
    bands = {name: _band(name, observed, pairs, len(plausible)) for name in FIGURES}
    if len(plausible) < len(Reading):
        left_out = ", ".join(r for r in Reading if r not in plausible)
        notes.append(f"edges read {left_out}: left out, the native run cannot be simulated with them")
    return Forecast(
        **bands,
        native_error=misses[reading],
        tasks=len(chosen),
        all_tasks=len(items),
        seeds=seeds,
        hinted=hinted,
        notes=tuple(notes),
    )


def sample(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` tasks: the stretch of whole jobs, in the order of their first submission, in which tasks with a
    GPU waited most; of a larger job its first tasks."""
    if len(items) <= most:
        return list(items)
    jobs: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        jobs[item.workload].append(item)
    members = list(jobs.values())
    waited = [sum((item.start_s - item.ready_s) * (item.gpus > 0) for item in job) for job in members]
    best, best_s, first, size, sum_s = (0, 0), -1.0, 0, 0, 0.0
    for last, job in enumerate(members):
        size, sum_s = size + len(job), sum_s + waited[last]
        while size > most and first < last:
            size, sum_s, first = size - len(members[first]), sum_s - waited[first], first + 1
        if sum_s > best_s:
            best, best_s = (first, last + 1), sum_s
    return [item for job in members[best[0] : best[1]] for item in job][:most]


def _simulated(
    items: Sequence[Item],
    nodes: tuple[SimNode, ...],
    reading: Reading,
    edges_known: bool,
    seed: int = 0,
    *,
    native: bool = False,
    hints: bool = False,
) -> Figures:
    rebuilt = rebuild(items, reading, edges_known, seed, hints, pinned=any(node.flavor for node in nodes))
    config = SimConfig(
        nodes=nodes,
        policy="fifo" if native else "egs",
        durations=Durations.PREDICTED,
        preload=hints,
        seed=seed,
        search_placements=0,
    )
    result = simulate(rebuilt.workloads, config, rebuilt.estimate)
    metrics = summarise(result.records)
    return _without_startups(rebuilt, result.makespan_s, metrics)


def _without_startups(rebuilt: Rebuilt, makespan_s: float, metrics: RunMetrics) -> Figures:
    """The figures count a task's start-up as its wait, whatever is held meanwhile in the simulation."""
    for_gpu = [seconds for gpus, seconds in rebuilt.startups if gpus]
    waits = metrics.wait_gpu if for_gpu else metrics.wait
    startup_s = statistics.fmean(for_gpu or [seconds for _, seconds in rebuilt.startups])
    return Figures(makespan_s, (waits.mean_s or 0.0) + startup_s, metrics.gpu_held_s - rebuilt.held_gpu_s)


def _applied(observed: Figures, native: Figures, egs: Figures) -> Figures:
    """The observed figures, changed by as much as the simulated ones were."""
    return Figures(*(max(0.0, getattr(observed, n) - getattr(native, n) + getattr(egs, n)) for n in FIGURES))


def _band(name: str, observed: Figures, pairs: Sequence[tuple[Figures, Figures]], readings: int) -> Band:
    """Expected is what the first pair says; the range of all is widened by what its native run misses. readings: so
    many pairs differ by their reading, those behind them from the first one by their seed only."""
    seen = float(getattr(observed, name))
    missed = max(abs(getattr(pairs[0][0], name) - seen), RUN_TO_RUN * seen)
    reached = [float(getattr(_applied(observed, native, egs), name)) for native, egs in pairs]
    next_ones = _prediction([reached[0], *reached[readings:]])
    return Band(seen, reached[0], max(0.0, min(*reached, *next_ones) - missed), max(*reached, *next_ones) + missed)


def _prediction(values: Sequence[float]) -> tuple[float, float]:
    """Between what 8 of 10 further values lie, if they are normal. What was observed, around which the seeds draw, is
    one draw itself."""
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return mean, mean
    half = T90[min(count - 1, len(T90)) - 1] * statistics.stdev(values) * (2 + 1 / count) ** 0.5
    return mean - half, mean + half


def _missed(simulated: float, observed: float) -> float:
    return abs(simulated / observed - 1.0) if observed else 0.0


def _can_say(items: Sequence[Item], nodes: Sequence[SimNode], pinned: bool) -> bool:
    """Whether what hints would save is known: the parts of tasks and, where nodes are pools, one for those on CPUs.
    There a cold start alone says too little, for each task has a process of its own with or without hints."""
    are_in_parts = any(item.before_s + item.after_s > 0 for item in items)
    if pinned:
        return are_in_parts and any(node.cpus >= 1 for node in nodes)
    return are_in_parts or any(item.cold_s for item in items)


def _nodes(line: Timeline, pinned: bool) -> tuple[SimNode, ...]:
    """Every node at its largest: nodes that come and go are there throughout. Pinned: each is a flavor of its own."""
    largest: dict[str, Capacity] = {}
    for record in line.capacities:
        known = largest.get(record.node)
        if known is None or (record.gpus, record.cpus) > (known.gpus, known.cpus):
            largest[record.node] = record
    return tuple(
        SimNode(n.node, n.cpus, n.gpus, flavor=n.node if pinned else "") for n in largest.values() if n.cpus or n.gpus
    )


def _fits(item: Item, nodes: Sequence[SimNode]) -> bool:
    return any(item.cpus <= node.cpus and item.gpus <= node.gpus for node in nodes)
