"""Three clusters with real Kueues and a real site server: MultiKueue takes work to where EGS says that it should end
first. `EGS_TEST_KUBECONFIG` names the manager, whose Kueue has `multiKueue: {dispatcherName: egs.io/dispatcher}`, and
`EGS_TEST_WORKERS` the files of two others, for tests alone, with the same Kueue (`test_real_cluster`)."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kubernetes_queue import FLAVORS, KueueQueue
from benchmarks.kubernetes_world import GPU
from egs_core.kubernetes import clusters, names
from egs_core.kubernetes.cluster import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    JOBS,
    MERGE,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    PODS,
    WORKLOADS,
    ApiError,
    Cluster,
    Kind,
)
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.manifests import KINDS
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.overdue import nominate_overdue
from egs_core.kubernetes.settings import Settings
from tests.cluster.real import FILE, LIMIT_S, Site, controlled, has_account, understood, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.server.real_site import RealSite

__all__ = ["pytestmark"]

WORKERS = [one for one in os.environ.get("EGS_TEST_WORKERS", "").split(os.pathsep) if one]
SECRETS = Kind("/api/v1", "secrets")
KUEUE = "kueue-system"
VERSION = "kueue.x-k8s.io/v1beta2"
QUEUE = "egs-bench"
"""The LocalQueue that `KueueQueue` makes."""


class World:
    """The manager, and two workers `blue…` and `green…` with a queue of one GPU each, in one namespace of all three."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, 1, multikueue=clusters.MANAGER)
        self.name = self.site.name
        self.manager = self.site.admin
        self.workers = {
            f"{color}-{self.name}": Cluster(Path(file)) for color, file in zip(("blue", "green"), WORKERS, strict=True)
        }
        self.blue, self.green = self.workers
        self._queues: list[KueueQueue] = []

    def build(self) -> None:
        self.site.apply()
        for cluster in self.workers.values():
            cluster.create(KINDS["Namespace"], {"metadata": {"name": self.name}})
            until(lambda one=cluster: has_account(one, self.name))  # type: ignore[misc]  # one each
            cluster.create(KINDS["Namespace"], {"metadata": {"name": self.site.of.namespace}})
            self._add_queue(cluster, 1)
        for (name, _), file in zip(self.workers.items(), WORKERS, strict=True):
            config = base64.b64encode(Path(file).read_bytes()).decode()
            self.manager.create(SECRETS, {"metadata": {"name": name}, "data": {"kubeconfig": config}}, KUEUE)
            source = {"kubeConfig": {"location": name, "locationType": "Secret"}}
            self._create(MULTIKUEUE_CLUSTERS, "MultiKueueCluster", name, clusterSource=source)
        self._create(MULTIKUEUE_CONFIGS, "MultiKueueConfig", self.name, clusters=list(self.workers))
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": self.name}
        self._create(
            ADMISSION_CHECKS, "AdmissionCheck", self.name, controllerName=clusters.MULTIKUEUE, parameters=parameters
        )
        self._add_queue(self.manager, 9, admissionChecksStrategy={"admissionChecks": [{"name": self.name}]})
        until(lambda: all(self._is_active(MULTIKUEUE_CLUSTERS, name) for name in self.workers))
        until(lambda: self._is_active(CLUSTER_QUEUES, self.name))

    def _add_queue(self, cluster: Cluster, gpus: int, **more: Any) -> None:
        queue = KueueQueue(cluster, self.name)
        queue.add({"cpu": 8, "memory": "64Gi", GPU: gpus})
        self._queues.append(queue)
        if more:
            cluster.patch(CLUSTER_QUEUES, self.name, {"spec": more}, how=MERGE)

    def _create(self, kind: Kind, word: str, name: str, **spec: Any) -> None:
        self.manager.create(kind, {"apiVersion": VERSION, "kind": word, "metadata": {"name": name}, "spec": spec})

    def _is_active(self, kind: Kind, name: str) -> bool:
        found = self.manager.get(kind, name).get("status", {}).get("conditions", [])
        return any((one["type"], one["status"]) == ("Active", "True") for one in found)

    def close(self) -> None:
        for cluster in (self.manager, *self.workers.values()):
            for job in cluster.list(JOBS, self.name)[0]:
                with suppress(ApiError):
                    path = f"{job['metadata']['name']}?propagationPolicy=Background"
                    cluster.delete(JOBS, path, self.name)
            for pod in cluster.list(PODS, self.name)[0]:
                with suppress(ApiError):  # it goes with its copy, or with its Job
                    cluster.patch(PODS, pod["metadata"]["name"], {"metadata": {"finalizers": None}}, self.name, MERGE)
                    cluster.delete(PODS, f"{pod['metadata']['name']}?gracePeriodSeconds=0", self.name)
        until(lambda: not any(one.list(WORKLOADS, self.name)[0] for one in (self.manager, *self.workers.values())))
        for queue in self._queues:
            queue.remove()
        for kind, found in (
            (ADMISSION_CHECKS, [self.name]),
            (MULTIKUEUE_CONFIGS, [self.name]),
            (MULTIKUEUE_CLUSTERS, list(self.workers)),
        ):
            for name in found:
                with suppress(ApiError):
                    self.manager.delete(kind, name)
        for name in self.workers:
            with suppress(ApiError):
                self.manager.delete(SECRETS, name, KUEUE)
        for cluster in self.workers.values():
            for name in (self.name, self.site.of.namespace):
                with suppress(ApiError):
                    cluster.delete(KINDS["Namespace"], name)
        self.site.close()

    def job(self, name: str, seconds: int, at: Cluster | None = None) -> None:
        """Of one GPU, for MultiKueue, or for that cluster alone."""
        cluster = at or self.manager
        container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1", "cpu": "1"}}}
        template = {
            "metadata": {"labels": {names.PREDICTED_S: str(seconds)}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        spec: dict[str, Any] = {"suspend": True, "template": template}
        spec |= {} if at else {"managedBy": clusters.MULTIKUEUE}
        meta = {"name": name, "namespace": self.name, "labels": {names.QUEUE: QUEUE}}
        cluster.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}, self.name)

    def workload(self, of: str, at: Cluster | None = None) -> dict[str, Any]:
        """Of that Job or pod; empty where it is not there."""
        found = (at or self.manager).list(WORKLOADS, self.name)[0]
        starts = f"job-{of}-", f"pod-{of}-"
        return next((one for one in found if one["metadata"]["name"].startswith(starts)), {})

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.workload(job).get("status", {})
        return found

    def until_waits_in(self, job: str, *wanted: str) -> None:
        """Nominated for these, and there are copies in these alone."""
        until(lambda: sorted(self.status(job).get("nominatedClusterNames", [])) == sorted(wanted))
        until(lambda: sorted(name for name, one in self.workers.items() if self.workload(job, one)) == sorted(wanted))

    def until_runs_in(self, job: str, cluster: str) -> None:
        """Admitted there, and the manager has it so: what was nominated is cleared, by Kueue."""
        until(lambda: self.status(job).get("clusterName") == cluster)
        assert not self.status(job).get("nominatedClusterNames")
        until(lambda: self.workers[cluster].get(JOBS, job, self.name)["spec"]["suspend"] is False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    if len(WORKERS) != 2:
        pytest.skip(
            "EGS_TEST_WORKERS names no two kubeconfigs, of worker clusters with Kueue: MultiKueue was not tried"
        )
    for file in (FILE, *WORKERS):
        try:
            Cluster(Path(file)).list(FLAVORS)
        except ApiError as error:
            pytest.skip(f"Kueue is not in the cluster of {file}: {error}")
    found = World(tmp_path)
    try:
        found.build()
        yield found
    finally:
        found.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a real site server."""
    for name in ("EGS_TOKEN", "EGS_QUEUE", "EGS_CA"):
        monkeypatch.delenv(name, raising=False)
    found = RealSite(tmp_path / "server", 1)
    try:
        found.start()
        yield f"unix://{found.ready['socket']}"
    finally:
        found.close()


@contextmanager
def told_of(world: World, name: str, url: str) -> Iterator[None]:
    """A controller in a worker, which tells the server of its queues."""
    settings = Settings(
        (world.name,),
        lease_namespace=world.site.of.namespace,
        identity=name,
        url=url,
        cluster_name=name,
        multikueue=clusters.WORKER,
    )
    controller = Controller(world.workers[name], settings, lambda _: None)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        controller.stop()
        thread.join(LIMIT_S)


def test_work_runs_where_it_should_end_first(world: World, server: str) -> None:
    """Blue is busy for 1,000 s. A Job for MultiKueue goes to green and runs there: the manager has it so, though the
    nomination was not Kueue's own, under the controller's least rights. The next one waits in green, behind the first;
    when blue's work has ended, it is taken back and runs in blue."""
    understood(world.site)
    world.job("long", 1000, world.workers[world.blue])
    until(lambda: world.workload("long", world.workers[world.blue]).get("status", {}).get("admission"))
    with ExitStack() as stack:
        for name in world.workers:
            stack.enter_context(told_of(world, name, server))
        stated: dict[str, Any] = {"url": server, "multikueue": clusters.MANAGER, "cluster_name": "manager"}
        stack.enter_context(controlled(world.site, ": ", **stated))
        world.job("first", 200)
        world.until_runs_in("first", world.green)
        world.job("second", 300)
        world.until_waits_in("second", world.green)
        world.workers[world.blue].delete(JOBS, "long?propagationPolicy=Background", world.name)
        world.until_runs_in("second", world.blue)


def test_pods_of_a_pipeline_go_where_they_should_end_first(world: World, server: str) -> None:
    """Pods with EGS's labels, which the manager's Kueue never starts itself: the first goes to green. Its copy has its
    labels there, so green's controller knows how long it takes, and the second waits behind it, not in blue. When the
    copy has ended so has the pod, and the second goes on."""
    world.job("long", 1000, world.workers[world.blue])
    until(lambda: world.workload("long", world.workers[world.blue]).get("status", {}).get("admission"))
    green, queued = world.workers[world.green], {names.QUEUE: QUEUE}
    with ExitStack() as stack:
        for name in world.workers:
            stack.enter_context(told_of(world, name, server))
        stated: dict[str, Any] = {"url": server, "multikueue": clusters.MANAGER, "cluster_name": "manager"}
        stack.enter_context(controlled(world.site, ": ", **stated))
        world.site.add("fit", gpus=1, predicted=100, rank=9, gate=False, labels=queued)
        until(lambda: world.status("fit").get("clusterName") == world.green)
        until(lambda: any(one["metadata"]["name"] == "fit" for one in green.list(PODS, world.name)[0]))
        assert green.get(PODS, "fit", world.name)["metadata"]["labels"][names.PREDICTED_S] == "100"
        world.site.add("score", gpus=1, predicted=100, rank=1, gate=False, labels=queued)
        world.until_waits_in("score", world.green)
        green.patch(Kind("/api/v1", "pods"), "fit/status", {"status": {"phase": "Succeeded"}}, world.name)
        until(lambda: world.site.pods()["fit"].is_over)
        until(lambda: world.status("score").get("clusterName") == world.green)


def test_without_a_server_who_is_first_has_it(world: World) -> None:
    """All are nominated: blue is busy, so green has the first; the second waits in both until one is free."""
    world.job("long", 1000, world.workers[world.blue])
    until(lambda: world.workload("long", world.workers[world.blue]).get("status", {}).get("admission"))
    with controlled(world.site, ": ", multikueue=clusters.MANAGER):
        world.job("first", 200)
        world.until_runs_in("first", world.green)
        world.job("second", 300)
        world.until_waits_in("second", world.blue, world.green)
        world.workers[world.blue].delete(JOBS, "long?propagationPolicy=Background", world.name)
        world.until_runs_in("second", world.blue)


def test_nobody_else_nominates(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No controller is there: Kueue waits for its dispatcher. The second process nominates, by its own account; that
    may write nothing else into the status, and of Workloads nothing but what it may."""
    monkeypatch.setattr(clusters, "OVERDUE_S", -1.0)
    world.job("first", 200)
    until(lambda: world.status("first").get("admission"))
    assert not world.status("first").get("nominatedClusterNames")
    account, name = world.site.account(names.OVERDUE), world.workload("first")["metadata"]["name"]

    def refused(status: dict[str, Any]) -> bool:
        """By our policy, which is first: Kueue's webhook refuses all of these, too, with words of its own."""
        with pytest.raises(ApiError) as said:
            account.patch(WORKLOADS, f"{name}/status", {"status": status}, world.name, MERGE)
        assert said.value.status == 403, said.value
        return "more than the nominated clusters" in str(said.value)

    until(lambda: refused({"clusterName": world.green}))  # a policy holds a moment after it was made
    wrong: tuple[dict[str, Any], ...] = ({"admission": None}, {"conditions": []}, {"admissionChecks": []})
    assert all(refused(status) for status in wrong)
    with pytest.raises(ApiError):
        account.patch(WORKLOADS, name, {"spec": {"priority": 7}}, world.name, MERGE)
    said: list[str] = []
    assert nominate_overdue(account, said.append) == 0
    assert said, moment(account.now())
    until(lambda: world.status("first").get("clusterName") in world.workers)
