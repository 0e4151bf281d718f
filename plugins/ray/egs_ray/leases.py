"""Leases in Ray's own books: a holder task for each phase that runs, with exactly its resources and nothing to do.

Taking one costs about 3 ms when a holder's process is there. A foreign task that asks Ray for the same GPU queues
behind it, and it behind a foreign task: Ray decides, EGS only chooses what it asks for.
"""

from __future__ import annotations

import itertools
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from egs_core.engine import messages as m
from egs_core.graph.columns import Shape
from egs_ray.link import Message, Peer
from egs_ray.shell import Address, hold, touch
from egs_ray.tasks import Job, Lease

HOLDER_ENV = {"env_vars": {"EGS_ROLE": "lease"}}
"""Holders get worker processes of their own, so that they do not sit in the ones that tasks have warmed."""

TOUCH = 0.001


class Leases:
    """All leases of a session. Used on the driver's thread only."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._open: dict[int, tuple[Lease, Job]] = {}
        self._by_peer: dict[Peer, int] = {}
        self._numbers = itertools.count(1)
        self._hold = ray.remote(max_calls=0, max_retries=0, num_cpus=0)(hold)
        self._touch = ray.remote(max_calls=0, max_retries=0, num_cpus=0)(touch)

    def prepare(self, cpus: int, gpus: int) -> None:
        """Let Ray start processes for holders; holds a thousandth of each resource for a moment."""
        for count, resources in ((gpus, {"num_gpus": TOUCH}), (cpus, {"num_cpus": TOUCH})):
            for _ in range(count):
                self._touch.options(runtime_env=HOLDER_ENV, name="egs-lease", **resources).remote()

    def take(self, job: Job, grant: m.Grant, shape: Shape) -> Lease:
        """Ask Ray for the phase's resources, on the node of the job's process when that is known."""
        lease = Lease(next(self._numbers), grant)
        options: dict[str, Any] = {"num_cpus": shape.cpu_milli / 1000, "num_gpus": shape.gpu_milli / 1000}
        if shape.memory_bytes:
            options["memory"] = shape.memory_bytes
        if job.node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(job.node, soft=False)
        holder = self._hold.options(runtime_env=HOLDER_ENV, name="egs-lease", **options)
        self._open[lease.id] = (lease, job)
        lease.ref = holder.remote(self._address, lease.id)
        return lease

    def started(self, peer: Peer, message: Message) -> Job | None:
        """A holder tells that Ray gave it its resources. None: the lease was given up meanwhile."""
        entry = self._open.get(message["lease"])
        if entry is None or entry[0].over:
            self._end(peer)
            return None
        lease, job = entry
        lease.peer, lease.devices = peer, tuple(message["devices"])
        self._by_peer[peer] = lease.id
        return job

    def release(self, lease: Lease) -> None:
        """Give the resources back; before the holder has started: as soon as it does, or never take them."""
        if lease.over:
            return
        lease.over = True
        self._open.pop(lease.id, None)
        if lease.peer is not None:
            self._by_peer.pop(lease.peer, None)
            self._end(lease.peer)
        else:
            ray.cancel(lease.ref)

    def holder_gone(self, peer: Peer) -> Lease | None:
        """The lease whose holder died, if this connection was one."""
        number = self._by_peer.pop(peer, None)
        entry = self._open.pop(number, None) if number is not None else None
        if entry is None:
            return None
        entry[0].over = True
        return entry[0]

    def _end(self, peer: Peer) -> None:
        try:
            peer.send({"m": "release"})
        except OSError:
            pass
