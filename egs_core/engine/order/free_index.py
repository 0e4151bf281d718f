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

from egs_core.engine.order.classes import ANY, PhaseClass, ResourceKey
from egs_core.engine.order.fit_masks import FitMasks
from egs_core.engine.order.fronts import MEMORY, NODE, SHAPE, ClassFronts, bits_in
from egs_core.engine.order.refusals import Refusals
from egs_core.engine.rules.fit import lacking, may_start_on
from egs_core.engine.rules.packer import Packer
from egs_core.engine.rules.packing import TypicalWorkload
from egs_core.engine.rules.processes import NO_SLOT, slot_room
from egs_core.engine.state.nodes import Node
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape

UNLIMITED = 1 << 62
MOST_CHANGES = 10_000  # that are kept for rankings; then these are made anew
MOST_BITS = 1_000  # of keys that have fronts no more; then all are found anew
FEW_NODES = 4  # up to so many a scan is quicker: nothing is noted then, and one node more makes all be looked at
Rank = tuple[bool, int, int, int]  # has GPUs, free GPU, free CPU, number of the node: best fit of GPU phases
UNKNOWN = None, None
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
    return [bit.bit_length() - 1 for bit in bits_in(bits)]


def memory_in(resources: ResourceKey) -> int:
    """Of the process that a key's phases keep; NO_SLOT for none."""
    return resources[MEMORY] if len(resources) > MEMORY else NO_SLOT


def has_room(node: Node, shape: Shape, memory: int) -> bool:
    """Whether a phase of the shape fits on the node, and there may be a slot for a process with so much memory."""
    return not lacking(node, shape) and memory <= slot_room(node)


