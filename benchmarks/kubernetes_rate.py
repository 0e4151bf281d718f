"""How fast the controller opens the gates of a large cluster, against a bare loop that only takes them off.

    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes_rate [--nodes 1000] [--pods 10000] [--a-second N]
        [--window 50] [--shared] [--sides bare,bare_beside,egs]
    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes_rate --nodes 100 --pods 500 --sides kueue_bare,kueue_egs

A real API server with its scheduler; nodes are made up, no container runs. All pods are there, gated, before either
begins, and all of them have room. The bare loop patches one pod after another over one connection, or as many side by
side as the controller does (`bare_beside`). The controller runs in a process of its own: its processor time and memory
are that process's, lists and watches included; decision to release is from the engine's grant to the API server's
answer. With `--a-second` each node has room for one pod, and so many a second of those that are placed end: what a
decision takes then, and not how long the line before it is; the first ones, which have room at once, are not counted,
and none ends before all of them have their nodes.
With `--shared` all sides have the same pods: each bare loop opens a tenth of them, the controller the rest. It is said,
too, when all of them had their nodes: the controller waits for that, `--window` pods at a time, and a loop does not.

Sides with Kueue: all pods wait in a queue that is held, and has quota for all; then it is let go, and pods a second are
those that Kueue gives quota, while a loop writes a priority into each Workload that waits (`kueue_bare`), while the
controller writes its own (`kueue_egs`), or while nobody does (`kueue`).
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_queue import QUEUE, KueueQueue
from benchmarks.kubernetes_world import GPU, NAMESPACES, add_namespace
from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, WORKLOADS, ApiError, Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.gates import Opening
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.opening import open_gate, raise_priority
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.priorities import Raise, Workload, workload_of
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.settings import Settings
from egs_core.kubernetes.writing import AT_ONCE
from egs_core.site import Grant

SIDES = ("bare", "bare_beside", "egs")
KUEUE_SIDES = ("kueue", "kueue_bare", "kueue_egs")
RUNS = 100
MAKERS = 4
LIMIT_S = 1800.0
SHARE = 0.1
"""Of shared pods, what each bare loop opens."""


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
    """Notes how long after its grant each gate was open, and when. lags_s, at: in the order of opening; looks: steps
    that it made."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lags_s: list[float] = []
        self.at: list[float] = []
        self.looks = 0

    def step(self, now: float) -> None:
        self.looks += 1
        super().step(now)

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

    def __init__(self, kubeconfig: Path, nodes: int, pods: int, a_second: float = 0.0, in_kueue: bool = False) -> None:
        self.cluster, self.kubeconfig, self.in_kueue = Cluster(kubeconfig), kubeconfig, in_kueue
        self.name = f"egs-rate-{uuid.uuid4().hex[:6]}"
        self.nodes, self.pods, self.a_second = nodes, pods, a_second
        self.gpus = 1 if a_second else -(-pods // nodes)  # of a node

    @property
    def at_once(self) -> int:
        """So many pods have room before any has ended."""
        return min(self.pods, self.nodes * self.gpus)

    def set_up(self) -> None:
        add_namespace(self.cluster, self.name)
        self._each(range(self.nodes), self._add_node)
        if self.in_kueue:
            queue = KueueQueue(self.cluster, self.name)
            queue.add({"cpu": self.pods, GPU: self.pods}, is_held=True)
        self._each(range(self.pods), self._add_pod)
        self.pods = len(self.cluster.list(PODS, self.name)[0])  # a busy machine loses one

    def tear_down(self) -> None:
        uids = [raw["metadata"]["name"] for raw in self.cluster.list(PODS, self.name)[0]]
        self._each(uids, self._delete_pod)
        if self.in_kueue:
            KueueQueue(self.cluster, self.name).remove()
        self._each(range(self.nodes), lambda cluster, number: cluster.delete(NODES, f"{self.name}-{number}"))
        self.cluster.delete(NAMESPACES, self.name)

    def _delete_pod(self, cluster: Cluster, name: str) -> None:
        if self.in_kueue:
            cluster.patch(PODS, name, {"metadata": {"finalizers": None}}, self.name)
        cluster.delete(PODS, f"{name}?gracePeriodSeconds=0", self.name)

    def _each(self, what: Any, act: Any) -> None:
        """With a connection for each thread."""
        own = threading.local()

        def one(item: Any) -> None:
            if not hasattr(own, "cluster"):
                own.cluster = Cluster(self.kubeconfig)
            with suppress(ApiError):
                act(own.cluster, item)

        with ThreadPoolExecutor(MAKERS) as pool:
            list(pool.map(one, what))

    def _add_node(self, cluster: Cluster, number: int) -> None:
        name = f"{self.name}-{number}"
        cluster.create(NODES, {"metadata": {"name": name, "labels": {QUEUE: self.name}}})
        offered = {"cpu": "64", "memory": "64Gi", "pods": "200", GPU: str(self.gpus)}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": offered, "capacity": offered, "conditions": ready}
        cluster.patch(NODES, f"{name}/status", {"status": status})

    def _add_pod(self, cluster: Cluster, number: int) -> None:
        run = f"run-{number % RUNS}"
        labels = {names.WORKLOAD: run, names.RUN: run, names.TASK: f"task-{number}", QUEUE: self.name}
        labels |= {names.RANK: str(60 + number % 977), names.PREDICTED_S: "60"}
        labels |= {names.QUEUE: QUEUE} if self.in_kueue else {}
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {QUEUE: self.name},
            "tolerations": [{"operator": "Exists"}],
            "schedulingGates": [] if self.in_kueue else [{"name": names.GATE}],
            "containers": [{"name": "main", "image": "none:1", "resources": {"limits": {"cpu": "1", GPU: "1"}}}],
        }
        cluster.create(PODS, {"metadata": {"name": f"pod-{number}", "labels": labels}, "spec": spec}, self.name)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Pods that are placed end, so many a second."""
        if not self.a_second:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._end, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _end(self, over: threading.Event) -> None:
        cluster, ended = Cluster(self.kubeconfig), set[str]()
        placed = Mirror(cluster, PODS, pod_of, lambda: None, labels=f"{QUEUE}={self.name}")
        placed.start()
        # what has room at once is a line of its own: what comes after it is measured behind its end
        while sum(bool(one.node) for one in placed.items().values()) < self.at_once and not over.wait(0.2):
            pass
        began = time.monotonic()
        while not over.wait(max(0.0, began + len(ended) / self.a_second - time.monotonic())):
            pod = next((one for one in placed.items().values() if one.node and one.uid not in ended), None)
            if pod is None:
                began += 0.1  # nothing is there to end: what was not ended then is not made up for
                continue
            ended.add(pod.uid)
            cluster.patch(PODS, f"{pod.name}/status", {"status": {"phase": "Succeeded"}}, pod.namespace)
        placed.stop()

    def gated(self) -> list[Pod]:
        return [pod for raw in self.cluster.list(PODS, self.name)[0] if (pod := pod_of(raw)).is_gated]

    def settle(self) -> None:
        """Until what has been opened has its node."""
        end = time.monotonic() + LIMIT_S
        while any(not pod.node for raw in self.cluster.list(PODS, self.name)[0] if not (pod := pod_of(raw)).is_gated):
            if time.monotonic() > end:
                raise SystemExit("the scheduler has no place for what was opened")
            time.sleep(2.0)


def bare(world: World, at_once: int = 1, share: float = 1.0) -> dict[str, Any]:
    """A loop that takes the gates off, and does nothing else. at_once: so many patches side by side; share: of the
    pods, so many of them."""
    pods = world.gated()[: round(share * world.pods)]
    took_s: list[float] = []
    began = time.monotonic()

    def act(pod: Pod) -> None:
        open_gate(world.cluster, pod, "bare", time.time())
        took_s.append(time.monotonic() - began)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(act, pods))
    lags = {"release_p50_s": _share(took_s, 0.5), "release_p99_s": _share(took_s, 0.99)}
    return {"pods": len(pods), "seconds": time.monotonic() - began, "calls_a_pod": 1.0, **lags}


def _share(found: Sequence[float], share: float) -> float:
    return sorted(found)[int(share * len(found))]


def _control(kubeconfig: Path, name: str, pods: int, first: int, window: int, told: Connection) -> None:
    """In a process of its own: until all gates are open. first: so many are not counted; window: of its settings."""
    cluster = CountedCluster(kubeconfig)
    began, processor_s = time.monotonic(), time.process_time()
    settings = Settings((name,), window, lease_namespace=name, identity="rate")
    found = TimedController(cluster, settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    while len(found.at) < pods and time.monotonic() - began < LIMIT_S:
        time.sleep(0.1)
    ended, used_s = time.monotonic(), time.process_time() - processor_s
    calls = dict(cluster.calls)
    found.stop()
    thread.join(60)
    lags = found.lags_s[first:]
    told.send(
        {
            "pods": len(found.at),
            "seconds": found.at[-1] - found.at[0],
            "until_first_s": found.at[0] - began,
            "looks": found.looks,
            "release_p50_s": _share(lags, 0.5),
            "release_p99_s": _share(lags, 0.99),
            "release_max_s": max(lags),
            "processors": used_s / (ended - began),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "calls_a_pod": sum(calls.values()) / len(found.at),
            "calls": calls,
        }
    )


def controlled(world: World, kubeconfig: Path, window: int) -> dict[str, Any]:
    """The controller, as the cluster's administrator."""
    spawned = multiprocessing.get_context("spawn")
    mine, its = spawned.Pipe()
    first = world.at_once if world.a_second else 0
    asked = (kubeconfig, world.name, len(world.gated()), first, window, its)
    process = spawned.Process(target=_control, args=asked)
    process.start()
    its.close()
    try:
        with world.ending():
            return dict(mine.recv())
    finally:
        process.join(60)


