"""A world for `benchmarks.kubernetes`: nodes that are made up, their kubelet, and what makes the pods of runs."""

from __future__ import annotations

import heapq
import itertools
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.kubernetes_queue import QUEUE, KueueQueue
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import (
    NODES,
    PODS,
    PRIORITY_CLASSES,
    ApiError,
    Cluster,
    Kind,
)
from egs_core.kubernetes.images import full_name, images_of
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.objects import moment

NODES_OF, CPUS, MEMORY_GIB = 2, 16, 64
WRITERS = 4
WAITED_S, MORE = 1.0, 1.1
LIMIT_S, READY_S = 1800.0, 120.0
WRITTEN_S, AGAIN_S = 300.0, 0.5
AGAIN = (0, 409, 429, 500, 502, 503, 504)
"""What a busy API server, or a webhook that it calls, says of what may be tried again."""
GPU = "nvidia.com/gpu"
IMAGE = "python:3.12"
"""Of tasks that state none: it is on each node."""
NAMESPACES, ACCOUNTS = Kind("/api/v1", "namespaces", False), Kind("/api/v1", "serviceaccounts")


class Side(msgspec.Struct, frozen=True):
    """What works together: see `benchmarks.kubernetes`."""

    egs: bool = False
    kueue: bool = False
    split: bool = False
    preload: bool = False


class Task(msgspec.Struct, frozen=True):
    """parents: numbers of earlier tasks of its run; predicted_s, takes_s: as is believed, and so long; rank_s: from its
    start to the run's end, as is believed. used_s: of takes_s, in which it uses its GPUs; None: all of it. path: of
    Kubeflow's task, whose driver it is where is_driver; "": it is none of Kubeflow's. image: "": one that is there."""

    parents: tuple[int, ...]
    gpus: int
    predicted_s: float
    takes_s: float
    rank_s: float = 0.0
    used_s: float | None = None
    path: str = ""
    is_driver: bool = False
    image: str = ""


Run = tuple[Task, ...]


class Outcome(msgspec.Struct):
    """One side in one round. done_s: of each run, from the submission of all. held_s, used_s: of all GPUs, by pods, and
    by what in them uses one; idle: of the GPUs' time until the last run's end, what nothing used."""

    side: str
    round: int
    done_s: list[float] = []
    inversions: int = 0
    gpu_pods: int = 0
    idle: float = 0.0
    held_s: float = 0.0
    used_s: float = 0.0

    @property
    def makespan_s(self) -> float:
        return max(self.done_s)

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.done_s)


def ranked(tasks: Sequence[Task]) -> Run:
    """With the longest path from each to the end of the run. Nobody predicts what a driver takes."""
    behind = [0.0] * len(tasks)
    ranks = [0.0] * len(tasks)
    for number in range(len(tasks) - 1, -1, -1):
        own_s = 0.0 if tasks[number].is_driver else tasks[number].predicted_s
        ranks[number] = own_s + behind[number]
        for parent in tasks[number].parents:
            behind[parent] = max(behind[parent], ranks[number])
    return tuple(msgspec.structs.replace(task, rank_s=rank) for task, rank in zip(tasks, ranks, strict=True))


def is_inverted(tasks: Run, placed: int, waited: Sequence[int]) -> bool:
    """Whether one of those that have waited should have been placed before. All by their numbers."""
    return any(tasks[other].rank_s > MORE * tasks[placed].rank_s for other in waited)


