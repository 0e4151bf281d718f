"""A holder's numbers and those of the site that orders its work at present, which change with each move to another.

Tasks, phases and ids of decisions have numbers of the holder's own: what it has been told stays true, whichever engine
counts now. What a site has never been told of has no number there: an event about it is dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.engine import messages as m
from egs_core.runlog import records as r
from egs_core.site import messages as s

DECIDED = (m.DecisionApplied, m.DecisionRejected, m.DecisionLost)
CONTROLS = (m.AbortRequested, m.PauseRequested, m.ResumeRequested)


class Numbers:
    """See the module. told_id: the highest id of a decision that the holder knows."""

    def __init__(self) -> None:
        self._task_there: dict[int, int] = {}
        self._phase_there: dict[int, int] = {}
        self._task_here: dict[int, int] = {}
        self._phase_here: dict[int, int] = {}
        self._offset = self.told_id = 0
        self._later_s = 0.0

    def begin(self, later_s: float) -> None:
        """Another site, whose clock shows so many seconds less than the holder's."""
        for numbers in (self._task_there, self._phase_there, self._task_here, self._phase_here):
            numbers.clear()
        self._offset, self._later_s = self.told_id, later_s

    def add(self, task: int, phases: range, there: int, first_phase_there: int) -> None:
        """The site has this task, under that number, and its phases from that one on."""
        self._task_there[task], self._task_here[there] = there, task
        for phase, other in enumerate(phases):
            self._phase_there[other] = first_phase_there + phase
            self._phase_here[first_phase_there + phase] = other

    def task_there(self, task: int) -> int | None:
        return self._task_there.get(task)

    # --- to the site ---

    def event_there(self, event: m.Event) -> m.Event | None:
        """The same in the site's numbers; None where it does not know what the event is about."""
        changes: dict[str, Any] = {}
        if isinstance(event, (m.PhaseStarted, m.PhaseEnded)):
            changes["phase"] = self._phase_there.get(event.phase)
        elif isinstance(event, (m.Estimates, m.FlavorEstimates)):
            known = [value for value in event.values if value[0] in self._phase_there]
            changes["values"] = tuple([(self._phase_there[phase], *rest) for phase, *rest in known]) or None
        elif isinstance(event, m.TasksSeen):
            known_tasks = [one for one in event.tasks if one.task in self._task_there]
            there = [msgspec.structs.replace(one, task=self._task_there[one.task]) for one in known_tasks]
            changes["tasks"] = tuple(there) or None
        elif isinstance(event, DECIDED):
            changes["decision"] = self._id_there(event.decision) or None
        elif isinstance(event, (m.PreloadReady, m.PreloadFailed)):
            changes = {"task": self._task_there.get(event.task), "decision": self._id_there(event.decision)}
        elif isinstance(event, CONTROLS):
            if event.scope == "task" and event.target.isdecimal():
                number = self._task_there.get(int(event.target))
                changes["target"] = None if number is None else str(number)
        elif hasattr(event, "task"):
            changes["task"] = self._task_there.get(event.task)
        return None if None in changes.values() else msgspec.structs.replace(event, **changes)

    def note_there(self, note: s.Note) -> s.Note | None:
        """The same for a note. One of a start that another site has granted counts for what was taken over."""
        if isinstance(note, (s.Granted, s.Started)):
            grant = note.grant
            task, phase, number = self.task_there(grant.task), self._phase_there.get(grant.phase), grant.id
            is_late = isinstance(note, s.Granted) and not self._id_there(number)
            if task is None or phase is None or is_late:
                return None
            there = msgspec.structs.replace(grant, task=task, phase=phase, id=self._id_there(number))
            if isinstance(note, s.Started):
                return msgspec.structs.replace(note, grant=there, at=note.at - self._later_s)
            return s.Granted(there)
        if isinstance(note, s.Ended):
            known = self._phase_there.get(note.phase)
            return None if known is None else msgspec.structs.replace(note, phase=known)
        if isinstance(note, s.PreloadBegun):
            task = self.task_there(note.decision.task)
            number = self._id_there(note.decision.id)
            if task is None or not number:
                return None
            return s.PreloadBegun(msgspec.structs.replace(note.decision, id=number, task=task))
        assert isinstance(note, s.PreloadOver)
        task = self.task_there(note.task)
        return None if task is None else s.PreloadOver(task, note.outcome)

    def _id_there(self, number: int) -> int:
        """0 for a decision of another site, and for none."""
        return max(0, number - self._offset)

    # --- from the site ---

    def told_here(self, told: s.AnyTold) -> s.AnyTold:
        """What the site tells, in the holder's numbers."""
        if isinstance(told, s.Settled):
            return told
        if isinstance(told, s.Dropped):
            return s.Dropped(tuple([self._task_here[task] for task in told.tasks]))
        self.told_id = max(self.told_id, told.id + self._offset)
        changes: dict[str, Any] = {"id": told.id + self._offset}
        if isinstance(told, (s.Grant, s.Stop)):
            changes["phase"] = self._phase_here[told.phase]
        if not isinstance(told, m.ScalingHint):
            changes["task"] = self._task_here[told.task]
        if isinstance(told, s.Grant) and told.gang:
            changes["gang"] = tuple([number + self._offset for number in told.gang])
        return msgspec.structs.replace(told, **changes)

    def record_here(self, record: r.Record) -> r.Record:
        """A line of the run log by the holder's clock."""
        times = {name: getattr(record, name) + self._later_s for name in ("t", "end_t") if hasattr(record, name)}
        decision = getattr(record, "decision", 0)
        numbers = {"decision": decision + self._offset} if decision else {}
        return msgspec.structs.replace(record, **times, **numbers)

    def time_here(self, at: float) -> float:
        return at + self._later_s

    def order_here(self, order: s.Order) -> s.Order:
        """The site's order, as far as it is of the holder's tasks."""
        return s.Order(
            tuple([self._numbered(one) for one in order.ready if one.task in self._task_here]),
            tuple([self._numbered(one) for one in order.kept if one.task in self._task_here]),
        )

    def _numbered(self, one: Any) -> Any:
        changes = {"task": self._task_here[one.task], "phase": self._phase_here[one.phase]}
        if isinstance(one, s.Ranked):
            changes["ready_at"] = one.ready_at + self._later_s  # type: ignore[assignment]  # a time beside numbers
        return msgspec.structs.replace(one, **changes)

    def status_here(self, status: s.TaskStatus) -> s.TaskStatus:
        return msgspec.structs.replace(status, task=self._task_here[status.task], since=status.since + self._later_s)
