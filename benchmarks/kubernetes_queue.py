"""A queue of Kueue, for benchmarks of a cluster where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from egs_core.kubernetes.cluster import CLUSTER_QUEUES, LOCAL_QUEUES, MERGE, ApiError, Cluster, Kind

FLAVORS = Kind("/apis/kueue.x-k8s.io/v1beta2", "resourceflavors", False)
QUEUE = "egs-bench"


class KueueQueue:
    """A queue of Kueue in the namespace of that name, with a ClusterQueue and flavor of its own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    def add(self, quotas: Mapping[str, object], is_held: bool = False) -> None:
        """quotas: by resource; is_held: nothing gets any before it is let go."""
        resources = [{"name": name, "nominalQuota": str(amount)} for name, amount in quotas.items()]
        groups = [{"coveredResources": list(quotas), "flavors": [{"name": self._name, "resources": resources}]}]
        never = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
        spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": never}
        spec |= {"stopPolicy": "Hold"} if is_held else {}
        self._cluster.create(FLAVORS, {**_of_kueue("ResourceFlavor", self._name), "spec": {}})
        self._cluster.create(CLUSTER_QUEUES, {**_of_kueue("ClusterQueue", self._name), "spec": spec})
        queue = {**_of_kueue("LocalQueue", QUEUE), "spec": {"clusterQueue": self._name}}
        self._cluster.create(LOCAL_QUEUES, queue, self._name)

    def let_go(self) -> None:
        self._cluster.patch(CLUSTER_QUEUES, self._name, {"spec": {"stopPolicy": "None"}}, how=MERGE)

    def remove(self) -> None:
        for kind in (CLUSTER_QUEUES, FLAVORS):
            with suppress(ApiError):  # there is none
                self._cluster.delete(kind, self._name)


def _of_kueue(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