def pod_of_task(task: Task, run: int, number: int, side: Side, world: str) -> dict[str, Any]:
    """The pod, as a pipeline's controller would make it for this side."""
    labels = {QUEUE: world}
    notes: dict[str, str] = {}
    containers: list[dict[str, Any]] = []
    asked = {"cpu": "100m"} if task.is_driver else {"cpu": "1", **({GPU: str(task.gpus)} if task.gpus else {})}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": {QUEUE: world},
        "tolerations": [{"operator": "Exists"}],
        "containers": containers,
    }
    if task.path:  # as Kubeflow's driver and Argo write it
        labels |= {names.ARGO_RUN: f"digits-{run}", "pipelines.kubeflow.org/v2_component": "true"}
        notes[names.ARGO_NODE] = f"digits-{run}.root.{task.path}.{'driver' if task.is_driver else 'executor'}"
        containers.append({"name": "wait", "image": IMAGE})
        if not task.is_driver:
            limits = {"cpu": "500m", "memory": "256Mi"}
            launcher = {
                "name": "kfp-launcher",
                "image": IMAGE,
                "resources": {"requests": {"cpu": "100m"}, "limits": limits},
            }
            spec["initContainers"] = [launcher]
    containers.append({"name": "main", "image": task.image or IMAGE, "resources": {"limits": asked}})
    if side.egs and not task.is_driver:
        workload = "digits" if task.path else f"run-{run}"
        labels |= {names.WORKLOAD: workload, names.TASK: task.path or f"task-{number}"}
        labels |= {} if task.path else {names.RUN: f"run-{run}"}
        labels |= {names.RANK: f"{task.rank_s:.3f}", names.PREDICTED_S: f"{task.predicted_s:.3f}"}
        if not side.kueue:
            spec["schedulingGates"] = [{"name": names.GATE}]
    if side.kueue and not task.is_driver:
        labels[names.QUEUE] = QUEUE
    return {"metadata": {"name": f"pod-{run}-{number}", "labels": labels, "annotations": notes}, "spec": spec}


