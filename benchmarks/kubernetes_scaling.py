"""How long a pipeline takes where a cluster autoscaler adds the nodes: by the scheduler alone, with EGS's controller,
and with the controller's placeholders.

    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes_scaling --group LABEL=VALUE --node-time SECONDS
        [--width 3] [--prepare 90] [--train 60] [--report 5] [--sides native,egs,egs-placeholders] [--rounds 1]

    prepare ──► so many trainings, each with a GPU ──► report

One node with a GPU, of the benchmark's own, is there all the time; the others are of the group that the label names.
The pods are as Kubeflow's, made when what they wait for has ended, beside a Workflow that says what comes; what runs is
only told of, by a kubelet of the benchmark's own. A side begins when the group has no node. --node-time is what its
nodes take, as the controller is told.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.kubernetes_world import GPU, IMAGE, NAMESPACES, add_namespace
from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, PRIORITY_CLASSES, WORKFLOWS, ApiError, Cluster, Kind
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.objects import moment, seconds_of
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.settings import Settings

SIDES = ("native", "egs", "egs-placeholders")
GONE_S, LIMIT_S, READY_S, POLL_S = 1800.0, 3600.0, 60.0, 0.2
RUN, BENCH = "scaling", "egs-bench"
CRDS = Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False)


class Step(msgspec.Struct, frozen=True):
    """One pod of the pipeline. after: names of steps."""

    name: str
    seconds: float
    gpus: int = 0
    after: tuple[str, ...] = ()


class Outcome(msgspec.Struct):
    """One side in one round. all_s: from submission to the end; waited_s: of each step with a GPU, from when it could
    have started until it did; nodes, node_s: that were added, and for how long they were there until the end."""

    side: str
    all_s: float = 0.0
    waited_s: list[float] = []
    nodes: int = 0
    node_s: float = 0.0


def pipeline(width: int, prepare_s: float, train_s: float, report_s: float) -> tuple[Step, ...]:
    trainings = tuple(Step(f"train-{number}", train_s, 1, ("prepare",)) for number in range(width))
    return (Step("prepare", prepare_s), *trainings, Step("report", report_s, 0, tuple(one.name for one in trainings)))


def rank_s(steps: Sequence[Step], step: Step) -> float:
    """From its start to the end of the run."""
    return step.seconds + max((rank_s(steps, one) for one in steps if step.name in one.after), default=0.0)


def pod_of_step(steps: Sequence[Step], step: Step, select: dict[str, str], side: str) -> dict[str, Any]:
    """As Kubeflow's driver and Argo would make it."""
    labels = {names.ARGO_RUN: RUN, "pipelines.kubeflow.org/v2_component": "true", BENCH: RUN}
    asked = {"cpu": "1", **({GPU: str(step.gpus)} if step.gpus else {})}
    main = {"name": "main", "image": IMAGE, "resources": {"limits": asked}}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [main], "tolerations": [{"operator": "Exists"}]}
    spec["nodeSelector"] = select if step.gpus else {BENCH: "own"}
    if side != "native":
        labels |= {names.WORKLOAD: RUN, names.TASK: step.name}
        labels |= {names.RANK: f"{rank_s(steps, step):.1f}", names.PREDICTED_S: f"{step.seconds:.1f}"}
        spec["schedulingGates"] = [{"name": names.GATE}]
    notes = {names.ARGO_NODE: f"{RUN}.root.{step.name}.executor"}
    return {"metadata": {"name": f"{RUN}-{step.name}", "labels": labels, "annotations": notes}, "spec": spec}


