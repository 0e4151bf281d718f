"""Pods that were opened for room which the engine knows, and get no node all the same.

What keeps them off is nothing that the engine counts: a volume claim that is not there, an affinity to other pods, a
device of a kind that is not counted. While they were told, their room would be kept for them and stand empty. So they
are told no longer, until they have a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from egs_core.kubernetes.pods import Pod

AFTER_S = 30.0
"""So long the scheduler has had for a pod since the engine granted it a place: it tries again within ten seconds."""


class Stuck:
    """Of one controller. Times are Unix times; unplaced: by uid, pods that are open and have no node, all of them."""

    def __init__(self) -> None:
        self._refused_at: dict[str, float] = {}  # of those that are granted, when the scheduler's no was first seen
        self._found: frozenset[str] = frozenset()

    def among(self, unplaced: Mapping[str, Pod]) -> frozenset[str]:
        """Those of these that were found to be so. What has its node is so no longer."""
        self._found &= unplaced.keys()
        return self._found

    def look(self, unplaced: Mapping[str, Pod], has_grant: Callable[[str], bool], now: float) -> list[Pod]:
        """Those that have become so. has_grant: whether a pod, by uid, has a place by the engine."""
        refused = [uid for uid, pod in unplaced.items() if pod.is_refused and has_grant(uid)]
        self._refused_at = {uid: min(self._refused_at.get(uid, now), now) for uid in refused}
        new = [uid for uid, at in self._refused_at.items() if at + AFTER_S <= now]
        self._found |= {*new}
        return [unplaced[uid] for uid in new]
