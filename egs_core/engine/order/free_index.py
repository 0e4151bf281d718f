"""Which nodes are worth a look for a phase: what a scan of all of them would find, without the scan.

Nodes only get freer when something ends on them. So once a shape has been found to fit nowhere, only nodes on which
something has ended since need a look, and as long as there is none its keys (`fronts`) stay closed.

    shape 3 fits nowhere        nodes[3] = {}           its keys are closed
    a phase ends on node 7      nodes[3] = {7}          if it fits there now: open, and only 7 is looked at
    capacity has changed        nodes = unknown         everything is open, all nodes are looked at

A CPU phase fits on many nodes at once, and most of those have no GPU left that it could take the CPUs from: among these
the one with the least free CPU is the best, so they are kept in that order; for GPU phases nodes are kept in the order
of the packing's scores. While room is kept for others best fit decides, and the first node in its order is the answer,
unless something is kept there. For tasks that keep a process between phases it is known which nodes may have a slot for
it; while none has, their keys stay closed too. What is here follows from the state; decisions are the same without it
(a test).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence

from egs_core.engine.order.classes import ANY, OTHERS, SHAPE, ClassId, needs_process
from egs_core.engine.order.fit_masks import FitMasks
from egs_core.engine.order.fronts import ClassFronts, ResourceKey
from egs_core.engine.rules.fit import lacking, may_start_on
from egs_core.engine.rules.packer import Packer
from egs_core.engine.rules.packing import TypicalWorkload
from egs_core.engine.rules.processes import may_have_slot, slot_room
from egs_core.engine.state.nodes import Node
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape

UNLIMITED = 1 << 62
MOST_CHANGES = 10_000  # that are kept for rankings; then these are made anew
FEW_NODES = 4  # up to so many a scan is quicker: nothing is noted then, and one node more makes all be looked at
Rank = tuple[bool, int, int, int]  # has GPUs, free GPU, free CPU, number of the node: best fit of GPU phases
UNKNOWN = None, None
NO_SLOT = -1
CpuRank = tuple[bool, int, int]  # has GPUs, free CPU, number of the node: best fit of CPU phases


class Ranking:
    """Nodes on which a shape fits, those first that a packing prefers. read: of the changes, those that it knows."""

    def __init__(self, read: int) -> None:
        self.order: list[tuple[tuple[int, ...], int]] = []
        self.read = read
        self._of: dict[int, tuple[tuple[int, ...], int]] = {}

    def settle(self, moved: Iterable[int], nodes: Sequence[Node], shape: Shape, packer: Packer) -> None:
        """Give the nodes that have changed their new places."""
        for number in moved:
            old = self._of.pop(number, None)
            if old is not None:
                del self.order[bisect_left(self.order, old)]
            if nodes[number].alive and not lacking(nodes[number], shape):
                entry = self._of[number] = packer.score(nodes[number], shape), number
                insort(self.order, entry)


def numbers_in(bits: int) -> list[int]:
    """The numbers of the bits that are set, lowest first."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


