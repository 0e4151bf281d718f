"""What an operator can see of a run, and do to it, from any thread: list, abort, pause, resume and preempt.

workload   the run's name, or the pipeline's      stage   by hint, or the path of a nested DAG
task       its path, also of a nested DAG or a loop: then all that is in it
"""

from __future__ import annotations

import os
import socket
import time

from egs_core.adapter import CONTROLS, ControlOutcome, ControlRequest, RunningTask, RunningWorkload
from egs_core.engine import messages as m
from egs_core.errors import InputError, listed
from egs_kubeflow.run.plan import Plan
from egs_kubeflow.run.scope import ENDED, Node
from egs_kubeflow.run.session import ABORTED, Session

SHOWN = 12


class Operations:
    """See the module. job: the run's name."""

    def __init__(self, session: Session, plan: Plan, job: str) -> None:
        self._session, self._plan, self.job = session, plan, job
        self._wall_s = time.time() - session.site.now()

    def running(self) -> RunningWorkload:
        """How far the run is, and what runs of it."""
        is_paused = self._session.site.workload(self.job).is_paused  # not from the holder's thread: it may wait
        return self._session.site.call(lambda: self._running("paused" if is_paused else "running"))

    def carry_out(self, request: ControlRequest) -> ControlOutcome:
        """Do it. Raises InputError that names what there is, for what the run has not."""
        return self._session.site.call(lambda: self._carry_out(request))

    # --- on the holder's thread ---

    def _running(self, state: str) -> RunningWorkload:
        session = self._session
        tasks = [node for node in session.tasks if not self._plan.is_group(node.spec)]
        stages = sorted({self._stage(node) for node in tasks} - {""})[:SHOWN]
        return RunningWorkload(
            self.job,
            str(os.getpid()),
            os.getpid(),
            socket.gethostname(),
            state,
            len(tasks),
            sum(node.state not in ENDED for node in tasks),
            tuple(stages),
            tuple(sorted((self._row(node) for node in tasks if session.leaf_of(node)), key=lambda row: row.since)),
        )

    def _row(self, node: Node) -> RunningTask:
        leaf = self._session.leaf_of(node)
        assert leaf is not None
        state, since = "stopping" if leaf.is_stopped else "running", round(self._wall_s + node.since, 3)
        gpus = self._plan.gpus(node.kind)
        return RunningTask(node.id, node.kind, self._stage(node), state, since, gpus, "local", leaf.pid)

    def _carry_out(self, request: ControlRequest) -> ControlOutcome:
        session, verb = self._session, request.verb
        if verb not in CONTROLS:
            raise InputError("verb", f"{verb!r} is unknown", f"one of {', '.join(CONTROLS)}")
        if session.over.is_set():
            raise InputError(self.job, "has ended")
        nodes = self._meant(request)
        by = (f" by {request.actor}" if request.actor else "") + (f": {request.reason}" if request.reason else "")
        if verb == "preempt":
            nodes = [node for node in nodes if (leaf := session.leaf_of(node)) is not None and not leaf.is_stopped]
            for node in nodes:
                session.recall(node.number, f"preempted{by}", request.grace_s)
        elif verb != "abort":
            event = m.PauseRequested if verb == "pause" else m.ResumeRequested
            targets = self._targets(request, nodes)
            session.site.control(*[event(*target, request.actor, request.reason) for target in targets])
        elif request.stage or request.task:
            session.abort_tasks(nodes, ABORTED + by, request.grace_s)
        else:
            session.abort_all(ABORTED + by, request.grace_s)
        named = tuple(node.id for node in nodes if not self._plan.is_group(node.spec))
        return ControlOutcome(self.job, str(os.getpid()), named)

    def _meant(self, request: ControlRequest) -> list[Node]:
        """The tasks that have not ended and that a request is about. Raises InputError where there are none."""
        there = self._session.tasks
        if request.stage:
            there = [node for node in there if self._stage(node) == request.stage]
            if not there:
                stages = sorted({self._stage(node) for node in self._session.tasks} - {""})
                raise InputError(self.job, f"has no stage {request.stage!r}", f"its stages: {listed(stages)}")
        if task := request.task:
            there = [n for n in there if n.id == task or n.id.startswith((f"{task}.", f"{task}["))]
            if not there:
                tasks = [node.id for node in self._session.tasks]
                raise InputError(self.job, f"has no task {task!r}", f"its tasks: {listed(tasks)}")
        found = [node for node in there if node.state not in ENDED]
        if not found:
            raise InputError(self.job, f"{request.task or request.stage or 'all of it'!r} has ended")
        return found

    def _targets(self, request: ControlRequest, nodes: list[Node]) -> list[tuple[str, str]]:
        """The site's names for it."""
        if request.task:
            return [("task", str(node.number)) for node in nodes]
        return [("stage", f"{self.job}/{request.stage}") if request.stage else ("workload", self.job)]

    def _stage(self, node: Node) -> str:
        return "" if self._plan.is_group(node.spec) else self._plan.options(node.kind).stage