class FreeIndex:
    """See the module. is_kept: whether it is used at all; freed_nodes: on which something has ended since `refresh`.
    refusals: what is beside room that is kept."""

    def __init__(self, state: State, fronts: ClassFronts) -> None:
        self._state = state
        self._fronts = fronts
        self._nodes: dict[int, int] = {}  # bit of a key without a node -> nodes with room, as bits; not there: unknown
        self._has_many_bits = False  # most of them of what waits no more
        self._masks = FitMasks()  # of those
        self._fits: list[int] = []  # by node: for which of them there is room
        self._bound: dict[int, dict[int, ResourceKey]] = {}  # node -> bit of (shape, ANY) -> key bound to the node
        self._bound_bits: dict[int, int] = {}  # node -> those bits together: of what was closed there once
        self.freed_nodes: set[int] = set()
        self._moved: set[int] = set()  # nodes whose rank may have changed
        self._ranks: dict[int, Rank] = {}
        self._order: list[Rank] = []  # of all nodes that are there
        self._by_cpu: list[CpuRank] = []  # the same
        self._withdrawn: set[int] = set()  # nodes with devices that are held and have been withdrawn
        self._rankings: dict[int, Ranking] = {}  # shape with GPUs -> its nodes
        self._changes: list[int] = []  # nodes in the order in which they have changed, since there are rankings
        self._typical: TypicalWorkload = ()  # for which the rankings were made
        self.is_kept = False
        self.refusals = Refusals(state)
        self.forget()

    # --- what has changed ---

    def forget(self) -> None:
        """Anything may fit anywhere."""
        self.is_kept = len(self._state.nodes) > FEW_NODES
        for container in (
            self._nodes,
            self._bound,
            self._bound_bits,
            self.freed_nodes,
            self._ranks,
            self._order,
            self._by_cpu,
            self._rankings,
        ):
            container.clear()
        self._has_many_bits = False
        self._masks = FitMasks()
        self._fits = [0] * len(self._state.nodes)
        self._moved.update(range(len(self._state.nodes)))
        self._fronts.reopen_all()
        self.refusals.forget()

    def taken(self, number: int) -> None:
        """A phase has been granted there: what fitted nowhere else may fit nowhere now."""
        if self.is_kept:
            self._settle(number)

    def _settle(self, number: int) -> None:
        """The node has changed: close what does not fit there any more and nowhere else, and open what does."""
        self._moved.add(number)
        if number in self.refusals.kept:
            self.refusals.forget()
        if self._rankings:
            self._note_change(number)
        node = self._state.nodes[number]
        fits, before = self._masks.of(node) if node.alive else 0, self._fits[number]
        changed = fits ^ before
        if not changed:
            return
        self._fits[number] = fits
        nodes, own, nowhere = self._nodes, 1 << number, 0
        for bit in bits_in(changed):
            with_room = nodes[bit] = nodes[bit] ^ own
            if not with_room:
                nowhere |= bit
        fronts = self._fronts
        fronts.closed = fronts.closed & ~fits | nowhere
        if self._bound_bits:
            for bit in bits_in(changed & self._bound_bits.get(number, 0)):
                (fronts.reopen if fits & bit else fronts.close)(self._bound[number][bit])

    def _note_change(self, number: int) -> None:
        """For the rankings, which are brought up to date when they are asked."""
        self._changes.append(number)
        if len(self._changes) > MOST_CHANGES:
            self._rankings.clear()
            self._changes.clear()

    def refresh(self) -> None:
        """Open the keys in which something fits now."""
        if self._has_many_bits:
            self.forget()
        for number in self.freed_nodes:
            self._settle(number)
        self.freed_nodes.clear()

    def found_none(self, phase_class: PhaseClass) -> None:
        """No place was found for the first of the class, which can do nothing but wait for one: from now on it is known
        on which nodes there is room for its class, and its key is closed while there is none."""
        if not self.is_kept:
            return
        resources, bound = phase_class.resources, phase_class.node
        if bound == ANY:
            self._learn(resources)
        elif not self._fits[bound] & (bit := self._learn((phase_class.shape, ANY))):
            self._bound.setdefault(bound, {})[bit] = resources
            self._bound_bits[bound] = self._bound_bits.get(bound, 0) | bit
            self._fronts.close(resources)

    def was_refused(self, phase: int, phase_class: PhaseClass) -> None:
        """The first of a class without wishes has found no place beside what is kept."""
        with_room = self._nodes.get(self._fronts.bits.get(phase_class.resources, 0))
        if with_room is not None:
            self.refusals.add(phase, with_room)

    def is_refused(self, phase: int, phase_class: PhaseClass) -> bool:
        """Whether the first of such a class would find none again."""
        with_room = self._nodes.get(self._fronts.bits.get(phase_class.resources, 0))
        return with_room is not None and self.refusals.holds(phase, with_room)

    def _learn(self, resources: ResourceKey) -> int:
        """See on which nodes there is room for a key without a node; from now on that is known. Its bit."""
        bit = self._fronts.bit_of(resources)
        if bit not in self._nodes:
            wanted, memory, with_room = self._state.shapes[resources[SHAPE]], memory_in(resources), 0
            self._masks.add(bit, wanted, memory)
            for number, node in enumerate(self._state.nodes):
                if node.alive and has_room(node, wanted, memory):
                    with_room |= 1 << number
                    self._fits[number] |= bit
            self._nodes[bit] = with_room
            self._has_many_bits = len(self._nodes) > MOST_BITS + 2 * len(self._fronts.of)
            self._fronts.known |= bit
            if not with_room:
                self._fronts.closed |= bit
        return bit

    def validate(self) -> None:
        """Raise AssertionError where a closed key has resources, or a node that fits would not be looked at."""
        nodes, shapes, fronts = self._state.nodes, self._state.shapes, self._fronts
        for resources in [resources for resources, bit in fronts.bits.items() if bit in self._nodes]:
            shape, memory, bit = shapes[resources[SHAPE]], memory_in(resources), fronts.bits[resources]
            fits = {n for n, node in enumerate(nodes) if node.alive and has_room(node, shape, memory)}
            looked_at = set(numbers_in(self._nodes[bit])) | self.freed_nodes
            assert fits <= looked_at, f"{resources} fits on {sorted(fits)}, looked at {sorted(looked_at)}"
            assert not (fits - self.freed_nodes and fronts.closed & bit), f"{resources} is closed, and there is a place"
        for resources in fronts.closed_apart:
            assert lacking(nodes[resources[NODE]], shapes[resources[SHAPE]]), (
                f"{resources} is closed, and there is room"
            )

    # --- where to look ---

    def where(
        self,
        phase: int,
        phase_class: PhaseClass,
        packer: Packer | None,
        *,
        is_plain: bool,
        beside_kept: bool = False,
    ) -> tuple[int | None, Collection[int] | None]:
        """The best node for the first of a class, where that is known; else the nodes among which it is, None: all on
        which it may start. is_plain: whether nothing but the packing decides, no flavors and no files. beside_kept:
        whether room is kept for others: best fit decides then, without a packer."""
        if not self.is_kept or phase_class.node != ANY or phase_class.needs_process:
            return UNKNOWN
        number = phase_class.shape
        fitting = self._nodes.get(self._fronts.bits.get(phase_class.resources, 0))
        if is_plain and (len(self._state.nodes) if fitting is None else fitting.bit_count()) > FEW_NODES:
            shape = self._state.shapes[number]
            if beside_kept:
                found = self._best_fit(phase, shape, self.refusals.kept)
                if found:
                    return (None, found) if found[0] in self.refusals.kept else (found[0], None)
            else:
                best = self._ranked(phase, number, packer) if shape.gpu_milli else self._tightest(phase, shape, packer)
                if best is not None:
                    return best, None
        return None, range(len(self._state.nodes)) if fitting is None else numbers_in(fitting)

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