class FreeIndex:
    """See the module. is_kept: whether it is used at all; freed_nodes: on which something has ended since `refresh`."""

    def __init__(self, state: State, fronts: ClassFronts) -> None:
        self._state = state
        self._fronts = fronts
        self._nodes: dict[int, int] = {}  # shape -> the nodes on which it fits, as bits; not there: unknown
        self._watched: list[ResourceKey] = []  # keys without a node of those shapes, by their bits in the masks
        self._masks = FitMasks()  # of those
        self._fits: list[int] = []  # by node: which of them fit there
        self._bound: dict[int, dict[int, ResourceKey]] = {}  # node -> shape -> key bound to it, once it was closed
        self.freed_nodes: set[int] = set()
        self._moved: set[int] = set()  # nodes whose rank may have changed
        self._ranks: dict[int, Rank] = {}
        self._order: list[Rank] = []  # of all nodes that are there
        self._by_cpu: list[CpuRank] = []  # the same
        self._withdrawn: set[int] = set()  # nodes with devices that are held and have been withdrawn
        self._rankings: dict[int, Ranking] = {}  # shape with GPUs -> its nodes
        self._changes: list[int] = []  # nodes in the order in which they have changed, since there are rankings
        self._memory: dict[tuple[int, ...], int] = {}  # shapes of a class's tasks -> memory of a process; NO_SLOT
        self._with_slot: dict[int, int] = {}  # memory of a process -> nodes that may have a slot for it, as bits
        self._slots_moved: set[int] = set()  # nodes on which that may have changed
        self._slot_rooms: dict[int, int] = {}  # node -> memory that a process may have there, as it was then
        self._typical: TypicalWorkload = ()  # for which the rankings were made
        self.is_kept = False
        self.forget()

    # --- what has changed ---

    def forget(self) -> None:
        """Anything may fit anywhere."""
        self.is_kept = len(self._state.nodes) > FEW_NODES
        for container in (
            self._nodes,
            self._watched,
            self._bound,
            self.freed_nodes,
            self._ranks,
            self._order,
            self._by_cpu,
            self._rankings,
            self._with_slot,
            self._slot_rooms,
        ):
            container.clear()
        self._masks = FitMasks()
        self._fits = [0] * len(self._state.nodes)
        self._moved.update(range(len(self._state.nodes)))
        self._fronts.reopen_all()

    def freed(self, node: int) -> None:
        """A phase has ended on the node."""
        if self.is_kept:
            self.freed_nodes.add(node)
            self._change(node)

    def taken(self, number: int) -> None:
        """A phase has been granted there: what fitted nowhere else may fit nowhere now."""
        if not self.is_kept:
            return
        self._change(number)
        self._settle(number)

    def _settle(self, number: int) -> None:
        """Close what does not fit on the node any more and nowhere else, and open what does."""
        node = self._state.nodes[number]
        fits = self._masks.of(node) if node.alive else 0
        changed = fits ^ self._fits[number]
        if not changed:
            return
        self._fits[number] = fits
        fronts, own, bound = self._fronts, 1 << number, self._bound.get(number)
        while changed:
            bit = changed & -changed
            changed ^= bit
            resources = self._watched[bit.bit_length() - 1]
            shape = resources[SHAPE]
            nodes = self._nodes[shape] = self._nodes[shape] ^ own
            if not nodes:
                fronts.close(resources)
            elif nodes == own and fits & bit:  # else it is open
                fronts.reopen(resources)
            if bound and shape in bound:
                (fronts.reopen if fits & bit else fronts.close)(bound[shape])

    def _change(self, number: int) -> None:
        self._moved.add(number)
        self._slots_moved.add(number)
        if self._rankings:
            self._changes.append(number)
            if len(self._changes) > MOST_CHANGES:
                self._rankings.clear()
                self._changes.clear()

    def refresh(self) -> None:
        """Open the keys in which something fits now."""
        for number in self.freed_nodes:
            self._settle(number)
            if self._fronts.closed_slots:
                self._reopen_slots(number)
        self.freed_nodes.clear()

    def _reopen_slots(self, number: int) -> None:
        """Open the keys for which the node has a slot now, and room."""
        fronts, room = self._fronts, slot_room(self._state.nodes[number])
        for memory in [memory for memory in fronts.closed_slots if memory <= room]:
            for key in [key for key in fronts.closed_slots[memory] if self._nodes[key[SHAPE]] >> number & 1]:
                fronts.reopen_slots(key)

    def found_none(self, resources: ResourceKey, *, closes: bool = True) -> None:
        """No place was found for phases of this shape and node. Where that is for lack of room and for nothing else, it
        is known from now on; and the key is closed, unless its phases have to be looked at all the same."""
        if not self.is_kept:
            return
        shape, bound = resources
        nodes = self._nodes_with_room(shape)
        if closes and not (nodes if bound == ANY else nodes >> bound & 1):
            if bound != ANY:
                self._bound.setdefault(bound, {})[shape] = resources
            self._fronts.close(resources)

    def _nodes_with_room(self, shape: int) -> int:
        """Those on which it fits; from now on that is known."""
        if shape not in self._nodes:
            bit, wanted, fitting = 1 << len(self._watched), self._state.shapes[shape], 0
            self._watched.append((shape, ANY))
            self._masks.add(wanted)
            for number, node in enumerate(self._state.nodes):
                if node.alive and not lacking(node, wanted):
                    fitting |= 1 << number
                    self._fits[number] |= bit
            self._nodes[shape] = fitting
        return self._nodes[shape]

    def validate(self) -> None:
        """Raise AssertionError where a closed key has resources, or a node that fits would not be looked at."""
        nodes, shapes = self._state.nodes, self._state.shapes
        for number, known in self._nodes.items():
            fits = {n for n, node in enumerate(nodes) if node.alive and not lacking(node, shapes[number])}
            looked_at = set(numbers_in(known)) | self.freed_nodes
            assert fits <= looked_at, f"shape {number} fits on {sorted(fits)}, looked at {sorted(looked_at)}"
        for memory, keys in self._fronts.closed_slots.items():
            able = [node for node in nodes if node.alive and may_have_slot(node, memory)]
            for key in keys:
                assert all(lacking(node, shapes[key[0]]) for node in able), f"{key} is closed, and there is a place"
        for memory, with_slot in self._with_slot.items():
            there = {n for n, node in enumerate(nodes) if may_have_slot(node, memory)} - self._slots_moved
            known_there = numbers_in(with_slot)
            assert there <= set(known_there), f"slots for {memory} bytes on {sorted(there)}, known {known_there}"
        for number, bound in self._fronts.closed:
            assert not self._nodes[number] if bound == ANY else lacking(nodes[bound], shapes[number])

    # --- where to look ---

    def where(
        self,
        phase: int,
        class_id: ClassId,
        packer: Packer | None,
        *,
        is_plain: bool,
        kept: Collection[int] | None = None,
    ) -> tuple[int | None, Collection[int] | None]:
        """The best node for the first of a class, where that is known; else the nodes among which it is, None: all on
        which it may start. is_plain: whether nothing but the packing decides, no flavors and no files. kept: nodes
        where room is kept for others, if it is for any: best fit decides then, without a packer."""
        number, bound, others, _ = class_id
        if not self.is_kept or bound != ANY or needs_process(class_id):
            return UNKNOWN
        fitting = self._nodes.get(number)
        if others and (memory := self.slot_memory(phase, class_id)) != NO_SLOT:
            with_slot = self._nodes_with_slot(memory)
            fitting = with_slot if fitting is None else with_slot & fitting
        if is_plain and (len(self._state.nodes) if fitting is None else fitting.bit_count()) > FEW_NODES:
            shape = self._state.shapes[number]
            if kept is not None:
                found = self._best_fit(phase, shape, kept)
                if found:
                    return (None, found) if found[0] in kept else (found[0], None)
            else:
                best = self._ranked(phase, number, packer) if shape.gpu_milli else self._tightest(phase, shape, packer)
                if best is not None:
                    return best, None
        return None, range(len(self._state.nodes)) if fitting is None else numbers_in(fitting)

    def slot_memory(self, phase: int, class_id: ClassId) -> int:
        """Memory of the process that tasks of the class, of which this is a phase, keep between their phases; NO_SLOT
        where they need no slot for one."""
        shapes = class_id[OTHERS]
        memory = self._memory.get(shapes)
        if memory is None:
            state, task = self._state, self._state.task_of[phase]
            memory = self._memory[shapes] = state.memory_of(task) if state.needs_slot(task) else NO_SLOT
        return memory

    def found_no_slot(self, phase: int, class_id: ClassId) -> bool:
        """Whether no node with room has a slot for a process of the class: its key is closed then."""
        memory = self.slot_memory(phase, class_id) if class_id[OTHERS] else NO_SLOT
        if memory == NO_SLOT:
            return False
        shape = class_id[SHAPE]
        if self._nodes_with_room(shape) & self._nodes_with_slot(memory):
            return False
        self._fronts.close_slots((shape, ANY, memory))
        return True

    def _nodes_with_slot(self, memory: int) -> int:
        if self._slots_moved:
            self._settle_slots()
        found = self._with_slot.get(memory)
        if found is None:
            able = [1 << number for number, node in enumerate(self._state.nodes) if may_have_slot(node, memory)]
            found = self._with_slot[memory] = sum(able)
        return found

    def _settle_slots(self) -> None:
        for number in self._slots_moved:
            room = slot_room(self._state.nodes[number])
            if room != self._slot_rooms.get(number):
                self._slot_rooms[number] = room
                for memory, nodes in self._with_slot.items():
                    self._with_slot[memory] = nodes | 1 << number if memory <= room else nodes & ~(1 << number)
        self._slots_moved.clear()

    def _ranked(self, phase: int, number: int, packer: Packer | None) -> int | None:
        """The best node for a GPU phase, if a packing says which."""
        if packer is None:
            return None
        if packer.typical is not self._typical:
            self._typical = packer.typical
            self._rankings.clear()
        ranking = self._rankings.get(number)
        moved: Iterable[int] = ()
        if ranking is None:
            ranking, moved = Ranking(len(self._changes)), range(len(self._state.nodes))
            self._rankings[number] = ranking
        elif ranking.read < len(self._changes):
            moved = set(self._changes[ranking.read :])
            ranking.read = len(self._changes)
        if moved:
            ranking.settle(moved, self._state.nodes, self._state.shapes[number], packer)
        return next((n for _, n in ranking.order if may_start_on(self._state, phase, n)), None)

    def _tightest(self, phase: int, shape: Shape, packer: Packer | None) -> int | None:
        """The best node for a CPU phase, if it is found before all have been looked at.

        Packings that learn put it where it costs no GPU phase anything (the score's second number is then 0, and never
        less), on a node with the least free GPU, then CPU: the order of `_order`. So the first such node is the best.
        Without a packing the same holds of nodes without GPUs.
        """
        self._rank_moved()
        if self._withdrawn or (packer is not None and not packer.packing.learns):
            return None
        state, order = self._state, self._order
        for has_gpus in (False, True) if packer is not None else (False,):
            at = bisect_left(order, (has_gpus, 0, shape.cpu_milli or -UNLIMITED, -1))
            while at < len(order) and order[at][0] is has_gpus:
                number = order[at][3]
                node, at = state.nodes[number], at + 1
                if lacking(node, shape) or not may_start_on(state, phase, number):
                    continue
                if packer is None or not packer.score(node, shape)[1]:
                    return number
        return None

    def _best_fit(self, phase: int, shape: Shape, kept: Collection[int]) -> list[int]:
        """The first node in the order of best fit on which the phase may start and nothing is kept, and those before it
        where something is; none where that is not known."""
        self._rank_moved()
        found: list[int] = []
        if self._withdrawn:
            return found
        state = self._state
        for number in self._from_tightest(shape):
            if not lacking(state.nodes[number], shape) and may_start_on(state, phase, number):
                found.append(number)
                if number not in kept:
                    break
        return found

    def _from_tightest(self, shape: Shape) -> Iterator[int]:
        """Nodes in the order of best fit, without those that have too little GPU, or CPU, for the shape."""
        if shape.gpu_milli:
            order = self._order
            for at in range(bisect_left(order, (True, shape.gpu_milli, -UNLIMITED, -1)), len(order)):
                yield order[at][3]
            return
        by_cpu, least = self._by_cpu, shape.cpu_milli or -UNLIMITED
        for at in range(bisect_left(by_cpu, (False, least, -1)), bisect_left(by_cpu, (True, -UNLIMITED, -1))):
            yield by_cpu[at][2]
        for at in range(bisect_left(by_cpu, (True, least, -1)), len(by_cpu)):
            yield by_cpu[at][2]

    def _rank_moved(self) -> None:
        order, by_cpu = self._order, self._by_cpu
        for number in self._moved:
            old = self._ranks.pop(number, None)
            if old is not None:
                del order[bisect_left(order, old)]
                del by_cpu[bisect_left(by_cpu, (old[0], old[2], number))]
            node = self._state.nodes[number]
            (self._withdrawn.add if len(node.devices) > node.gpus else self._withdrawn.discard)(number)
            if node.alive:
                rank = self._ranks[number] = node.gpus > 0, sum(node.devices), node.free_cpu, number
                insort(order, rank)
                insort(by_cpu, (rank[0], rank[2], number))
        self._moved.clear()
