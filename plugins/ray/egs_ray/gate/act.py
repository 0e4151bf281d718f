"""Mode `on` on an unmodified script: everything that `observe` does, and GPU tasks go to Ray in the engine's order.

    fit.remote(x)  ─►  [fit].remote(ticket, x)        [fit]: the same function with one more argument, which it drops

The script gets its reference at once. Ray keeps the task pending until the ticket has a value (see `gate`), and treats
it then as it would without EGS. Gated are functions, generators and actors with `num_gpus` whose needs are CPUs, GPUs
and memory only (see `ticketing`), and placement groups before Ray makes them (see `grouping`). All else passes as it
is: what is placed in groups, generators with back pressure, labels and custom resources (their placement is the user's
word), what Ray's own libraries submit otherwise, and what no node can run.

This process's session orders what the script itself submits (`session.program`): with others' where its site is one
that several share (a server's; with EGS_GATE=cluster that of an actor, `egs_ray.site`), else alone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egs_core.errors import counted
from egs_core.graph.columns import KIND_NAMES, Graph, Shape
from egs_core.history.pending import open_learned
from egs_core.notices import warn
from egs_core.predict import Estimate, Predictor, signature_of
from egs_core.runlog.records import Record
from egs_ray import waiting
from egs_ray.compat import available
from egs_ray.events import report_as_before, report_often
from egs_ray.gate.grouping import Groups, drivers_tickets
from egs_ray.gate.ordering import AnyGate, Ordering
from egs_ray.gate.ticketing import with_ticket
from egs_ray.groups import wrap_groups
from egs_ray.observe import FLUSH_S, Observer, runlog_path, script_name
from egs_ray.session import learning
from egs_ray.settings import chosen_retry
from egs_ray.submission import Needs, Ordered, Submission
from egs_ray.worker.reach import with_line
from egs_ray.worker.spec import Address

if TYPE_CHECKING:  # the engine and all that uses it is imported when something first needs it: a script that submits
    from egs_ray.session.nested import Desk  # nothing for a GPU does not pay for it in `ray.init`

SOON_S = 0.3  # three times what passes between two words of a process


def make_interceptor() -> Orderer:
    """The orderer of this process; its run log goes where an observer's would."""
    return Orderer(runlog_path())


