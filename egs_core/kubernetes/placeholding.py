"""Placeholder pods made and removed: one look in ten seconds, and each second while one has a node.

The pods in the cluster say what is there; nothing is kept here but when to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from egs_core.kubernetes import placeholders
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.foreseen import Wanted
from egs_core.kubernetes.pods import Node, Pod

LOOK_S, HELD_S = 10.0, 1.0
FORBIDDEN, INVALID = 403, (400, 422)
REFUSED_S = 600.0
"""So long after one was refused none is made, or none for the same place where that is what was wrong."""


class PlaceholderSettings(msgspec.Struct, frozen=True):
    """most: so many placeholders may be there at once, 0: none are made. node_s: how long a node takes to come; image:
    what they run, where they get a node."""

    most: int = 0
    node_s: float = placeholders.NODE_S
    image: str = placeholders.IMAGE


class Placeholding:
    """See the module; which there should be is for `placeholders`. namespace: where they are made; note: hears what an
    administrator should know. Times are Unix times."""

    def __init__(
        self, cluster: Cluster, stated: PlaceholderSettings, namespace: str, note: Callable[[str, str], None]
    ) -> None:
        self._cluster, self._stated, self._namespace, self._note = cluster, stated, namespace, note
        self._looked_at = float("-inf")
        self._refused_until = 0.0
        self._barred: dict[str, float] = {}  # by `Place.key`, until when
        self._placeless_at: dict[str, float] = {}
        self.awaited: tuple[str, ...] = ()

    def given_up(self, placeless: Mapping[str, Pod], now: float, *, are_made: bool) -> list[Pod]:
        """Of what no node there could ever take, by uid, what a node to come is not waited for: all of it where no
        placeholders are made, else what is so for longer than a placeholder is worth it. The rest is `awaited`, the
        first first."""
        may_come = are_made and self._stated.most > 0 and now >= self._refused_until
        at = {uid: min(self._placeless_at.get(uid, now), now) for uid in placeless}
        since = now - placeholders.LATER * self._stated.node_s
        found = [one for uid, one in placeless.items() if may_come and at[uid] > since and not one.claimed]
        found.sort(key=lambda one: (-one.rank, -(one.rank_s or 0.0), one.created, one.uid))
        self._placeless_at, self.awaited = at, tuple(one.uid for one in found)
        return [one for uid, one in placeless.items() if uid not in {*self.awaited}]

    def is_due(self, there: Iterable[Pod], now: float) -> bool:
        """Whether it is time to look again; asked before what is costly to know."""
        found = list(there)
        holds = any(one.holds and not one.is_leaving for one in found)
        if now - self._looked_at < (HELD_S if holds else LOOK_S) or not (self._stated.most or found):
            return False
        self._looked_at = now
        return True

    def look(
        self,
        wanted: Sequence[Wanted],
        there: Iterable[Pod],
        pods: Mapping[str, Pod],
        nodes: Sequence[Node],
        now: float,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """wanted: as `placeholders.to_stand_for` says; there: the placeholders; pods: all others. leads: asked before
        each request."""
        stated = self._stated
        barred = self._barred = {key: until for key, until in self._barred.items() if until > now}
        steps = placeholders.select_steps(
            wanted, there, list(pods.values()), nodes, now, node_s=stated.node_s, most=stated.most, barred=barred
        )
        for one in steps.remove:
            if not leads():
                return
            self._remove(one)
        for name, place in steps.make:
            if not leads() or now < self._refused_until:
                return
            self._make(name, place, nodes, now)

    def _remove(self, one: Pod) -> None:
        try:
            self._cluster.delete(PODS, one.name, one.namespace, uid=one.uid)
        except ApiError as error:
            if error.status not in (404, 409):
                self._note("placeholder", f"{one.namespace}/{one.name}: {error}: it makes way or ends by itself")

    def _make(self, name: str, place: placeholders.Place, nodes: Iterable[Node], now: float) -> None:
        """Where one is forbidden the others would be too; what is invalid is its place, which anybody may state."""
        not_on = placeholders.hosts_of(place, nodes)
        body = placeholders.made(name, place, self._namespace, self._stated.image, not_on)
        try:
            self._cluster.create(PODS, body, self._namespace)
        except ApiError as error:
            if error.status == FORBIDDEN:
                self._refused_until = now + REFUSED_S
                self._note("placeholders", f"{error}: none is made for {REFUSED_S / 60:.0f} minutes")
            elif error.status in INVALID:
                self._barred[place.key] = now + REFUSED_S
                self._note("placeholders", f"{error}: none like it is made for {REFUSED_S / 60:.0f} minutes")
            elif error.status != 409:  # it is there
                self._note("placeholders", str(error))
