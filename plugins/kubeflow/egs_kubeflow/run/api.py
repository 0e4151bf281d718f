"""`run(pipeline)`: run a Kubeflow pipeline on this machine, really in parallel.

from egs_kubeflow.run import run

result = run(my_pipeline, {"epochs": 3}, gpus=2)      # a @dsl.pipeline, or the path of a compiled one
result.outputs["accuracy"]
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from egs_core.adapter import ControlRequest
from egs_core.errors import InputError
from egs_core.notices import warn
from egs_core.places import data_folder
from egs_core.runlog import records as r
from egs_core.site import Learning
from egs_core.worked import FOLDER
from egs_kubeflow.convert.arguments import parse_arguments
from egs_kubeflow.convert.documents import documents_of, load_documents
from egs_kubeflow.run.door import Door
from egs_kubeflow.run.echo import Echo, harmless
from egs_kubeflow.run.forked import Starter
from egs_kubeflow.run.leaf import VISIBLE, Around
from egs_kubeflow.run.operations import Operations
from egs_kubeflow.run.own_folder import own_folder
from egs_kubeflow.run.packages import Environments
from egs_kubeflow.run.plan import Plan, Slots, make_plan
from egs_kubeflow.run.scope import FAILED, Node, Scope
from egs_kubeflow.run.session import Session
from egs_kubeflow.run.values import Values

Policy = Literal["egs", "fifo"]
POLICIES: tuple[Policy, ...] = ("egs", "fifo")
ROOT = "local_outputs"
"""Where kfp.local writes, and so do we."""
SIGNAL_S = 0.25
"""How long Ctrl-C may go unseen: Python loses one that comes just before a wait without an end."""


@dataclass(frozen=True)
class TaskResult:
    """One task that ran or was skipped, or a loop or branch that could not begin. task: its path, loops with their
    iteration. state: succeeded, failed, skipped or pending; error: why it failed; folder: what it wrote, with its
    output in log.txt."""

    task: str
    state: str
    attempts: int = 1
    error: str = ""
    outputs: Values = field(default_factory=dict)
    folder: str = ""


@dataclass(frozen=True)
class RunResult:
    """What became of a run. state: succeeded, failed or aborted. runlog: for `egs report`; folder: of all tasks;
    has_whole_log: nothing of the run log was lost, to a full disk for one."""

    name: str
    state: str
    outputs: Values
    tasks: tuple[TaskResult, ...]
    seconds: float
    runlog: Path
    folder: Path
    has_whole_log: bool = True

    @property
    def failed(self) -> tuple[TaskResult, ...]:
        """The tasks that failed, each with its error."""
        return tuple(task for task in self.tasks if task.state == "failed")


class PipelineFailed(RuntimeError):
    """A task has failed for good; `result` has what became of each."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        problems = "; ".join(f"{task.task} {task.error}" for task in result.failed[:3])
        super().__init__(f"pipeline {result.name!r} has failed: {problems}")


class Run:
    """A run under way; `start` makes it. All its methods may be called from any thread."""

    def __init__(
        self, session: Session, operations: Operations, plan: Plan, folder: Path, runlog: Path, around: ExitStack
    ) -> None:
        self._session, self._operations, self._plan, self._around = session, operations, plan, around
        self.folder, self.runlog = folder, runlog
        self._begin = time.monotonic()
        session.start()

    def abort(self, task: str = "") -> None:
        """End the run, or one task, nested DAG or loop of it, by its path; what goes on then is the pipeline's rule.
        Raises InputError where there is none of that name, or it has ended."""
        if task:
            self._operations.carry_out(ControlRequest("abort", self._operations.job, task=task))
        else:
            self._session.abort()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._session.over.is_set()

    def wait(self) -> RunResult:
        """Wait for its end, once. KeyboardInterrupt ends all tasks first."""
        session = self._session
        with self._around:
            try:
                while not session.over.wait(SIGNAL_S):
                    pass
            except BaseException:
                session.abort()
                raise
            finally:
                session.end()
        if session.death is not None:
            raise RuntimeError("the runner itself has failed") from session.death
        outputs = session.root.outputs() if session.outcome == "succeeded" else {}
        tasks, seconds = tuple(_tasks(session.root, self._plan)), time.monotonic() - self._begin
        places = (self.runlog, self.folder, session.learning.is_whole)
        return RunResult(self._plan.name, session.outcome, outputs, tasks, seconds, *places)


def run(
    pipeline: Any,
    arguments: Mapping[str, Any] | None = None,
    *,
    raise_on_error: bool = True,
    **options: Any,
) -> RunResult:
    """Run a live `@dsl.pipeline`, or a compiled one by its path, and wait for its end. options: as `start` takes them.

    Raises InputError for a pipeline that cannot run here, before anything has; PipelineFailed where a task has failed,
    unless `raise_on_error` is off. KeyboardInterrupt ends all tasks first.
    """
    result = start(pipeline, arguments, **options).wait()
    if raise_on_error and result.state != "succeeded":
        raise PipelineFailed(result)
    return result


