"""Why the longest waits were long, from who held what meanwhile.

wait  ├───────── no free GPU ─────────┤── GPU free: process start, environment ──┤ started
GPU 0 ══════ train ══════╡              capacity - held, node by node, says which of the two it was
GPU 1 ── Server (idle) ───────────────╡ held and not used: named, with its idle seconds
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from egs_core.audit.accounts import EXECUTOR, label_in, name_of
from egs_core.errors import counted
from egs_core.runlog.flow import Feasibility
from egs_core.runlog.intervals import LET_GO, STARTING, Demand, Hold, Timeline, Wait
from egs_core.runlog.steps import Interval, clip, subtract

CAPACITY, GATE, SCHEDULER = "capacity", "gate", "scheduler"
UNASKED = re.compile(r"until [0-9.]+: ")  # in old logs: the words of a hold that was written with its grant
SLACK = 1e-6  # amounts of resources are sums of floats
FREE = "resources were free: process start, environment set-up, or a limit of the framework's; it does not say"
FIRST = "held back by EGS, which let others go first"
UNSTARTED = "admitted, but no worker or process of the executor had taken it yet"


class ExplainedWait(msgspec.Struct, frozen=True):
    """A wait of a ready phase. label: what `egs why` takes for it. no_gpu_s, no_cpu_s: parts of it in which no node
    had enough of them free; free_s: the rest, with room on some node. blockers: who held GPUs in it: name, GPU seconds
    held, GPU seconds of them unused. arguments_s: what it had waited for its inputs before. started: it ended with a
    start."""

    workload: str
    task: str
    name: str
    label: str
    gpus: float
    cpus: float
    wait_s: float
    arguments_s: float
    no_gpu_s: float
    no_cpu_s: float
    free_s: float
    nobody_has: bool
    started: bool
    reason: str
    blockers: tuple[tuple[str, float, float], ...] = ()


def longest_waits(
    line: Timeline, most: int = 10, cpu_name: str = "CPU", pinned: bool = False, by_egs: bool = False
) -> list[ExplainedWait]:
    """The longest waits, of phases with a GPU where there are any, the longest first; options as in `Observed`. by_egs:
    EGS has decided what starts when: what is held back, it holds back."""
    for_gpu = [wait for wait in line.waits if wait.demand.gpus > 0]
    waits = sorted(for_gpu or line.waits, key=lambda wait: (-wait.wait_s, wait.workload, wait.task))
    shown = [wait for wait in waits[:most] if wait.wait_s > 0]
    feasible = Feasibility(line.capacities)
    return [_explained(_there(line, wait) if pinned else line, wait, feasible, cpu_name, by_egs) for wait in shown]


def _admitted(line: Timeline, wait: Wait) -> Iterator[Hold]:
    """Others that had been admitted, and were yet to be started by their executor: what they need was taken already."""
    nodes = {(hold.workload, hold.task, hold.phase): hold.node for hold in line.holds}
    for other in line.waits:
        place = (other.workload, other.task, other.phase)
        for start_s, end_s, kind in other.pieces:
            if kind == EXECUTOR and other is not wait and place in nodes:
                yield Hold(*place, other.attempt, start_s, end_s, other.demand, node=nodes[place])


def _there(line: Timeline, wait: Wait) -> Timeline:
    """Only the node on which the phase then ran: elsewhere there could be room without any use to it."""
    place = (wait.workload, wait.task, wait.phase)
    node = next((hold.node for hold in line.holds if (hold.workload, hold.task, hold.phase) == place), "")
    if not node:
        return line
    return msgspec.structs.replace(
        line,
        holds=[hold for hold in line.holds if hold.node == node],
        capacities=[capacity for capacity in line.capacities if capacity.node == node],
    )


def _explained(line: Timeline, wait: Wait, feasible: Feasibility, cpu_name: str, by_egs: bool) -> ExplainedWait:
    begin, end = wait.pieces[0][0], wait.pieces[-1][1]
    taken = [*line.holds, *_admitted(line, wait)]
    held = [h for h in taken if h.start_s < end and h.end_s > begin]
    nobody_has = bool(line.capacities) and not clip(feasible.when(wait.demand), begin, end)
    no_gpu_s, no_cpu_s = (0.0, 0.0) if nobody_has else _short_s(line, held, wait.demand, begin, end)
    blockers = _blockers(line, held, begin, end) if no_gpu_s else ()
    added = line.tasks.get((wait.workload, wait.task))
    explained = ExplainedWait(
        workload=wait.workload,
        task=wait.task,
        name=name_of(line, wait.workload, wait.task),
        label=label_in(line, wait.workload, wait.task),
        gpus=wait.demand.gpus,
        cpus=wait.demand.cpus,
        wait_s=wait.wait_s,
        arguments_s=max(0.0, begin - added.t) if added and not wait.phase else 0.0,
        no_gpu_s=no_gpu_s,
        no_cpu_s=no_cpu_s,
        free_s=0.0 if nobody_has else max(0.0, wait.wait_s - no_gpu_s - no_cpu_s),
        nobody_has=nobody_has,
        started=wait.started,
        reason="",
        blockers=blockers,
    )
    why = _reason(explained, bool(line.capacities), _told(wait), cpu_name, by_egs)
    if by_egs and wait.kind == STARTING:
        why = LET_GO
    elif wait.kind == SCHEDULER and why == FREE:  # it knows more of nodes than what they have free
        why = f"the scheduler has no node for it: {wait.told.get(SCHEDULER, 'it does not say why')}"
    elif by_egs and why == FREE and any(kind for _, _, kind in wait.pieces):
        why = _by_the_engine(explained, wait.told.get(CAPACITY, ""), cpu_name)
    return msgspec.structs.replace(explained, reason=why)


def _by_the_engine(wait: ExplainedWait, lack: str, cpu: str) -> str:
    """What the engine itself said was lacking. In its books a GPU is taken from its decision on, in the log only from
    the start that the framework told later: what seems free in between was not."""
    if not lack or UNASKED.match(lack):
        return FIRST
    if wait.no_gpu_s or wait.no_cpu_s:
        return _lacking(wait, cpu)
    return f"no room by the books of EGS: {lack}"


def _short_s(line: Timeline, held: list[Hold], demand: Demand, begin: float, end: float) -> tuple[float, float]:
    """Seconds in which no node had the GPUs, and in which one had the GPUs but none had both them and the CPUs."""
    changes: dict[float, list[tuple[str, float, float]]] = defaultdict(list)
    free: dict[str, list[float]] = {}
    offered: dict[str, tuple[float, float]] = {}
    for capacity in line.capacities:
        cpus, gpus = offered.get(capacity.node, (0.0, 0.0))
        at = min(max(capacity.t, begin), end)
        changes[at].append((capacity.node, capacity.cpus - cpus, capacity.gpus - gpus))
        offered[capacity.node] = (capacity.cpus, float(capacity.gpus))
    for hold in held:
        cpus, gpus = hold.demand.cpus, hold.demand.gpus
        changes[max(hold.start_s, begin)].append((hold.node, -cpus, -gpus))
        changes[min(hold.end_s, end)].append((hold.node, cpus, gpus))
    no_gpu_s, no_cpu_s = 0.0, 0.0
    times = sorted({*changes, begin, end})
    for at, until in pairwise(times):
        for node, cpus, gpus in changes.get(at, ()):
            room = free.setdefault(node, [0.0, 0.0])
            room[0], room[1] = room[0] + cpus, room[1] + gpus
        if at < begin:
            continue
        has_gpus = [room for room in free.values() if room[1] >= demand.gpus - SLACK]
        if not has_gpus:
            no_gpu_s += until - at
        elif not any(room[0] >= demand.cpus - SLACK for room in has_gpus):
            no_cpu_s += until - at
    return no_gpu_s, no_cpu_s


def _blockers(line: Timeline, held: list[Hold], begin: float, end: float) -> tuple[tuple[str, float, float], ...]:
    """Who held GPUs in the wait, those who held them unused first."""
    sums: dict[str, list[float]] = {}
    for hold in held:
        if hold.demand.gpus > 0:
            inside = clip([(hold.start_s, hold.end_s)], begin, end)
            unused = subtract(inside, hold.useful)
            row = sums.setdefault(name_of(line, hold.workload, hold.task), [0.0, 0.0])
            row[0] += hold.demand.gpus * _length(inside)
            row[1] += hold.demand.gpus * _length(unused)
    rows = [(name, held_s, unused_s) for name, (held_s, unused_s) in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))[:3])


def _told(wait: Wait) -> str:
    """What the log itself says held it; "" where that is to be reckoned from who held what."""
    if wait.kind == GATE:  # its controller has said more than that
        return wait.told.get(GATE) or GATE
    return "" if wait.kind in (CAPACITY, STARTING, SCHEDULER) else wait.kind


def _reason(wait: ExplainedWait, known: bool, told: str, cpu: str, by_egs: bool) -> str:
    if wait.nobody_has:
        return f"no node offers {counted(wait.gpus, 'GPU')} and {counted(wait.cpus, cpu)}"
    if told:
        return UNSTARTED if told == EXECUTOR else f"held back{' by EGS' if by_egs else ''}: {told}"
    if not known:
        return "unknown: the history does not say what the nodes offer"
    return FREE if wait.free_s > max(wait.no_gpu_s, wait.no_cpu_s) else _lacking(wait, cpu)


def _lacking(wait: ExplainedWait, cpu: str) -> str:
    if wait.no_gpu_s >= wait.no_cpu_s:
        return "no free GPU" + _while(wait.blockers)
    return f"no free {cpu} beside a free GPU" if wait.gpus else f"no free {cpu}"


def _while(blockers: Iterable[tuple[str, float, float]]) -> str:
    shown = list(blockers)
    if not shown:
        return ""
    name, held_s, unused_s = shown[0]
    if unused_s >= 0.05 * sum(held for _, held, _ in shown) and unused_s > 0:
        return f" while {name} held {held_s:.1f} GPU·s, {unused_s:.1f} of them unused"
    return f" while {max(shown, key=lambda row: row[1])[0]} was at work on them"


def _length(parts: list[Interval]) -> float:
    return sum(end - start for start, end in parts)
