"""What was seen of a cluster, before it becomes records."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ATTEMPT = re.compile(r"\((\d+)\)$")  # Argo's retries; an item of a loop has a colon in its brackets
_ITEM = re.compile(r"\(\d+:[^()]*\)")
_GENERATED = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")  # what Kubernetes adds to a generateName


@dataclass
class PodSeen:
    """One attempt of a task. Unix times; scheduled_s: it holds its resources from here; code_s: its main container
    runs. start_known: False where only a Workflow tells of it, and not when it had its resources.

    outcome: "" while it goes on. gate: what a pod that is not scheduled yet is held back by. in_pod: a pod told.
    reason: why it failed, where its memory was not enough. opened_s: when EGS's controller opened its gate, 0: it did
    not; waits: what that has said of why it is closed still. refusal: why the scheduler has no node for it.
    """

    run: str
    task: str
    attempt: int
    name: str = ""
    ready_s: float | None = None
    scheduled_s: float | None = None
    code_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    node: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    gate: str = ""
    start_known: bool = True
    in_pod: bool = False
    has_claims: bool = False
    reason: str = ""
    opened_s: float = 0.0
    waits: str = ""
    refusal: str = ""


@dataclass
class RunSeen:
    """One run of a pipeline. parents: of each task, None where no Workflow told of them. is_labelled: it is known by
    EGS's labels alone."""

    key: str
    name: str
    tenant: str = ""
    submitted_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    parents: dict[str, tuple[str, ...]] | None = None
    offloaded: bool = False
    is_labelled: bool = False


@dataclass
class NodeSeen:
    """What a node offers to pods. flavor: of its GPUs, "" where its labels do not tell."""

    name: str
    started_s: float | None
    cpus: float
    gpus: float
    memory_bytes: int
    cordoned: bool = False
    flavor: str = ""


@dataclass
class Seen:
    """All of it. others: pods that belong to no pipeline, for what they take of the nodes; now_s: the latest time
    that anything in the files has. notes: what could not be read."""

    runs: dict[str, RunSeen] = field(default_factory=dict)
    pods: dict[tuple[str, str, int], PodSeen] = field(default_factory=dict)
    nodes: dict[str, NodeSeen] = field(default_factory=dict)
    others: list[PodSeen] = field(default_factory=list)
    now_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def run(self, key: str, workflow: str, tenant: str) -> RunSeen:
        """The run of that key, made where it is not there."""
        return self.runs.setdefault(key, RunSeen(key, _GENERATED.sub("", workflow), tenant))


def task_of(node_name: str, workflow: str) -> tuple[str, int]:
    """A task's path and the attempt, from the name of Argo's node.

    >>> task_of("demo-x7k2p.root.train.executor(1)", "demo-x7k2p")
    ('train', 2)
    """
    path = node_name.removeprefix(workflow).lstrip(".") or node_name
    found = _ATTEMPT.search(path)
    path = path[: found.start()] if found else path
    path = path.removesuffix(".executor").removeprefix("root.") or workflow
    return path, int(found[1]) + 1 if found else 1


def name_of(run: RunSeen, task: str) -> str:
    """What tasks are called that do the same in other runs and other rounds of a loop."""
    return f"{run.name}.{_ITEM.sub('', task)}"
