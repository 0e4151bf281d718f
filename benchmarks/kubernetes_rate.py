"""How fast the controller opens the gates of a large cluster, against a bare loop that only takes them off.

    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes_rate [--nodes 1000] [--pods 10000]

A real API server with its scheduler; nodes are made up, no container runs. All pods are there, gated, before either
begins, and all of them have room. Both sides patch one pod after another over one connection. The controller runs in a
process of its own: its processor time and memory are that process's, lists and watches included; decision to release is
from the engine's grant to the API server's answer.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.kubernetes import GPU, NAMESPACES, QUEUE
from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, ApiError, Cluster
from egs_core.kubernetes.controller import Controller, Settings
from egs_core.kubernetes.gates import Opening
from egs_core.kubernetes.opening import open_gate
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.session import ClusterSession
from egs_core.site import Grant

RUNS = 100
MAKERS = 4
LIMIT_S = 1800.0


class CountedCluster(Cluster):
    """Counts what it asks the API server for, by method."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.calls: Counter[str] = Counter()

    def _send(self, method: str, *rest: Any, **more: Any) -> Any:
        self.calls[method] += 1
        return super()._send(method, *rest, **more)


class TimedSession(ClusterSession):
    """Notes when it was told of each grant. granted_at: by task."""

    def perform(self, decision: Any, now: float) -> None:
        if isinstance(decision, Grant):
            self.granted_at[decision.task] = time.monotonic()
        super().perform(decision, now)

    def _begin(self) -> None:
        self.granted_at: dict[int, float] = {}
        super()._begin()


class TimedController(Controller):
    """Notes how long after its grant each gate was open, and when. lags_s, at: in the order of opening."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lags_s: list[float] = []
        self.at: list[float] = []

    def _new_session(self) -> ClusterSession:
        return TimedSession(woken=self._woken.set)

    def _open_one(self, one: Opening) -> dict[str, Any] | None:
        found = super()._open_one(one)
        session, now = self._gated, time.monotonic()
        if isinstance(session, TimedSession):
            self.lags_s.append(now - session.granted_at[session._known[one.pod.uid].task])
            self.at.append(now)
        return found


class World:
    """A namespace with nodes that are made up, and gated pods."""

    def __init__(self, kubeconfig: Path, nodes: int, pods: int) -> None:
        self.cluster, self._kubeconfig = Cluster(kubeconfig), kubeconfig
        self.name = f"egs-rate-{uuid.uuid4().hex[:6]}"
        self.nodes, self.pods = nodes, pods

    def set_up(self) -> None:
        self.cluster.create(NAMESPACES, {"metadata": {"name": self.name}})
        self._each(range(self.nodes), self._add_node)
        self._each(range(self.pods), self._add_pod)

    def tear_down(self) -> None:
        uids = [raw["metadata"]["name"] for raw in self.cluster.list(PODS, self.name)[0]]
        self._each(uids, lambda cluster, name: cluster.delete(PODS, f"{name}?gracePeriodSeconds=0", self.name))
        self._each(range(self.nodes), lambda cluster, number: cluster.delete(NODES, f"{self.name}-{number}"))
        self.cluster.delete(NAMESPACES, self.name)

    def _each(self, what: Any, act: Any) -> None:
        """With a connection for each thread."""
        own = threading.local()

        def one(item: Any) -> None:
            if not hasattr(own, "cluster"):
                own.cluster = Cluster(self._kubeconfig)
            with suppress(ApiError):
                act(own.cluster, item)

        with ThreadPoolExecutor(MAKERS) as pool:
            list(pool.map(one, what))

    def _add_node(self, cluster: Cluster, number: int) -> None:
        name = f"{self.name}-{number}"
        cluster.create(NODES, {"metadata": {"name": name, "labels": {QUEUE: self.name}}})
        offered = {"cpu": "64", "memory": "64Gi", "pods": "200", GPU: str(-(-self.pods // self.nodes))}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": offered, "capacity": offered, "conditions": ready}
        cluster.patch(NODES, f"{name}/status", {"status": status})

    def _add_pod(self, cluster: Cluster, number: int) -> None:
        run = f"run-{number % RUNS}"
        labels = {names.WORKLOAD: run, names.RUN: run, names.TASK: f"task-{number}", QUEUE: self.name}
        labels |= {names.RANK: str(60 + number % 977), names.PREDICTED_S: "60"}
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {QUEUE: self.name},
            "schedulingGates": [{"name": names.GATE}],
            "containers": [{"name": "main", "image": "none:1", "resources": {"limits": {"cpu": "1", GPU: "1"}}}],
        }
        cluster.create(PODS, {"metadata": {"name": f"pod-{number}", "labels": labels}, "spec": spec}, self.name)


def bare(world: World) -> dict[str, Any]:
    """A loop that takes the gates off, and does nothing else."""
    pods = [pod_of(raw) for raw in world.cluster.list(PODS, world.name)[0]]
    began = time.monotonic()
    for pod in pods:
        open_gate(world.cluster, pod, "bare", time.time())
    return {"pods": len(pods), "seconds": time.monotonic() - began, "calls_a_pod": 1.0}


def _control(kubeconfig: Path, name: str, pods: int, told: Connection) -> None:
    """In a process of its own: until all gates are open."""
    cluster = CountedCluster(kubeconfig)
    began, processor_s = time.monotonic(), time.process_time()
    settings = Settings((name,), lease_namespace=name, identity="rate")
    found = TimedController(cluster, settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    while len(found.at) < pods and time.monotonic() - began < LIMIT_S:
        time.sleep(0.1)
    ended, used_s = time.monotonic(), time.process_time() - processor_s
    calls = dict(cluster.calls)
    found.stop()
    thread.join(60)
    lags = sorted(found.lags_s)
    told.send(
        {
            "pods": len(found.at),
            "seconds": found.at[-1] - found.at[0],
            "until_first_s": found.at[0] - began,
            "release_p50_s": lags[len(lags) // 2],
            "release_p99_s": lags[int(0.99 * len(lags))],
            "processors": used_s / (ended - began),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "calls_a_pod": sum(calls.values()) / len(found.at),
            "calls": calls,
        }
    )


def controlled(world: World, kubeconfig: Path) -> dict[str, Any]:
    """The controller, as the cluster's administrator."""
    spawned = multiprocessing.get_context("spawn")
    mine, its = spawned.Pipe()
    process = spawned.Process(target=_control, args=(kubeconfig, world.name, world.pods, its))
    process.start()
    its.close()
    try:
        return dict(mine.recv())
    finally:
        process.join(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000)
    options = parser.parse_args()
    file = os.environ.get("EGS_TEST_KUBECONFIG", "")
    if not file:
        raise InputError("EGS_TEST_KUBECONFIG", "names no kubeconfig of a cluster for tests")
    rows: dict[str, dict[str, Any]] = {}
    for side in ("bare", "egs"):
        world = World(Path(file), options.nodes, options.pods)
        try:
            world.set_up()
            rows[side] = bare(world) if side == "bare" else controlled(world, Path(file))
        finally:
            world.tear_down()
    for row in rows.values():
        row["rate"] = row["pods"] / row["seconds"]
    share = rows["egs"]["rate"] / rows["bare"]["rate"]
    print(json.dumps({"nodes": options.nodes, "pods": options.pods, "sides": rows, "egs_of_bare": share}, indent=2))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
