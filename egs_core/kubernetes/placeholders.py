"""Which placeholder pods should be there: each stands for a place on a node that is not there yet, for an autoscaler to
see. Pure functions of what is listed.

    what waits, and steps to come ──► starts soon enough on the nodes there ──► nothing
                                  └─► would wait for longer than twice the time in which a node comes
                                        └─► a place that others may use after it ──► one placeholder of its shape

      now              a node would be there            until
       │───────────────────────│──────────────────────────│
       n1  ██ runs ██│ first   │ second ██│ third ██      │      these start on what is there by then
       placeholder             │ fourth ██████│ fifth ██  │      these do not, and take one place after each other

A placeholder has the lowest priority but preloads and preempts nobody: every pod of EGS's takes its place. It asks for
a node that is not there yet, so that what is given back on the others is the next pod's at once. One that has its node
is kept while something is to start there later, and no longer than `LIFE_S`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names, places
from egs_core.kubernetes.amounts import covers, had_by, less, taken_on
from egs_core.kubernetes.foreseen import NEVER, Start, Wanted, is_opened, placed, waiting
from egs_core.kubernetes.pods import Counts, Node, Pod
from egs_core.kubernetes.preloads import CONFINED, NO_SIDECAR, without_rights

NODE_S = 180.0
"""How long a node takes to come, where nobody says so."""
LATER = 2.0
"""What would wait so many times as long as a node takes to come gets a placeholder; what would wait as long keeps its
one."""
SOON_S = 5.0
LIFE_S = 900
"""So long one runs at most: without a controller it ends by itself."""
STAYS_S = 86400.0
"""For which nothing says how long it takes, as for an autoscaler: its place is not free again in sight."""
IMAGE = "registry.k8s.io/pause:3.10"
NAME = "placeholder"
HOST = "kubernetes.io/hostname"
MOST_HOSTS = 1000
"""So many nodes are named in one; on others it may take what is given back until a pod wants it."""
_PREFIX = "egs-placeholder-"


class Place(msgspec.Struct, frozen=True):
    """What a placeholder asks for. where: as `Pod.where`; devices: by the resources of their plugins."""

    shape: Shape
    where: str = ""
    devices: Counts = ()

    @property
    def key(self) -> str:
        """The same for equal ones, and in their placeholders' names."""
        asked = self.shape.cpu_milli, self.shape.memory_bytes, self.devices, self.where
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


class Steps(msgspec.Struct, frozen=True):
    """What to do: placeholders to make, by name, and those that have to go."""

    make: tuple[tuple[str, Place], ...] = ()
    remove: tuple[Pod, ...] = ()


def select_steps(
    wanted: Sequence[Wanted],
    there: Iterable[Pod],
    pods: Collection[Pod],
    nodes: Sequence[Node],
    now: float,
    *,
    node_s: float,
    most: int,
    barred: Collection[str] = (),
) -> Steps:
    """wanted: as `to_stand_for` says; there: placeholders that are listed; pods: all others. node_s: how long a node
    takes to come; most: so many placeholders may be there at once, those included that go: what takes their place is
    made in a later look. barred: of places for which none is made, `Place.key`."""
    found = list(there)
    listed = [one for one in found if not one.is_leaving]
    over = [one for one in listed if one.is_over]
    bound = [one for one in listed if one.node and not one.is_over]
    pending = sorted((one for one in listed if not one.node and not one.is_over), key=lambda one: one.name)
    looks = [_look(wanted, pods, nodes, now, now + times * node_s, now + node_s) for times in (1.0, LATER)]
    (soon, keep), (_, make) = looks if most else [([], []), ([], [])]
    make = [place for place in make if place.key not in barred]
    kept = _kept(bound, soon, pods, nodes, now)
    more = Counter(place.key for place in keep) - Counter(place.key for place in make)
    left = Counter([*(place.key for place in make), *more.elements()][: max(0, most - len(kept))])
    stay: list[Pod] = []
    for one in pending:
        if left[key_of(one.name)] > 0:
            left[key_of(one.name)] -= 1
            stay.append(one)
    have, free = Counter(key_of(one.name) for one in stay), most - sum(not one.is_over for one in found)
    taken = {one.name for one in found}
    new: list[tuple[str, Place]] = []
    for place in make:
        if have[place.key]:
            have[place.key] -= 1
        elif len(new) < free:
            number = next(n for n in range(len(taken) + 1) if f"{_PREFIX}{place.key}-{n}" not in taken)
            name = f"{_PREFIX}{place.key}-{number}"
            taken.add(name)
            new.append((name, place))
    gone = {one.uid for one in (*kept, *stay)}
    return Steps(tuple(new), (*over, *(one for one in (*bound, *pending) if one.uid not in gone)))


def to_stand_for(pods: Mapping[str, Pod], order: Sequence[str], to_come: Iterable[Wanted]) -> list[Wanted]:
    """What takes its room, the first first: pods that are open, which an autoscaler sees itself; then those that wait,
    then what will come. order: uids of what waits. A member of a gang keeps its place for as long as is looked, so
    that no other member counts as starting after it."""
    found = []
    for one in waiting(pods, order):
        pod = pods[one.owner.uid]
        if pod.claimed:
            continue  # a placeholder claims nothing
        takes_s = STAYS_S if pod.gang else one.takes_s
        found.append(msgspec.structs.replace(one, takes_s=takes_s, is_seen=is_opened(pod)))
    return [*found, *to_come]


