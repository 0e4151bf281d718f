"""Pods that were opened for room which the engine knows, and get no node all the same.

What keeps them off is nothing that the engine counts: a volume claim that is not there, an affinity to other pods, a
device of a kind that is not counted. While they were told, their room would be kept for them and stand empty. So they
are told no longer, until they have a node, or have waited so long that what they lack may be there: then they have
their turn again, and are given up again where the scheduler still says no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from egs_core.kubernetes.pods import Pod

AFTER_S = 30.0
"""So long the scheduler has had for a pod since the engine granted it a place: it tries again within ten seconds."""
AGAIN_S, LONGEST_S = 600.0, 3600.0
"""After so long a pod is told again, after each time twice as long, and never longer than that."""
CHANGED = 0.1
"""Of that time, where the scheduler says something else by now: what it says may change with each pod beside."""


class Found(msgspec.Struct):
    """at: Unix time; again_s: it is told again after so long; refusal: as of the pod then. is_out: it is not told."""

    at: float
    again_s: float
    refusal: str
    is_out: bool = True


class Stuck:
    """Of one controller. Times are Unix times; unplaced: by uid, pods that are open and have no node, all of them."""

    def __init__(self) -> None:
        self._refused_at: dict[str, float] = {}  # of those that are granted, when the scheduler's no was first seen
        self._found: dict[str, Found] = {}  # also what is told again

    def among(self, unplaced: Mapping[str, Pod], now: float) -> frozenset[str]:
        """Those of these that are not to be told. What has its node is forgotten."""
        self._found = {uid: one for uid, one in self._found.items() if uid in unplaced}
        for uid, one in self._found.items():
            share = 1.0 if unplaced[uid].refusal == one.refusal else CHANGED
            one.is_out = one.is_out and now < one.at + share * one.again_s
        return frozenset(uid for uid, one in self._found.items() if one.is_out)

    def look(self, unplaced: Mapping[str, Pod], has_grant: Callable[[str], bool], now: float) -> list[Pod]:
        """Those that have become so, or are so still. has_grant: whether a pod, by uid, has a place by the engine."""
        out = {uid for uid, one in self._found.items() if one.is_out}
        refused = [uid for uid, pod in unplaced.items() if pod.refusal and uid not in out and has_grant(uid)]
        self._refused_at = {uid: min(self._refused_at.get(uid, now), now) for uid in refused}
        new = [uid for uid, at in self._refused_at.items() if at + AFTER_S <= now]
        for uid in new:
            before = self._found.get(uid)
            again_s = AGAIN_S if before is None else min(2 * before.again_s, LONGEST_S)
            self._found[uid] = Found(now, again_s, unplaced[uid].refusal)
        return [unplaced[uid] for uid in new]
