"""What drivers offer and pods claim (DRA), and which kinds of GPUs device plugins offer, put into the values of nodes
and pods. A cluster without DRA and with one kind of GPUs has them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import devices
from egs_core.kubernetes.cluster import CLAIMS, DEVICE_CLASSES, SLICES, ApiError, Cluster
from egs_core.kubernetes.devices import Ask, Claim, DeviceClass, Slice, Tier
from egs_core.kubernetes.mirror import FORBIDDEN, Mirror
from egs_core.kubernetes.pods import Node, Pod

MADE_S = 10.0
"""So long a pod is not told of whose claims are not there: its cluster makes them from their template."""
DIFFERENT = "all devices of a node, of which nodes have different numbers"


class Claiming:
    """What is listed of DRA. Mirrors it keeps; `applied` belongs to one thread."""

    def __init__(self, cluster: Cluster, changed: Callable[[], None], watch_s: int = 240) -> None:
        self._is_stale = True
        self._changed = changed
        kinds = ((SLICES, devices.slice_of), (CLAIMS, devices.claim_of), (DEVICE_CLASSES, devices.class_of))
        self.mirrors = [
            Mirror(cluster, kind, made, self._heard, optional=True, watch_s=watch_s) for kind, made in kinds
        ]
        self._inventory = Inventory((), (), ())

    def notes(self) -> list[tuple[str, str]]:
        """What an administrator should know, and about what, "" where all is well: why devices are not read though they
        may be there; and of each kind of request of GPUs that is not counted, the first pod that asked so."""
        found = next((one.problem for one in self.mirrors if one.problem.startswith(FORBIDDEN)), "")
        unread = f"{found}; devices of drivers and claims are not counted" if found else ""
        return [("devices", unread), *((f"a claim of {why}", said) for why, said in self._inventory.uncounted.items())]

    def applied(self, pods: Mapping[str, Pod], nodes: Iterable[Node], now: float) -> tuple[dict[str, Pod], list[Node]]:
        """With devices and with what they ask of them. now: Unix time."""
        if self._is_stale:
            self._is_stale = False  # what comes while it is looked at is looked at again
            slices, claims, classes = (list(mirror.items().values()) for mirror in self.mirrors)
            self._inventory = self._inventory.renewed(slices, claims, classes)
        return self._inventory.applied(pods, nodes, now)

    def _heard(self) -> None:
        self._is_stale = True
        self._changed()


def nodes_with_devices(cluster: Cluster, nodes: Iterable[Node]) -> list[Node]:
    """Nodes with what drivers offer there, asked for once; as they are where that cannot be read."""
    try:
        slices = [devices.slice_of(raw) for raw in cluster.list(SLICES)[0]]
    except ApiError:
        return list(nodes)
    return Inventory(slices, (), ()).applied({}, nodes, 0.0)[1]


class Inventory:
    """What is there at one time, and which pod asks by which claim. Slices that were replaced give nothing."""

    def __init__(self, slices: Iterable[Slice], claims: Iterable[Claim], classes: Iterable[DeviceClass]) -> None:
        self._slices = devices.newest(slices)
        self._offered = devices.by_node(self._slices)
        self._there = [one for found in self._offered.values() for one in found]
        self._reads_claims = bool(self._offered) or any(one.uncounted for one in self._slices)
        self._names: set[str] = set()  # of resources that plugins offer, or did: one that starts again is no other kind
        self._classes = {one.name: one for one in classes}
        self._claims = {(one.namespace, one.name): one for one in claims}
        self._holders = {one.uid: one.owner for one in self._claims.values() if one.owner}
        self._counted: dict[Ask, tuple[Ask | None, str]] = {}
        self.uncounted: dict[str, str] = {}
        self._missed: dict[str, float] = {}  # pods, by uid, whose claims are not there, and since when
        self._nodes: dict[str, tuple[Node, Any, Node]] = {}  # by name: as it is listed, what was put in, with it
        self._pods: dict[str, tuple[Pod, Any, Pod]] = {}

    def renewed(self, slices: list[Slice], claims: Iterable[Claim], classes: Iterable[DeviceClass]) -> Inventory:
        """As it is now. Who asks by a claim stays who does."""
        found = Inventory(slices, claims, classes)
        found._holders |= {uid: pod for uid, pod in self._holders.items() if uid not in found._holders}
        there = {one.uid for one in found._claims.values()}
        found._holders = {uid: pod for uid, pod in found._holders.items() if uid in there}
        found._missed, found.uncounted, found._names = self._missed, self.uncounted, self._names
        found._nodes = self._nodes
        if found._classes == self._classes and {*map(id, found._slices)} == {*map(id, self._slices)}:
            found._pods = self._pods
        return found

    def applied(self, pods: Mapping[str, Pod], nodes: Iterable[Node], now: float) -> tuple[dict[str, Pod], list[Node]]:
        """Values that nothing was put in are the same objects, and so are those in which the same was put before."""
        listed, found = list(nodes), dict(pods)
        self._names |= {name for node in listed for name, _ in node.resources}
        is_apart = bool(self._offered) or len(self._names) > 1
        taken: dict[str, str] = {}
        if self._reads_claims:
            self._find_holders(pods)
            taken = devices.taken(self._claims.values(), self._living_holders(pods), self._slices)
        else:
            self._missed.clear()
        if is_apart:
            listed = [self._with_devices(node, taken) for node in listed]
            there = {node.name for node in listed}
            self._nodes = {name: kept for name, kept in self._nodes.items() if name in there}
        asking = pods if is_apart or self._reads_claims else self._odd(pods)
        found.update((uid, self._with_asks(pods[uid], now)) for uid in asking)
        self._pods = {uid: kept for uid, kept in self._pods.items() if uid in found}
        self._missed = {uid: at for uid, at in self._missed.items() if uid in found}
        return found, listed

    def _odd(self, pods: Mapping[str, Pod]) -> list[str]:
        """Those that ask for a kind that no node offers, where all GPUs are of one kind: for that they are none."""
        every = {pod.resources for pod in pods.values()}
        odd = {found for found in every if any(name not in self._names for name, _ in found)}
        return [uid for uid, pod in pods.items() if pod.resources in odd] if odd else []

    def _find_holders(self, pods: Mapping[str, Pod]) -> None:
        """A claim that was made by hand is asked by the first pod that names it, and by no later one."""
        for pod in sorted((one for one in pods.values() if one.claims), key=lambda one: (one.created, one.uid)):
            for name in pod.claims:
                claim = self._claims.get((pod.namespace, name))
                if claim is not None and not pod.is_over:
                    self._holders.setdefault(claim.uid, pod.uid)

    def _living_holders(self, pods: Mapping[str, Pod]) -> dict[str, str]:
        """Without those that have ended and had their claim of others, who may still use it. What was made for one pod
        is given back a moment after that has ended, which the scheduler waits for."""
        found = dict(self._holders)
        for claim in self._claims.values():
            if not claim.owner and claim.uid in found:
                holder = pods.get(found[claim.uid])
                if holder is None or holder.is_over:
                    del found[claim.uid]
        return found

    def _with_devices(self, node: Node, taken: Mapping[str, str]) -> Node:
        offered = self._offered.get(node.name, ())
        held = tuple(devices.holder_of(device, taken) for device in offered)
        if not (offered or node.resources):
            return node
        kept = self._nodes.get(node.name)
        if kept is None or kept[0] is not node or kept[1] != (offered, held):
            by_both = {
                name: sum(devices.stands_for(Tier(1, resource=name), d) for d in offered) for name, _ in node.resources
            }
            left = tuple((name, max(0, count - by_both[name])) for name, count in node.resources)
            made = msgspec.structs.replace(node, resources=left, devices=offered, held=held, is_apart=True)
            kept = self._nodes[node.name] = node, (offered, held), made
        return kept[2]

    def _with_asks(self, pod: Pod, now: float) -> Pod:
        claims = self._reads_claims and (pod.claims or pod.lacks_claims)
        if not (claims or pod.resources):
            return pod
        its = [self._claims.get((pod.namespace, name)) for name in pod.claims] if claims else []
        is_early = claims and (pod.lacks_claims or None in its) and not (pod.node or pod.is_over)
        asks: tuple[tuple[Ask, ...], ...] | None = None
        if not is_early or now - self._missed.setdefault(pod.uid, now) >= MADE_S:
            own = (one for one in its if one is not None and self._holders.get(one.uid) == pod.uid)
            asks = tuple(one.asks for one in own)
        kept = self._pods.get(pod.uid)
        if kept is None or kept[0] is not pod or kept[1] != asks:
            made = self._asking(pod, asks or ())
            made = msgspec.structs.replace(made, has_other_gates=True) if asks is None else made
            kept = self._pods[pod.uid] = pod, asks, made
        return kept[2]

    def _asking(self, pod: Pod, claimed: Iterable[tuple[Ask, ...]]) -> Pod:
        found: list[Ask] = []
        for asks in claimed:
            for ask in devices.resolved(asks, self._classes):
                counted, why = self._as_counted(ask)
                found += [counted] if counted is not None else []
                if why and pod.is_ours and pod.is_gated:
                    said = f"is not counted ({pod.namespace}/{pod.name}): such pods wait for CPUs and memory alone"
                    self.uncounted.setdefault(why, said)
        claimed_count = devices.count(found)
        found += [devices.limit_as_ask(name, count, self._classes.values()) for name, count in pod.resources]
        if not found:
            return pod
        together, beside = devices.apart(found, self._there)
        stated = json.loads(pod.where) if pod.where else {}
        where = json.dumps({**stated, **devices.said(together, beside)}, sort_keys=True, default=str)
        shape = Shape(pod.shape.cpu_milli, 1000 * devices.count(together), pod.shape.memory_bytes)
        return msgspec.structs.replace(pod, where=where, shape=shape, claimed=claimed_count)

    def _as_counted(self, ask: Ask) -> tuple[Ask | None, str]:
        """A request as it counts, None where it does not; and what it asks for that ought to count, "" where it counts
        or is of no GPU."""
        if ask not in self._counted:
            if any(devices.takes(tier, one) for tier in ask for one in self._there):
                counted = devices.with_numbers(ask, self._offered.values())
                self._counted[ask] = counted, "" if counted is not None else DIFFERENT
            else:
                others = ((why, one) for found in self._slices for why, some in found.uncounted.items() for one in some)
                why = next((why for why, one in others if any(devices.takes(tier, one) for tier in ask)), "")
                self._counted[ask] = None, why
        return self._counted[ask]
