"""Which of the nodes that fit should take a phase: scores of (what a node has left, shape), least first.

    fgd_fill   where fragmentation grows least (fragmentation gradient descent), and one step further: also where the
               least stays over once the node is filled up (shipped)
    best_fit   the node with the least GPU, then CPU, left; `fit` does it itself where no packing is at work

`benchmarks/packings.py` has others, to compare with.

Fragmentation (Weng et al., "Beware of Fragmentation", USENIX ATC 2023) is the free GPU that typical phases could not be
given, weighted by how often each of them comes:

    devices  |####....| |######..| |........|    0.5, 0.25 and 1 free; 4 CPUs free
    half a device and 2 CPUs: the 0.25 on the second device is lost to it
    a device and 8 CPUs:      too few CPUs, so all 1.75 are lost to it
    fragmentation = how often the first x 0.25 + how often the second x 1.75

All is counted in integers, so equal inputs give equal choices on every machine. `fgd_fill` learns which phases are
typical from those that the engine has been told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from egs_core.engine.specs import SHIPPED
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.graph.columns import Shape

UNLIMITED = 1 << 62
TYPICAL_PERCENT = 95  # of GPU phases that the typical ones must make up, as in the paper
FILL_SHARE = 8  # fragmentation now counts so many times as much as what stays over in the end
MEMO_LIMIT = 4_000  # kinds of device sets whose offers are kept
MOST_TYPICAL = 64  # kinds of phases at most: bounds the time of one score

TypicalWorkload = tuple[tuple[Shape, int], ...]
"""Shapes and how often each was seen."""


class Free(msgspec.Struct, frozen=True, gc=False):
    """What a node has left: UNLIMITED memory is not tracked; devices in thousandths; device_memory () not tracked."""

    cpu_milli: int
    memory_bytes: int
    devices: tuple[int, ...] = ()
    device_memory: tuple[int, ...] = ()


class Choice(NamedTuple):
    """A node's score, lower is better, and the devices that the phase would take there."""

    score: tuple[int, ...]
    devices: tuple[int, ...]


Loss = Callable[[Free, TypicalWorkload], int]


Choose = Callable[[Free, Shape, TypicalWorkload], Choice]
Devices = tuple[tuple[int, ...], tuple[int, ...]]  # free thousandths, memory
Offers = list[tuple[int, int, int, int, int, int]]  # see `_offers`


class Packing(msgspec.Struct, frozen=True):
    """choose: for a node on which the shape fits. learns: whether it looks at the typical workload. remembering: makes
    one that chooses the same, and keeps what it needs again."""

    name: str
    choose: Choose
    learns: bool = False
    remembering: Callable[[], Choose] | None = None


def free_of(node: Node) -> Free:
    """What the node has left for new phases: without devices that have been withdrawn."""
    memory = UNLIMITED if node.memory_bytes == UNTRACKED else node.free_memory
    device_memory = () if node.gpu_memory_bytes == UNTRACKED else tuple(node.device_memory[: node.gpus])
    return Free(node.free_cpu, memory, tuple(node.devices[: node.gpus]), device_memory)


def usable_devices(free: Free, shape: Shape) -> list[int]:
    """Devices of which a phase of this shape could take its share, lowest first."""
    share, memory = min(shape.gpu_milli, WHOLE_DEVICE), free.device_memory
    if not memory:
        return [i for i, left in enumerate(free.devices) if left >= share]
    wanted = shape.gpu_memory_bytes
    return [i for i, left in enumerate(free.devices) if left >= share and memory[i] >= wanted]


def after(free: Free, shape: Shape, devices: Sequence[int]) -> Free:
    """What is left once the phase is there."""
    left, memory = list(free.devices), list(free.device_memory)
    for i in devices:
        left[i] -= min(shape.gpu_milli, WHOLE_DEVICE)
        if memory:
            memory[i] -= shape.gpu_memory_bytes
    cpu, bytes_left = free.cpu_milli - shape.cpu_milli, free.memory_bytes - shape.memory_bytes
    return Free(cpu, bytes_left, tuple(left), tuple(memory))


