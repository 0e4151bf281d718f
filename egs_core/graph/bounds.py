"""How soon a graph could end at best: two lower bounds on the makespan with M equal slots.

    a                W / M                b
    |-------|=====================|----------------|
    nothing    the work W of all tasks whose head >= a
    of W runs  and whose tail >= b, on M slots at best
    before a   (after its last end, b more seconds follow)

LB2 = max over (a, b) of a + W(head >= a, tail >= b) / M + b, over sets that hold at least one task. It is never less
than the critical path (a task's own head + seconds + tail) nor than work / M (a, b at their least).

Only heads and tails that occur need be tried, so LB2 is exact with k distinct heads and tails in O(n + k^2). Above
`MAX_CUTS` distinct values the candidates for a and b are thinned: a and b are then taken from `MAX_CUTS` of the values
that occur, equally spaced by work, the least and the greatest kept. W is still the exact work for every pair that is
tried, so the result is a maximum over fewer pairs: never above LB2, and still a valid bound.

    slot 1  |==========|==========|     nine tasks of 10 s on eight slots take 20 s, as one slot takes two of them;
    slot 2  |==========|                LB2 lets the ninth be cut into eight pieces and says 11.25 s
    …

The pigeonhole bound = max over (a, b, k) of a + d_(kM+1-k) + … + d_(kM+1) + b, where d_1 >= d_2 >= … are the seconds of
the tasks whose head >= a and tail >= b: some slot takes k + 1 of the first kM + 1, so at least the k + 1 least of them.
It is tried at no more than `PIGEONHOLE_CUTS` values of a and of b, thinned in the same way, and is valid for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from egs_core.errors import InputError
from egs_core.graph.analysis import heads, tails, task_durations, topological_order
from egs_core.graph.columns import GPU, Graph

MAX_CUTS = 1024
PIGEONHOLE_CUTS = 48

_Floats = NDArray[np.float64]


class Bound(msgspec.Struct, frozen=True):
    """A lower bound on the makespan and where it comes from; exact is False when the cuts were thinned."""

    seconds: float
    critical_path_s: float
    work_per_slot_s: float
    head_cut_s: float = 0.0
    tail_cut_s: float = 0.0
    exact: bool = True


def lower_bound(
    graph: Graph, slots: int, durations_s: Sequence[float] | None = None, order: Sequence[int] | None = None
) -> float:
    """LB2 in seconds for tasks that each hold one of `slots` equal slots for all their seconds."""
    seconds = task_durations(graph) if durations_s is None else durations_s
    order = topological_order(graph) if order is None else order
    return compute_bound(heads(graph, seconds, order), tails(graph, seconds, order), seconds, slots).seconds


def makespan_bound(graph: Graph, slots: int, durations_s: Sequence[float] | None = None) -> float:
    """The better of LB2 and the pigeonhole bound, in seconds, for tasks that each hold one of `slots` equal slots."""
    seconds = task_durations(graph) if durations_s is None else durations_s
    order = topological_order(graph)
    head, tail = heads(graph, seconds, order), tails(graph, seconds, order)
    return max(compute_bound(head, tail, seconds, slots).seconds, pigeonhole_bound(head, tail, seconds, slots))


def lower_bound_of(heads_s: Sequence[float], tails_s: Sequence[float], work_s: Sequence[float], slots: int) -> float:
    """LB2 in seconds over explicit items, such as the GPU phases of many workloads: see `compute_bound`."""
    return compute_bound(heads_s, tails_s, work_s, slots).seconds


def compute_bound(
    heads_s: Sequence[float],
    tails_s: Sequence[float],
    work_s: Sequence[float],
    slots: int,
    durations_s: Sequence[float] | None = None,
    max_cuts: int = MAX_CUTS,
) -> Bound:
    """LB2 over items that share `slots`: earliest start, time that must follow, and slot seconds of each.

    heads_s count from time 0, so an arrival time is simply added to them; what comes before or after on other
    resources is part of heads_s and tails_s. durations_s is needed only where an item holds more than one slot, or
    part of one (work = duration x slots held).
    """
    if slots < 1:
        raise InputError("slots", f"must be at least 1, not {slots}")
    head, tail, work = (np.asarray(x, dtype=np.float64) for x in (heads_s, tails_s, work_s))
    if not work.size:
        return Bound(0.0, 0.0, 0.0)
    own = work if durations_s is None else np.asarray(durations_s, dtype=np.float64)
    path, area = float((head + own + tail).max()), float(work.sum()) / slots
    seconds, head_cut, tail_cut, exact = _best_cut(head, tail, work, slots, max_cuts)
    return Bound(max(seconds, path, area), path, area, head_cut, tail_cut, exact)


def _best_cut(
    head: _Floats, tail: _Floats, work: _Floats, slots: int, max_cuts: int
) -> tuple[float, float, float, bool]:
    """The largest a + W(head >= a, tail >= b) / slots + b with its a and b, and whether every pair was tried."""
    head_cuts, all_heads = _cuts(head, work, max_cuts)
    tail_cuts, all_tails = _cuts(tail, work, max_cuts)
    shape = (len(head_cuts), len(tail_cuts))
    # The greatest cut at or below a value: the value reaches exactly the cuts up to it.
    at = (np.searchsorted(head_cuts, head, "right") - 1) * shape[1] + np.searchsorted(tail_cuts, tail, "right") - 1
    inside, members = _suffix_sums(at, work, shape), _suffix_sums(at, np.ones_like(work), shape)
    value = head_cuts[:, None] + inside / slots + tail_cuts[None, :]
    value[members == 0] = -np.inf
    best = int(value.argmax())
    row, column = divmod(best, shape[1])
    return float(value[row, column]), float(head_cuts[row]), float(tail_cuts[column]), all_heads and all_tails


def _suffix_sums(at: NDArray[np.int64], weights: _Floats, shape: tuple[int, int]) -> _Floats:
    """For each cell of a grid the weights at or beyond it in both directions; `at` is each item's flat cell."""
    grid = np.bincount(at, weights=weights, minlength=shape[0] * shape[1]).astype(np.float64).reshape(shape)
    sums: _Floats = grid[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    return sums


def _cuts(values: _Floats, work: _Floats, max_cuts: int) -> tuple[_Floats, bool]:
    """Rising candidates out of the values that occur; all of them, or `max_cuts` equally spaced by work."""
    distinct, at = np.unique(values, return_inverse=True)
    if len(distinct) <= max_cuts:
        return distinct, True
    below = np.bincount(at, weights=work, minlength=len(distinct)).cumsum()
    picks = np.searchsorted(below, np.linspace(0.0, below[-1], max_cuts - 2))
    picks = np.unique(np.concatenate(([0, len(distinct) - 1], np.minimum(picks, len(distinct) - 1))))
    thinned: _Floats = distinct[picks]
    return thinned, False


def pigeonhole_bound(
    heads_s: Sequence[float],
    tails_s: Sequence[float],
    durations_s: Sequence[float],
    slots: int,
    max_cuts: int = PIGEONHOLE_CUTS,
) -> float:
    """Seconds that items of one slot each need at least because each is whole, see the module."""
    if slots < 1:
        raise InputError("slots", f"must be at least 1, not {slots}")
    seconds = np.asarray(durations_s, dtype=np.float64)
    longest_first = np.argsort(-seconds, kind="stable")
    seconds = seconds[longest_first]
    head, tail = (np.asarray(x, dtype=np.float64)[longest_first] for x in (heads_s, tails_s))
    best = 0.0
    for a in _cuts(head, seconds, max_cuts)[0]:
        late = head >= a
        late_tail, late_seconds = tail[late], seconds[late]
        for b in _cuts(late_tail, late_seconds, max_cuts)[0]:
            best = max(best, float(a + _fullest_slot(late_seconds[late_tail >= b], slots) + b))
    return best


def _fullest_slot(falling: _Floats, slots: int) -> float:
    """What the slot with the most of the kM + 1 longest items takes at least, for the best k; one item or more."""
    k = np.arange((len(falling) - 1) // slots + 1)
    sums = np.concatenate(([0.0], falling.cumsum()))
    return float((sums[k * slots + 1] - sums[k * slots - k]).max())


def submissions_bound(graph: Graph, gpus: int, submissions: int = 1, every_s: float = 0.0) -> float:
    """LB2 over the GPU phases of equal workloads, submitted one after the other: seconds from the first submission to
    the last end, were every process warm and every switch free."""
    head, work, tail = gpu_phases(graph)
    heads_s = [number * every_s + before for number in range(submissions) for before in head]
    return lower_bound_of(heads_s, tail * submissions, work * submissions, gpus)


def gpu_phases(graph: Graph) -> tuple[list[float], list[float], list[float]]:
    """Of each GPU phase of a graph: the least time before it since submission, its length, the least time after it."""
    task_heads, task_tails = heads(graph), tails(graph)
    rows = []
    for task in range(graph.n_tasks):
        phases = graph.phases_of(task)
        seconds = [graph.phase_duration_s[phase] or 0.0 for phase in phases]
        for at, phase in enumerate(phases):
            if graph.phase_kind[phase] == GPU:
                before, after = sum(seconds[:at]), sum(seconds[at + 1 :])
                rows.append((task_heads[task] + before, seconds[at], after + task_tails[task]))
    head, work, tail = (list(column) for column in zip(*rows, strict=True))
    return head, work, tail
