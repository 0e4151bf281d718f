"""Packings that the shipped one is compared with, known to the engine by these names once this module is imported.

first_fit          the first node, the first device
weighted_best_fit  the least left of GPU and CPU together
dot_product        the least alignment of what is left with what is asked for
fgd                where fragmentation grows least, without the step ahead of `fgd_fill`
"""

from __future__ import annotations

from egs_core.engine.rules.packing import (
    PACKINGS,
    Choice,
    Free,
    Packing,
    TypicalWorkload,
    descent,
    offered_gpu,
    register,
    side_by_side,
    tightest_devices,
    usable_devices,
)
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.graph.columns import Shape

__all__ = ["CPU_PER_GPU", "PACKINGS", "fragmentation", "phases_that_fit", "stranded_gpu"]

CPU_PER_GPU = 16  # of the largest node that FGD's evaluation normalises by: 128 CPUs, 8 GPUs


def stranded_gpu(free: Free, shape: Shape) -> int:
    """Thousandths of a GPU that are free here and that no phase of this shape could be given (the paper's F_n(m))."""
    total = sum(free.devices)
    if not shape.gpu_milli or shape.cpu_milli > free.cpu_milli or shape.memory_bytes > free.memory_bytes:
        return total
    usable = usable_devices(free, shape)
    if len(usable) * WHOLE_DEVICE < shape.gpu_milli:
        return total
    return total - sum([free.devices[i] for i in usable])


def phases_that_fit(free: Free, shape: Shape) -> int:
    """How many GPU phases of this shape the node could run side by side; 0 for a shape without GPU."""
    return side_by_side(free, shape, offered_gpu(free, shape)[1])


def fragmentation(free: Free, typical: TypicalWorkload) -> int:
    """The paper's F_n(M), times the number of phases that M was learnt from."""
    return sum([count * stranded_gpu(free, shape) for shape, count in typical]) if any(free.devices) else 0


def first_fit(free: Free, shape: Shape, _typical: TypicalWorkload) -> Choice:
    wanted = -(-shape.gpu_milli // WHOLE_DEVICE)
    return Choice((), tuple(usable_devices(free, shape)[:wanted]))


def weighted_best_fit(free: Free, shape: Shape, _typical: TypicalWorkload) -> Choice:
    """The paper's best fit: the sum of normalised CPU and GPU that is left."""
    return Choice((free.cpu_milli + CPU_PER_GPU * sum(free.devices),), tightest_devices(free, shape))


def dot_product(free: Free, shape: Shape, _typical: TypicalWorkload) -> Choice:
    """The paper's reading of Tetris: the smaller the product of what is left and what is asked for, the better."""
    gpu = CPU_PER_GPU * CPU_PER_GPU * sum(free.devices) * shape.gpu_milli
    return Choice((free.cpu_milli * shape.cpu_milli + gpu,), tightest_devices(free, shape))


register(
    Packing("first_fit", first_fit),
    Packing("weighted_best_fit", weighted_best_fit),
    Packing("dot_product", dot_product),
    Packing("fgd", descent(fragmentation), learns=True),
)