def offered_gpu(free: Free, shape: Shape) -> tuple[int, int]:
    """Of the devices that a phase of this shape could use: thousandths free, and phases for which they would do."""
    if not shape.gpu_milli:
        return 0, 0
    usable, share, per_device = usable_devices(free, shape), shape.gpu_milli, shape.gpu_memory_bytes
    gpu = sum([free.devices[i] for i in usable])
    if share >= WHOLE_DEVICE:
        return gpu, len(usable) * WHOLE_DEVICE // share
    if free.device_memory and per_device:
        return gpu, sum([min(free.devices[i] // share, free.device_memory[i] // per_device) for i in usable])
    return gpu, sum([free.devices[i] // share for i in usable])


def side_by_side(free: Free, shape: Shape, count: int) -> int:
    """As many of `count` phases as CPUs and memory allow."""
    if shape.cpu_milli and count * shape.cpu_milli > free.cpu_milli:
        count = free.cpu_milli // shape.cpu_milli
    if shape.memory_bytes and count * shape.memory_bytes > free.memory_bytes:
        count = free.memory_bytes // shape.memory_bytes
    return count if count > 0 else 0


def fragmentation_ahead(free: Free, typical: TypicalWorkload) -> int:
    """`fragmentation`, which looks at the next phase only, with what stays over once the node is filled up with phases
    of a kind: the second tells places apart that are equal in the first.

    |#####     |     0.5 free: a phase of 0.4 fits, and so do phases of 0.25: nothing is lost now
    |#########.|     in the end 0.1 stays over by the first kind, nothing by the second
    """
    total, lost = sum(free.devices), 0
    offers: dict[tuple[int, int], tuple[int, int]] = {}  # the same for all kinds that ask for the same GPU
    for shape, count in typical if total else ():
        wanted = shape.gpu_milli, shape.gpu_memory_bytes
        offer = offers.get(wanted)
        if offer is None:
            offer = offers[wanted] = offered_gpu(free, shape)
        fitting = side_by_side(free, shape, offer[1])
        stranded = total - offer[0] if fitting else total
        lost += count * (FILL_SHARE * stranded + total - fitting * shape.gpu_milli)
    return lost


def typical_workload(counts: Iterable[tuple[Shape, int]]) -> TypicalWorkload:
    """The most frequent GPU shapes that make up `TYPICAL_PERCENT` of GPU phases.

    Shapes without GPU lose the same free GPU on every node, so no choice depends on them.
    """
    of_gpu = [(shape, count) for shape, count in counts if shape.gpu_milli]
    found = sorted(of_gpu, key=lambda item: (-item[1], msgspec.structs.astuple(item[0])))
    enough, covered = sum(n for _, n in found) * TYPICAL_PERCENT, 0
    typical = []
    for shape, count in found[:MOST_TYPICAL]:
        if covered * 100 >= enough:
            break
        typical.append((shape, count))
        covered += count
    return tuple(typical)


# --- the packings ---


def tightest_devices(free: Free, shape: Shape) -> tuple[int, ...]:
    """Whole devices lowest first; a share goes to the fullest device that still fits."""
    usable = usable_devices(free, shape) if shape.gpu_milli else []
    if shape.gpu_milli < WHOLE_DEVICE:
        return (min(usable, key=lambda i: (free.devices[i], i)),) if usable else ()
    return tuple(usable[: -(-shape.gpu_milli // WHOLE_DEVICE)])


def best_fit(free: Free, shape: Shape, _typical: TypicalWorkload) -> Choice:
    return Choice((sum(free.devices) if shape.gpu_milli else 0, free.cpu_milli), tightest_devices(free, shape))


def descent(loss: Loss) -> Callable[[Free, Shape, TypicalWorkload], Choice]:
    """Steepest descent on a loss: the node, and on it the device, where it grows least; equal ones by best fit."""

    def choose(free: Free, shape: Shape, typical: TypicalWorkload) -> Choice:
        found = [
            (loss(after(free, shape, devices), typical), free.devices[devices[0]] if devices else 0, devices)
            for devices in _device_choices(free, shape)
        ]
        lost, _, devices = min(found)
        return Choice((lost - loss(free, typical), sum(free.devices), free.cpu_milli), devices)

    return choose


class FillDescent:
    """`descent(fragmentation_ahead)`, which remembers what devices offer to the typical phases: nodes differ
    more in what they have left of CPUs and memory."""

    def __init__(self) -> None:
        self._typical: TypicalWorkload = ()
        self._offers: dict[Devices, Offers] = {}

    def __call__(self, free: Free, shape: Shape, typical: TypicalWorkload) -> Choice:
        """As the descent says."""
        if typical is not self._typical or len(self._offers) > MEMO_LIMIT:
            self._typical = typical
            self._offers.clear()
        found = [
            (self._loss(after(free, shape, devices)), free.devices[devices[0]] if devices else 0, devices)
            for devices in _device_choices(free, shape)
        ]
        lost, _, devices = min(found)
        return Choice((lost - self._loss(free), sum(free.devices), free.cpu_milli), devices)

    def _loss(self, free: Free) -> int:
        """`fragmentation_ahead` of the typical phases."""
        devices = free.devices, free.device_memory
        offers = self._offers.get(devices)
        if offers is None:
            offers = self._offers[devices] = _offers(free, self._typical)
        lost, free_cpu, free_bytes = 0, free.cpu_milli, free.memory_bytes
        for gpu, cpu, memory, fitting, if_some, if_none in offers:
            if cpu and fitting * cpu > free_cpu:
                fitting = free_cpu // cpu
            if memory and fitting * memory > free_bytes:
                fitting = free_bytes // memory
            lost += if_some - fitting * gpu if fitting > 0 else if_none
        return lost


def _offers(free: Free, typical: TypicalWorkload) -> Offers:
    """Of each kind: what one more of them takes off the loss, what it needs of CPUs and memory, for how many there are
    devices, and the loss when there is room for some, and for none."""
    total, offers = sum(free.devices), []
    for shape, count in typical if total else ():
        offered, most = offered_gpu(free, shape)
        if_some, if_none = count * (FILL_SHARE * (total - offered) + total), count * (FILL_SHARE * total + total)
        offers.append((count * shape.gpu_milli, shape.cpu_milli, shape.memory_bytes, most, if_some, if_none))
    return offers


def _device_choices(free: Free, shape: Shape) -> Iterator[tuple[int, ...]]:
    """Whole devices are alike; of devices with the same left the first stands for all."""
    if not 0 < shape.gpu_milli < WHOLE_DEVICE:
        yield tightest_devices(free, shape)
        return
    seen = set()
    for i in usable_devices(free, shape):
        left = free.devices[i], free.device_memory[i] if free.device_memory else 0
        if left not in seen:
            seen.add(left)
            yield (i,)


PACKINGS: dict[str, Packing] = {}
"""By the names that `EngineConfig.packing` may have."""


def register(*packings: Packing) -> None:
    """Make packings known by their names."""
    PACKINGS.update({packing.name: packing for packing in packings})


register(
    Packing("best_fit", best_fit),
    Packing(SHIPPED, descent(fragmentation_ahead), learns=True, remembering=FillDescent),
)
