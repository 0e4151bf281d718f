"""What a driver says of a task to the process that runs it. Standard library only."""

from __future__ import annotations

from typing import Any

Address = tuple[str, int, str]


class Spec:
    """How the driver tells a shell what it is: plain data, pickled with the task. gpus: 0 for a task that takes none;
    on_gpu: for each phase whether it is one; load_s: how long a GPU phase waits for load functions that were started
    beside the phases before it; apart: GPU steps get processes of their own; residue_bytes: what a process may leave
    on a device and count as gone; gentle: it loads long before its turn, beside others' work; restored: a reference to
    the checkpoint of the try before; moves: how often Ray may start it again for another node, -1: for ever, 0: it
    stays where it is; task_id: by which it is known, "": Ray's own."""

    def __init__(
        self,
        address: Address,
        task: int,
        gpus: float,
        preload: bool,
        on_gpu: tuple[bool, ...],
        load_s: float,
        returns: int = 1,
        restored: Any = None,
    ) -> None:
        self.address, self.task, self.gpus = address, task, gpus
        self.preload, self.on_gpu, self.load_s, self.returns = preload, on_gpu, load_s, returns
        self.apart, self.residue_bytes, self.gentle = False, 0, False
        self.restored, self.moves, self.task_id = restored, 0, ""

    def told(self) -> dict[str, Any]:
        """The same as plain data, for a worker that may have no EGS."""
        return dict(vars(self))

    @classmethod
    def of(cls, told: dict[str, Any]) -> Spec:
        """What `told` gave."""
        spec = cls.__new__(cls)
        vars(spec).update(told)
        return spec
