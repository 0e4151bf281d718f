"""Leases in Ray's own books: a holder task for each phase that runs, with exactly its resources and nothing to do.

Taking one costs about 3 ms when a holder's process is there. A foreign task that asks Ray for the same GPU queues
behind it, and it behind a foreign task: Ray decides, EGS only chooses what it asks for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from egs_core.graph.columns import Shape
from egs_core.site import Grant
from egs_ray import waiting
from egs_ray.link import Message, Peer
from egs_ray.session.tasks import Job, Lease
from egs_ray.worker.shell import Address, hold, touch

TOUCH, TOUCH_S = 0.001, 0.02
MOST_KEPT = 8


class Leases:
    """All leases of a session. Used on the holder's thread only."""

    def __init__(self, address: Address, on_end: Callable[[int], None]) -> None:
        self._address, self._on_end = address, on_end
        self._open: dict[int, tuple[Lease, Job]] = {}
        self._by_peer: dict[Peer, int] = {}
        self._numbers = itertools.count(1)
        self._touches: list[Any] = []
        self._hold = ray.remote(max_calls=0, max_retries=0, num_cpus=0)(hold)
        self._touch = ray.remote(max_calls=0, max_retries=0, num_cpus=0)(touch)

    def keep(self, gpus: int) -> None:
        """Let Ray have a process ready for each GPU that is not leased; takes a thousandth of one each for a moment.
        Holders of CPUs run in the processes that Ray keeps for its CPUs anyway."""
        if self._touches and len(ray.wait(self._touches, num_returns=len(self._touches), timeout=0)[1]) > 0:
            return
        # Also what was just asked for: its holder gets its process without another one being started beside it.
        leased = sum(len(lease.devices or lease.grant.devices) for lease, _ in self._open.values())
        free = max(0, min(gpus, MOST_KEPT) - leased)
        self._touches = [self._touch.options(name="egs-lease", num_gpus=TOUCH).remote(TOUCH_S) for _ in range(free)]

    def take(self, job: Job, grant: Grant, shape: Shape, strategy: Any = None) -> Lease:
        """Ask Ray for the phase's resources: as a strategy says, else on the node of the job's process when that is
        known."""
        lease = Lease(next(self._numbers), grant)
        options: dict[str, Any] = {"num_cpus": shape.cpu_milli / 1000, "num_gpus": shape.gpu_milli / 1000}
        if shape.memory_bytes:
            options["memory"] = shape.memory_bytes
        if strategy is not None:
            options["scheduling_strategy"] = strategy
        elif job.node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(job.node, soft=False)
        holder = self._hold.options(name="egs-lease", **options)
        self._open[lease.id] = (lease, job)
        lease.ref = holder.remote(self._address, lease.id)
        waiting.on_ready(lease.ref, lambda: self._on_end(lease.id))
        return lease

    def held_by(self, job: Job, grant: Grant) -> Lease:
        """What the job's process holds itself."""
        return Lease(next(self._numbers), grant, peer=job.peer)

    def started(self, peer: Peer, message: Message) -> Job | None:
        """A holder tells that Ray gave it its resources. None: the lease was given up meanwhile."""
        entry = self._open.get(message["lease"])
        if entry is None or entry[0].over:
            _end(peer, message["lease"])
            return None
        lease, job = entry
        lease.peer, lease.devices, lease.pid = peer, tuple(message["devices"]), message["pid"]
        self._by_peer[peer] = lease.id
        return job

    def named(self, message: Message) -> Job | None:
        """A holder tells the UUIDs of its devices. None: the lease was given up meanwhile."""
        entry = self._open.get(message["lease"])
        if entry is None:
            return None
        lease, job = entry
        lease.uuids = tuple(message["uuids"])
        return job

    def release(self, lease: Lease, after: int = 0) -> None:
        """Give the resources back; before the holder has started: as soon as it does, or never take them. after: not
        before this process on the holder's node is gone."""
        if lease.over or lease.ref is None:
            return
        lease.over = True
        self._open.pop(lease.id, None)
        if lease.peer is not None:
            self._by_peer.pop(lease.peer, None)
            _end(lease.peer, lease.id, after)
        else:
            with contextlib.suppress(Exception):  # it has ended meanwhile, or Ray has
                ray.cancel(lease.ref)

    def __len__(self) -> int:
        return len(self._open)

    def lost(self, number: int) -> Job | None:
        """A holder has ended; the job that it held something for, unless that lease was given back."""
        entry = self._open.pop(number, None)
        if entry is None:
            return None
        lease, job = entry
        lease.over = True
        if lease.peer is not None:
            self._by_peer.pop(lease.peer, None)
        return job

    def of(self, peer: Peer) -> int | None:
        """The lease behind a connection, if there is one."""
        return self._by_peer.get(peer)


def _end(peer: Peer, lease: int, after: int = 0) -> None:
    with contextlib.suppress(OSError):  # a dead holder holds nothing
        peer.send({"m": "release", "lease": lease, "after": after})