def workflow(steps: Sequence[Step], select: dict[str, str]) -> dict[str, Any]:
    """What Kubeflow's compiler writes of it, as far as the controller reads it: a driver before each step, which is
    told of its container and of nodes."""
    tasks: list[dict[str, Any]] = []
    arguments: list[dict[str, str]] = []
    for one in steps:
        asked = {"resourceCpuLimit": "1"} | ({"accelerator": {"type": GPU, "count": one.gpus}} if one.gpus else {})
        container = {"image": IMAGE, "resources": asked}
        platform = {"nodeSelector": {"labels": select}, "tolerations": [{"operator": "Exists"}]} if one.gpus else {}
        told = {"container": container, "kubernetes-config": platform}
        arguments += [
            {"name": f"{what}-{one.name}", "value": msgspec.json.encode(said).decode()} for what, said in told.items()
        ]
        refers = [{"name": what, "value": f"{{{{workflow.parameters.{what}-{one.name}}}}}"} for what in told]
        label = {"pod-metadata-label-key-1": names.PREDICTED_S, "pod-metadata-label-val-1": f"{one.seconds:.1f}"}
        says = [{"name": key, "value": value} for key, value in label.items()]
        depends = " && ".join(f"{name}.Succeeded" for name in one.after)
        driver = {"name": f"{one.name}-driver", "template": "driver", "arguments": {"parameters": refers}}
        tasks.append({**driver, **({"depends": depends} if depends else {})})
        tasks.append(
            {
                "name": one.name,
                "template": "executor",
                "depends": f"{one.name}-driver.Succeeded",
                "arguments": {"parameters": says},
            }
        )
    roles = {"annotations": {"pipelines.kubeflow.org/runtime-role": "driver"}}
    templates = [
        {"name": "driver", "container": {"image": IMAGE}, "metadata": roles},
        {"name": "impl", "container": {"image": IMAGE}},
        {"name": "executor", "dag": {"tasks": [{"name": "executor", "template": "impl"}]}},
        {"name": "root", "dag": {"tasks": tasks}},
        {"name": "entrypoint", "dag": {"tasks": [{"name": "root", "template": "root"}]}},
    ]
    spec = {"entrypoint": "entrypoint", "templates": templates, "arguments": {"parameters": arguments}}
    meta = {"name": RUN, "labels": {"pipeline/runid": "1"}}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": meta, "spec": spec}


class Trial:
    """One side of one round, in a namespace of its own with a node of its own."""

    def __init__(self, cluster: Cluster, steps: Sequence[Step], group: str, outcome: Outcome) -> None:
        self.cluster, self._steps, self._outcome = cluster, steps, outcome
        self.name = f"{BENCH}-{uuid.uuid4().hex[:6]}"
        key, _, value = group.partition("=")
        self._select, self._group = {key: value}, group
        self._began: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._over: dict[str, float] = {}

    def set_up(self) -> None:
        _wait(lambda: not self._added(), GONE_S, f"nodes with {self._group} are still there")
        add_namespace(self.cluster, self.name)
        labels = {"kubernetes.io/hostname": self.name, BENCH: "own", **self._select}
        self.cluster.create(NODES, {"metadata": {"name": self.name, "labels": labels}})
        offered = {"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "1"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": offered, "capacity": offered, "conditions": ready}
        self.cluster.patch(NODES, f"{self.name}/status", {"status": status})
        self.cluster.create(WORKFLOWS, workflow(self._steps, self._select), self.name)
        self.cluster.patch(WORKFLOWS, RUN, {"status": {"phase": "Running"}}, self.name)

    def tear_down(self) -> None:
        for raw in self.cluster.list(PODS, self.name)[0]:
            with suppress(ApiError):
                self.cluster.delete(PODS, f"{raw['metadata']['name']}?gracePeriodSeconds=0", self.name)
        for kind, name, where in ((WORKFLOWS, RUN, self.name), (NODES, self.name, ""), (NAMESPACES, self.name, "")):
            with suppress(ApiError):
                self.cluster.delete(kind, name, where)

    def run(self) -> None:
        """Until the last step has ended."""
        start = time.monotonic()
        while len(self._over) < len(self._steps):
            if time.monotonic() - start > LIMIT_S:
                raise SystemExit(f"{self._outcome.side}: {len(self._over)} steps have ended after {LIMIT_S:.0f} s")
            pods = {one.name: one for one in map(pod_of, self.cluster.list(PODS, self.name, f"{BENCH}={RUN}")[0])}
            for step in self._steps:
                self._follow(step, pods.get(f"{RUN}-{step.name}"), time.monotonic())
            time.sleep(POLL_S)
        self._outcome.all_s = time.monotonic() - start
        trained = [one.name for one in self._steps if one.gpus]
        self._outcome.waited_s = [self._began[name] - self._ready[name] for name in trained]
        found, now = self._added(), self.cluster.now()
        self._outcome.nodes = len(found)
        self._outcome.node_s = sum(now - made for made in found.values())

    def _follow(self, step: Step, pod: Pod | None, now: float) -> None:
        """As what makes its pod, and as the kubelet of that."""
        if step.name not in self._ready and self._over.keys() >= {*step.after}:
            self._ready[step.name] = now
            made = pod_of_step(self._steps, step, self._select, self._outcome.side)
            self.cluster.create(PODS, made, self.name)
        elif pod is not None and pod.node and step.name not in self._began:
            self._began[step.name] = now
            self._tell(pod, {"phase": "Running", "startTime": moment(self.cluster.now())})
        elif pod is not None and now - self._began.get(step.name, now) >= step.seconds and step.name not in self._over:
            self._tell(pod, {"phase": "Succeeded"})
            self._over[step.name] = now

    def _tell(self, pod: Pod, status: dict[str, Any]) -> None:
        self.cluster.patch(PODS, f"{pod.name}/status", {"status": status}, self.name)

    def _added(self) -> dict[str, float]:
        """Nodes that the autoscaler has added, and when they were there."""
        found = (one["metadata"] for one in self.cluster.list(NODES, labels=self._group)[0])
        return {one["name"]: seconds_of(one["creationTimestamp"]) for one in found if one["name"] != self.name}


