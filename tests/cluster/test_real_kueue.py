"""Pods that Kueue puts into a queue, on a real API server where a real Kueue runs (`test_real_cluster`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.kubernetes_queue import KueueQueue
from benchmarks.kubernetes_world import GPU
from egs_core.kubernetes import gates
from egs_core.kubernetes.cluster import CLUSTER_QUEUES, LOCAL_QUEUES, PODS, ApiError, Cluster
from tests.cluster.real import FILE, Site, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With a default queue that has quota."""
    cluster = Cluster(Path(FILE))
    try:
        cluster.list(CLUSTER_QUEUES)
    except ApiError as error:
        pytest.skip(f"Kueue is not in the cluster: {error}")
    found = Site(tmp_path)
    queue = KueueQueue(cluster, found.name)
    try:
        found.apply()
        queue.add({"cpu": 8, "memory": "64Gi", GPU: 1})
        meta, spec = {"name": "default", "namespace": found.name}, {"clusterQueue": found.name}
        version = "kueue.x-k8s.io/v1beta2"
        made = {"apiVersion": version, "kind": "LocalQueue", "metadata": meta, "spec": spec}
        cluster.create(LOCAL_QUEUES, made, found.name)
        yield found
    finally:
        for one in found.pods():
            with suppress(ApiError):
                cluster.patch(PODS, one, {"metadata": {"finalizers": None}}, found.name)
        found.close()
        queue.remove()


def test_a_gate_does_not_hold_the_quota_of_a_default_queue(site: Site) -> None:
    """The pod names no queue and has our gate, as our webhook comes before Kueue's. Kueue puts it into the namespace's
    default queue and gives it quota; our gate is opened, and it gets its place."""
    until(lambda: site.admin.get(LOCAL_QUEUES, "default", site.name).get("status", {}).get("conditions"))
    added = site.add("p", gpus=1)
    until(lambda: site.pods()["p"].queue == "default")
    assert added.is_gated
    with controlled(site):
        until(lambda: site.pods()["p"].node)
    assert site.pods()["p"].opened_for == gates.QUEUED
