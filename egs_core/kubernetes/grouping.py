"""How many pods of a JobSet or a RayCluster start together, put into the values of pods, which stay as they are where
these kinds are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from egs_core.kubernetes import makers
from egs_core.kubernetes.cluster import Cluster, Kind
from egs_core.kubernetes.makers import Gangs
from egs_core.kubernetes.mirror import FORBIDDEN, Mirror
from egs_core.kubernetes.pods import Pod

LISTED_S = 10.0
"""So long a pod is not told of whose maker is not listed: watches of pods and of makers are not one."""
UNREAD = (FORBIDDEN, "ApiError: 404")
"""Who is told so by the API server need not wait for a list; a watch that has broken is followed by one."""


class Grouping:
    """What is listed of those kinds. Mirrors it keeps; `applied` belongs to one thread."""

    def __init__(self, cluster: Cluster, changed: Callable[[], None], watch_s: int = 240) -> None:
        made = {makers.JOBSET: makers.jobset_of, makers.RAY_CLUSTER: makers.ray_cluster_of}
        self._mirrors = {
            kind: Mirror(
                cluster,
                Kind(f"/apis/{group}/{version}", plural),
                made[kind],
                changed,
                optional=True,
                watch_s=watch_s,
            )
            for kind, (group, version, plural) in makers.SAY_GANGS.items()
        }
        self._missed: dict[str, float] = {}  # pods, by uid, whose makers are not listed, and since when
        self._made: dict[str, tuple[Pod, object, Pod]] = {}  # by uid: as it is listed, what was put in, with it

    @property
    def mirrors(self) -> list[Mirror]:
        return list(self._mirrors.values())

    def notes(self) -> list[tuple[str, str]]:
        """What an administrator should know, and about what: "" where all is well."""
        found = (one.problem for one in self._mirrors.values() if one.problem.startswith(FORBIDDEN))
        said = next(found, "")
        return [("gangs", f"{said}; their pods start one by one" if said else "")]

    def applied(self, pods: Mapping[str, Pod], now: float) -> dict[str, Pod]:
        """With the gang that their maker says, where they state none. now: Unix time. Values that nothing was put in
        are the same objects, and so are those in which the same was put before."""
        found, made = dict(pods), {}
        listed: dict[tuple[str, str, str], Gangs] = {}
        for kind, mirror in self._mirrors.items():
            listed |= {(kind, one.namespace, one.name): one for one in mirror.items().values()}
        for uid, pod in pods.items():
            if pod.maker.kind and pod.is_ours and not pod.gang:
                gangs = listed.get((pod.maker.kind, pod.namespace, pod.maker.name))
                put = ("", 0) if gangs is None else gangs.of(pod.maker)
                is_unread = self._mirrors[pod.maker.kind].problem.startswith(UNREAD)
                held = gangs is None and not is_unread and self._is_early(pod, now)
                kept = self._made.get(uid)
                if kept is None or kept[0] is not pod or kept[1] != (put, held):
                    gates = pod.has_other_gates or held
                    kept = (
                        pod,
                        (put, held),
                        msgspec.structs.replace(pod, gang=put[0], gang_size=put[1], has_other_gates=gates),
                    )
                made[uid], found[uid] = kept, kept[2]
        self._made = made
        self._missed = {uid: at for uid, at in self._missed.items() if uid in made}
        return found

    def _is_early(self, pod: Pod, now: float) -> bool:
        if pod.node or pod.is_over:
            return False
        return now - self._missed.setdefault(pod.uid, now) < LISTED_S
