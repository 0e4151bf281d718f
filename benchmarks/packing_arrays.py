"""The packings of `egs_core.engine.rules.packing` and `packings` over a whole cluster at once, in numpy.

The same integers and the same ties, so the same choices: a test and the suite hold it against the engine pod by pod.
A score depends on one node only, so each shape keeps its scores and renews those of nodes that have changed since.

    values[node] = (is it a GPU node that a CPU phase should leave alone, score, first tie, second tie); least first
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.packings import CPU_PER_GPU, PACKINGS
from egs_core.engine import messages as m
from egs_core.engine.rules.fit import Place
from egs_core.engine.rules.packing import FILL_SHARE, UNLIMITED, TypicalWorkload
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.graph.columns import Shape

Ints = npt.NDArray[np.int64]
NO_ROOM = np.iinfo(np.int64).max
_DEVICE_TIE = 1024  # above any device's free thousandths


class Rows(msgspec.Struct):
    """What some nodes have left: cpu[k], memory[k], devices[k, g] (a node without so many has 0 there)."""

    cpu: Ints
    memory: Ints
    devices: Ints

    def at(self, rows: Ints) -> Rows:
        return Rows(self.cpu[rows], self.memory[rows], self.devices[rows])


class Kinds:
    """A typical workload as columns; kinds that ask for the same GPU share their work."""

    def __init__(self, typical: TypicalWorkload) -> None:
        shapes = [shape for shape, _ in typical]
        self.count = np.array([count for _, count in typical], dtype=np.int64)
        self.cpu = np.array([s.cpu_milli for s in shapes], dtype=np.int64)
        self.memory = np.array([s.memory_bytes for s in shapes], dtype=np.int64)
        self.gpu, self.which = np.unique(np.array([s.gpu_milli for s in shapes], dtype=np.int64), return_inverse=True)
        self.share = np.minimum(self.gpu, WHOLE_DEVICE)

    def fragmentation(self, free: Rows) -> Ints:
        """As `packing.fragmentation`, a node each."""
        total = free.devices.sum(axis=1)
        if not len(self.count):
            return np.zeros_like(total)
        usable = free.devices[:, None, :] >= self.share[None, :, None]
        offered = np.where(usable, free.devices[:, None, :], 0).sum(axis=2)
        enough = (usable.sum(axis=2) * WHOLE_DEVICE >= self.gpu) & (self.gpu > 0)
        fits = enough[:, self.which] & (free.cpu[:, None] >= self.cpu) & (free.memory[:, None] >= self.memory)
        lost = np.where(fits, (total[:, None] - offered)[:, self.which], total[:, None])
        return np.asarray(lost @ self.count, dtype=np.int64)

    def ahead(self, free: Rows) -> Ints:
        """As `packing.fragmentation_ahead`, a node each."""
        total = free.devices.sum(axis=1)
        if not len(self.count):
            return np.zeros_like(total)
        shared = (free.devices[:, None, :] // self.share[None, :, None]).sum(axis=2)
        count = np.where(self.gpu < WHOLE_DEVICE, shared, shared * WHOLE_DEVICE // np.maximum(self.gpu, 1))
        cpu = np.where(self.cpu > 0, free.cpu[:, None] // np.maximum(self.cpu, 1), UNLIMITED)
        memory = np.where(self.memory > 0, free.memory[:, None] // np.maximum(self.memory, 1), UNLIMITED)
        copies = np.minimum(count[:, self.which], np.minimum(cpu, memory))
        left: Ints = (total[:, None] - copies * self.gpu[self.which]) @ self.count
        return FILL_SHARE * self.fragmentation(free) + left


class Scores(msgspec.Struct):
    """Of one shape: values by node (see the module), the device for a share, and how many changes they include."""

    values: Ints
    device: Ints
    changes: int = 0


class ArrayCluster:
    """Nodes as columns, filled phase by phase; nothing is ever given back.

    rounded: scores as whole numbers from 0 to 100 and ties by the node's number, as in the paper's own simulator.
    """

    def __init__(self, nodes: Sequence[m.NodeAdded], packing: str, *, rounded: bool = False) -> None:
        if any(node.gpu_memory_bytes is not None for node in nodes):
            raise ValueError("GPU memory is not counted here")
        self.packing, self.rounded = packing, rounded
        memory = [UNLIMITED if node.memory_bytes is None else node.memory_bytes for node in nodes]
        gpus = np.array([node.gpus for node in nodes])
        devices = np.where(np.arange(max(int(gpus.max()), 1)) < gpus[:, None], WHOLE_DEVICE, 0)
        cpu = np.array([round(node.cpus * 1000) for node in nodes], dtype=np.int64)
        self.free = Rows(cpu, np.array(memory, dtype=np.int64), devices.astype(np.int64))
        self.has_gpus = (gpus > 0).astype(np.int64)
        self._kinds = Kinds(())
        self._scores: dict[Shape, Scores] = {}
        self._changed: list[int] = []

    def learn(self, typical: TypicalWorkload) -> None:
        self._kinds = Kinds(typical)
        self._scores.clear()

    def place(self, shape: Shape) -> Place | None:
        """Take the phase in where the packing wants it; None when it fits nowhere."""
        scores = self._renewed(shape)
        number = least(scores.values)
        if number is None:
            return None
        devices: tuple[int, ...] = ()
        if 0 < shape.gpu_milli < WHOLE_DEVICE:
            devices = (int(scores.device[number]),)
        elif shape.gpu_milli:
            whole = np.flatnonzero(self.free.devices[number] == WHOLE_DEVICE)
            devices = tuple(whole[: shape.gpu_milli // WHOLE_DEVICE].tolist())
        self.free.cpu[number] -= shape.cpu_milli
        self.free.memory[number] -= shape.memory_bytes
        self.free.devices[number, list(devices)] -= min(shape.gpu_milli, WHOLE_DEVICE)
        self._changed.append(number)
        return number, devices

    def _renewed(self, shape: Shape) -> Scores:
        n = len(self.free.cpu)
        scores = self._scores.get(shape)
        if scores is None:
            scores = self._scores[shape] = Scores(np.zeros((n, 4), dtype=np.int64), np.zeros(n, dtype=np.int64))
            rows = np.arange(n)
        else:
            rows = np.unique(np.array(self._changed[scores.changes :], dtype=np.int64))
        scores.changes = len(self._changed)
        if len(rows):
            self._score(scores, rows, shape)
        return scores

    def _score(self, scores: Scores, rows: Ints, shape: Shape) -> None:
        free = self.free.at(rows)
        usable = free.devices >= max(min(shape.gpu_milli, WHOLE_DEVICE), 1)
        fits = (free.cpu >= shape.cpu_milli) & (free.memory >= shape.memory_bytes)
        fits &= usable.sum(axis=1) * WHOLE_DEVICE >= shape.gpu_milli
        total = free.devices.sum(axis=1)
        values = np.zeros((len(rows), 4), dtype=np.int64)
        tightest = np.where(usable, free.devices, NO_ROOM).argmin(axis=1)
        packing = self._packing_now()
        if packing in ("fgd", "fgd_fill"):
            values[:, 1], device = self._descent(free, shape, usable, tightest)
            values[:, 2] = 0 if self.rounded else total
        else:
            values[:, 1] = self._plain(packing, free, shape, total)
            device = usable.argmax(axis=1) if packing == "first_fit" else tightest
        if packing in ("fgd", "fgd_fill", "best_fit") and not self.rounded:
            values[:, 3] = free.cpu
        if not shape.gpu_milli:
            values[:, 0] = self.has_gpus[rows]
        values[~fits, 0] = NO_ROOM
        scores.values[rows], scores.device[rows] = values, device

    def _packing_now(self) -> str:
        """Best fit, as in the engine, until a phase with a GPU has come that a descent could learn from."""
        return "best_fit" if PACKINGS[self.packing].learns and not len(self._kinds.count) else self.packing

    def _plain(self, packing: str, free: Rows, shape: Shape, total: Ints) -> Ints:
        if packing == "first_fit":
            return np.zeros_like(total)
        if packing == "best_fit":
            return total if shape.gpu_milli else np.zeros_like(total)
        if packing == "weighted_best_fit":
            left = free.cpu + CPU_PER_GPU * total
            return _to_100((left - shape.cpu_milli - CPU_PER_GPU * shape.gpu_milli) / 256e3) if self.rounded else left
        product = free.cpu * shape.cpu_milli + CPU_PER_GPU * CPU_PER_GPU * total * shape.gpu_milli
        return _to_100(product / 128e3**2 / 2) if self.rounded else product

    def _descent(self, free: Rows, shape: Shape, usable: npt.NDArray[np.bool_], tightest: Ints) -> tuple[Ints, Ints]:
        """By how much the loss grows, and on which device a share makes it grow least."""
        loss = self._kinds.fragmentation if self.packing == "fgd" else self._kinds.ahead
        cpu, memory, before = free.cpu - shape.cpu_milli, free.memory - shape.memory_bytes, loss(free)
        if not 0 < shape.gpu_milli < WHOLE_DEVICE:
            devices, wanted = free.devices.copy(), shape.gpu_milli // WHOLE_DEVICE
            taken = usable & (np.cumsum(usable, axis=1) <= wanted)
            devices[taken] -= WHOLE_DEVICE
            return self._growth(loss(Rows(cpu, memory, devices)) - before), tightest
        row, device = np.nonzero(usable)
        devices = free.devices[row]
        devices[np.arange(len(row)), device] -= shape.gpu_milli
        growth = np.full(usable.shape, NO_ROOM)
        growth[row, device] = self._growth(loss(Rows(cpu[row], memory[row], devices)) - before[row])
        if self.rounded:
            best = growth.argmin(axis=1)
        else:
            best = np.where(usable, growth * _DEVICE_TIE + free.devices, NO_ROOM).argmin(axis=1)
        return growth[np.arange(len(best)), best], best

    def _growth(self, growth: Ints) -> Ints:
        """As it is, or as the paper's simulator turns it into a score: 100 x sigmoid of its fall in GPUs."""
        if not self.rounded:
            return growth
        scores: Ints = -np.floor(100 / (1 + np.exp(growth / max(self._kinds.count.sum(), 1) / WHOLE_DEVICE))).astype(
            np.int64
        )
        return scores


def _to_100(loss: npt.NDArray[np.float64]) -> Ints:
    """A loss from 0 to 1 as the paper's simulator scores it: whole numbers to 100, turned round again."""
    return -np.floor((1 - loss) * 100).astype(np.int64)


def least(values: Ints) -> int | None:
    """The node with the least values, the first of equal ones; None when there is room on none."""
    first = values[:, 0]
    found = np.flatnonzero(first == first.min())
    if first[found[0]] == NO_ROOM:
        return None
    for column in (1, 2, 3):
        if len(found) > 1:
            of_found = values[found, column]
            found = found[of_found == of_found.min()]
    return int(found[0])
