"""A namespace of the cluster that `EGS_TEST_KUBECONFIG` names, with a node of the tests' own: pods get a place there
and never run. Each test takes away what it has made."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.controller import Controller, Settings
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import KINDS, Installation, objects
from egs_core.kubernetes.pods import Pod, moment, pod_of
from tests.unit.kubernetes.made_pods import node, pod

FILE = os.environ.get("EGS_TEST_KUBECONFIG", "")
LIMIT_S = 120.0
APPLY = "application/apply-patch+yaml"
HERE: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


class Site:
    """A namespace of its own with a node of so many GPUs, what `egs kubernetes manifests` prints applied for it
    alone."""

    def __init__(self, folder: Path, gpus: int = 1, **more: Any) -> None:
        self.folder, self.admin = folder, Cluster(Path(FILE))
        self.name = f"egs-test-{uuid.uuid4().hex[:8]}"
        self.of = Installation("egs:1", f"{self.name}-system", (self.name,), **more)
        self.admin.create(KINDS["Namespace"], {"metadata": {"name": self.name}})
        made = node(self.name, gpus=gpus, labels={"egs-test": self.name})
        self.admin.create(NODES, made)
        status = {**made["status"], "capacity": made["status"]["allocatable"]}
        self.admin.patch(Kind("/api/v1", "nodes", False), f"{self.name}/status", {"status": status})

    def apply(self) -> None:
        for one in objects(self.of):
            meta, kind = one["metadata"], KINDS[one["kind"]]
            path = f"{meta['name']}?fieldManager=egs-test"
            self.admin.patch(kind, path, one, meta.get("namespace", ""), APPLY)

    def account(self, name: str) -> Cluster:
        """The cluster, as one of our service accounts."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        kind = Kind(f"/api/v1/namespaces/{self.of.namespace}/serviceaccounts/{name}", "token", False)
        token = self.admin.create(kind, body)["status"]["token"]
        config = yaml.safe_load(Path(FILE).read_text())
        for one in config["users"]:
            one["user"] = {"token": token}
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        return Cluster(file)

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
            (NODES, self.name),
            (KINDS["Namespace"], self.name),
            (KINDS["Namespace"], self.of.namespace),
        ):
            with suppress(ApiError):
                self.admin.delete(kind, name)


@contextmanager
def controlled(site: Site, says: str = "", **stated: Any) -> Iterator[Controller]:
    """A controller under its own account, which says nothing, or this."""
    settings = Settings((site.name,), lease_namespace=site.of.namespace, identity="test", **stated)
    said: list[str] = []
    found = Controller(site.account(names.CONTROLLER), settings, said.append)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(LIMIT_S)
        assert [line for line in said if not says or says not in line] == []
