"""The second process: it opens what is overdue, whether a controller lives or not.

It needs no engine, no Lease and no state: `egs kubernetes open-overdue` runs it once (in a CronJob), and where the
controller is alive it finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from egs_core.kubernetes import clusters, gates
from egs_core.kubernetes.bookings import booked_of
from egs_core.kubernetes.cluster import (
    ADMISSION_CHECKS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    PODS,
    WORKLOADS,
    ApiError,
    Cluster,
)
from egs_core.kubernetes.limits import Limiting, by_run
from egs_core.kubernetes.opening import nominate, open_gate
from egs_core.kubernetes.pods import Pod, pod_of, with_pauses


def open_overdue(cluster: Cluster, namespaces: Sequence[str], longest_s: float, say: Callable[[str], None]) -> int:
    """Open the gates that are past their release-by time, but of what is paused; limits that pods state are kept. How
    many could not be opened."""
    limiting, found = Limiting(), _listed(cluster, namespaces)
    now = cluster.now()
    limiting.look(*by_run(found), now)
    return open_all(cluster, gates.overdue(found, now, longest_s), say, limiting)


def _listed(cluster: Cluster, namespaces: Sequence[str]) -> list[Pod]:
    found: list[Pod] = []
    for namespace in namespaces or ("",):
        found += map(pod_of, cluster.list(PODS, namespace)[0])
    return list(with_pauses({pod.uid: pod for pod in found}).values())


def nominate_overdue(cluster: Cluster, say: Callable[[str], None]) -> int:
    """Nominate all clusters of MultiKueue for Workloads that have waited for long and have none. For how many that
    could not be done."""
    workloads, *kinds = (
        cluster.list(one)[0] for one in (WORKLOADS, ADMISSION_CHECKS, MULTIKUEUE_CONFIGS, MULTIKUEUE_CLUSTERS)
    )
    now, failed = cluster.now(), 0
    found = clusters.choices(map(booked_of, workloads), clusters.clusters_of(*kinds), now)
    for one in clusters.overdue(found, now):
        try:
            if nominate(cluster, one) is not None:
                say(f"workload {one.choice.name}: {', '.join(one.clusters)}: {one.why}")
        except ApiError as error:
            if error.status not in (404, 409):
                failed += 1
                say(f"workload {one.choice.name}: no cluster can be nominated: {error}")
    return failed


def open_all(
    cluster: Cluster, openings: Iterable[gates.Opening], say: Callable[[str], None], limiting: Limiting | None = None
) -> int:
    """Open these gates. How many could not be opened. limiting: what gives them deadlines; None: they get none."""
    failed = 0
    for one in openings:
        place = f"{one.pod.namespace}/{one.pod.name}"
        try:
            now = cluster.now()
            open_gate(cluster, one.pod, one.why, now, limiting.deadline(one.pod, now) if limiting else None)
            say(f"{place}: opened ({one.why})")
        except ApiError as error:
            if error.status not in (404, 409):
                failed += 1
                say(f"{place}: cannot be opened: {error}")
    return failed
