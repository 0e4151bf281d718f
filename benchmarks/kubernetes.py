"""Pipelines as pods of a full cluster: on the scheduler alone, with Kueue, with EGS, with both, by completion times.

    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes [--runs 24] [--rounds 2] [--gpus 4] [--times 1]
        [--sides native,kueue,egs,egs-kueue] [--json]

A real API server with its scheduler, and Kueue where it is installed; nodes and their kubelet are made up here, so pods
run for as long as they should and no container does. A run is one of four forms, each with CPU tasks and tasks of one
GPU; all are there at once. What makes their pods stands in for a pipeline's own controller: a pod for each task whose
parents have ended. It labels them with the rank and duration that a compiler would have known: the median; what a task
takes is that times a seeded log-normal factor (sigma 0.3).

    chain    prepare ─► fit ─► fit ─► fit ─► report        wide    prepare ─► 8 fits side by side ─► report
    deep     6 fits in a row ─► report                     large   prepare ─► 20 short fits and a long one ─► merge

Sides: native, kueue: no labels of EGS; egs: behind its gate; egs-kueue: in the queue, whose Workloads EGS raises. The
order of submission changes with the round, sides take turns. An inversion: a GPU pod gets its node while another one of
its run has waited for longer than a second and has more than 1.1 times as much of the run behind it. Idle: the share of
the GPUs' time until the last run's end that no pod had. Kueue admits a few pods a second where it has little processor:
more seconds a task (--times) and fewer GPUs a node (--gpus) measure the order, and not that.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import CLUSTER_QUEUES, LOCAL_QUEUES, NODES, PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.controller import Controller, Settings
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.pods import moment

SIDES = ("native", "kueue", "egs", "egs-kueue")
NODES_OF, CPUS = 2, 16
SIGMA, SEED = 0.3, 1
WRITERS = 4
FORMS = ("chain", "wide", "deep", "large")
WAITED_S, MORE = 1.0, 1.1
LIMIT_S, READY_S = 1800.0, 120.0
GPU = "nvidia.com/gpu"
QUEUE = "egs-bench"
NAMESPACES, FLAVORS = (
    Kind("/api/v1", "namespaces", False),
    Kind("/apis/kueue.x-k8s.io/v1beta2", "resourceflavors", False),
)


class Task(msgspec.Struct, frozen=True):
    """parents: numbers of earlier tasks of its run; predicted_s, takes_s: as is believed, and so long; rank_s: from its
    start to the run's end, as is believed."""

    parents: tuple[int, ...]
    gpus: int
    predicted_s: float
    takes_s: float
    rank_s: float = 0.0


Run = tuple[Task, ...]


class Outcome(msgspec.Struct):
    """One side in one round. done_s: of each run, from the submission of all."""

    side: str
    round: int
    done_s: list[float] = []
    inversions: int = 0
    gpu_pods: int = 0
    idle: float = 0.0

    @property
    def makespan_s(self) -> float:
        return max(self.done_s)

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.done_s)


def run_of(form: str, rng: random.Random, times: float = 1.0) -> Run:
    """One run. Tasks come after their parents. times: each takes so many times as long."""
    tasks: list[Task] = []

    def add(parents: Sequence[int], gpus: int, median_s: float) -> int:
        predicted = times * median_s * rng.uniform(0.7, 1.3)
        tasks.append(Task(tuple(parents), gpus, predicted, predicted * rng.lognormvariate(0.0, SIGMA)))
        return len(tasks) - 1

    if form == "chain":
        last = add((), 0, 1.0)
        for _ in range(3):
            last = add((last,), 1, 2.0)
        add((last,), 0, 0.5)
    elif form == "deep":
        last = add((), 1, 2.0)
        for _ in range(5):
            last = add((last,), 1, 2.0)
        add((last,), 0, 0.5)
    elif form == "wide":
        first = add((), 0, 1.0)
        add([add((first,), 1, 2.5) for _ in range(8)], 0, 0.5)
    else:
        first = add((), 0, 1.0)
        short = [add((first,), 1, 1.5) for _ in range(20)]
        add([*short, add((first,), 1, 8.0)], 0, 1.0)
    return ranked(tasks)


