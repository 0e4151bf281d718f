"""From the state to the search and back: when the engine looks ahead, in which workload, on how many slots.

Only what the search's model holds exactly is searched: one workload alone, none of it running, every phase of one
shape, and nothing but ranks to order its tasks by. Elsewhere the order by rank stays as it is. What is found enters as
seconds added to ranks (`rank_boost_s` of the state), so everything else in the order, and the reasons, work as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.search import improve
from egs_core.engine.rules.locality import expected_fetch_s
from egs_core.engine.state.lifecycle import ENDED
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape, TaskOptions

LEAST_PASSES = 60  # a graph of which the budget does not pay so many schedules is not searched
SURE = 1.5  # a plan is for durations whose 95th percentile is within this of the median
LOOKED_AHEAD_AFTER = frozenset({m.TasksAdded, m.Estimates, m.NodeAdded})
Lifts = tuple[tuple[int, ...], tuple[float, ...], bool]  # phases, seconds, whether the plan is firm (`State.lift`)
NO_LIFTS: Lifts = ((), (), False)


class LookAhead:
    """Keeps the state's lifts up to date. placements: the search's budget each time, 0: never."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, placements: int, seed: int) -> None:
        self._issuer = issuer
        self._queue = queue
        self._placements = placements
        self._seed = seed

    def after(self, event: m.Event) -> None:
        """One of `LOOKED_AHEAD_AFTER` has been taken in: plan, or drop the plan whose ground is gone."""
        state = self._issuer.state
        if not self._placements:
            return
        if state.leases:
            if state.rank_boost_s and (type(event) is m.TasksAdded or not is_sure(state, state.rank_boost_s)):
                self._set(NO_LIFTS)
            return
        alone: list[int] = []
        if not state.queues and not self._is_single(event):  # quotas may keep phases out: the model knows nothing of it
            alone = [number for number, workload in enumerate(state.workloads) if workload.open_tasks]
        lifts = compute_lifts(state, alone[0], self._placements, self._seed) if len(alone) == 1 else NO_LIFTS
        if lifts[0] or state.rank_boost_s:
            self._set(lifts)

    def _is_single(self, event: m.Event) -> bool:
        """Whether there is nothing to order even if the event's workload is the only one: to find that out takes a look
        at all that there have ever been, a million after a year of commands of one phase each."""
        if type(event) is not m.TasksAdded:
            return False
        state = self._issuer.state
        numbers = state.workloads[state.workload_number(event.workload)].numbers
        return len(numbers) == 1 and len(_open_phases(state, next(iter(numbers)))) < 2

    def _set(self, lifts: Lifts) -> None:
        self._issuer.transitions.lift(*lifts)
        self._queue.rekey(list(self._queue.keys))


def compute_lifts(state: State, workload: int, placements: int, seed: int) -> Lifts:
    """Seconds to add to the ranks of some of the workload's phases; none where a search gains nothing or cannot be."""
    numbers = state.workloads[workload].numbers
    if len(numbers) * LEAST_PASSES > placements:
        return NO_LIFTS
    tasks = sorted(t for t in numbers if state.status[state.cursor[t]] not in ENDED)
    phases = [p for t in tasks for p in _open_phases(state, t)]
    slots = slots_for(state, tasks, phases)
    if not 0 < slots < len(phases) or len(phases) * LEAST_PASSES > placements:
        return NO_LIFTS
    seconds, ranks = [state.estimate_s[p] for p in phases], [state.rank_s[p] for p in phases]
    if min(seconds) == max(seconds) or not is_sure(state, phases):
        return NO_LIFTS  # alike also where nothing is known: every phase is then believed to take the same
    item_of = {phase: item for item, phase in enumerate(phases)}
    found = improve(seconds, _parents(state, tasks, item_of), ranks, slots, placements, seed)
    is_firm = bool(state.reads) and found.before_s - found.after_s > expected_fetch_s(state, tasks, slots)
    return tuple([phases[i] for i in found.rank_boost_s]), tuple(found.rank_boost_s.values()), is_firm


def is_sure(state: State, phases: Iterable[int]) -> bool:
    """Whether the durations of these phases, all together, are known well enough for a plan that packs them."""
    median_s = sum([state.estimate_s[p] for p in phases])
    return sum([state.estimate_p95_s[p] for p in phases]) <= SURE * median_s


def _open_phases(state: State, task: int) -> range:
    return range(state.cursor[task], state.first_phase[task + 1])


def slots_for(state: State, tasks: Sequence[int], phases: Sequence[int]) -> int:
    """How many of these phases can run at once; 0 when they are not alike, or more than ranks decides their order."""
    alive = [node for node in state.nodes if node.alive] if state.flavors else []
    if len({node.flavor for node in alive}) > 1 or any(node.profiles or node.device_flavors for node in alive):
        return 0
    shapes = {state.shape[p] for p in phases}
    if len(shapes) != 1 or not all(_is_plain(state.options[t]) for t in tasks if t in state.options):
        return 0
    shape = state.shapes[shapes.pop()]
    return sum(_slots_of(node, shape) for node in state.nodes if node.alive)


def _is_plain(options: TaskOptions) -> bool:
    """Whether neither a process nor the user's wish comes before, or into, the order by rank."""
    return not (
        options.warm_key or options.gang or options.priority or options.max_wait_s is not None or options.only_on
    )


def _slots_of(node: Node, shape: Shape) -> int:
    """How many phases of this shape an empty node runs at once; 0 where nothing limits them."""
    limits = []
    if shape.cpu_milli:
        limits.append(node.cpu_milli // shape.cpu_milli)
    if shape.memory_bytes and node.memory_bytes != UNTRACKED:
        limits.append(node.memory_bytes // shape.memory_bytes)
    if shape.gpu_milli:
        limits.append(_device_slots(node, shape))
    return min(limits, default=0)


def _device_slots(node: Node, shape: Shape) -> int:
    if shape.gpu_milli >= WHOLE_DEVICE:
        return node.gpus // -(-shape.gpu_milli // WHOLE_DEVICE)
    shares = WHOLE_DEVICE // shape.gpu_milli
    if shape.gpu_memory_bytes and node.gpu_memory_bytes != UNTRACKED:
        shares = min(shares, node.gpu_memory_bytes // shape.gpu_memory_bytes)
    return node.gpus * shares


def _parents(state: State, tasks: Sequence[int], item_of: dict[int, int]) -> list[tuple[int, ...]]:
    """Of each item: the phase before it in its task, or the last phases of the parents that are still open."""
    parents: list[tuple[int, ...]] = []
    for task in tasks:
        last = [state.first_phase[parent + 1] - 1 for parent in state.parents[task]]
        parents.append(tuple([item_of[p] for p in last if p in item_of]))
        parents += [(item_of[p - 1],) for p in _open_phases(state, task)[1:]]
    return parents
