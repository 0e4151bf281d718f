"""One run of one DAG of the pipeline: its tasks, how far they are, and what may run after what.

A scope knows no engine, process or file. What the pipeline itself says is decided here: a task runs when all that it
waits for has succeeded; one with the strategy ALL_UPSTREAM_TASKS_COMPLETED (an exit task, `ignore_upstream_failure`)
when all of it has ended somehow. After a failure nothing new starts in the same DAG, as Argo has it on a cluster, but
such tasks and what waits for them. What waits for a skipped task is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from egs_kubeflow.convert.flatten import COMPLETED
from egs_kubeflow.run.values import Values, arguments_of, outputs_of_dag

PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED = "pending", "running", "succeeded", "failed", "skipped"
ENDED = frozenset({SUCCEEDED, FAILED, SKIPPED})
STATES = {SUCCEEDED: "COMPLETE"}
"""What a `PipelineTaskFinalStatus` says: the state of the task's execution in ML Metadata, which the cluster's driver
passes on as it is (backend 2.16). The SDK's documentation has SUCCEEDED, which no task there ever gets."""


@dataclass(eq=False)
class Node:
    """One task in one run of its DAG. scopes: the runs of DAGs that it stands for. waiting: items of a loop that no
    iteration has yet. number and phase: the site's; after_s: what follows it takes about
    so long. attempt: the latest one, since: when it began (site clock); folder: where it ran. failures: attempts
    that have failed; gpu_s: GPU seconds that all of them have held."""

    name: str
    spec: Any
    scope: Scope
    state: str = PENDING
    outputs: Values = field(default_factory=dict)
    error: str = ""
    scopes: list[Scope] = field(default_factory=list)
    waiting: list[Values] = field(default_factory=list)
    number: int = -1
    phase: int = -1
    after_s: float = 0.0
    attempt: int = 1
    since: float = 0.0
    folder: str = ""
    failures: int = 0
    gpu_s: float = 0.0

    @property
    def id(self) -> str:
        """Its path in the run: `train.for-loop-1[2].fit` is of the third iteration."""
        return f"{self.scope.path}{self.name}"

    @property
    def kind(self) -> str:
        """Its path in the pipeline: the same for all iterations."""
        return f"{self.scope.kind}{self.name}"

    @property
    def is_loop(self) -> bool:
        return self.spec.WhichOneof("iterator") is not None

    @property
    def parents(self) -> dict[str, None]:
        """The tasks of its DAG that it waits for: all links count, since compilers leave some kinds out."""
        found = dict.fromkeys(self.spec.dependent_tasks)
        for source in (*self.spec.inputs.parameters.values(), *self.spec.inputs.artifacts.values()):
            kind = source.WhichOneof("kind") or ""
            if kind.startswith("task_"):
                found[getattr(source, kind).producer_task] = None
        return found

    @property
    def waits_for_any_end(self) -> bool:
        """It runs when what it waits for has ended, however that did."""
        return bool(self.spec.trigger_policy.strategy == COMPLETED)


@dataclass(eq=False)
class Scope:
    """component: of the DAG. inputs: its arguments. owner: the task that it is the inside of, None for the whole
    pipeline. job: the name of the run. nodes: its tasks, what they wait for before them."""

    component: Any
    inputs: Values
    job: str
    owner: Node | None = None
    iteration: int | None = None
    nodes: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.component.dag.tasks
        found = {name: Node(name, tasks[name], self) for name in sorted(tasks)}
        order = TopologicalSorter({name: list(node.parents) for name, node in found.items()}).static_order()
        self.nodes = {name: found[name] for name in order}

    @property
    def path(self) -> str:
        number = "" if self.iteration is None else f"[{self.iteration}]"
        return f"{self.owner.id}{number}." if self.owner is not None else ""

    @property
    def kind(self) -> str:
        return f"{self.owner.kind}." if self.owner is not None else ""

    def arguments(self, node: Node) -> Values:
        """What a task of it is called with. Raises InputError."""
        return arguments_of(node.spec.inputs, self.inputs, self._outputs_of, self._final_status, node.id)

    def to_skip(self) -> Iterator[Node]:
        """Tasks that will never run, as things are; each is marked before the next is looked for."""
        has_failed = self.failed is not None
        tolerant: set[str] = set()
        for node in self.nodes.values():
            if node.waits_for_any_end or not tolerant.isdisjoint(node.parents):
                tolerant.add(node.name)
            if node.state != PENDING or node.waits_for_any_end:
                continue
            is_lost = any(self.nodes[name].state in (FAILED, SKIPPED) for name in node.parents)
            if is_lost or (has_failed and node.name not in tolerant):
                node.state = SKIPPED
                yield node

    @property
    def is_over(self) -> bool:
        return all(node.state in ENDED for node in self.nodes.values())

    @property
    def failed(self) -> Node | None:
        """The first of its tasks that failed."""
        return next((node for node in self.nodes.values() if node.state == FAILED), None)

    def outputs(self) -> Values:
        """What the DAG gives to the one around it."""
        return outputs_of_dag(self.component.dag.outputs, self._outputs_of)

    def sinks(self) -> list[Node]:
        """Its tasks that nothing in it waits for."""
        awaited = {name for node in self.nodes.values() for name in node.parents}
        return [node for node in self.nodes.values() if node.name not in awaited]

    def _outputs_of(self, name: str) -> Values | None:
        node = self.nodes[name]
        return node.outputs if node.state == SUCCEEDED else None

    def _final_status(self, name: str) -> Values:
        """The value of a `PipelineTaskFinalStatus`, in the words of the backend."""
        node = self.nodes[name]
        error = {"error": {"code": 9, "message": node.error}} if node.state == FAILED else {}
        return {
            "state": STATES.get(node.state, node.state.upper()),
            "pipelineTaskName": name,
            "pipelineJobResourceName": self.job,
            **error,
        }


def why_lost(node: Node) -> str:
    """Of one that is skipped for what another one became."""
    there = node.scope.nodes
    found = [there[name] for name in node.parents if there[name].state in (FAILED, SKIPPED)]
    if not found:
        return "a task beside it failed"
    return f"{found[0].id}, before it, {'was skipped' if found[0].state == SKIPPED else 'failed'}"


def before(node: Node) -> list[str]:
    """Ids of the running tasks that a task waited for: those a DAG ends with stand for it."""
    found = [leaf for name in node.parents for leaf in _last(node.scope.nodes[name])]
    if not node.parents and node.scope.owner is not None:
        return before(node.scope.owner)
    return list(dict.fromkeys(found))


def _last(node: Node) -> list[str]:
    if node.state == SKIPPED:
        return []
    if not node.scopes:
        return [node.id]
    return [leaf for scope in node.scopes for sink in scope.sinks() for leaf in _last(sink)]
