"""Workload graphs from what was observed. A history rarely tells what a task waited for, so there are three readings;
the truth lies between the first and the last:

    as observed   whatever had ended before a task was ready, it needed       most edges: little can be reordered
    likely        the known edges; else the task whose end made it ready      what the simulation is checked with
    as submitted  the known edges of actors only; each task comes when it     fewest edges
                  was submitted

    submitted ── waits for an argument ──► ready          the argument came from whoever ended just then
                             E ───────────┤
                             E ┤ submitted                and who submits just after an end waited for that one

What no edge explains is kept as time: a task before it that holds nothing, as long as the gap was. (A phase of the
task itself would tie it to the node on which that phase happens to be.)
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from egs_core.audit.items import Item
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.model import GraphBuilder, Phase, Task

NEAR_S = 0.1  # an end so shortly before explains a start, unless ends are so frequent that one always is near
RARE = 0.1  # of the mean time between two ends of the job
CLOCKS_S = 0.005  # times of one event, noted by two processes
LEAST_S = 1e-3  # a gap below is none
MOST_PARENTS = 16  # as observed: those that ended last


class Reading(StrEnum):
    """Which edges the graphs get, from most to fewest."""

    AS_OBSERVED = "as observed"
    LIKELY = "likely"
    AS_SUBMITTED = "as submitted"


class Rebuilt(msgspec.Struct):
    """Workloads for the simulator, and what is believed of their phases: (median, 95th percentile) in seconds.

    startups: of each task its GPUs, and seconds of process start, environment and cold start, which count as waiting;
    held_gpu_s: GPU-seconds of them in which the simulation holds what the task needs.
    """

    workloads: list[LoadedWorkload]
    believed: dict[str, list[tuple[float, float]]]
    startups: list[tuple[float, float]]
    held_gpu_s: float = 0.0

    def estimate(self, workload: LoadedWorkload, phase: int) -> tuple[float, float]:
        """An estimator as `egs_core.sim` takes it."""
        return self.believed[workload.id][phase]


class _Placed(msgspec.Struct):
    item: Item
    parents: list[int]
    gap_s: float


def rebuild(
    items: Sequence[Item],
    reading: Reading,
    edges_known: bool,
    seed: int = 0,
    hints: bool = False,
    pinned: bool = False,
) -> Rebuilt:
    """Graphs of all jobs. seed: 0 takes each task's own duration, else that of a random task of its name.

    hints: as if the tasks said what EGS can load ahead and where they need the GPU: see `_phases`, and `_links` where
    nodes are pools. pinned: a task can run on its own node only, which is a flavor.
    """
    if not items:
        return Rebuilt([], {}, [])
    begin_s = min(item.submitted_s for item in items)
    jobs: dict[str, list[Item]] = defaultdict(list)
    by_name: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        jobs[item.workload].append(item)
        by_name[item.name].append(item)
    chooser = random.Random(seed)
    rebuilt = Rebuilt([], {}, [])
    for job, members in jobs.items():
        builder, believed = GraphBuilder(), list[tuple[float, float]]()
        placed = _place(sorted(members, key=lambda item: (item.end_s, item.submitted_s)), reading, edges_known)
        for one in placed:
            peers = by_name[one.item.name]
            lasted = chooser.choice(peers) if seed else one.item
            parents = tuple(placed[number].item.task for number in sorted(set(one.parents)))
            if one.gap_s:
                gap = Task(id=f"before {one.item.task}", name="gap", parents=parents, phases=(_nothing(one.gap_s),))
                builder.add(gap)
                believed.append((one.gap_s, one.gap_s))
                parents = (gap.id,)
            flavors = (one.item.node,) if pinned and one.item.node else ()
            in_links = hints and pinned
            whole = _task(one.item, lasted, parents, hints, flavors)
            for task in _links(one.item, lasted, parents, flavors) if in_links else [whole]:
                builder.add(task)
                believed.extend(_known(task.phases) if in_links else _belief(task.phases, peers, hints))
            startup_s = lasted.overhead_s + (0.0 if hints else lasted.cold_s)
            rebuilt.startups.append((one.item.gpus, startup_s))
            rebuilt.held_gpu_s += one.item.gpus * startup_s if in_links or not hints else 0.0
        arrival_s = min(item.submitted_s for item in members) - begin_s
        rebuilt.workloads.append(LoadedWorkload(job, job, "", "", arrival_s, builder.finish()))
        rebuilt.believed[job] = believed
    return rebuilt


def _place(items: list[Item], reading: Reading, edges_known: bool) -> list[_Placed]:
    """Parents and gap of every task of a job; `items` are in the order of their ends, so parents come first."""
    ends = [item.end_s for item in items]
    number_of = {item.task: number for number, item in enumerate(items)}
    begin_s = min(item.submitted_s for item in items)
    near_s = min(NEAR_S, RARE * (ends[-1] - begin_s) / len(ends))
    placed = []
    for number, item in enumerate(items):
        known = [number_of[p] for p in item.parents if number_of.get(p, number) < number]
        if reading is Reading.AS_OBSERVED:
            parents = known + _all_before(items, ends, number)
        elif reading is Reading.LIKELY:
            parents = known + _likely(items, ends, number, edges_known, near_s)
        else:
            parents = known
        since_s = max((ends[p] for p in parents), default=begin_s)
        released_s = item.submitted_s if reading is Reading.AS_SUBMITTED and not known else item.ready_s
        gap_s = released_s - since_s
        placed.append(_Placed(item, parents, gap_s if gap_s >= LEAST_S else 0.0))
    return placed


def _all_before(items: list[Item], ends: list[float], number: int) -> list[int]:
    """Those that had ended when it was ready and that no other such task came after: the others follow from them."""
    until = min(bisect_right(ends, items[number].ready_s + CLOCKS_S), number)
    latest_ready_s = max((items[n].ready_s for n in range(max(0, until - 10 * MOST_PARENTS), until)), default=-math.inf)
    found = [n for n in range(max(0, until - MOST_PARENTS), until) if ends[n] > latest_ready_s]
    return found or list(range(max(0, until - 1), until))


def _likely(items: list[Item], ends: list[float], number: int, edges_known: bool, near_s: float) -> list[int]:
    item, parents = items[number], []
    waited = item.ready_s - item.submitted_s > 2 * LEAST_S
    for moment, counts in ((item.ready_s, waited and not edges_known), (item.submitted_s, True)):
        last = min(bisect_right(ends, moment + CLOCKS_S), number) - 1
        if counts and last >= 0 and moment - ends[last] <= near_s:
            parents.append(last)
    return parents


def _nothing(seconds: float) -> Phase:
    return Phase(kind="cpu", cpus=0.0, duration_s=seconds)


def _task(item: Item, lasted: Item, parents: tuple[str, ...], hints: bool, flavors: tuple[str, ...]) -> Task:
    phases = tuple(_phases(item, lasted, hints))
    if not (hints and lasted.cold_s):
        return Task(id=item.task, name=item.name, parents=parents, phases=phases, flavors=flavors)
    return Task(
        id=item.task,
        name=item.name,
        parents=parents,
        phases=phases,
        flavors=flavors,
        warm_key=item.name,
        warmup_s=lasted.cold_s,
        warm_cpus=min(1.0, item.cpus),
    )


def _links(item: Item, lasted: Item, parents: tuple[str, ...], flavors: tuple[str, ...]) -> list[Task]:
    """A task as a chain of tasks, which is how it is split where a task is in one pool: its parts on the CPU wherever
    there are slots without a GPU, each with a start of its own; what it loaded has been loaded before."""
    parts = [(0.0, lasted.before_s), (item.gpus, lasted.gpu_s), (0.0, lasted.after_s)]
    if not item.gpus:
        parts = [(0.0, lasted.seconds - lasted.cold_s)]
    kept = [part for part in parts if part[1] >= LEAST_S] or parts[len(parts) // 2 :][:1]
    chain = []
    for number, (gpus, seconds) in enumerate(kept, start=1):
        moves = item.gpus > 0 and not gpus
        phase = Phase(
            kind="gpu" if gpus else "cpu",
            cpus=max(1.0, item.cpus) if moves else item.cpus,
            gpus=gpus,
            duration_s=lasted.overhead_s + max(0.0, seconds),
        )
        name = item.task if number == len(kept) else f"{item.task}, part {number}"
        chain.append(Task(id=name, name=item.name, parents=parents, phases=(phase,), flavors=() if moves else flavors))
        parents = (name,)
    return chain


def _phases(item: Item, lasted: Item, hints: bool) -> list[Phase]:
    """As it ran, one phase that holds everything throughout; with hints the cold start is apart and, where the parts
    are known, the GPU is held only while it is used."""
    kind = "gpu" if item.gpus else "cpu"
    if not hints:
        return [Phase(kind=kind, cpus=item.cpus, gpus=item.gpus, duration_s=lasted.overhead_s + lasted.seconds)]
    before_s = lasted.overhead_s + lasted.before_s
    parts = [("cpu", before_s, 0.0), (kind, lasted.gpu_s, item.gpus), ("cpu", lasted.after_s, 0.0)]
    if not item.gpus:
        parts = [("cpu", lasted.overhead_s + lasted.seconds - lasted.cold_s, 0.0)]
    kept = [part for part in parts if part[1] >= LEAST_S] or parts[len(parts) // 2 :][:1]
    return [Phase(kind=k, cpus=item.cpus, gpus=gpus, duration_s=max(0.0, s)) for k, s, gpus in kept]


def _belief(phases: Sequence[Phase], peers: list[Item], hints: bool) -> list[tuple[float, float]]:
    """What a history of such tasks lets one expect of each phase; the parts of a split are known as they will be."""
    if len(phases) == 1:
        seconds = sorted(peer.overhead_s + peer.seconds - (peer.cold_s if hints else 0.0) for peer in peers)
        p50_s, p95_s = (max(0.0, seconds[math.ceil(share * len(seconds)) - 1]) for share in (0.5, 0.95))
        return [(p50_s, p95_s)]
    return _known(phases)


def _known(phases: Sequence[Phase]) -> list[tuple[float, float]]:
    return [(phase.duration_s or 0.0, phase.duration_s or 0.0) for phase in phases]
