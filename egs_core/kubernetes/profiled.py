"""A profile, the file in which users say what a cluster has, against the cluster: what it says and the cluster has not.

Pods are placed and labelled by the profile when a pipeline is compiled. Where the two differ they wait for ever, and
neither the scheduler nor Kueue says why in a place where its reader looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from egs_core.adapter import ClusterProfile, ProfiledPool
from egs_core.errors import counted, listed
from egs_core.kubernetes.claiming import nodes_with_devices
from egs_core.kubernetes.cluster import LOCAL_QUEUES, NODES, ApiError, Cluster
from egs_core.kubernetes.places import tolerates
from egs_core.kubernetes.pods import Node, node_of

SHOWN = 3


def look(cluster: Cluster, profile: ClusterProfile, say: Callable[[str], None], *, with_queues: bool) -> None:
    """Ask the cluster once, and say one line for each difference. What cannot be asked is a line, too: no error."""
    try:
        nodes = nodes_with_devices(cluster, [node_of(raw) for raw in cluster.list(NODES)[0]])
        raw_queues = cluster.list(LOCAL_QUEUES, profile.namespace)[0] if with_queues and profile.queues else None
    except ApiError as error:
        say(f"profile: is not compared with the cluster: {error}")
        return
    queues = None if raw_queues is None else [str((raw.get("metadata") or {}).get("name")) for raw in raw_queues]
    for line in differences(profile, nodes, queues):
        say(f"profile: {line}")


def differences(profile: ClusterProfile, nodes: Sequence[Node], queues: Collection[str] | None) -> list[str]:
    """One line each. queues: Kueue's LocalQueues in the profile's namespace; None: they are not asked for."""
    found = [line for pool in profile.pools for line in _of_pool(pool, nodes)]
    problem = f"namespace {profile.namespace} has no LocalQueue of that name: pods that name it wait for ever"
    missing = () if queues is None else [name for name in profile.queues if name not in queues]
    return [*found, *[f"queue {name}: {problem}" for name in missing]]


def _of_pool(pool: ProfiledPool, nodes: Iterable[Node]) -> Iterable[str]:
    its = [node for node in nodes if pool.selector.items() <= dict(node.labels).items()]
    if not its:
        labels = ", ".join(f"{key}={value}" for key, value in pool.selector.items())
        yield f"pool {pool.name}: no node has its labels {labels}: its pods wait until one has"
        return
    wanted = pool.gpus_per_node or int(pool.has_gpus)
    numbers = {node.name: _offered(pool, node) for node in its}
    if poor := [f"{name} {number}" for name, number in numbers.items() if number < wanted]:
        yield f"pool {pool.name}: its nodes should offer {counted(wanted, 'GPU')} or more: {listed(poor, SHOWN)}"
    if kept := [told for node in its if (told := _kept_off(pool, node))]:
        yield f"pool {pool.name}: its tolerations leave taints that keep its pods off: {listed(kept, SHOWN)}"


def _offered(pool: ProfiledPool, node: Node) -> int:
    """GPUs by the pool's resource, and those of drivers, that a class may stand for."""
    by_plugin = dict(node.resources).get(pool.resource, 0) if pool.resource else node.gpus - len(node.devices)
    return by_plugin + len(node.devices)


def _kept_off(pool: ProfiledPool, node: Node) -> str:
    """The first taint of a node that pods of the pool do not tolerate, "" for none."""
    for taint in node.taints:
        if not any(tolerates(one, taint) for one in pool.tolerations):
            key, value, effect = taint
            return f"{node.name} {key}{'=' if value else ''}{value}:{effect}"
    return ""
