"""A namespace of the cluster that `EGS_TEST_KUBECONFIG` names, with a node of the tests' own: pods get a place there
and never run. Each test takes away what it has made."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import KINDS, Installation, objects
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.made_pods import node, pod

FILE = os.environ.get("EGS_TEST_KUBECONFIG", "")
LIMIT_S = 120.0
APPLY = "application/apply-patch+yaml"
TRIED = Kind("/api/v1", "pods?dryRun=All")
HERE: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}


def until(what: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def has_account(cluster: Cluster, namespace: str) -> bool:
    """Whether the cluster has made what it makes in a new namespace: without its account no pod is taken there."""
    try:
        cluster.get(KINDS["ServiceAccount"], "default", namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


class Site:
    """A namespace of its own with a node of so many GPUs and other resources, what `egs kubernetes manifests` prints
    applied for it alone. One at a time in a cluster: accounts, policies and the webhook are the cluster's, and who
    leaves takes them from the other. A second one on this machine waits."""

    def __init__(self, folder: Path, gpus: int = 1, offers: dict[str, int] | None = None, **more: Any) -> None:
        self.folder, self.admin = folder, Cluster(Path(FILE))
        self._alone = (Path(tempfile.gettempdir()) / f"egs-test-{urlsplit(self.admin.host).netloc}.lock").open("w")
        fcntl.flock(self._alone, fcntl.LOCK_EX)
        self.name = f"egs-test-{uuid.uuid4().hex[:8]}"
        self.of = Installation("egs:1", f"{self.name}-system", (self.name,), **more)
        self.admin.create(KINDS["Namespace"], {"metadata": {"name": self.name}})
        until(lambda: has_account(self.admin, self.name))
        self._nodes: list[str] = []
        self.add_node(self.name, gpus, offers)

    def add_node(self, name: str, gpus: int, offers: dict[str, int] | None = None) -> None:
        """One more, on which its pods may run."""
        made = node(name, gpus=gpus, offers=offers or {}, labels={"egs-test": self.name})
        self.admin.create(NODES, made)
        self._nodes.append(name)
        status = {**made["status"], "capacity": made["status"]["allocatable"]}
        self.admin.patch(Kind("/api/v1", "nodes", False), f"{name}/status", {"status": status})

    def apply(self) -> None:
        for one in objects(self.of):
            meta, kind = one["metadata"], KINDS[one["kind"]]
            path = f"{meta['name']}?fieldManager=egs-test"
            self.admin.patch(kind, path, one, meta.get("namespace", ""), APPLY)

    def account(self, name: str, ahead_s: float = 0.0) -> Cluster:
        """The cluster, as one of our service accounts, on a machine whose clock is so far ahead."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        kind = Kind(f"/api/v1/namespaces/{self.of.namespace}/serviceaccounts/{name}", "token", False)
        token = self.admin.create(kind, body)["status"]["token"]
        config = yaml.safe_load(Path(FILE).read_text())
        for one in config["users"]:
            one["user"] = {"token": token}
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        return Cluster(file, clock=lambda: time.time() + ahead_s)

    def add(self, name: str, **stated: Any) -> Pod:
        spec = {**HERE, "nodeSelector": {"egs-test": self.name}, **stated.pop("spec", {})}
        made = pod(name, namespace=self.name, spec=spec, **stated)
        return pod_of(self.admin.create(PODS, made, self.name))

    def pods(self) -> dict[str, Pod]:
        return {one.name: one for one in map(pod_of, self.admin.list(PODS, self.name)[0])}

    def begins(self, name: str, seconds_ago: float) -> None:
        """As its kubelet would say."""
        status = {"phase": "Running", "startTime": moment(time.time() - seconds_ago)}
        self.admin.patch(Kind("/api/v1", "pods"), f"{name}/status", {"status": status}, self.name)

    def end(self, name: str) -> None:
        """As its kubelet would say."""
        self.admin.patch(Kind("/api/v1", "pods"), f"{name}/status", {"status": {"phase": "Succeeded"}}, self.name)

    def delete(self, name: str) -> None:
        self.admin.delete(PODS, f"{name}?gracePeriodSeconds=0", self.name)

    def close(self) -> None:
        leave(self.admin, self.of, lambda _: None, lambda _: None)
        for one in self.pods():
            with suppress(ApiError):  # it went with its owner
                self.delete(one)
        for kind, name in (
            *((NODES, name) for name in self._nodes),
            (KINDS["Namespace"], self.name),
            (KINDS["Namespace"], self.of.namespace),
        ):
            with suppress(ApiError):
                self.admin.delete(kind, name)
        self._alone.close()


def refusal(cluster: Cluster, site: Site, body: dict[str, Any], namespace: str = "") -> str:
    """What is said against a pod; "" where it may be made. Nothing is."""
    try:
        cluster.create(TRIED, body, namespace or site.name)
    except ApiError as error:
        if error.status not in (403, 422):
            raise
        return str(error)
    return ""


def understood(site: Site) -> list[str]:
    """The site's policies: the API server has checked the types of each rule, and has nothing to say of any."""
    kind = KINDS["ValidatingAdmissionPolicy"]
    found = [one["metadata"]["name"] for one in objects(site.of) if one["kind"] == "ValidatingAdmissionPolicy"]
    for name in found:
        until(lambda one=name: "typeChecking" in site.admin.get(kind, one).get("status", {}))  # type: ignore[misc]  # one each
        assert site.admin.get(kind, name)["status"]["typeChecking"] == {}
    return found


@contextmanager
def applied(folder: Path, gpus: int = 1, made: type[Site] = Site, **more: Any) -> Iterator[Site]:
    """A namespace of a test, with what `egs kubernetes manifests` prints applied."""
    found = made(folder, gpus, **more)
    try:
        found.apply()
        yield found
    finally:
        found.close()


@contextmanager
def controlled(site: Site, says: str = "", ahead_s: float = 0.0, **stated: Any) -> Iterator[Controller]:
    """A controller under its own account, which says nothing, or this; its clock is so far ahead."""
    settings = Settings((site.name,), lease_namespace=site.of.namespace, identity="test", **stated)
    said: list[str] = []
    found = Controller(site.account(names.CONTROLLER, ahead_s), settings, said.append)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(LIMIT_S)
        assert [line for line in said if not says or says not in line] == []