class Orderer(Observer):
    """The `Interceptor` of mode on. One gate for each Ray session, made at its first GPU task."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, policy="egs", mode="on")
        self._ordering = Ordering(
            self._make_gate,
            self._estimate,
            self._switch_off,
            self._make_hinted,
            self._with_ticket,
            retries=chosen_retry()[0],
        )
        self._groups = Groups(self._ordering.gate_for_workers, self._switch_off, drivers_tickets)
        if available("groups"):
            wrap_groups(self._groups.create, self._groups.remove)
        self._desk: Desk | None = None  # where this driver's workers tell what they submit
        self._desk_lock = threading.Lock()
        self._ordered_for_workers = self._groups_of_workers = 0
        learning.reserve(path)
        self._told: deque[Ordered | Record] = deque()
        self._script = script_name()
        self._predictor = Predictor()
        self._estimates: dict[tuple[str, int, Shape], Estimate | None] = {}  # what that has said
        self._is_learning = self._is_told_soon = False

    def submit(
        self,
        original: Callable[..., Any],
        remote_function: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        """The submission, ordered where it can be, and noted as the user wrote it."""

        def pass_on(target: Any, args: Any, kwargs: Any, **options: Any) -> Any:
            return self._ordering.submit(original, target, args, kwargs, options)

        return super().submit(pass_on, remote_function, args, kwargs, options)

    def _note(self, seen: Submission) -> Submission:
        described = self._ordering.described.pop(seen.task_id, None)
        if described is not None and described.is_shell:
            seen.phases = tuple(
                (KIND_NAMES[kind], shape.cpu_milli / 1000, shape.gpu_milli / 1000, shape.memory_bytes)
                for kind, shape, _ in described.phases
            )
        elif described is not None:  # what Ray was told only by its hints
            needs = described.payload
            seen.cpus, seen.gpus, seen.memory_bytes = needs.cpus, needs.gpus, needs.memory_bytes
        return seen

    def session_starts(self) -> None:
        """As for the observer. What ends last in a script is told of at once, or the script would wait for that."""
        self._is_told_soon = report_often()
        super().session_starts()

    def _patience_s(self) -> float:
        """What has not ended is not waited for; nor, for long, what may not have, where Ray would have told of it."""
        unsettled = self.log.unsettled
        if unsettled and (gate := self._gate) is not None:
            unsettled -= gate.unfinished()
        if not unsettled:
            return 0.0
        soon = self._is_told_soon and waiting.has_started_ray()
        return SOON_S if soon and not any(self.log.gpus_of(task) for task in unsettled) else FLUSH_S

    def session_ends(self) -> None:
        """As for the observer; the gate goes with its session."""
        if os.getpid() != self._process:
            return
        if self._desk is not None:
            self._guarded(self._desk.note_work)
        super().session_ends()
        report_as_before()
        self._groups.forget()
        desk, self._desk = self._desk, None
        self._ordering.end_session()
        if desk is not None:
            desk.close()
            self._ordered_for_workers += desk.ordered
            self._groups_of_workers += desk.groups

    @property
    def _gate(self) -> AnyGate | None:
        return self._ordering.gate

    def _make_gate(self) -> AnyGate:
        from egs_ray.session.api import default_session
        from egs_ray.session.outlook import Outlook
        from egs_ray.session.program import Program

        self._learn_from_history()
        outlook = Outlook(self._estimate, self._beliefs, self._tell, self._tell, self._switch_off, self.log.reasons)
        return Program(default_session(), self._name, script_name(), outlook)

    def _make_hinted(self) -> Any:
        from egs_ray.session.shells import HintedShells

        return HintedShells(self._reached_at)

    def _reached_at(self) -> Address | None:
        """From submitting threads: where workers of this Ray session tell what they submit."""
        with self._desk_lock:
            if self._desk is None and waiting.is_plain_driver():
                from egs_ray.session.nested import Desk

                self._desk = Desk(self._ordering.gate_for_workers, self._estimate)
            return None if self._desk is None else self._desk.address

    def _with_ticket(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The twin of a function, which reaches this driver from where it runs."""
        address = self._reached_at()
        return with_ticket(function) if address is None else with_line(function, address)

    @property
    def _name(self) -> str:
        return f"{script_name()}-{self._sessions}"

    def _switch_off(self, error: BaseException) -> None:
        """From any thread: from here on everything passes, until the next Ray session."""
        if self._ordering.switch_off():
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            warn(f"no longer ordering, tasks go to Ray as they are submitted: {reason}")

    # --- what is known about durations ---

    def _estimate(self, needs: Needs) -> float | None:
        shape = Shape(round(needs.cpus * 1000), round(needs.gpus * 1000), needs.memory_bytes)
        estimate = self._from_history(needs.name, 0, shape)
        return None if estimate is None else estimate.p50_s

    def _beliefs(self, block: Graph) -> list[tuple[int, float, float]]:
        """(phase, median, 95th percentile) of those of a block that history knows."""
        found: list[tuple[int, float, float]] = []
        for task, name in enumerate(block.names):
            for number, phase in enumerate(block.phases_of(task)):
                estimate = self._from_history(name, number, block.shapes[block.phase_shape[phase]])
                if estimate is not None:
                    found.append((phase, estimate.p50_s, estimate.p95_s))
        return found

    def _from_history(self, task: str, phase: int, shape: Shape) -> Estimate | None:
        """How long such a phase takes, where history knows; asked once, as thousands of tasks are alike."""
        estimates, key = self._estimates, (task, phase, shape)
        if key not in estimates:
            estimate = self._predictor.estimate(signature_of(self._script, task, phase, shape))
            estimates[key] = estimate if estimate.source == "history" else None
        return estimates[key]

    def _learn_from_history(self) -> None:
        """On a thread of its own: there may be long run logs to learn from first."""
        if not self._is_learning:
            self._is_learning = True
            threading.Thread(target=self._learn, name="egs-history", daemon=True).start()

    def _learn(self) -> None:
        try:
            history = open_learned()
            rows = history.load(script_name())
            history.close()
            if rows:
                known = Predictor()
                known.learn(rows)
                self._predictor, self._estimates = known, {}
                if (gate := self._gate) is not None:
                    gate.learned()
        except Exception as error:  # without history every task counts the same
            warn(f"no history: {type(error).__name__}: {error}".splitlines()[0])

    # --- the run log ---

    def _tell(self, told: Ordered | Record) -> None:
        """From any thread; once nothing is written any more, nothing is kept for it."""
        if not self._broken:
            self._told.append(told)

    def _write_noted(self, most: int = sys.maxsize) -> None:
        super()._write_noted(most)
        if len(self._noted) and most < sys.maxsize:
            return  # what was let go has been submitted before
        while self._told:
            told = self._told.popleft()
            if isinstance(told, Ordered):
                self.log.ordered(told)
            else:
                self.log.phased(told)

    def _what_was_done(self) -> str:
        groups = self._groups.ordered + self._groups_of_workers
        also = f" and {counted(groups, 'placement group')}" if groups else ""
        return f"ordered {self._ordering.ordered + self._ordered_for_workers} GPU tasks{also}"