def ranked(tasks: Sequence[Task]) -> Run:
    """With the longest path from each to the end of the run."""
    behind = [0.0] * len(tasks)
    ranks = [0.0] * len(tasks)
    for number in range(len(tasks) - 1, -1, -1):
        ranks[number] = tasks[number].predicted_s + behind[number]
        for parent in tasks[number].parents:
            behind[parent] = max(behind[parent], ranks[number])
    return tuple(msgspec.structs.replace(task, rank_s=rank) for task, rank in zip(tasks, ranks, strict=True))


def suite(runs: int, number: int, times: float = 1.0) -> list[Run]:
    """The runs of a round, in the order in which they are submitted: the same on each side."""
    rng = random.Random(SEED + number)
    found = [run_of(form, rng, times) for form in itertools.islice(itertools.cycle(FORMS), runs)]
    rng.shuffle(found)
    return found


def is_inverted(tasks: Run, placed: int, waited: Sequence[int]) -> bool:
    """Whether one of those that have waited should have been placed before. All by their numbers."""
    return any(tasks[other].rank_s > MORE * tasks[placed].rank_s for other in waited)


class World:
    """A namespace with its nodes, the kubelet of these and what makes the pods of runs. One thread sees and decides;
    some write, so that what one pod's write takes is in no other's way."""

    def __init__(self, kubeconfig: Path, side: str, runs: Sequence[Run], outcome: Outcome, gpus: int) -> None:
        self.cluster = Cluster(kubeconfig)
        self.name = f"egs-bench-{uuid.uuid4().hex[:6]}"
        self._side, self._runs, self._outcome, self._gpus = side, runs, outcome, gpus
        self._woken = threading.Event()
        self._pods = Mirror(self.cluster, PODS, lambda raw: raw, self._woken.set, labels=f"{QUEUE}={self.name}")
        self._made: dict[tuple[int, int], float] = {}
        self._placed: set[tuple[int, int]] = set()
        self._over: list[set[int]] = [set() for _ in runs]
        self._ends: list[tuple[float, tuple[int, int]]] = []
        self._writers = ThreadPoolExecutor(WRITERS)
        self._written: dict[tuple[int, int], Future[object]] = {}
        self._done_s: dict[int, float] = {}

    def set_up(self) -> None:
        self.cluster.create(NAMESPACES, {"metadata": {"name": self.name}})
        offered = {"cpu": str(CPUS), "memory": "64Gi", "pods": "200", GPU: str(self._gpus)}
        for number in range(NODES_OF):
            name = f"{self.name}-{number}"
            self.cluster.create(NODES, {"metadata": {"name": name, "labels": {QUEUE: self.name}}})
            ready = [{"type": "Ready", "status": "True"}]
            status = {"allocatable": offered, "capacity": offered, "conditions": ready}
            self.cluster.patch(NODES, f"{name}/status", {"status": status})
        if "kueue" in self._side:
            self._add_queue()

    def _add_queue(self) -> None:
        quotas = {"cpu": NODES_OF * CPUS, GPU: NODES_OF * self._gpus}
        resources = [{"name": name, "nominalQuota": str(amount)} for name, amount in quotas.items()]
        groups = [{"coveredResources": list(quotas), "flavors": [{"name": self.name, "resources": resources}]}]
        never = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
        spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": never}
        self.cluster.create(FLAVORS, {**_of_kueue("ResourceFlavor", self.name), "spec": {}})
        self.cluster.create(CLUSTER_QUEUES, {**_of_kueue("ClusterQueue", self.name), "spec": spec})
        queue = {**_of_kueue("LocalQueue", QUEUE), "spec": {"clusterQueue": self.name}}
        self.cluster.create(LOCAL_QUEUES, queue, self.name)

    def tear_down(self) -> None:
        self._pods.stop()
        self._writers.shutdown()
        for raw in self.cluster.list(PODS, self.name)[0]:
            with suppress(ApiError):
                free = {"metadata": {"finalizers": None}}
                self.cluster.patch(PODS, raw["metadata"]["name"], free, self.name)
                self.cluster.delete(PODS, f"{raw['metadata']['name']}?gracePeriodSeconds=0", self.name)
        gone = [(NODES, f"{self.name}-{number}") for number in range(NODES_OF)]
        for kind, name in (*gone, (CLUSTER_QUEUES, self.name), (FLAVORS, self.name), (NAMESPACES, self.name)):
            with suppress(ApiError):
                self.cluster.delete(kind, name)

    # --- the run ---

    def run(self) -> None:
        """Until all runs have ended."""
        self._pods.start()
        began = time.monotonic()
        for run in range(len(self._runs)):
            self._submit(run)
        while len(self._done_s) < len(self._runs):
            next_s = self._ends[0][0] - time.monotonic() if self._ends else 1.0
            self._woken.wait(max(0.0, min(1.0, next_s)))
            self._woken.clear()
            self._place()
            while self._ends and self._ends[0][0] <= time.monotonic():
                self._end(*heapq.heappop(self._ends)[1], began)
            if time.monotonic() - began > LIMIT_S:
                raise SystemExit(f"{self._side}: {len(self._done_s)} of {len(self._runs)} runs have ended")
        for written in self._written.values():
            written.result()
        self._outcome.done_s = [self._done_s[run] for run in range(len(self._runs))]
        used_s = sum(task.gpus * task.takes_s for run in self._runs for task in run)
        self._outcome.idle = 1 - used_s / (NODES_OF * self._gpus * self._outcome.makespan_s)

    def _submit(self, run: int) -> None:
        """The pods of its tasks that may start now."""
        for number, task in enumerate(self._runs[run]):
            if (run, number) not in self._made and self._over[run].issuperset(task.parents):
                self._made[run, number] = time.monotonic()
                self._write(run, number, self.cluster.create, PODS, self._pod(run, number, task), self.name)

    def _place(self) -> None:
        """What the scheduler has placed runs from now on."""
        for raw in self._pods.items().values():
            run, number = map(int, raw["metadata"]["name"].split("-")[1:])
            if not raw["spec"].get("nodeName") or (run, number) in self._placed:
                continue
            self._placed.add((run, number))
            task, now = self._runs[run][number], time.monotonic()
            if task.gpus:
                self._outcome.gpu_pods += 1
                self._outcome.inversions += self._is_inverted(run, number, now)
            heapq.heappush(self._ends, (now + task.takes_s, (run, number)))
            self._tell(run, number, "Running")

    def _is_inverted(self, run: int, number: int, now: float) -> bool:
        tasks = self._runs[run]
        waited = [
            other
            for other, task in enumerate(tasks)
            if task.gpus and (run, other) not in self._placed and self._made.get((run, other), now) < now - WAITED_S
        ]
        return is_inverted(tasks, number, waited)

    def _end(self, run: int, number: int, began: float) -> None:
        self._tell(run, number, "Succeeded")
        self._over[run].add(number)
        if len(self._over[run]) == len(self._runs[run]):
            self._done_s[run] = time.monotonic() - began
        else:
            self._submit(run)

    def _tell(self, run: int, number: int, phase: str) -> None:
        status: dict[str, Any] = {"phase": phase}
        if phase == "Running":
            status["startTime"] = moment(time.time())
        ready = "True" if phase == "Running" else "False"
        status["conditions"] = [{"type": "Ready", "status": ready}]
        self._write(run, number, self.cluster.patch, PODS, f"pod-{run}-{number}/status", {"status": status}, self.name)

    def _write(self, run: int, number: int, act: Callable[..., object], *given: object) -> None:
        """Of one pod one after another. What failed is said when the next is written, or at the end."""
        before = self._written.get((run, number))

        def write() -> None:
            if before is not None:
                before.result()
            act(*given)

        self._written[run, number] = self._writers.submit(write)

    def _pod(self, run: int, number: int, task: Task) -> dict[str, Any]:
        labels = {QUEUE: self.name}
        if "egs" in self._side:
            labels |= {names.WORKLOAD: f"run-{run}", names.RUN: f"run-{run}", names.TASK: f"task-{number}"}
            labels |= {names.RANK: f"{task.rank_s:.3f}", names.PREDICTED_S: f"{task.predicted_s:.3f}"}
        labels |= {names.QUEUE: QUEUE} if "kueue" in self._side else {}
        limits = {"cpu": "1", **({GPU: str(task.gpus)} if task.gpus else {})}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "nodeSelector": {QUEUE: self.name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none:1", "resources": {"limits": limits}}],
        }
        if self._side == "egs":
            spec["schedulingGates"] = [{"name": names.GATE}]
        return {"metadata": {"name": f"pod-{run}-{number}", "labels": labels}, "spec": spec}