class World:
    """A namespace with its nodes, the kubelet of these and what makes the pods of runs. One thread sees and decides;
    some write, so that what one pod's write takes is in no other's way. pull_s: of an image that a node lacks, one
    after the other on each node; what has begun is pulled to its end. limit_s: in which all runs have to end; again:
    how many writes were refused, or not answered, and tried again."""

    def __init__(
        self,
        kubeconfig: Path,
        side: Side,
        runs: Sequence[Run],
        outcome: Outcome,
        gpus: int,
        pull_s: float = 0.0,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.cluster, self._limit_s, self.again = Cluster(kubeconfig), limit_s, 0
        self.name = f"egs-bench-{uuid.uuid4().hex[:6]}"
        self._side, self._runs, self._outcome, self._gpus, self._pull_s = side, runs, outcome, gpus, pull_s
        self._woken = threading.Event()
        self._pods = Mirror(self.cluster, PODS, lambda raw: raw, self._woken.set, labels=f"{QUEUE}={self.name}")
        loading = f"{names.PRELOAD}={names.BY_CONTROLLER}"
        self._preloads = Mirror(self.cluster, PODS, lambda raw: raw, self._woken.set, labels=loading)
        self._made: dict[tuple[int, int], float] = {}
        self._placed: set[tuple[int, int]] = set()
        self._loading: set[str] = set()
        self._pulled: dict[tuple[str, str], float] = {}
        self._over: list[set[int]] = [set() for _ in runs]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._writers = ThreadPoolExecutor(WRITERS)
        self._written: dict[str, Future[object]] = {}
        self._over_now = threading.Event()
        self._done_s: dict[int, float] = {}
        self._began = 0.0

    def set_up(self) -> None:
        add_namespace(self.cluster, self.name)
        offered = {"cpu": str(CPUS), "memory": f"{MEMORY_GIB}Gi", "pods": "200", GPU: str(self._gpus)}
        for number in range(NODES_OF):
            name = f"{self.name}-{number}"
            self.cluster.create(NODES, {"metadata": {"name": name, "labels": {QUEUE: self.name}}})
            ready = [{"type": "Ready", "status": "True"}]
            status = {"allocatable": offered, "capacity": offered, "conditions": ready, "images": self._images(name)}
            self.cluster.patch(NODES, f"{name}/status", {"status": status})
        if self._side.kueue:
            quotas = {"cpu": NODES_OF * CPUS, "memory": f"{NODES_OF * MEMORY_GIB}Gi", GPU: NODES_OF * self._gpus}
            KueueQueue(self.cluster, self.name).add(quotas)
        if self._side.preload:
            for one in objects(Installation("egs:1", self.name, (self.name,), preloads=True)):
                if one["metadata"]["name"] == names.PRELOAD_CLASS and one["kind"] == "PriorityClass":
                    with suppress(ApiError):  # it is there
                        self.cluster.create(PRIORITY_CLASSES, one)

    def tear_down(self) -> None:
        self._over_now.set()
        self._pods.stop()
        self._preloads.stop()
        self._writers.shutdown(cancel_futures=True)
        for raw in self.cluster.list(PODS, self.name)[0]:
            with suppress(ApiError):
                free = {"metadata": {"finalizers": None}}
                self.cluster.patch(PODS, raw["metadata"]["name"], free, self.name)
                self.cluster.delete(PODS, f"{raw['metadata']['name']}?gracePeriodSeconds=0", self.name)
        KueueQueue(self.cluster, self.name).remove()
        gone = [(NODES, f"{self.name}-{number}") for number in range(NODES_OF)]
        for kind, name in (*gone, (NAMESPACES, self.name)):
            with suppress(ApiError):
                self.cluster.delete(kind, name)

    # --- the run ---

    def run(self) -> None:
        """Until all runs have ended."""
        self._pods.start()
        if self._side.preload:
            self._preloads.start()
        self._began = time.monotonic()
        for run in range(len(self._runs)):
            self._submit(run)
        while len(self._done_s) < len(self._runs):
            next_s = self._due[0][0] - time.monotonic() if self._due else 1.0
            self._woken.wait(max(0.0, min(1.0, next_s)))
            self._woken.clear()
            self._place()
            self._load()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            self._look_at_writes()
            if time.monotonic() - self._began > self._limit_s:
                done = f"{len(self._done_s)} of {len(self._runs)} runs have ended"
                raise SystemExit(f"{self._outcome.side}: {done} after {self._limit_s:.0f} s; {self.left()}")
        for written in self._written.values():
            written.result()
        outcome = self._outcome
        outcome.done_s = [self._done_s[run] for run in range(len(self._runs))]
        outcome.used_s = sum(
            task.gpus * (task.takes_s if task.used_s is None else task.used_s) for run in self._runs for task in run
        )
        outcome.idle = 1 - outcome.used_s / (NODES_OF * self._gpus * outcome.makespan_s)

    def left(self) -> str:
        """What has been made and has not ended, and what each pod of it waits for."""
        there = {raw["metadata"]["name"]: raw for raw in self._pods.items().values()}
        found: dict[str, list[str]] = {}
        for run, number in sorted(self._made):
            if number not in self._over[run]:
                name = f"pod-{run}-{number}"
                found.setdefault(_state(there.get(name)), []).append(name)
        return "; ".join(f"{state}: {', '.join(pods)}" for state, pods in sorted(found.items()))

    def _look_at_writes(self) -> None:
        """A run whose pod could not be made, or told of, would never end."""
        for name, written in self._written.items():
            if written.done() and (error := written.exception()) is not None:
                raise SystemExit(f"{self._outcome.side}: {name}: {error}")

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def _submit(self, run: int) -> None:
        """The pods of its tasks that may start now."""
        for number, task in enumerate(self._runs[run]):
            if (run, number) not in self._made and self._over[run].issuperset(task.parents):
                self._made[run, number] = time.monotonic()
                pod = pod_of_task(task, run, number, self._side, self.name)
                self._write(pod["metadata"]["name"], self.cluster.create, PODS, pod, self.name)

    def _place(self) -> None:
        """What the scheduler has placed runs from now on, or from when its images are there."""
        for raw in self._pods.items().values():
            name, node = raw["metadata"]["name"], raw["spec"].get("nodeName")
            run, number = map(int, name.split("-")[1:])
            if not node or (run, number) in self._placed:
                continue
            self._placed.add((run, number))
            task, now = self._runs[run][number], time.monotonic()
            if task.gpus:
                self._outcome.gpu_pods += 1
                self._outcome.inversions += self._is_inverted(run, number, now)
            begins = self._has_images(node, images_of(raw["spec"]), now)
            self._outcome.held_s += task.gpus * (begins - now + task.takes_s)
            if begins > now:
                self._tell(name, "Pending")
                self._at(begins, lambda name=name: self._tell(name, "Running"))  # type: ignore[misc]  # one each
            else:
                self._tell(name, "Running")
            self._at(begins + task.takes_s, lambda run=run, number=number: self._end(run, number))  # type: ignore[misc]  # one each

    def _load(self) -> None:
        """What loads images ahead ends when they are there."""
        for uid, raw in self._preloads.items().items() if self._side.preload else ():
            meta, node = raw["metadata"], raw["spec"].get("nodeName")
            if meta["namespace"] != self.name or not node or uid in self._loading:
                continue
            self._loading.add(uid)
            now = time.monotonic()
            names_of = [one["name"] for one in raw["spec"]["containers"]]
            ready = self._has_images(node, images_of(raw["spec"]), now)
            self._tell(meta["name"], "Pending", names_of)
            self._at(ready, lambda name=meta["name"], of=names_of: self._tell(name, "Succeeded", of))  # type: ignore[misc]  # one each

    def _has_images(self, node: str, images: Sequence[str], now: float) -> float:
        """From when on."""
        ready = now
        for image in images:
            if image == full_name(IMAGE) or not self._pull_s:
                continue
            if (node, image) not in self._pulled:
                before = max((at for (of, _), at in self._pulled.items() if of == node), default=now)
                self._pulled[node, image] = max(now, before) + self._pull_s
                self._at(self._pulled[node, image], lambda: self._list_images(node))
            ready = max(ready, self._pulled[node, image])
        return ready

    def _list_images(self, node: str) -> None:
        self._write(node, self.cluster.patch, NODES, f"{node}/status", {"status": {"images": self._images(node)}})

    def _images(self, node: str) -> list[dict[str, Any]]:
        there = [image for (of, image), at in self._pulled.items() if of == node and at <= time.monotonic()]
        return [{"names": [image], "sizeBytes": 1} for image in sorted({full_name(IMAGE), *there})]

    def _is_inverted(self, run: int, number: int, now: float) -> bool:
        tasks = self._runs[run]
        waited = [
            other
            for other, task in enumerate(tasks)
            if task.gpus and (run, other) not in self._placed and self._made.get((run, other), now) < now - WAITED_S
        ]
        return is_inverted(tasks, number, waited)

    def _end(self, run: int, number: int) -> None:
        self._tell(f"pod-{run}-{number}", "Succeeded")
        self._over[run].add(number)
        if len(self._over[run]) == len(self._runs[run]):
            self._done_s[run] = time.monotonic() - self._began
        else:
            self._submit(run)

    def _tell(self, name: str, phase: str, containers: Sequence[str] = ()) -> None:
        status: dict[str, Any] = {"phase": phase}
        now = moment(time.time())
        if phase != "Succeeded":
            status["startTime"] = now
        if containers:
            state = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}
            waits = {"waiting": {"reason": "ContainerCreating"}}
            about = {"ready": False, "restartCount": 0, "imageID": "", "image": ""}
            states = [{"name": one, **about, "state": waits if phase == "Pending" else state} for one in containers]
            status["containerStatuses"] = states
        status["conditions"] = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]
        self._write(name, self.cluster.patch, PODS, f"{name}/status", {"status": status}, self.name)

    def _write(self, name: str, act: Callable[..., object], *given: object) -> None:
        """Of one object one after another."""
        before = self._written.get(name)

        def write() -> None:
            if before is not None:
                before.result()
            self._try(name, act, given)

        self._written[name] = self._writers.submit(write)

    def _try(self, name: str, act: Callable[..., object], given: Sequence[object]) -> None:
        """Again and again, as what makes a pipeline's pods and what runs them would: Kueue's webhook does not answer in
        time where it has little processor, and a pod is refused then. That a preload is gone is nothing to speak of."""
        end = time.monotonic() + WRITTEN_S
        while True:
            try:
                act(*given)
                return
            except ApiError as error:
                is_made = error.status == 409 and act == self.cluster.create  # before, and was not answered
                if is_made or (error.status == 404 and not name.startswith("pod-")):
                    return
                if error.status not in AGAIN or time.monotonic() > end:
                    raise
            self.again += 1
            if self._over_now.wait(AGAIN_S):
                return


def _state(raw: Mapping[str, Any] | None) -> str:
    """Of a pod, or of one that is not there."""
    if raw is None:
        return "not there"
    if gates := [one["name"] for one in raw["spec"].get("schedulingGates") or ()]:
        return f"behind {' and '.join(gates)}"
    return str((raw.get("status") or {}).get("phase")) if raw["spec"].get("nodeName") else "without a node"


def add_namespace(cluster: Cluster, name: str) -> None:
    """It takes pods once the cluster has made its account, which is late where the controller manager is busy."""
    cluster.create(NAMESPACES, {"metadata": {"name": name}})
    end = time.monotonic() + READY_S
    while True:
        try:
            cluster.get(ACCOUNTS, "default", name)
            return
        except ApiError as error:
            if error.status != 404 or time.monotonic() > end:
                raise
        time.sleep(0.1)
