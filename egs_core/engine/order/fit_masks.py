"""Which kinds of phases fit on a node, as one number with a bit for each: worked out by a few searches, whatever their
number. A kind is a shape, or a shape of tasks that keep a process between phases, with the memory of that process.

kinds      1: 1 CPU    2: 4 CPUs    4: 2 CPUs and a device
CPUs       at least 1: 0b001    2: 0b101    4: 0b111          a node with 3 CPUs free: 0b101
devices    at least 0: 0b011    1: 0b111                      and none of its devices: 0b001
"""

from __future__ import annotations

from bisect import bisect_right, insort

from egs_core.engine.rules.fit import lacking
from egs_core.engine.rules.processes import NO_SLOT, slot_room
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.graph.columns import Shape


class Thresholds:
    """Of one kind of resource: how much each kind of phase wants of it. masks[n]: those that want no more than the
    first n of the amounts."""

    __slots__ = ("amounts", "masks")

    def __init__(self) -> None:
        self.amounts: list[int] = []
        self.masks = [0]

    def add(self, amount: int, bit: int) -> None:
        """A kind wants so much."""
        at = bisect_right(self.amounts, amount)
        if not at or self.amounts[at - 1] != amount:
            insort(self.amounts, amount)
            self.masks.insert(at, self.masks[at])
            at += 1
        self.masks[at:] = [mask | bit for mask in self.masks[at:]]


class FitMasks:
    """See the module."""

    def __init__(self) -> None:
        self._of_devices: dict[int, Shape] = {}  # bits of kinds with a GPU -> their shapes
        self._with_device = 0  # the same bits
        self._has_slots = False  # whether any kind keeps a process
        self._cpu, self._memory, self._gpu, self._slot = Thresholds(), Thresholds(), Thresholds(), Thresholds()

    def add(self, bit: int, shape: Shape, memory: int) -> None:
        """memory: of the process that is kept; NO_SLOT for none."""
        self._cpu.add(shape.cpu_milli, bit)
        self._memory.add(shape.memory_bytes, bit)
        self._gpu.add(shape.gpu_milli, bit)
        self._slot.add(memory, bit)
        self._has_slots = self._has_slots or memory != NO_SLOT
        if shape.gpu_milli:
            self._of_devices[bit] = shape
            self._with_device |= bit

    def of(self, node: Node) -> int:
        """The kinds that fit there now; what a phase does not ask for is never lacking."""
        wanted, devices = self._cpu, node.devices
        fits = wanted.masks[bisect_right(wanted.amounts, node.free_cpu if node.free_cpu > 0 else 0)]
        if fits and node.memory_bytes != UNTRACKED:
            wanted = self._memory
            fits &= wanted.masks[bisect_right(wanted.amounts, node.free_memory if node.free_memory > 0 else 0)]
        if fits and self._has_slots:
            fits &= self._slot.masks[bisect_right(self._slot.amounts, slot_room(node))]
        if not fits & self._with_device:
            return fits
        if node.profiles or node.gpu_memory_bytes != UNTRACKED or len(devices) != node.gpus:
            return self._on_odd_devices(node, fits)
        free_gpu = max(devices, default=0)
        if free_gpu >= WHOLE_DEVICE:
            free_gpu = devices.count(WHOLE_DEVICE) * WHOLE_DEVICE
        return fits & self._gpu.masks[bisect_right(self._gpu.amounts, free_gpu if free_gpu > 0 else 0)]

    def _on_odd_devices(self, node: Node, fits: int) -> int:
        """Those among them for which the node has devices, where more counts than how much is free of each."""
        for bit, shape in self._of_devices.items():
            if fits & bit and lacking(node, shape):
                fits ^= bit
        return fits
