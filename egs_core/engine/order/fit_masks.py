"""Which shapes fit on a node, as one number with a bit for each: worked out by three searches, whatever their number.

shapes     0: 1 CPU    1: 4 CPUs    2: 2 CPUs and a device
CPUs       at least 1: 0b001    2: 0b101    4: 0b111          a node with 3 CPUs free: 0b101
devices    at least 0: 0b011    1: 0b111                      and none of its devices: 0b001
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from egs_core.engine.rules.fit import lacking
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.graph.columns import Shape


class Thresholds:
    """Of one kind of resource: how much each shape wants of it. masks[n]: the shapes that want no more than the first n
    of the amounts."""

    __slots__ = ("_amounts", "_masks")

    def __init__(self) -> None:
        self._amounts: list[int] = []
        self._masks = [0]

    def add(self, amount: int, bit: int) -> None:
        """A shape wants so much."""
        at = bisect_right(self._amounts, amount)
        if not at or self._amounts[at - 1] != amount:
            insort(self._amounts, amount)
            self._masks.insert(at, self._masks[at])
            at += 1
        self._masks[at:] = [mask | bit for mask in self._masks[at:]]

    def within(self, free: int) -> int:
        """The shapes that want no more than that."""
        return self._masks[bisect_right(self._amounts, free)]


class FitMasks:
    """See the module. Shapes have numbers in the order in which they are added."""

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._of_devices = 0  # those with a GPU
        self._cpu, self._memory, self._gpu = Thresholds(), Thresholds(), Thresholds()

    def add(self, shape: Shape) -> None:
        bit = 1 << len(self._shapes)
        self._shapes.append(shape)
        self._cpu.add(shape.cpu_milli, bit)
        self._memory.add(shape.memory_bytes, bit)
        self._gpu.add(shape.gpu_milli, bit)
        if shape.gpu_milli:
            self._of_devices |= bit

    def of(self, node: Node) -> int:
        """The shapes that fit there now; what a phase does not ask for is never lacking."""
        devices: Sequence[int] = node.devices
        fits = self._cpu.within(node.free_cpu if node.free_cpu > 0 else 0)
        if node.memory_bytes != UNTRACKED:
            fits &= self._memory.within(node.free_memory if node.free_memory > 0 else 0)
        free_gpu = max(devices, default=0)
        if free_gpu >= WHOLE_DEVICE:
            free_gpu = devices.count(WHOLE_DEVICE) * WHOLE_DEVICE
        if node.profiles or node.gpu_memory_bytes != UNTRACKED or len(devices) != node.gpus:
            return fits & ~self._of_devices | self._on_odd_devices(node, fits & self._of_devices)
        return fits & self._gpu.within(free_gpu)

    def _on_odd_devices(self, node: Node, fits: int) -> int:
        """Those among them for which the node has devices, where more counts than how much is free of each."""
        for number, shape in enumerate(self._shapes):
            if fits >> number & 1 and lacking(node, shape):
                fits ^= 1 << number
        return fits
