"""A packing at work in the engine: what it has learnt of the phases that come, and the scores that it remembers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from egs_core.engine.rules.packing import (
    PACKINGS,
    Choice,
    Packing,
    TypicalWorkload,
    best_fit,
    free_of,
    typical_workload,
)
from egs_core.engine.state.nodes import UNTRACKED, Node
from egs_core.graph.columns import Shape

MEMO_LIMIT = 4_000  # scores kept of one shape


class Packer:
    """A packing and what it has learnt. Nothing of it is in a snapshot: it follows from the state.

    typical: of the first phases that the engine was told of, how many is `milestone` of their number: a restored
    engine knows the same, and scores stay good for a while.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self._choose_on = packing.choose if packing.remembering is None else packing.remembering()
        self.typical: TypicalWorkload = ()
        self._seen = 0
        self._known = 0
        self._counts: Counter[int] = Counter()
        self._memo: dict[Shape, dict[tuple[int, ...], Choice]] = {}
        self._shape: Shape | None = None  # asked for last, node by node
        self._of_shape: dict[tuple[int, ...], Choice] = {}

    def learn(self, shapes: Sequence[Shape], shape_of_phase: Sequence[int]) -> Packer | None:
        """Take in the engine's phases: their shapes' numbers, in the order in which they came. None: best fit will do,
        because no typical phase asks for a GPU, so there is none to fragment."""
        if not self.packing.learns:
            return self
        if len(shape_of_phase) != self._seen:
            self._seen = len(shape_of_phase)
            known = milestone(self._seen)
            if known != self._known:
                self._take_in(shapes, shape_of_phase, known)
        return self if self.typical else None

    def _take_in(self, shapes: Sequence[Shape], shape_of_phase: Sequence[int], known: int) -> None:
        self._counts.update(shape_of_phase[self._known : known])
        self._known = known
        typical = typical_workload((shapes[number], count) for number, count in self._counts.items())
        if typical != self.typical:
            self.typical = typical
            self._memo.clear()
            self._shape = None

    def score(self, node: Node, shape: Shape) -> tuple[int, ...]:
        """Of a node on which the shape fits, lower is better. A CPU phase keeps off nodes with GPUs."""
        return (0 if shape.gpu_milli else int(node.gpus > 0), *self._choose(node, shape).score)

    def devices(self, node: Node, shape: Shape) -> tuple[int, ...]:
        """Those that the phase takes on a node on which it fits."""
        return self._choose(node, shape).devices

    def _choose(self, node: Node, shape: Shape) -> Choice:
        if not self.packing.learns:
            return self.packing.choose(free_of(node), shape, ())
        if shape is not self._shape:
            self._shape, self._of_shape = shape, self._memo.setdefault(shape, {})
        is_tracked = node.memory_bytes != UNTRACKED, node.gpu_memory_bytes != UNTRACKED
        key = (node.free_cpu, node.free_memory, node.gpus, *is_tracked, *node.devices, *node.device_memory)
        found = self._of_shape.get(key)
        if found is None:
            if len(self._of_shape) >= MEMO_LIMIT:
                self._of_shape.clear()
            found = self._of_shape[key] = self._choose_on(free_of(node), shape, self.typical)
        return found


def milestone(count: int) -> int:
    """The count with all but its first four binary digits set to zero: it moves in steps of 6 to 12 %."""
    shift = max(count.bit_length() - 4, 0)
    return count >> shift << shift


def make_packer(name: str) -> Packer | None:
    """The packing of this name; None for best fit, which `fit` does without one. KeyError: unknown."""
    packing = PACKINGS[name]
    return None if packing.choose is best_fit else Packer(packing)
