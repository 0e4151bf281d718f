"""One run of a pipeline: a site that says what starts when, and what it takes to carry that out on this machine.

    scope opened ─► tasks ─► site ───► grant ─┬─ task with a process: a thread runs it ─► ended ─► what follows
                                              ├─ nested DAG, branch, loop: its scopes open ─► closed ─► ended
                                              └─ join of a scope: ended at once

The site sees the tasks of every open scope. One that stands for others holds nothing, and is expected to take as long
as the longest path through them; a scope with something after its owner ends in a *join* that takes as long as that
is expected to, so that the site knows how much waits for each task. What runs after a failure is the pipeline's own
rule (`scope`): the site hears of the tasks that are skipped, and that what failed for good is over.

Everything below the public methods runs on the site's thread for its holder, so nothing here needs a lock.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from egs_core import site as s
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.errors import InputError
from egs_core.predict.live import Belief
from egs_core.runlog import records as r
from egs_core.runlog.added import added_task
from egs_kubeflow.run.beliefs import Beliefs
from egs_kubeflow.run.condition import in_words, is_met
from egs_kubeflow.run.leaf import Around, Leaf, TaskFailed
from egs_kubeflow.run.opening import backoff_s, block_of, folder_of
from egs_kubeflow.run.plan import Plan, Slots
from egs_kubeflow.run.preloads import Preloads
from egs_kubeflow.run.scope import FAILED, PENDING, RUNNING, SKIPPED, SUCCEEDED, Node, Scope, before, why_lost
from egs_kubeflow.run.values import Values, collected, items_of, with_defaults

NODE = "local"
ABORT_S = 30.0
PROCESSES_A_SLOT = 8
"""How many processes of tasks that preload there may be for each CPU and GPU: as many as `Slots.fit` lets run."""
ABORTED = "was aborted"


class Session(s.HolderSession):
    """See the module. `start`, then wait until it is `over`; `abort` ends it early; `end` after that."""

    def __init__(self, plan: Plan, slots: Slots, around: Around, learning: s.Learning, policy: str) -> None:
        super().__init__(EngineConfig(policy=policy), learning, logs_waits=False)
        self._plan, self._slots, self._around = plan, slots, around
        self._beliefs = Beliefs(learning.predictor(plan.name), plan, around.job)
        self._preloads = Preloads(self.site, around.starter, partial(learning.warmed_up, plan.name))
        self._nodes: dict[int, Node | None] = {}  # by the site's number; None: a join
        self._gangs: dict[str, list[int]] = {}  # name -> members; of those that start together
        self._leaves: dict[int, Leaf] = {}
        self._retry_at: dict[int, float] = {}
        self._recalled: dict[int, str] = {}  # what is being stopped to start again, and why
        self._aborted: dict[int, str] = {}  # what is being stopped for good, and why
        self._is_aborted = ""  # why, once the run is
        self.outcome = ""
        self.root = Scope(plan.spec.pipeline.root, plan.inputs, around.job)
        self.over = threading.Event()
        self.death: BaseException | None = None

    def start(self) -> None:
        self.site.start()
        self.site.do(self._begin)

    def abort(self) -> None:
        """End what runs, and wait until it has ended."""
        self.site.do(self.abort_all)
        self.over.wait(ABORT_S)

    # --- the start of things ---

    def _begin(self) -> None:
        job = self._around.job
        processes = PROCESSES_A_SLOT * (math.ceil(self._slots.cpus) + len(self._slots.devices))
        node = m.NodeAdded(NODE, self._slots.cpus, len(self._slots.devices), process_slots=processes)
        self.site.report(node)
        self.site.submit(m.WorkloadSubmitted(job, self._plan.name, submission=job))
        self.site.note(r.WorkloadSubmitted(self.site.now(), job, self._plan.name))
        self._open([self.root])

    def _open(self, scopes: Sequence[Scope], is_whole: bool = True) -> None:
        """Give the tasks of scopes to the site. is_whole: these are all scopes of their owner, so a gang is whole."""
        before = len(self._nodes)
        graph, nodes = block_of(scopes, self._plan, self._slots, before, is_whole)
        grown = self.site.grow(self._around.job, before, graph)
        first = grown.task
        for index, node in enumerate(nodes):
            self._nodes[first + index] = node
            if node is not None:
                node.number, node.phase = first + index, grown.phase + index
        tasks = [node for node in nodes if node is not None and not self._plan.is_group(node.spec)]
        self._believe(self._beliefs.opened(tasks))
        for scope in scopes:
            for node in scope.nodes.values():
                if not node.parents:
                    self._arguments_there(node)
        for index, options in graph.options.items():
            if options.gang:
                self._gangs.setdefault(options.gang, []).append(first + index)

    def _believe(self, beliefs: Sequence[Belief]) -> None:
        if beliefs:
            self.site.report(m.Estimates(tuple(beliefs)))

    def _arguments_there(self, node: Node) -> None:
        """All that a task waits for has succeeded: its arguments say more of how long it will take."""
        if node.state == PENDING and not self._plan.is_group(node.spec):
            with contextlib.suppress(InputError):  # what is wrong with them is said when it starts
                self._believe(self._beliefs.ready(node, node.scope.arguments(node)))

    # --- what the site decides ---

    def perform(self, decision: s.AnyTold, now: float) -> None:
        if isinstance(decision, s.Stop) and decision.task in self._leaves:
            self.recall(decision.task, decision.reason)
        if self._is_aborted:
            return
        if isinstance(decision, m.Preload) and (loading := self._nodes[decision.task]) is not None:
            self._preloads.begin(decision, loading.kind, self._plan.loads[loading.kind])
        elif isinstance(decision, m.DropPreload):
            self._preloads.drop(decision.task)
        elif isinstance(decision, s.Grant):
            self._granted(decision, now)

    def _granted(self, decision: s.Grant, now: float) -> None:
        node = self._nodes[decision.task]
        if node is None or node.state != PENDING:
            self.site.report(m.PhaseEnded(decision.phase, decision.attempt))
        elif now < self._retry_at.get(node.number, 0.0):
            self.site.report(m.DecisionRejected(decision.id, "it waits before it tries again"))
        else:
            self._begin_node(node, decision, now)

    def run_over(self, workload: str) -> None:
        self.learning.run_over(workload, self._plan.name)

    def _begin_node(self, node: Node, grant: s.Grant, now: float) -> None:
        node.phase, node.attempt, node.after_s = grant.phase, grant.attempt, grant.after_s
        try:
            arguments = node.scope.arguments(node)
            condition = node.spec.trigger_policy.condition
            if condition and not is_met(condition, arguments, node.id):
                self._note_skipped(node, f"its condition is not met: {in_words(condition)}")
                self._finish(node, SKIPPED)
            elif self._plan.is_group(node.spec):
                self._expand(node, arguments)
            else:
                self._run(node, grant, arguments, now)
        except InputError as error:
            self._finish(node, FAILED, str(error))

    # --- tasks that stand for others ---

    def _expand(self, node: Node, arguments: Values) -> None:
        """Open the scopes of a nested DAG, or of the iterations of a loop, as many as it lets run at once."""
        node.waiting = [arguments]
        if node.is_loop:
            name, items = items_of(node.spec, arguments, node.id)
            node.waiting = [{**arguments, name: item} for item in items]
        node.state = RUNNING
        self.site.report(m.PhaseStarted(node.phase, node.attempt))
        if node.waiting:
            self._open_next(node, node.spec.iterator_policy.parallelism_limit or len(node.waiting))
        else:
            self._finish_group(node)

    def _open_next(self, node: Node, most: int) -> None:
        component, before = self._plan.component_of(node.spec), len(node.scopes)
        for arguments in node.waiting[:most]:
            inputs, iteration = with_defaults(arguments, component), len(node.scopes) if node.is_loop else None
            node.scopes.append(Scope(component, inputs, self._around.job, node, iteration))
        node.waiting = node.waiting[most:]
        self._open(node.scopes[before:], is_whole=not before and not node.waiting)

    def _closed(self, scope: Scope) -> None:
        node = scope.owner
        if node is None:
            self._end("failed" if scope.failed is not None else "succeeded")
        elif node.waiting and scope.failed is None:
            self._open_next(node, 1)
        elif all(each.is_over for each in node.scopes):
            self._finish_group(node)

    def _finish_group(self, node: Node) -> None:
        failed = next((scope.failed for scope in node.scopes if scope.failed is not None), None)
        if failed is not None:
            self._finish(
                node, FAILED, failed.error if self._plan.is_group(failed.spec) else f"{failed.id} {failed.error}"
            )
            return
        found = [scope.outputs() for scope in node.scopes]
        node.outputs = found[0] if found and not node.is_loop else {}
        if node.is_loop:
            component = self._plan.component_of(node.spec)
            for name in (*component.output_definitions.parameters, *component.output_definitions.artifacts):
                values = [each[name] for each in found if name in each]
                node.outputs[name] = collected(values, self._plan.is_collected(component, name))
        self._finish(node, SUCCEEDED)

    # --- tasks that run ---

    def _run(self, node: Node, grant: s.Grant, arguments: Values, now: float) -> None:
        node.state, node.since = RUNNING, now
        if grant.attempt == 1:
            graph, number = self._plan.graph, self._plan.numbers[node.kind]
            own = before(node)
            size = self._beliefs.input_bytes(node)
            added = added_task(
                now, self._around.job, graph, number, parents=own, task_id=node.id, name=node.kind, input_bytes=size
            )
            self.site.note(added)
        self.site.note(s.Granted(grant))
        self.site.report(m.PhaseStarted(grant.phase, grant.attempt))
        ahead = self._preloads.take(node.number)
        is_warm = ahead is not None and ahead.is_warm
        self.site.note(s.Started(grant, now, None if grant.warm is None else is_warm))
        node.folder = str(self._around.root / folder_of(node.id, grant.attempt))
        leaf = self._leaves[node.number] = Leaf(
            self._around,
            node.id,
            self._plan.component_of(node.spec),
            self._plan.executor_of(node.spec),
            Path(node.folder),
            *self._plan.limit(node.kind, node.gpu_s),
            ahead,
        )
        devices = [self._slots.devices[device] for device in grant.devices]
        threading.Thread(target=self._work, args=(node, leaf, arguments, devices), name=node.id, daemon=True).start()

    def _work(self, node: Node, leaf: Leaf, arguments: Values, devices: list[str]) -> None:
        """On a thread of the task's own."""
        outputs: Values = {}
        error, begin, attempt = "", time.monotonic(), node.attempt
        self._around.echo(node.id, "· starts" + (f", attempt {attempt}" if attempt > 1 else "") + "\n")
        try:
            outputs = leaf.run(arguments, devices)
        except TaskFailed as failure:
            error = str(failure)
        except BaseException as failure:  # whatever it is, the run must hear that the task is over
            error = f"{type(failure).__name__}: {failure}"
        if not self._is_aborted:
            state, how = (FAILED, f": {error}") if error else (SUCCEEDED, "")
            self._around.echo(node.id, f"· {state} after {time.monotonic() - begin:.1f} s{how}\n")
        seconds = time.monotonic() - begin
        work = leaf.work()
        self.site.do(lambda: self._ended(node, outputs, error, seconds, work))

    def _ended(self, node: Node, outputs: Values, error: str, seconds: float, work: dict[str, float]) -> None:
        del self._leaves[node.number]
        if work:
            self.site.note(r.Work(self.site.now(), self._around.job, node.id, node.attempt, work))
        recalled = self._recalled.pop(node.number, "")
        aborted = self._is_aborted or self._aborted.get(node.number, "")
        outcome = "aborted" if aborted else "preempted" if recalled else "failed" if error else "succeeded"
        why = aborted or recalled or error
        self.site.note(s.Ended(node.phase, node.attempt, outcome, "" if outcome == "succeeded" else why))
        node.gpu_s += seconds * self._plan.gpus(node.kind)
        if self._is_aborted:
            node.state, node.error = FAILED, aborted
            self._end_when_idle()
        elif aborted:
            self._end_gang(node)
            self._finish(node, FAILED, aborted)
        elif recalled:
            self._requeue(node)
        elif error and self._may_retry(node):
            node.failures += 1
            if node.kind not in self._plan.gangs:  # the others of its gang start again at once
                self._retry_at[node.number] = self.site.now() + backoff_s(node.spec.retry_policy, node.failures)
            self._requeue(node)
        else:
            node.outputs = outputs
            if not error:
                self._believe(self._beliefs.succeeded(node, self.site.now() - node.since))
            if error:
                self._end_gang(node)
            self._finish(node, FAILED if error else SUCCEEDED, error)

    def _may_retry(self, node: Node) -> bool:
        """Whether a task that has failed may start again; one that was preempted has not failed."""
        most_s = self._plan.graph.options_of(self._plan.numbers[node.kind]).max_gpu_s
        return node.failures < self._plan.options(node.kind).retries and not (most_s and node.gpu_s >= most_s)

    def _requeue(self, node: Node) -> None:
        """It starts again when its turn comes. Whether it may is decided here: to the site it was preempted."""
        node.state = PENDING
        self.site.report(m.PhaseEnded(node.phase, node.attempt, "preempted"))

    # --- what an operator asks for, by `operations` ---

    @property
    def tasks(self) -> list[Node]:
        """The tasks of every scope that has opened, those that stand for others included."""
        return [node for node in self._nodes.values() if node is not None]

    def leaf_of(self, node: Node) -> Leaf | None:
        """What runs of a task."""
        return self._leaves.get(node.number)

    def abort_all(self, reason: str = ABORTED, grace_s: float = 0.0) -> None:
        """End what runs; nothing more starts."""
        if not self.over.is_set():
            self._is_aborted = reason
            self._preloads.drop_all()
            for leaf in self._leaves.values():
                leaf.stop(grace_s)
            self._end_when_idle()

    def abort_tasks(self, tasks: Sequence[Node], reason: str = ABORTED, grace_s: float = 0.0) -> None:
        """End those that run, and take those that wait for lost; what then goes on is the pipeline's own rule."""
        for node in tasks:
            if node.number in self._leaves:
                self._stop(node.number, reason, grace_s)
        for node in tasks:
            if node.state == PENDING:
                self._end_gang(node)
                self._finish(node, FAILED, reason, is_granted=False)

    def recall(self, number: int, reason: str, grace_s: float = 0.0) -> None:
        """End a task that runs, to start it again."""
        self._recalled[number] = reason
        self._leaves[number].stop(grace_s)

    # --- the end of things ---

    def _finish(self, node: Node, state: str, error: str = "", *, is_granted: bool = True) -> None:
        """A task is over. The site is told so in the same words whatever became of it: see the module."""
        node.state, node.error = state, error
        self._preloads.drop(node.number)
        self._beliefs.over(node)
        for lost in reversed(list(node.scope.to_skip())):  # the last first: none of them becomes ready
            self._preloads.drop(lost.number)
            self._note_skipped(lost, why_lost(lost))
            self.site.report(m.BranchSkipped(lost.number))
        self.site.report(m.PhaseEnded(node.phase, node.attempt) if is_granted else m.BranchSkipped(node.number))
        if node.scope.is_over:
            self._closed(node.scope)
        elif state == SUCCEEDED:
            there = node.scope.nodes
            for one in [one for one in there.values() if node.name in one.parents]:
                if all(there[name].state == SUCCEEDED for name in one.parents):
                    self._arguments_there(one)

    def _note_skipped(self, node: Node, why: str) -> None:
        """For the run log. A branch or a group is no task there, and of what is in it nobody hears."""
        now, job = self.site.now(), self._around.job
        if not self._plan.is_group(node.spec):
            self.site.note(r.TaskAdded(now, job, node.id, node.kind, tuple(before(node))))
        self.site.note(r.Ended(now, job, node.id, outcome="skipped", reason=why))

    def _end_gang(self, node: Node) -> None:
        """The others of a gang that has lost a member for good might wait for it for ever."""
        gang = next((members for members in self._gangs.values() if node.number in members), [])
        for member in gang:
            if member in self._leaves:
                self._stop(member, f"was ended: its gang has lost {node.id}")

    def _stop(self, number: int, reason: str, grace_s: float = 0.0) -> None:
        self._aborted.setdefault(number, reason)
        self._leaves[number].stop(grace_s)

    def _end_when_idle(self) -> None:
        if not self._leaves:
            self._end("aborted")

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.note_end(self._around.job, outcome)
        self.over.set()

    def site_lost(self, error: BaseException) -> None:
        """A fault of EGS's own: what runs is ended, and the caller hears of it."""
        self.death = error
        for leaf in self._leaves.values():
            leaf.stop()
        self.over.set()