def _steer(kubeconfig: Path, name: str, told: Connection) -> None:
    """A controller in a process of its own, until it is told that all is over."""
    cluster = CountedCluster(kubeconfig)
    settings = Settings((name,), lease_namespace=name, identity="rate")
    found = Controller(cluster, settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    while not found.is_healthy:
        time.sleep(0.1)
    began, processor_s = time.monotonic(), time.process_time()
    told.send("leads")
    told.recv()
    processors = (time.process_time() - processor_s) / (time.monotonic() - began)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told.send({"processors": processors, "memory_mib": memory_mib, "calls": dict(cluster.calls)})
    found.stop()
    thread.join(60)


def admitted(world: World, side: str) -> dict[str, Any]:
    """From when the queue is let go until all have quota."""
    told: Connection | None = None
    if side == "kueue_egs":
        spawned = multiprocessing.get_context("spawn")
        told, its = spawned.Pipe()
        spawned.Process(target=_steer, args=(world.kubeconfig, world.name, its), daemon=True).start()
        its.close()
        told.recv()
    seen = Mirror(world.cluster, WORKLOADS, workload_of, lambda: None)
    seen.start()

    def mine() -> dict[str, Workload]:
        return {uid: one for uid, one in seen.items().items() if one.namespace == world.name}

    began = time.monotonic()
    while len(mine()) < world.pods:
        time.sleep(0.1)
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"{side}: Kueue has {len(mine())} Workloads of {world.pods} pods")
    began, patched, writer = time.monotonic(), 0, Cluster(world.kubeconfig)
    KueueQueue(world.cluster, world.name).let_go()
    for uid, one in mine().items() if side == "kueue_bare" else ():
        if (now := seen.items().get(uid)) is not None and not now.holds:
            patched += 1
            with suppress(ApiError):  # it has quota by now
                raise_priority(writer, Raise(one.namespace, one.name, 1000 + patched, one.base))
    while any(not one.holds for one in mine().values()) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.2)  # a look at ten thousand takes its time
    found: dict[str, Any] = {"pods": world.pods, "seconds": time.monotonic() - began}
    seen.stop()
    if patched:
        found |= {"calls_a_pod": patched / world.pods}
    if told is not None:
        told.send("over")
        found |= told.recv()
        found["calls_a_pod"] = sum(found["calls"].values()) / world.pods
    return found


