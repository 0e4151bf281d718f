"""What waits in Kueue, as the controller has it: the engine's order becomes priorities (`priorities` decides which).

what waits changes ──► once a second: who is first, and is that written?
quota was freed    ──► at once: the first that has room in it is written, so that Kueue looks at it now
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import priorities
from egs_core.kubernetes.cluster import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, ApiError, Cluster, Kind
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.opening import raise_priority
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.priorities import Raise, Workload
from egs_core.kubernetes.session import ClusterSession

EVERY_S = 1.0
"""The order is written once in so long, as Kueue looks again at what has waited: what is first for less is not."""
RAISING_S = 0.5
"""For so long priorities are written, the first first; then it is looked again who is."""


class Queues:
    """See the module. woken: told of each change; note: hears of what is wrong, by what it is about; made: what is
    kept of a Workload. `order` and `forget` belong to one thread."""

    def __init__(
        self,
        cluster: Cluster,
        woken: Callable[[], None],
        note: Callable[[str, str], None],
        watch_s: int,
        clock: Callable[[], float] = time.monotonic,
        made: Callable[[dict[str, Any]], Workload] = priorities.workload_of,
    ) -> None:
        self._cluster, self._woken, self._note, self._clock = cluster, woken, note, clock
        kinds = ((WORKLOADS, made), (LOCAL_QUEUES, _raw), (CLUSTER_QUEUES, _raw))
        self._mirrors = {
            kind: Mirror(cluster, kind, read, woken, optional=True, watch_s=watch_s) for kind, read in kinds
        }
        self._session: ClusterSession | None = None
        self._held: dict[str, Workload] = {}
        self._shown: dict[str, tuple[Pod, Pod]] = {}  # by uid: as it is listed, as it is told
        self._next = float("-inf")

    @property
    def mirrors(self) -> list[Mirror]:
        """What it has to see."""
        return list(self._mirrors.values())

    def listed(self, kind: Kind) -> list[Any]:
        """Workloads as they are made, and queues as the API server has them."""
        return list(self._mirrors[kind].items().values())

    def put(self, raw: dict[str, Any]) -> None:
        """A Workload as a patch has answered it."""
        self._mirrors[WORKLOADS].put(raw)

    def forget(self) -> None:
        """What comes next is told to a new engine."""
        if self._session is not None:
            self._session.close()
        self._session, self._held = None, {}

    def order(self, pods: Mapping[str, Pod], leads: Callable[[], bool]) -> None:
        """Write what is due. pods: by uid, those in Kueue's queues; leads: whether it may still be written."""
        listed = self._mirrors[WORKLOADS].items()
        freed, is_due = self._freed(listed), self._clock() >= self._next
        workloads = [one for one in listed.values() if any(uid in pods for uid in one.pods)]
        if not workloads or not (freed or is_due):
            return
        quiet = self._quiet(workloads)
        order = self._ordered(workloads, pods)
        raised = priorities.raises(listed.values(), order, quiet)  # of others the priorities count as bounds
        room: dict[str, Shape] = {}
        for one in freed:
            if (of := quiet.get(one.queue)) is not None:
                room[of] = priorities.together(room.get(of, Shape(0)), one.asks)
        first = priorities.hurried(room, listed.values(), order, quiet, raised)
        self._write(first, leads)
        if is_due:
            self._next = self._clock() + EVERY_S
            hurried = {(one.namespace, one.name) for one in first}
            self._write((one for one in raised if (one.namespace, one.name) not in hurried), leads)

    def _freed(self, listed: Mapping[str, Workload]) -> list[Workload]:
        """What had quota when this was asked last, and has none now."""
        held = {uid: one for uid, one in listed.items() if one.holds}
        freed = [one for uid, one in self._held.items() if uid not in held]
        self._held = held
        return freed

    def _quiet(self, workloads: Iterable[Workload]) -> dict[str, str]:
        local, cluster = (self._mirrors[kind].items().values() for kind in (LOCAL_QUEUES, CLUSTER_QUEUES))
        quiet = priorities.quiet_queues(local, cluster)
        for loud in sorted({one.queue for one in workloads if one.waits} - quiet.keys()):
            self._note(f"queue {loud}", "is left alone: its ClusterQueue is not known, or preempts by priority")
        return quiet

    def _ordered(self, workloads: Iterable[Workload], pods: Mapping[str, Pod]) -> list[str]:
        """Uids of the pods that wait, the first first: the engine has no nodes here, so it grants nothing."""
        if self._session is not None and not self._session.is_alive:
            self._session.close()
            self._session = None
        self._session = self._session or ClusterSession()
        waiting = {uid for one in workloads if one.waits for uid in one.pods}
        # What has quota is ended for this engine: it takes no part in the order, and the rest of its run does.
        self._shown = {uid: self._as_shown(uid, pod) for uid, pod in pods.items() if uid in waiting}
        shown = {uid: one for uid, (_, one) in self._shown.items()}
        self._session.tell(shown)
        self._session.prune(shown)
        return self._session.order()

    def _as_shown(self, uid: str, pod: Pod) -> tuple[Pod, Pod]:
        """With the pod itself: what has not changed stays the same object."""
        kept = self._shown.get(uid)
        if kept is not None and kept[0] is pod:
            return kept
        stripped = msgspec.structs.replace(pod, is_gated=False, has_other_gates=False, gang="", where="", node="")
        return pod, stripped

    def _write(self, raised: Iterable[Raise], leads: Callable[[], bool]) -> None:
        """Until others may come first by now."""
        until = self._clock() + RAISING_S
        for one in raised:
            if not leads():
                return
            if self._clock() > until:
                self._next = float("-inf")
                self._woken()
                return
            try:
                self._mirrors[WORKLOADS].put(raise_priority(self._cluster, one))
            except ApiError as error:
                if error.status not in (404, 409):
                    self._note("priority", f"{one.namespace}/{one.name}: {error}")


def _raw(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