def as_opened(pods: Mapping[str, Pod], latest: Mapping[str, Pod]) -> dict[str, Pod]:
    """By uid, with the gates that have been opened since."""
    found = dict(pods)
    for uid, pod in pods.items():
        if pod.is_gated and uid in latest and not latest[uid].is_gated:
            found[uid] = msgspec.structs.replace(pod, is_gated=False)
    return found


def key_of(name: str) -> str:
    """Of the place for which a placeholder stands."""
    return name.removeprefix(_PREFIX).rpartition("-")[0]


def hosts_of(place: Place, nodes: Iterable[Node]) -> tuple[str, ...]:
    """By their label, nodes that are there and could take it if nothing else were on them."""
    found = (
        dict(node.labels).get(HOST, "")
        for node in nodes
        if covers(had_by(node), taken_on(node, place.shape, place.devices)) and places.allows(place.where, node)
    )
    return tuple(sorted(set(found) - {""})[:MOST_HOSTS])


def made(name: str, place: Place, namespace: str, image: str, not_on: Sequence[str] = ()) -> dict[str, Any]:
    """The pod. The scheduler places it as it would what it stands for, but on none of these hosts."""
    asked = {"cpu": f"{place.shape.cpu_milli}m", "memory": str(place.shape.memory_bytes)}
    asked |= {name: str(count) for name, count in place.devices}
    stated = json.loads(place.where) if place.where else {}
    spec: dict[str, Any] = {
        **without_rights(names.PLACEHOLDER_CLASS, LIFE_S),
        "containers": [
            {
                "name": NAME,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "resources": {"requests": asked, "limits": asked},
                "securityContext": CONFINED,
            }
        ],
    }
    if stated.get("select"):
        spec["nodeSelector"] = stated["select"]
    if stated.get("tolerate"):
        spec["tolerations"] = stated["tolerate"]
    terms = [term for term in stated.get("terms") or () if term]  # an empty one is met by no node
    if not_on:
        new = {"key": HOST, "operator": "NotIn", "values": list(not_on)}
        terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), new]} for term in terms or [{}]]
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    labels = {names.PLACEHOLDER: names.BY_CONTROLLER, NO_SIDECAR: "false"}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _look(
    wanted: Sequence[Wanted], pods: Collection[Pod], nodes: Sequence[Node], now: float, until: float, there_at: float
) -> tuple[list[Start], list[Place]]:
    """What starts by then on the nodes there, and the places that are lacking for the rest, the first first. there_at:
    when a node would be there."""
    known = [one if one.predicted_s is not None else msgspec.structs.replace(one, predicted_s=STAYS_S) for one in pods]
    asked = [one if one.takes_s is not None else msgspec.structs.replace(one, takes_s=STAYS_S) for one in wanted]
    starts, lacking = [], list[tuple[Place, float]]()
    for one, start in placed(asked, known, nodes, now, until):
        if start is not None:
            starts.append(start)
        elif not one.is_seen and one.ready_at <= there_at:
            _take(lacking, one, max(there_at, one.ready_at), until)
    return starts, [place for place, _ in lacking]


def _take(lacking: list[tuple[Place, float]], one: Wanted, at: float, until: float) -> None:
    """A place that is lacking anyway, and free again soon enough; else another one."""
    takes_s = STAYS_S if one.takes_s is None else one.takes_s
    fitting = [
        (free_at, number)
        for number, (place, free_at) in enumerate(lacking)
        if place.where == one.where and _would_do(place, one)
    ]
    free_at, number = min(fitting, default=(NEVER, -1))
    if free_at <= until:
        lacking[number] = lacking[number][0], max(free_at, at) + takes_s
    else:
        lacking.append((Place(one.shape, one.where, one.devices), at + takes_s))


def _kept(
    bound: Iterable[Pod], starts: Iterable[Start], pods: Iterable[Pod], nodes: Iterable[Node], now: float
) -> list[Pod]:
    """Those on a node where something is to start later, as far as they leave room for what starts there now."""
    found = list(bound)
    there = {one.name: one for one in nodes}
    room = {one.name: had_by(one) for one in nodes}
    later = {start.node for start in starts if start.at > now + SOON_S}
    held = [(pod.node, pod.shape, pod.devices) for pod in pods if pod.holds]
    held += [(start.node, start.wanted.shape, start.wanted.devices) for start in starts if start.at <= now + SOON_S]
    for name, shape, devices in held if found else ():
        if name in room:
            room[name] = less(room[name], taken_on(there[name], shape, devices))
    kept = []
    for one in found:
        if one.node in later and one.node in room:
            need = taken_on(there[one.node], one.shape, one.devices)
            if covers(room[one.node], need):
                room[one.node] = less(room[one.node], need)
                kept.append(one)
    return kept


def _would_do(place: Place, one: Wanted) -> bool:
    """For who wants the same kinds and no more of each."""
    has, wants = dict(place.devices), dict(one.devices)
    return (
        has.keys() == wants.keys()
        and all(has[name] >= count for name, count in wants.items())
        and place.shape.cpu_milli >= one.shape.cpu_milli
        and place.shape.memory_bytes >= one.shape.memory_bytes
    )
