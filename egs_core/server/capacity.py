"""What a site's hosts offer, as the engine is told it."""

from __future__ import annotations

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.server.flavors import Flavors
from egs_core.server.hosts import OWN, Hosts, JoinedHost
from egs_core.server.runs import Offer, unlike_memory
from egs_core.server.views import Views


def own_node(engine: Engine, views: Views, flavors: Flavors, offer: Offer, drained: tuple[int, ...]) -> m.NodeAdded:
    """The server's own host, under the name that it was first told by: hosts may be renamed."""
    name = next((node.name for node in engine.state.nodes), offer.host)
    return m.NodeAdded(
        name,
        offer.cpus,
        len(offer.devices),
        offer.memory_bytes,
        offer.gpu_memory_bytes,
        flavor=name if flavors.is_apart else "",
        drained=drained,
        closed=tuple(sorted(views.occupied)),
        device_flavors=flavors.of_devices(OWN),
        device_memory_bytes=unlike_memory(offer.devices),
    )


def joined_node(hosts: Hosts, flavors: Flavors, host: JoinedHost, drained: tuple[int, ...]) -> m.NodeAdded:
    """One that has joined, or has changed."""
    return m.NodeAdded(
        host.name,
        host.cpus,
        len(host.devices),
        host.memory_bytes,
        host.gpu_memory_bytes,
        flavor=host.name,
        drained=drained,
        closed=hosts.closed(host),
        device_flavors=flavors.of_devices(host.name),
        device_memory_bytes=unlike_memory(host.devices),
    )