def _wait(what: Callable[[], bool], limit_s: float, lacking: str) -> None:
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            raise SystemExit(f"{lacking} after {limit_s:.0f} s")
        time.sleep(POLL_S)


def _add_kinds(cluster: Cluster) -> None:
    """Argo's kind of object, without a schema, and the class of placeholders, where they are not there."""
    of = Installation("egs:1", placeholders=PlaceholderSettings(most=1))
    classes = [one for one in objects(of) if one["metadata"]["name"] == names.PLACEHOLDER_CLASS]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    called = {"kind": "Workflow", "listKind": "WorkflowList", "plural": "workflows", "singular": "workflow"}
    versions = [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}]
    spec = {"group": "argoproj.io", "scope": "Namespaced", "names": called, "versions": versions}
    made = {"metadata": {"name": "workflows.argoproj.io"}, "spec": spec}
    for kind, one in ((CRDS, made), *((PRIORITY_CLASSES, one) for one in classes if one["kind"] == "PriorityClass")):
        with suppress(ApiError):
            cluster.create(kind, one)
    _wait(lambda: _is_served(cluster), READY_S, "Workflows are not served")


def _is_served(cluster: Cluster) -> bool:
    try:
        cluster.list(WORKFLOWS)
    except ApiError:
        return False
    return True


@contextmanager
def _ordered(kubeconfig: Path, name: str, side: str, placeholders: PlaceholderSettings) -> Iterator[None]:
    """With a controller, where the side has one."""
    if side == "native":
        yield
        return
    stated = placeholders if side == "egs-placeholders" else PlaceholderSettings()
    settings = Settings((name,), lease_namespace=name, identity="bench", with_kueue=False, placeholders=stated)
    found = Controller(Cluster(kubeconfig), settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        _wait(lambda: found.is_healthy, READY_S, "no controller leads")
        yield
    finally:
        found.stop()
        thread.join(60)


def measure(kubeconfig: Path, side: str, steps: Sequence[Step], group: str, stated: PlaceholderSettings) -> Outcome:
    outcome = Outcome(side)
    trial = Trial(Cluster(kubeconfig), steps, group, outcome)
    try:
        trial.set_up()
        with _ordered(kubeconfig, trial.name, side, stated):
            trial.run()
    finally:
        trial.tear_down()
    return outcome


def show(outcomes: Sequence[Outcome]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("side", "run s", "a GPU step waited s", "nodes added", "their time s"):
        table.add_column(head, justify="left" if head == "side" else "right")
    for side in dict.fromkeys(one.side for one in outcomes):
        mine = [one for one in outcomes if one.side == side]
        waited = [seconds for one in mine for seconds in one.waited_s]
        table.add_row(
            side,
            ", ".join(f"{one.all_s:.0f}" for one in mine),
            f"{statistics.fmean(waited):.1f} (most {max(waited):.1f})",
            ", ".join(str(one.nodes) for one in mine),
            ", ".join(f"{one.node_s:.0f}" for one in mine),
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", required=True, help="label of the nodes that the autoscaler adds, LABEL=VALUE")
    parser.add_argument("--node-time", type=float, required=True, help="seconds that one of them takes")
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--prepare", type=float, default=90.0)
    parser.add_argument("--train", type=float, default=60.0)
    parser.add_argument("--report", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", default=",".join(SIDES))
    options = parser.parse_args()
    sides = options.sides.split(",")
    if unknown := [one for one in sides if one not in SIDES]:
        raise InputError("--sides", f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    file = os.environ.get("EGS_TEST_KUBECONFIG", "")
    if not file:
        raise InputError("EGS_TEST_KUBECONFIG", "names no kubeconfig of a cluster for tests")
    steps = pipeline(options.width, options.prepare, options.train, options.report)
    stated = PlaceholderSettings(most=options.width, node_s=options.node_time)
    _add_kinds(Cluster(Path(file)))
    outcomes = []
    for number in range(options.rounds):
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            outcomes.append(measure(Path(file), side, steps, options.group, stated))
            print(f"round {number} {outcomes[-1]}", file=sys.stderr)
    show(sorted(outcomes, key=lambda one: sides.index(one.side)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
