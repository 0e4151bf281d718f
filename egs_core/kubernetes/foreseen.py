"""When, and on which node, each of the pods that wait will probably start: in the engine's order, each where it fits
first.

    node n1   ██████ runs till 40 s ······   the first takes n1 at 40 s, and holds it as long as it takes
    node n2   ███ runs till 25 s ·········   the second needs more than n2 will have: n1 again, after the first
              now                            the third takes n2 at 25 s, which the second cannot use

A guess, for what does no harm where it is wrong. It looks no further than `until`, and knows no quotas, reservations
and gangs. Pods of others never end in it; one of ours of which nobody says how long it takes may end at any moment, as
for the engine's own planner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import places
from egs_core.kubernetes.amounts import Amounts, covers, had_by, less, more, taken_on
from egs_core.kubernetes.pods import Counts, Node, Pod
from egs_core.kubernetes.readings import Reading
from egs_core.site import PRIOR_S
from egs_core.time_estimates import remaining

MOST = 64
"""So many are looked at, the first of the order."""
SAME_S, SAME_SHARE = 5.0, 0.1
"""Nodes on which something starts that much later than on the first are as good: then it stays where it was seen last,
or goes where its images are."""
NEVER = float("inf")


class Owner(msgspec.Struct, frozen=True):
    """The object for which something is made."""

    api: str
    kind: str
    name: str
    uid: str


class Wanted(msgspec.Struct, frozen=True):
    """What will start: a pod that is there or one to come. where: as `Pod.where`; takes_s: None: not known; ready_at:
    not before this moment; images, reading: none where nothing is to be done for it, and it only takes its room.
    devices: as of `Pod`; is_seen: a scheduler knows of it already."""

    owner: Owner
    namespace: str
    shape: Shape
    where: str = ""
    takes_s: float | None = None
    ready_at: float = 0.0
    images: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    devices: Counts = ()
    is_seen: bool = False
    reading: Reading | None = None

    @property
    def loads(self) -> tuple[str, ...]:
        """What is to be on its node: images, then what is read."""
        return self.images if self.reading is None else (*self.images, self.reading.key)


class Start(msgspec.Struct, frozen=True):
    """Where and when (Unix time)."""

    wanted: Wanted
    node: str
    at: float


def waiting(pods: Mapping[str, Pod], order: Sequence[str]) -> list[Wanted]:
    """Pods that are open and have no node yet, then those that wait, the first first. order: uids of these."""
    found = [_wanted(pod) for pod in pods.values() if is_opened(pod)]
    opened = [msgspec.structs.replace(one, images=(), reading=None) for one in found]
    gated = [pod for uid in order if (pod := pods.get(uid)) is not None and pod.is_gated and not pod.is_leaving]
    return opened + [_wanted(pod) for pod in gated[:MOST]]


def starts(
    wanted: Iterable[Wanted],
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    now: float,
    until: float,
    had: Mapping[str, Collection[str]] | None = None,
) -> list[Start]:
    """Of those of which it can be said, in the same order; see `placed`."""
    return [start for _, start in placed(wanted, pods, nodes, now, until, had) if start is not None]


def placed(
    wanted: Iterable[Wanted],
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    now: float,
    until: float,
    had: Mapping[str, Collection[str]] | None = None,
) -> list[tuple[Wanted, Start | None]]:
    """Each with its start; None: not until then, as far as is known. pods: all of the cluster, also those of others;
    had: by node, images that it has or is getting."""
    rooms = {node.name: _Room(node) for node in nodes if node.is_open}
    for pod in pods:
        if pod.holds and pod.node in rooms:
            room = rooms[pod.node]
            room.hold(room.need(pod.shape, pod.devices), end_of(pod, now))
    fitting: dict[str, list[_Room]] = {}
    found: list[tuple[Wanted, Start | None]] = []
    for one in wanted:
        if one.where not in fitting:
            fitting[one.where] = [room for room in rooms.values() if places.allows(one.where, room.node)]
        ask, rooms_of = (one.shape, one.devices), fitting[one.where]
        firsts = [(max(room.first(room.need(*ask), until), one.ready_at, now), room) for room in rooms_of]
        soonest = min((at for at, _ in firsts), default=NEVER)
        if soonest > until:
            found.append((one, None))
            continue
        latest = soonest + max(SAME_S, SAME_SHARE * (soonest - now))
        at, room = min(
            ((at, room) for at, room in firsts if at <= latest),
            key=lambda pair: (*pair[1].lacks(one, had or {}), pair[0], pair[1].node.name),
        )
        room.take(room.need(*ask), at, at + (PRIOR_S if one.takes_s is None else one.takes_s))
        found.append((one, Start(one, room.node.name, at)))
    return found


def end_of(pod: Pod, now: float) -> float:
    """When a pod that has its node is expected to leave it; NEVER of those that say nothing of themselves."""
    if not pod.is_ours:
        return NEVER
    if pod.predicted_s is None:
        return now
    began = pod.started or now
    end = now + max(0.0, remaining(pod.predicted_s, pod.predicted_s, max(0.0, now - began))[0])
    return end if pod.deadline_s is None else min(end, max(now, began + pod.deadline_s))


def is_opened(pod: Pod) -> bool:
    """Whether one of ours is past its gate and has no node yet."""
    return pod.is_ours and not (pod.node or pod.is_gated or pod.has_other_gates or pod.is_over or pod.is_leaving)


class _Room:
    """What one node has free, and when more of it is."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._free = had_by(node)
        self._ends: list[tuple[float, Amounts]] = []
        self._firsts: dict[Amounts, float] = {}
        self._needs: dict[tuple[Shape, Counts], Amounts] = {}

    def need(self, shape: Shape, devices: Counts) -> Amounts:
        found = self._needs.get((shape, devices))
        if found is None:
            found = self._needs[shape, devices] = taken_on(self.node, shape, devices)
        return found

    def hold(self, need: Amounts, until: float) -> None:
        self._free = less(self._free, need)
        if until < NEVER:
            self._ends.append((until, need))

    def first(self, need: Amounts, until: float) -> float:
        """The first moment from which there is room for that, 0: there is; NEVER: not before `until`. Kept until it
        changes."""
        if need not in self._firsts:
            self._firsts[need] = self._first(need, until)
        return self._firsts[need]

    def _first(self, need: Amounts, until: float) -> float:
        free, at = self._free, 0.0
        for end, freed in [] if covers(free, need) else sorted(self._ends):
            if end > until or covers(free, need):
                break
            free, at = more(free, freed), end
        return at if covers(free, need) else NEVER

    def take(self, need: Amounts, at: float, until: float) -> None:
        """From that moment on: what has ended by then is free, and what is left of it is so for the next."""
        for end, freed in self._ends:
            if end <= at:
                self._free = more(self._free, freed)
        self._ends = [one for one in self._ends if one[0] > at]
        self._firsts.clear()
        self.hold(need, until)

    def lacks(self, wanted: Wanted, had: Mapping[str, Collection[str]]) -> tuple[bool, bool]:
        """Any of its images; and what it reads."""
        coming = had.get(self.node.name, ())
        has_all = all(image in self.node.images or image in coming for image in wanted.images)
        return not has_all, wanted.reading is not None and wanted.reading.key not in coming


def _wanted(pod: Pod) -> Wanted:
    owner = Owner("v1", "Pod", pod.name, pod.uid)
    return Wanted(
        owner,
        pod.namespace,
        pod.shape,
        pod.where,
        pod.predicted_s,
        images=pod.images,
        pull_secrets=pod.pull_secrets,
        devices=pod.devices,
        reading=pod.reading,
    )