def apart(kubeconfig: Path, sides: Sequence[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each side with pods of its own."""
    rows: dict[str, dict[str, Any]] = {}
    for side in sides:
        a_second, in_kueue = options.a_second if side == "egs" else 0.0, side in KUEUE_SIDES
        world = World(kubeconfig, options.nodes, options.pods, a_second, in_kueue)
        try:
            world.set_up()
            rows[side] = admitted(world, side) if in_kueue else opened(world, side, options.window)
        finally:
            world.tear_down()
    return rows


def shared(kubeconfig: Path, sides: Sequence[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """One side after the other, with the same nodes and pods."""
    rows: dict[str, dict[str, Any]] = {}
    world = World(kubeconfig, options.nodes, options.pods)
    try:
        world.set_up()
        for side in sides:
            began = time.monotonic()
            rows[side] = opened(world, side, options.window, SHARE)
            world.settle()
            rows[side]["until_placed_s"] = time.monotonic() - began
    finally:
        world.tear_down()
    return rows


def opened(world: World, side: str, window: int, share: float = 1.0) -> dict[str, Any]:
    """window: of the controller; share: of the pods, what a bare loop opens."""
    if side == "egs":
        return controlled(world, world.kubeconfig, window)
    return bare(world, AT_ONCE if side == "bare_beside" else 1, share)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--a-second", type=float, default=0.0, help="so many pods end in a second; 0: all have room")
    parser.add_argument("--window", type=int, default=50, help="of the controller: so many open pods wait for a node")
    parser.add_argument("--shared", action="store_true", help="all sides, the controller last, open gates of one set")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"of {', '.join((*SIDES, *KUEUE_SIDES))}")
    options = parser.parse_args()
    file = os.environ.get("EGS_TEST_KUBECONFIG", "")
    if not file:
        raise InputError("EGS_TEST_KUBECONFIG", "names no kubeconfig of a cluster for tests")
    sides = options.sides.split(",")
    if unknown := [one for one in sides if one not in (*SIDES, *KUEUE_SIDES)]:
        raise InputError("--sides", f"{unknown[0]!r} is none of {', '.join((*SIDES, *KUEUE_SIDES))}")
    if options.shared and (options.a_second or "egs" in sides[:-1] or not {*sides} <= {*SIDES}):
        raise InputError("--shared", "is for sides without Kueue, of which egs is the last", "leave --a-second out")
    rows = shared(Path(file), sides, options) if options.shared else apart(Path(file), sides, options)
    for row in rows.values():
        row["rate"] = row["pods"] / row["seconds"]
    found = {"nodes": options.nodes, "pods": options.pods, "a_second": options.a_second, "sides": rows}
    for ours, others in (("egs", SIDES), ("kueue_egs", KUEUE_SIDES)):
        for side in others if ours in rows else ():
            if side in rows and side != ours:
                found[f"{ours}_of_{side}"] = rows[ours]["rate"] / rows[side]["rate"]
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
