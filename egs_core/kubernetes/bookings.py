"""What Workloads of Kueue have of quotas, and ask of them; and a cluster's queues as others are told of them.

Workloads, LocalQueues, ClusterQueues, pods ──► outlook_of ──► `egs_core.client.outlooks.Outlook`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from egs_core.client.outlooks import MOST_AMOUNT, MOST_S, MOST_WORK, Amounts, Holding, Outlook, Queue, Work
from egs_core.kubernetes import names
from egs_core.kubernetes.objects import Object, items, length_s, number, part, quantity, seconds_of, text
from egs_core.kubernetes.pods import Pod, asked_of
from egs_core.kubernetes.priorities import Workload, workload_of
from egs_core.time_estimates import remaining

MOST_BYTES = 200_000
"""So long is what is told of a cluster, its shorter queues first. A server takes no message over 256 KiB."""


class Booking(msgspec.Struct, frozen=True):
    """Of one Workload. uid: its own; owners: uids of what it was made for; asks: of each of its sets of pods. queue: a
    ClusterQueue that gave it quota; takes: how much, by flavor; reserved_at, admitted_at: Unix time, 0: not yet.
    labelled_s: what labels of its pods say of their length; most_s: after so long Kueue ends it. pending: its admission
    checks that are; nominated, cluster: as MultiKueue has them."""

    uid: str = ""
    owners: tuple[str, ...] = ()
    asks: tuple[Amounts, ...] = ()
    queue: str = ""
    takes: dict[str, Amounts] = {}
    reserved_at: float = 0.0
    admitted_at: float = 0.0
    labelled_s: float | None = None
    most_s: float | None = None
    pending: tuple[str, ...] = ()
    nominated: tuple[str, ...] = ()
    cluster: str = ""


class Booked(Workload, frozen=True):
    """A Workload with its booking."""

    booking: Booking = Booking()


def booked_of(raw: Object) -> Booked:
    """A Workload as the API server has it."""
    return Booked(**msgspec.structs.asdict(workload_of(raw)), booking=booking_of(raw))


def booking_of(raw: Object) -> Booking:
    """See `Booking`."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    sets, admission = items(spec, "podSets"), part(status, "admission")
    since = {
        text(one, "type"): seconds_of(one.get("lastTransitionTime"))
        for one in items(status, "conditions")
        if text(one, "status") == "True"
    }
    lengths = [length_s(part(_meta(one), "labels").get(names.PREDICTED_S)) for one in sets]
    nominated = status.get("nominatedClusterNames")
    return Booking(
        uid=text(meta, "uid"),
        owners=tuple(text(one, "uid") for one in items(meta, "ownerReferences")),
        asks=tuple(_asked(one) for one in sets),
        queue=text(admission, "clusterQueue"),
        takes=_taken(items(admission, "podSetAssignments")),
        reserved_at=since.get("QuotaReserved", 0.0),
        admitted_at=since.get("Admitted", 0.0),
        labelled_s=max((one for one in lengths if one is not None), default=None),
        most_s=length_s(spec.get("maximumExecutionTimeSeconds")),
        pending=tuple(text(one, "name") for one in items(status, "admissionChecks") if text(one, "state") == "Pending"),
        nominated=tuple(str(one) for one in nominated) if isinstance(nominated, list) else (),
        cluster=text(status, "clusterName"),
    )


def _meta(pod_set: Object) -> Object:
    return part(part(pod_set, "template"), "metadata")


def _asked(pod_set: Object) -> Amounts:
    """All of its pods together."""
    count = number(pod_set.get("count", 1)) or 0.0
    asked = asked_of(part(part(pod_set, "template"), "spec"))
    return {"pods": count, **{resource: min(MOST_AMOUNT, count * amount) for resource, amount in asked.items()}}


def _taken(assignments: Iterable[Object]) -> dict[str, Amounts]:
    found: dict[str, dict[str, float]] = {}
    for one in assignments:
        usage = part(one, "resourceUsage")
        for resource, flavor in part(one, "flavors").items():
            _add(found.setdefault(str(flavor), {}), {str(resource): quantity(usage.get(resource))})
    return found


def _add(found: dict[str, float], more: Mapping[str, float]) -> None:
    for resource, amount in more.items():
        found[resource] = min(MOST_AMOUNT, found.get(resource, 0.0) + amount)


def takes_s(booking: Booking, pods: Mapping[str, Pod]) -> float | None:
    """How long it will take, in seconds: as its pods say where they are there, else as its template's labels do; None:
    nobody says. pods: by uid."""
    told = [pods[uid].predicted_s for uid in booking.owners if uid in pods]
    lengths = [one for one in told if one is not None] or [one for one in (booking.labelled_s,) if one is not None]
    bound = MOST_S if booking.most_s is None else min(MOST_S, booking.most_s)
    return min(bound, max(lengths)) if lengths else booking.most_s and bound


