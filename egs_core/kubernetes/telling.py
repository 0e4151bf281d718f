"""What a gated pod is told of why it waits: a few pods at a time, each seldom, and nothing of who is before it.

The text goes into an annotation of the pod, where whoever may read the pod reads it. It has numbers and no names: those
that wait with it may be of another team.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from egs_core.engine.messages import Reason
from egs_core.kubernetes.pods import Pod

AFTER_S = 10.0
"""What waits for less long needs no word."""
AGAIN_S = 60.0
AFRESH_S = 2 * AGAIN_S
"""What is so old is written once more though it still holds: with a newer moment, by which readers see that."""
EVERY_S = 5.0
MOST = 25
"""So many pods each EVERY_S: five writes a second beside a hundred gates."""
ASKED_S = 0.2
"""For so long the engine is asked each time: with ten thousand pods that wait an answer takes a while."""
_WORDS = {
    "capacity": "no node has room for it now",
    "fragment": "its room is free, but not on one node",
    "reservation": "room is there, but kept for one before it",
    "quota": "the quota of its queue at the site server is used up",
    "process_slots": "no node has a slot for it now",
    "infeasible": "no node could ever take it",
    "gang": "its gang cannot start together yet",
}


class Teller:
    """Who is looked at next. Times are Unix times."""

    def __init__(self) -> None:
        self._looked: dict[str, float] = {}
        self._next = 0.0

    def due(self, pods: Iterable[Pod], now: float) -> list[Pod]:
        """The pods to look at now: those that were looked at longest ago."""
        if now < self._next:
            return []
        self._next = now + EVERY_S
        waiting = {pod.uid: pod for pod in pods if pod.is_ours and pod.is_gated and pod.created + AFTER_S <= now}
        self._looked = {uid: at for uid, at in self._looked.items() if uid in waiting}
        stale = [pod for uid, pod in waiting.items() if self._looked.get(uid, 0.0) + AGAIN_S <= now]
        found = sorted(stale, key=lambda pod: (self._looked.get(pod.uid, 0.0), pod.created, pod.uid))[:MOST]
        self._looked.update((pod.uid, now) for pod in found)
        return found

    def refused(self, now: float) -> None:
        """It may not be written: not again for a while."""
        self._next = now + AGAIN_S


def texts(
    pods: Iterable[Pod],
    order: Sequence[str],
    members: Mapping[tuple[str, str], int],
    why: Callable[[str], Reason | None],
    now: float,
    awaited: Collection[str] = (),
) -> dict[str, str]:
    """By uid what to write, of those where it is not there already, or has been for long. order: uids of all that wait
    for a grant, the first first; members: how many of a run's gang are there; why: None where it is not asked; now:
    Unix time; awaited: for which a node of another kind has to come."""
    places = {uid: number for number, uid in enumerate(order, 1)}
    found = {}
    for pod in pods:
        there = members.get((pod.run, pod.gang), 0)
        if pod.is_paused:
            text = "paused" if pod.paused else "its run or stage is paused"
        elif pod.gang and there < pod.gang_size:
            text = f"{there} of {pod.gang_size} members of its gang are there"
        elif pod.uid in awaited:
            text = "no node there could ever take it: one that could is asked for"
        elif pod.uid in places:
            reason = why(pod.uid)
            words = "it waits for its turn" if reason is None else _WORDS.get(reason.kind, reason.kind)
            if pod.gang and reason is not None and reason.kind == "infeasible":
                words = "its gang has no room together, even if nothing else were there"
            text = f"place {places[pod.uid]} of {len(order)}: {words}{_foretold(pod)}"
        else:
            continue
        if text != pod.waits or now - pod.waits_at >= AFRESH_S:
            found[pod.uid] = text
    return found


def _foretold(pod: Pod) -> str:
    after = "" if pod.rank_s is None else f"; its run takes {pod.rank_s:.0f} s from its start on"
    if not pod.learned_from or pod.predicted_s is None:
        return after
    before = "the last one" if pod.learned_from == 1 else f"the last {pod.learned_from}"
    return f"{after}; it should take {pod.predicted_s:.0f} s, as {before} of its task did"
