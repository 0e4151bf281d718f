"""Has processes stand ready on a cluster's nodes, until it is told to stop: looks each second, and asks Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

from egs_core.errors import EgsError
from egs_ray.ready.kept import Kept, Process
from egs_ray.ready.raylets import Cluster, Lost

LOOK_S = 1.0
NODES_S = 10.0
PATIENCE_S = 60.0


class Keeper:
    """tell: gets a line for each time that Ray is asked for processes."""

    def __init__(self, cluster: Cluster, most: int, tell: Callable[[str], None]) -> None:
        self.kept = Kept(most)
        self._cluster, self._tell = cluster, tell
        self._nodes: list[str] = []
        self._looked_s = float("-inf")

    def look(self, now_s: float) -> None:
        """At all nodes, once. Raises Lost."""
        is_due = now_s - self._looked_s >= NODES_S
        if is_due:
            self._nodes, self._looked_s = self._cluster.nodes(), now_s
            self.kept.keep_nodes(self._nodes)
        there = {node: self._cluster.processes(node) for node in self._nodes}
        seen = {node: processes for node, processes in there.items() if processes is not None}
        if not seen:
            raise Lost("no node answers")
        if is_due or any(self.kept.must_hear(node, processes) for node, processes in seen.items()):
            self.kept.hear(self._cluster.jobs(), now_s)
        for node, processes in seen.items():
            self._look_at(node, processes, now_s)

    def _look_at(self, node: str, processes: list[Process], now_s: float) -> None:
        self.kept.see(node, processes, now_s)
        for environment, count in self.kept.wanted(node, now_s).items():
            if self._cluster.start(node, environment, count):
                self.kept.asked(node, environment, count, now_s)
                self._tell(f"asked node {node[:8]} for {count} more, for jobs with {environment or 'no environment'}")


def keep(cluster: Cluster, most: int, tell: Callable[[str], None], stop: Event) -> None:
    """Until `stop`. Raises EgsError where the cluster has not answered for `PATIENCE_S`."""
    keeper, heard_s = Keeper(cluster, most, tell), time.monotonic()
    while not stop.is_set():
        now_s = time.monotonic()
        try:
            keeper.look(now_s)
            heard_s = now_s
        except Lost as lost:
            if now_s - heard_s > PATIENCE_S:
                raise EgsError(f"the cluster does not answer any more: {lost}") from None
        stop.wait(LOOK_S)
    tell(f"of {keeper.kept.came} processes that jobs got, {keeper.kept.found} stood ready")