def start(
    pipeline: Any,
    arguments: Mapping[str, Any] | None = None,
    *,
    policy: Policy = "egs",
    cpus: float | None = None,
    gpus: int | None = None,
    emulate_gpus: bool = False,
    root: str | os.PathLike[str] = ROOT,
    runlog: str | None = None,
    history: str | None = None,
    echo: Echo | None = None,
) -> Run:
    """Start a run; somebody must `wait` for it.

    arguments: of the pipeline. policy: `egs`, or `fifo` to compare. cpus, gpus: slots for tasks, by default what the
    machine has; a task that states nothing takes one CPU, one that asks for more than there is takes all.
    emulate_gpus: `gpus` are slots without devices. root: where tasks write. runlog: a file for `egs report`, history: a
    database URL, by default both in the user's data folder; a run with emulated GPUs leaves its durations only in a
    history that is given here. echo(task, line): told what tasks print, and when each starts and ends; what kfp's
    executor says of itself is in the task's log.txt only.

    Raises InputError for a pipeline that cannot run here, before anything has.
    """
    is_file = isinstance(pipeline, (str, os.PathLike))
    documents = load_documents(Path(pipeline)) if is_file else documents_of(pipeline)
    place = str(pipeline) if is_file else documents.name
    if policy not in POLICIES:
        raise InputError("policy", f"{policy!r} is unknown", f"one of {', '.join(POLICIES)}")
    slots = _slots(cpus, gpus, emulate_gpus)
    plan = make_plan(documents, dict(arguments or {}), slots, place)
    header = _header(plan, policy, emulate_gpus)
    folder = _made(Path(root).absolute() / header.run_id)
    for note in plan.notes:
        warn(note)
    path = Path(runlog or os.environ.get("EGS_RUNLOG") or data_folder() / "runs" / f"{header.run_id}.jsonl")
    # What emulated GPUs took says little of real ones: it is kept only in a history that the caller names.
    learning = Learning(path, header, history, keeps=not emulate_gpus or history is not None)
    plan.graph = learning.believe(plan.name, plan.graph, plan.graph.ids)
    with ExitStack() as stack:
        packages = stack.enter_context(own_folder("egs-packages-"))
        commands = [executor.container.command for executor in plan.spec.executors.values()]
        door = stack.enter_context(closing(Door()))
        folders, parks = [packages, str(door.folder)], bool(plan.loads)
        starter = stack.enter_context(closing(Starter(str(folder), (VISIBLE, FOLDER), commands, folders, parks)))
        ways, number = Environments(Path(packages)), str(time.monotonic_ns())
        around = Around(folder, header.run_id, number, ways, starter, harmless(echo), bool(slots.devices))
        session = Session(plan, slots, around, learning, policy)
        operations = Operations(session, plan, header.run_id)
        door.open(operations)  # before anything runs: nobody could end what Ctrl-C interrupts here
        return Run(session, operations, plan, folder, learning.path, stack.pop_all())


def _header(plan: Plan, policy: Policy, is_emulated: bool) -> r.Header:
    return r.Header(
        run_id=_run_id(plan.name),
        driver="kubeflow",
        policy=policy,
        mode="on",
        emulated_gpus=is_emulated,
        started_at=time.time(),
        label=f"EGS ({policy})",
    )


def _run_id(pipeline: str) -> str:
    """A name for a run that no other has, which begins with the pipeline's: of its run log and its folder."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", pipeline)
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06d}"


def run_file(path: str | os.PathLike[str], arguments: Mapping[str, str] | None = None, **options: Any) -> RunResult:
    """`run` for a compiled pipeline and arguments as a command line has them: text, JSON where the parameter is no
    string. Raises InputError for what cannot be read."""
    documents = load_documents(Path(path))
    return run(path, parse_arguments(documents, arguments or {}, str(path)), **options)


def _tasks(scope: Scope, plan: Plan) -> list[TaskResult]:
    found: list[TaskResult] = []
    for node in scope.nodes.values():
        for inner in node.scopes:
            found += _tasks(inner, plan)
        if not plan.is_group(node.spec) or _failed_itself(node):
            found.append(_result(node))
    return found


def _failed_itself(node: Node) -> bool:
    """Whether a nested DAG, branch or loop has failed, and not by a task in it: its items are no list, its condition
    cannot be evaluated."""
    return node.state == FAILED and all(scope.failed is None for scope in node.scopes)


def _result(node: Node) -> TaskResult:
    return TaskResult(node.id, node.state, node.attempt, node.error, node.outputs, node.folder)


def _made(folder: Path) -> Path:
    """The folder of the run, made before anything runs in it."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError("root", f"{folder} cannot be made: {error.strerror or error}") from None
    return folder


def _slots(cpus: float | None, gpus: int | None, is_emulated: bool) -> Slots:
    devices = tuple(map(str, range(gpus or 0))) if is_emulated else _devices()
    if gpus is not None and gpus > len(devices):
        raise InputError(
            "gpus",
            f"there are {len(devices)} here, not {gpus}",
            "--emulate-gpus, in Python emulate_gpus=True, makes slots for them",
        )
    cpus = os.cpu_count() or 1 if cpus is None else cpus
    if cpus <= 0:
        raise InputError("cpus", f"{cpus:g} are too few to run anything")
    return Slots(float(cpus), devices[:gpus], is_emulated)


def _devices() -> tuple[str, ...]:
    """The GPUs that this process may use, by their numbers or names."""
    if (visible := os.environ.get(VISIBLE)) is not None:
        return tuple(device.strip() for device in visible.split(",") if device.strip() not in ("", "-1"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(map(str, range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines()))))