def _of_kueue(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}


def _control(kubeconfig: Path, name: str, leads: Event, ended: Event) -> None:
    """A controller of EGS, as the cluster's administrator, until that is so. leads: set when it goes round."""
    settings = Settings((name,), lease_namespace=name, identity="bench")
    found = Controller(Cluster(kubeconfig), settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    while not (found.is_healthy or ended.wait(0.1)):
        pass
    leads.set()
    ended.wait()
    found.stop()
    thread.join(60)
    print(f"egs: {time.process_time():.1f} s of processor time", file=sys.stderr)


@contextmanager
def _ordered(kubeconfig: Path, world: World, side: str) -> Iterator[None]:
    """With a controller in a process of its own, where the side has one: it leads before the first pod is there."""
    if "egs" not in side:
        yield
        return
    spawned = multiprocessing.get_context("spawn")
    leads, ended = spawned.Event(), spawned.Event()
    process = spawned.Process(target=_control, args=(kubeconfig, world.name, leads, ended))
    process.start()
    try:
        if not leads.wait(READY_S):
            raise SystemExit(f"{side}: no controller leads after {READY_S:.0f} s")
        yield
    finally:
        ended.set()
        process.join(90)


def measure(kubeconfig: Path, side: str, runs: Sequence[Run], number: int, gpus: int) -> Outcome:
    """One side in one round. gpus: of a node."""
    outcome = Outcome(side, number)
    world = World(kubeconfig, side, runs, outcome, gpus)
    try:
        world.set_up()
        with _ordered(kubeconfig, world, side):
            world.run()
    finally:
        world.tear_down()
    return outcome


def summarise(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row a side: means of the rounds, and of the ratios within a round to the native one and to Kueue alone."""
    rows = []
    for side in dict.fromkeys(one.side for one in outcomes):
        mine = [one for one in outcomes if one.side == side]
        row = {
            "side": side,
            "rounds": len(mine),
            "mean_completion_s": statistics.fmean(one.mean_s for one in mine),
            "makespan_s": statistics.fmean(one.makespan_s for one in mine),
            "inversions": sum(one.inversions for one in mine),
            "gpu_pods": sum(one.gpu_pods for one in mine),
            "idle": statistics.fmean(one.idle for one in mine),
        }
        for other in ("native", "kueue"):
            against = {one.round: one.mean_s for one in outcomes if one.side == other}
            if against:
                row[f"{other}_over"] = statistics.fmean(against[one.round] / one.mean_s for one in mine)
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    heads = (
        "side",
        "mean completion s",
        "native over it",
        "Kueue over it",
        "makespan s",
        "idle",
        "inversions",
        "GPU pods",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "side" else "right")
    for row in rows:
        ratios = [f"{row[name]:.2f}" if name in row else "" for name in ("native_over", "kueue_over")]
        table.add_row(
            row["side"], f"{row['mean_completion_s']:.1f}", *ratios, f"{row['makespan_s']:.1f}", f"{row['idle']:.0%}",
            str(row["inversions"]), str(row["gpu_pods"]),
        )  # fmt: skip
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=4, help="of each of the two nodes")
    parser.add_argument("--times", type=float, default=1.0, help="so many times as long takes each task")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sides = options.sides.split(",")
    if unknown := [one for one in sides if one not in SIDES]:
        raise InputError("--sides", f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    file = os.environ.get("EGS_TEST_KUBECONFIG", "")
    if not file:
        raise InputError("EGS_TEST_KUBECONFIG", "names no kubeconfig of a cluster for tests")
    outcomes = []
    for number in range(options.rounds):
        runs = suite(options.runs, number, options.times)
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            outcomes.append(measure(Path(file), side, runs, number, options.gpus))
            found = outcomes[-1]
            print(f"round {number} {side}: mean {found.mean_s:.1f} s, all {found.makespan_s:.1f} s", file=sys.stderr)
    rows = summarise(sorted(outcomes, key=lambda one: sides.index(one.side)))
    if options.json:
        print(json.dumps({"runs": options.runs, "rows": rows}))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
