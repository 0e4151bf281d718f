"""What Ray's own history says of a cluster, whichever way it was told: state API, export files or pushed events.

Everything may come in any order, twice, or not at all; times are Unix seconds. Imports no Ray: an audit needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import msgspec

SUBMITTED, READY, PUSHED, RUNNING = "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING"
FINISHED, FAILED = "FINISHED", "FAILED"
STATES = {"1": SUBMITTED, "2": READY, "5": PUSHED, "8": RUNNING, "11": FINISHED, "12": FAILED}
"""Numbers of Ray's protobuf enum TaskStatus: a wire format, so they do not change."""

ACCELERATOR = "accelerator_type:"
"""Begins the resource by which a node says what its GPUs are."""
KINDS = {"NORMAL_TASK": "task", "ACTOR_CREATION_TASK": "actor", "ACTOR_TASK": "method", "DRIVER_TASK": "driver"}


class TaskSeen(msgspec.Struct):
    """One attempt at one task. times: when it came into each state; loaded_s: when it had loaded its function.

    in_bundle: it runs in a placement group, which holds its resources from before to after it.
    """

    task_id: str
    attempt: int = 1
    job_id: str = ""
    name: str = ""
    kind: str = "task"
    actor_id: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    in_bundle: bool = False
    times: dict[str, float] = {}
    loaded_s: float | None = None
    error: str = ""
    worker_id: str = ""
    node_id: str = ""
    pid: int = 0

    @property
    def started_s(self) -> float | None:
        """A process that was killed never reported its last starts; then the submitter's word counts."""
        found = self.times.get(RUNNING)
        return found if found is not None or self.ended_s is None else self.times.get(PUSHED)

    @property
    def ended_s(self) -> float | None:
        return self.times.get(FINISHED, self.times.get(FAILED))

    @property
    def submitted_s(self) -> float:
        """The first that is known of it."""
        return self.times.get(SUBMITTED, min(self.times.values(), default=0.0))

    @property
    def outcome(self) -> str:
        if FINISHED in self.times:
            return "succeeded"
        return "aborted" if "CANCELLED" in self.error else "failed"

    def needs(self, resources: dict[str, float]) -> None:
        """What it asks for."""
        self.cpus, self.gpus = amount_of(resources, "CPU"), amount_of(resources, "GPU")
        self.memory_bytes = int(amount_of(resources, "memory"))
        self.in_bundle = any("_group_" in name for name in resources)


class NodeSeen(msgspec.Struct):
    """A node and what it offers. flavor: its accelerator type, "" where it says none."""

    started_s: float = 0.0
    ended_s: float | None = None
    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int = 0
    flavor: str = ""

    def offers(self, resources: dict[str, float]) -> None:
        if resources:
            self.cpus, self.gpus = resources.get("CPU", 0.0), int(resources.get("GPU", 0))
            self.memory_bytes = int(resources.get("memory", 0))
            types = sorted(name for name in resources if name.startswith(ACCELERATOR))
            self.flavor = types[0].removeprefix(ACCELERATOR) if types else ""


class WorkerSeen(msgspec.Struct):
    """A worker process: when the raylet began to start it, and when it was ready for tasks."""

    launched_s: float | None = None
    ready_s: float | None = None
    ended_s: float | None = None


class JobSeen(msgspec.Struct):
    entrypoint: str = ""
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def name(self) -> str:
        """The script's name without its ending, as the hook calls the workload; so both share a history."""
        words = self.entrypoint.split()
        script = next((word for word in words if word.endswith(".py")), words[-1] if words else "")
        return PurePath(script).stem or "job"


class Seen(msgspec.Struct):
    """One cluster. lost: tasks that Ray says it no longer knows. died: of actors, by actor id."""

    tasks: dict[tuple[str, int], TaskSeen] = {}
    nodes: dict[str, NodeSeen] = {}
    workers: dict[str, WorkerSeen] = {}
    jobs: dict[str, JobSeen] = {}
    died: dict[str, float] = {}
    lost: int = 0

    def task(self, task_id: str, attempt: int, job_id: str = "") -> TaskSeen:
        """The attempt of that number (Ray counts from 0), known or new."""
        key = (task_id, attempt + 1)
        if key not in self.tasks:
            self.tasks[key] = TaskSeen(task_id, attempt + 1, job_id or task_id[-8:])
        return self.tasks[key]

    def node(self, node_id: str) -> NodeSeen:
        return self.nodes.setdefault(node_id, NodeSeen())

    def worker(self, worker_id: str) -> WorkerSeen:
        return self.workers.setdefault(worker_id, WorkerSeen())

    def job(self, job_id: str) -> JobSeen:
        return self.jobs.setdefault(job_id, JobSeen())

    def tasks_by_job(self) -> dict[str, list[TaskSeen]]:
        """The tasks of each job in the order of their submission; drivers, and what is known by its start only, left
        out."""
        found: dict[str, list[TaskSeen]] = {}
        for task in sorted(self.tasks.values(), key=lambda task: (task.submitted_s, task.task_id, task.attempt)):
            if task.kind == "driver":
                self._learn_job(task)
            elif task.times and task.name:
                found.setdefault(task.job_id, []).append(task)
        return found

    @property
    def undescribed(self) -> int:
        """Tasks whose process told of them, and whose submitter did not: what they are and need is not known."""
        return sum(not task.name and task.kind != "driver" for task in self.tasks.values())

    def _learn_job(self, driver: TaskSeen) -> None:
        """A driver is a task to Ray: its start and end are the job's, where nothing better was told."""
        job = self.job(driver.job_id)
        job.started_s = job.started_s or driver.started_s
        job.ended_s = job.ended_s or driver.ended_s


def amount_of(resources: Mapping[str, float], name: str) -> float:
    """How much of a resource a task asks for. That of a placement group's bundle is called GPU_group_<id>, and
    GPU_group_<index>_<id> as well."""
    return resources.get(name) or max((v for k, v in resources.items() if k.startswith(f"{name}_group_")), default=0.0)
