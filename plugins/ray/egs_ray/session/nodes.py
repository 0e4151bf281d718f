"""What the site is told of Ray's nodes: what they have, what tasks lend there, and how many tickets may be open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from egs_core.engine import messages as m
from egs_core.runlog import records as r
from egs_ray.cluster import Cluster
from egs_ray.session.flavors import Flavors
from egs_ray.session.shared import Shared
from egs_ray.worker import device_memory


class Nodes:
    """On the holder's thread, but `describe`. lost: what follows from a node's loss. lent: a node with the CPUs that
    tasks lend there."""

    def __init__(
        self,
        shared: Shared,
        cluster: Cluster,
        flavors: Flavors,
        *,
        lost: Callable[[str], None],
        lent: Callable[[m.NodeAdded], m.NodeAdded],
    ) -> None:
        self._shared, self._site = shared, shared.site
        self._cluster, self._flavors = cluster, flavors
        self._lost, self._lent = lost, lent

    def describe(self) -> None:
        """What is there at the start. From the thread that makes the session."""
        self._shared.real_gpus = device_memory.has_devices()  # other machines': when their first process tells
        events = self._cluster.news()
        self._site.do(lambda: self._take(events))

    def look(self) -> None:
        """What has become of them since the last look."""
        self._take(self._cluster.news())

    def _take(self, events: Sequence[m.Event]) -> None:
        for event in events:
            if isinstance(event, m.NodeLost):
                self._lost(event.node)
            self._shared.offers.hear(event)
            self._site.report(self._as_offered(event))
        self.tell_flavors()

    def tell_flavors(self) -> None:
        """Where the GPUs are of several, the site chooses between them. Not at a server: its flavors are its own."""
        if self._site.is_shared:
            return
        if changed := self._flavors.changed(self._cluster.nodes, self._shared.tickets is not None):
            self._site.report(changed)

    def offer(self) -> None:
        """How many tickets may be open on each node, where that has changed."""
        described = {node.node: node for node in self._cluster.nodes}
        for node, _ in self._shared.tickets.room.changes():
            if node in described:
                self._site.report(self._as_offered(described[node]))

    def offer_one(self, name: str) -> None:
        """What tasks lend on a node now."""
        for node in self._cluster.nodes:
            if node.node == name:
                self._site.report(self._as_offered(node))

    def _as_offered(self, event: m.Event) -> m.Event:
        """With the CPUs that tasks lend, and more devices than there are where tickets go ahead of their turn, or wait
        for something else."""
        if not isinstance(event, m.NodeAdded):
            return event
        if self._site.is_shared:  # what another driver knows of its memory, or not, would contradict
            event = msgspec.structs.replace(event, gpu_memory_bytes=None)
        event = self._lent(event)
        if self._shared.tickets is None:
            return event
        return msgspec.structs.replace(event, gpus=self._shared.tickets.room.devices(event.node, event.gpus))

    def real(self, offered: r.Capacity) -> r.Capacity:
        """What the node has, whatever is offered there beyond that."""
        real = {node.name: (node.gpus, node.cpu_milli / 1000) for node in self._shared.offers.nodes if node.alive}
        gpus, cpus = real.get(offered.node, (0, 0.0))
        return msgspec.structs.replace(offered, gpus=min(offered.gpus, gpus), cpus=min(offered.cpus, cpus))
