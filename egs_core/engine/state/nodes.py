"""What nodes offer and what phases hold of it: the small structs of the state and their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.engine.messages import NodeAdded
from egs_core.engine.specs import Profile, usual_process_slots
from egs_core.engine.state.slices import best_mask, smallest
from egs_core.graph.columns import Shape

UNTRACKED = -1
WHOLE_DEVICE = 1000
NOT_STARTED = -1.0
ELSEWHERE = 0  # the decision of a lease that another engine has granted


class Lease(msgspec.Struct, frozen=True, gc=False):
    """What a granted or running phase holds. gpu_milli and gpu_memory_bytes are per device."""

    decision: int
    node: int
    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    gpu_memory_bytes: int
    devices: tuple[int, ...]
    positions: int = 0  # of a slice on its device, as bits


class Node(msgspec.Struct):
    """One machine: capacity, what is free, its devices (free thousandths each) and its warm processes.

    Of the processes that have a slot (`Columns.needs_slot`), `started` belong to a started task (they state
    `started_bytes` of memory together), `parked` wait for a certain task (`warming` of them are still loading), and
    idle_warm counts those without a task, by warm key.
    Devices from number `gpus` on have been withdrawn while held: nothing new takes them, and they go when given back.
    """

    name: str
    cpu_milli: int = 0
    free_cpu: int = 0
    memory_bytes: int = UNTRACKED
    free_memory: int = 0
    gpu_memory_bytes: int = UNTRACKED
    gpus: int = 0
    devices: list[int] = []
    device_memory: list[int] = []
    preload_slots: int = 2
    process_slots: int = 1
    alive: bool = True
    idle_warm: dict[str, int] = {}
    started: int = msgspec.field(default=0, name="working")
    started_bytes: int = 0
    parked: int = 0
    warming: int = 0
    bandwidth_bytes_s: float = 0.0  # of files from other nodes; 0: they cost nothing
    flavor: str = ""
    topology: dict[str, str] = {}  # level -> which of its groups the node is in
    profiles: tuple[Profile, ...] = ()  # into which its devices are split
    positions: dict[int, int] = {}  # device -> positions that slices have taken, as bits
    drained: tuple[int, ...] = ()  # devices that nothing new gets: each has a whole one less free than it would have
    closed: tuple[int, ...] = ()  # the same, for another reason (`NodeAdded`)
    counts_closed: bool = False  # only how many of each flavor are closed is known
    loads_apart: bool = False  # processes load here without the CPUs of their tasks
    device_flavors: tuple[str, ...] = ()  # of each device; none: all are of the node's flavor
    device_totals: tuple[int, ...] = ()  # memory of each device; none: all have gpu_memory_bytes, else that is the most

    @property
    def shut(self) -> set[int]:
        """Devices that nothing new gets."""
        return {*self.drained, *self.closed}

    @property
    def flavors(self) -> tuple[str, ...]:
        """Those of its devices, each once."""
        return tuple(dict.fromkeys(self.device_flavors)) or (self.flavor,)

    def memory_of(self, device: int) -> int:
        """All that the device has; 0 where that is not tracked."""
        if device < len(self.device_totals):
            return self.device_totals[device]
        return max(self.gpu_memory_bytes, 0)

    def flavor_of(self, devices: Sequence[int]) -> str:
        """Of whoever holds these devices: the node's own for devices of several flavors, and for none."""
        if not self.device_flavors:
            return self.flavor
        found = {self.device_flavors[device] for device in devices if device < len(self.device_flavors)}
        return found.pop() if len(found) == 1 else self.flavor

    @property
    def processes(self) -> int:
        return self.started + self.parked + sum(self.idle_warm.values())

    def take_capacity(self, event: NodeAdded) -> None:
        """Become what the event says; what is free moves by the difference, never what is held.

        Capacity below what is held leaves a negative free amount: nothing new starts until it is paid back.
        No process of a task is ended, so process_slots goes down no further than to their number.
        """
        cpu = round(event.cpus * 1000)
        self.free_cpu += cpu - self.cpu_milli
        self.cpu_milli = cpu
        memory = UNTRACKED if event.memory_bytes is None else event.memory_bytes
        self.free_memory += max(memory, 0) - max(self.memory_bytes, 0)
        self.memory_bytes = memory
        self._take_devices(event)
        self.preload_slots = event.preload_slots
        slots = event.process_slots
        if slots is None:
            slots = usual_process_slots(event.cpus, event.gpus, event.memory_bytes)
        self.process_slots = max(slots, self.started + self.parked)
        while self.processes > self.process_slots:
            self.retire(max(key for key, count in self.idle_warm.items() if count))
        self.bandwidth_bytes_s = event.bandwidth_bytes_s or 0.0
        self.flavor, self.topology = event.flavor, dict(event.topology)
        self.loads_apart = event.loads_apart
        self.device_flavors = event.device_flavors if len(event.device_flavors) == event.gpus else ()
        self.counts_closed = event.counts_closed
        self._settle_closed()
        self.alive = True

    def _take_devices(self, event: NodeAdded) -> None:
        held = [self.memory_of(device) - free for device, free in enumerate(self.device_memory)]
        self.gpu_memory_bytes = UNTRACKED if event.gpu_memory_bytes is None else event.gpu_memory_bytes
        is_told = len(event.device_memory_bytes) == event.gpus and self.gpu_memory_bytes != UNTRACKED
        self.device_totals = event.device_memory_bytes if is_told else ()
        self.device_memory = [self.memory_of(device) - amount for device, amount in enumerate(held)]
        for device in self.shut:
            self.devices[device] += WHOLE_DEVICE
        self.gpus = event.gpus
        while len(self.devices) < self.gpus:
            self.device_memory.append(self.memory_of(len(self.devices)))
            self.devices.append(WHOLE_DEVICE)
        self._drop_withdrawn()
        self.drained = tuple(sorted({device for device in event.drained if 0 <= device < self.gpus}))
        self.closed = tuple(sorted({device for device in event.closed if 0 <= device < self.gpus}))
        for device in self.shut:
            self.devices[device] -= WHOLE_DEVICE

    def _settle_closed(self) -> None:
        """Where only their number is known, no device that is held is closed while another of its flavor is free: what
        others use is none of those."""
        if not self.counts_closed:
            return
        for device in [one for one in self.closed if self.devices[one] < 0 and one not in self.drained]:
            flavor, free = self.flavor_of((device,)), [n for n in range(self.gpus) if self.devices[n] == WHOLE_DEVICE]
            other = next((n for n in free if self.flavor_of((n,)) == flavor), None)
            if other is not None:
                self.closed = tuple(sorted({*self.closed, other} - {device}))
                self.devices[device] += WHOLE_DEVICE
                self.devices[other] -= WHOLE_DEVICE

    def _drop_withdrawn(self) -> None:
        while len(self.devices) > self.gpus and self.devices[-1] == WHOLE_DEVICE:
            self.devices.pop()
            self.device_memory.pop()

    def take(self, lease: Lease) -> None:
        """Count what the lease holds as no longer free."""
        self.free_cpu -= lease.cpu_milli
        self.free_memory -= lease.memory_bytes
        for device in lease.devices:
            self.devices[device] -= lease.gpu_milli
            self.device_memory[device] -= lease.gpu_memory_bytes
            if lease.positions:
                self.positions[device] = self.positions.get(device, 0) | lease.positions
        if self.counts_closed:  # it may have been granted elsewhere, on any
            self._settle_closed()

    def give_back(self, lease: Lease) -> None:
        """The opposite of `take`."""
        self.free_cpu += lease.cpu_milli
        self.free_memory += lease.memory_bytes
        for device in lease.devices:
            self.devices[device] += lease.gpu_milli
            self.device_memory[device] += lease.gpu_memory_bytes
            if lease.positions:
                left = self.positions.pop(device) & ~lease.positions
                if left:
                    self.positions[device] = left
        if len(self.devices) > self.gpus:
            self._drop_withdrawn()
        if self.counts_closed:
            self._settle_closed()

    def slice_of(self, shape: Shape, device: int) -> tuple[Profile, int] | None:
        """The profile that a share of this shape gets on the device now, and its positions; None when there is no
        room."""
        profile = smallest(self.profiles, shape)
        if profile is None or self.devices[device] < profile.gpu_milli:
            return None
        if self.gpu_memory_bytes != UNTRACKED and self.device_memory[device] < profile.memory_bytes:
            return None
        mask = best_mask(self.profiles, profile, self.positions.get(device, 0))
        return None if mask is None else (profile, mask)

    def lease(self, decision: int, number: int, shape: Shape, devices: tuple[int, ...]) -> Lease:
        """The lease of a phase of this shape on these devices of this node, which has that number."""
        if not devices:
            return Lease(decision, number, shape.cpu_milli, shape.memory_bytes, 0, shape.gpu_memory_bytes, ())
        plain = lease_of(decision, number, shape, devices)
        if not self.profiles or not 0 < shape.gpu_milli < WHOLE_DEVICE:
            return plain
        profile, mask = self.slice_of(shape, devices[0]) or (smallest(self.profiles, shape), 0)
        if profile is None:
            return plain
        changes = {"gpu_milli": profile.gpu_milli, "gpu_memory_bytes": profile.memory_bytes, "positions": mask}
        return msgspec.structs.replace(plain, **changes)

    def add_idle(self, key: str) -> None:
        """A warm process has no task any more; where a gang has more processes than there are slots it ends."""
        if self.processes < self.process_slots:
            self.idle_warm[key] = self.idle_warm.get(key, 0) + 1

    def retire(self, key: str) -> None:
        """An idle warm process is taken, or ends. In a journal written when only tasks with a warm key had slots it may
        have made room before."""
        if self.idle_warm.get(key, 0) > 1:
            self.idle_warm[key] -= 1
        else:
            self.idle_warm.pop(key, None)


def lease_of(decision: int, node: int, shape: Shape, devices: tuple[int, ...]) -> Lease:
    """The lease of a phase of this shape on these devices."""
    per_device = shape.gpu_milli // len(devices) if devices else 0
    return Lease(decision, node, shape.cpu_milli, shape.memory_bytes, per_device, shape.gpu_memory_bytes, devices)