def work_of(one: Booked, pods: Mapping[str, Pod]) -> Work:
    """As others are told of what waits."""
    return Work(f"{one.namespace}/{one.name}", one.booking.asks, takes_s(one.booking, pods), one.priority)


def outlook_of(
    cluster: str,
    workloads: Iterable[Booked],
    local_queues: Iterable[Object],
    cluster_queues: Iterable[Object],
    pods: Mapping[str, Pod],
    now: float,
) -> Outlook:
    """All queues of a cluster that have a door. pods: by uid; now: Unix time."""
    doors: dict[str, list[str]] = {}
    for one in local_queues:
        meta, spec = part(one, "metadata"), part(one, "spec")
        if _goes_on(spec):
            doors.setdefault(text(spec, "clusterQueue"), []).append(f"{text(meta, 'namespace')}/{text(meta, 'name')}")
    of_door = {door: queue for queue, found in doors.items() for door in found}
    holding: dict[str, list[Booked]] = {}
    waiting: dict[str, list[Booked]] = {}
    for workload in workloads:
        if workload.holds:
            holding.setdefault(workload.booking.queue, []).append(workload)
        elif workload.waits and workload.queue in of_door:
            waiting.setdefault(of_door[workload.queue], []).append(workload)
    found, is_full = list[Queue](), False
    named = {text(part(one, "metadata"), "name"): one for one in cluster_queues}
    bare = {name: Queue(tuple(sorted(doors[name])), (), is_known=False) for name in named.keys() & doors.keys()}
    told = sum(map(_length, bare.values()))
    for name in sorted(bare, key=lambda one: (len(holding.get(one, ())) + len(waiting.get(one, ())), one)):
        has, waits = holding.get(name, []), waiting.get(name, [])
        queue = bare[name]
        if not is_full and max(len(has), len(waits)) <= MOST_WORK:
            waits.sort(key=lambda one: (-one.priority, one.created, one.name))
            queue = _queue(named[name], doors[name], [_holding(one, pods, now) for one in has], waits, pods)
            told += _length(queue) - _length(bare[name])
            if is_full := told > MOST_BYTES:
                queue = bare[name]
        found.append(queue)
    return Outlook(cluster, tuple(found))


def _holding(one: Booked, pods: Mapping[str, Pod], now: float) -> Holding:
    booking, length = one.booking, takes_s(one.booking, pods)
    left_s = None
    if length is not None:
        passed_s = max(0.0, now - booking.admitted_at) if booking.admitted_at else 0.0
        left_s = min(MOST_S, remaining(length, length, passed_s)[0])
        if booking.most_s is not None:
            left_s = min(left_s, booking.most_s - passed_s)
    return Holding(f"{one.namespace}/{one.name}", booking.takes, None if left_s is None else max(0.0, left_s))


def _queue(
    raw: Object, doors: list[str], holding: Iterable[Holding], waiting: Iterable[Booked], pods: Mapping[str, Pod]
) -> Queue:
    """Of what has quota only resources are told of which the queue has some."""
    spec = part(raw, "spec")
    active = [text(one, "status") for one in items(part(raw, "status"), "conditions") if text(one, "type") == "Active"]
    groups = tuple(_group(one) for one in items(spec, "resourceGroups"))
    quotas = {flavor: quota for group in groups for flavor, quota in group.items()}
    has = {resource for quota in quotas.values() for resource in quota}
    replace = msgspec.structs.replace
    return Queue(
        doors=tuple(sorted(doors)),
        groups=groups,
        holding=tuple(replace(one, takes=_of(one.takes, quotas)) for one in holding),
        waiting=tuple(_asking(work_of(one, pods), has) for one in waiting),
        is_strict=text(spec, "queueingStrategy") == "StrictFIFO",
        may_borrow=bool(text(spec, "cohortName")),
        is_known=_goes_on(spec) and active != ["False"],
    )


def _of(takes: Mapping[str, Amounts], quotas: Mapping[str, Amounts]) -> dict[str, Amounts]:
    return {
        flavor: {resource: amount for resource, amount in amounts.items() if resource in quotas[flavor]}
        for flavor, amounts in takes.items()
        if flavor in quotas
    }


def _asking(one: Work, has: set[str]) -> Work:
    """What a queue has none of stays, but for what nobody lacks: it will never start there."""
    asks = tuple(
        {resource: n for resource, n in asks.items() if n > 0 and (resource in has or resource != "pods")}
        for asks in one.asks
    )
    return msgspec.structs.replace(one, asks=asks)


def _length(queue: Queue) -> int:
    """In bytes, with what is between queues."""
    return len(msgspec.json.encode(queue)) + 1


def _group(raw: Object) -> dict[str, Amounts]:
    return {
        text(flavor, "name"): {
            text(one, "name"): quantity(one.get("nominalQuota")) for one in items(flavor, "resources")
        }
        for flavor in items(raw, "flavors")
    }


def _goes_on(spec: Object) -> bool:
    """Whether nobody has stopped a queue."""
    return text(spec, "stopPolicy") in ("", "None")
