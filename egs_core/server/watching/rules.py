"""A site's rules at work: one look at what is true, and what is done about it. Pure; called on the writer's thread.

What it remembers (since when something holds, what has fired) is kept by nobody: a server that starts again looks
anew. What rules change is in the book, and durable with the batch in which they changed it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec

from egs_core.client import watching as w
from egs_core.errors import counted
from egs_core.server.book import Book, LogLine
from egs_core.server.hosts import OWN
from egs_core.server.principals import Principal
from egs_core.server.watching.conditions import Finding, Learned, Past, findings
from egs_core.server.watching.health import STALE_S, Health
from egs_core.server.watching.hysteresis import Holding, Hysteresis
from egs_core.server.watching.saving import Failures
from egs_core.server.watching.steps import UNBOUND, issue_step, select_steps, who_is
from egs_core.server.watching.tasks import WatchedTask
from egs_core.watch_rules import Rule, Rules, span

HOUR_S = 3600.0
MOST_KEPT = 500
MOST_ALERTS = 60  # an hour


class Alert(msgspec.Struct, frozen=True):
    """For people. at: seconds since 1970."""

    at: float
    rule: str
    subject: str
    text: str


class Did(msgspec.Struct):
    """See `w.DoneView`. at: of the site's clock; run: whose affair it is, "" for a device's."""

    at: float
    rule: str
    action: str
    subject: str
    outcome: str
    text: str
    run: str = ""
    user: str = ""
    team: str = ""


class Bound:
    """At most so many in any hour."""

    def __init__(self, most: int) -> None:
        self._times: deque[float] = deque(maxlen=most)

    def is_reached(self, now: float) -> bool:
        return len(self._times) == self._times.maxlen and now - self._times[0] < HOUR_S

    def count(self, now: float) -> None:
        self._times.append(now)


class SiteRules:
    """See the module. problem: of a bug, for which they are not followed any more; steps: how many there were that are
    durable, by rule, action and outcome."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.problem = ""
        self.steps = Counter[tuple[str, str, str]]()
        for rule in rules.rules:  # at zero from the start, so that a rate begins
            self.steps.update({(rule.name, action, _first(rule)): 0 for action in rule.do})
        self._health: Health | None = None
        self._past = Past(Learned(), Failures())
        self._looked = {rule.name: (0, 0) for rule in self.rules.rules}
        # apart, so that what is only tried out uses up nothing of what acts
        self._changes = {is_dry: Bound(self.rules.most_an_hour) for is_dry in (False, True)}
        self._alerts = {is_dry: Bound(MOST_ALERTS) for is_dry in (False, True)}
        self._did: deque[Did] = deque(maxlen=MOST_KEPT)
        self._new: list[Did] = []  # of the last look: nobody has said yet that it is durable
        self._looked_at = -math.inf
        self.forget()

    def forget(self) -> None:
        """What the last look did is not durable, or another server was active: all is looked at anew."""
        self._states = {rule.name: Hysteresis(rule) for rule in self.rules.rules}
        self._new = []
        self._looked_at = -math.inf

    def health(self, now: float) -> Health:
        """What it goes by."""
        if self._health is None:
            self._health = Health(
                now, self.rules.most("loss_not_falling_for"), self.rules.most("loss_not_falling_steps")
            )
        return self._health

    def look(self, book: Book, own: Iterable[w.DeviceHealth], tasks: Sequence[WatchedTask] = ()) -> list[Alert]:
        """What is true now, and what follows. own: what was measured on the server's host since the last look; tasks:
        of frameworks, that run. The alerts are to go out once what was done is durable."""
        now, health = book.now, self.health(book.now)
        self._did += self._new
        self.steps.update((one.rule, one.action, one.outcome) for one in self._new)
        self._new = []
        if now - self._looked_at > STALE_S:
            health.began = now
            for state in self._states.values():
                state.interrupt()
        self._looked_at = now
        health.note(OWN, own, now)
        for name, at in book.hosts.heard.items():
            health.heard(name, at)
        for task, _ in tasks:
            if task.told is not None:
                health.told(task.key, now - task.told.ago_s)
                health.progressed(task.key, task.told, now)
        health.forget_runs([*book.views.open, *[task.key for task, _ in tasks]])
        alerts: list[Alert] = []
        for rule in self.rules.rules:
            found = list(findings(rule, book, health, self._past, tasks))
            self._looked[rule.name] = len(found), sum(one.holds is None for one in found)
            for due in self._states[rule.name].advance(found, now):
                alerts += self._fire(rule, book, due)
        return alerts

    def _fire(self, rule: Rule, book: Book, due: Holding) -> list[Alert]:
        now, why = book.now, _why(rule, due)
        alerts = [] if due.is_told or "alert" not in rule.do else self._alert(rule, book, due, why)
        due.is_told = True
        if set(rule.do) == {"alert"}:
            due.has_fired = True
            return alerts
        steps = select_steps(rule, book, due.finding)
        is_change = any(not step.left and step.action not in UNBOUND for step in steps)
        if is_change and self._changes[rule.is_dry].is_reached(now):
            if not due.is_waiting:
                text = f"{why}; {counted(self.rules.most_an_hour, 'firing')} in the last hour already (most_an_hour)"
                self._note(book, rule, rule.do[-1], due.finding, "waits", text)
            due.is_waiting = True
            return alerts
        if is_change:
            self._changes[rule.is_dry].count(now)
        due.has_fired, due.is_waiting = True, False
        for step in steps:
            if step.left:
                outcome, more = "left", f"{step.subject} {step.left}"
            elif rule.is_dry:
                outcome, more = "would", ""
            else:
                more = issue_step(rule, book, step, why, due.finding.task)
                outcome = "failed" if more else "done"
            text = f"{why}; {more}" if more else why
            self._note(book, rule, step.action, due.finding, outcome, text, step.subject)
        if not steps:
            self._note(book, rule, rule.do[-1], due.finding, "left", f"{why}; nothing runs there")
        return alerts

    def _alert(self, rule: Rule, book: Book, due: Holding, why: str) -> list[Alert]:
        if self._alerts[rule.is_dry].is_reached(book.now):
            self._note(
                book, rule, "alert", due.finding, "left", f"{why}; {MOST_ALERTS} alerts in the last hour already"
            )
            return []
        self._alerts[rule.is_dry].count(book.now)
        self._note(book, rule, "alert", due.finding, _first(rule), why)
        if rule.is_dry:
            return []
        whose = due.finding.task or book.runs.get(due.finding.run)
        team = whose.team if whose else ""
        book.lines.append(LogLine(book.now, who_is(rule), "alert", due.finding.subject, team, why))
        return [Alert(book.facts.epoch + book.now, rule.name, due.finding.subject, why)]

    def _note(
        self, book: Book, rule: Rule, action: str, found: Finding, outcome: str, text: str, subject: str = ""
    ) -> None:
        run, task = book.runs.get(subject or found.subject), found.task
        whose = (run.id, run.user, run.team) if run else ("", "", "")
        whose = (task.driver, task.user, task.team) if task is not None else whose
        self._new.append(Did(book.now, rule.name, action, subject or found.subject, outcome, text, *whose))

    # --- what is told ---

    def view(self, book: Book, who: Principal) -> w.Watching:
        """What it may see: devices are everybody's, runs those that it sees. Raises Refusal for a role that sees
        nothing."""
        who.need_to_see()
        epoch = book.facts.epoch
        seen = [
            w.SeenView(
                rule=rule.name,
                subject=one.finding.subject,
                text=one.finding.text,
                since=epoch + one.since,
                has_fired=one.has_fired,
            )
            for rule in self.rules.rules
            for one in self._states[rule.name].holding.values()
            if one.gone_since is None and self._may_see(book, who, one.finding)
        ]
        done = [
            w.DoneView(at=epoch + x.at, rule=x.rule, action=x.action, subject=x.subject, outcome=x.outcome, text=x.text)
            for x in (*self._did, *self._new)
            if not x.run or who.sees(x)
        ]
        return w.Watching(
            is_on=True,
            problem=self.problem,
            rules=tuple([self._rule_view(one, who) for one in self.rules.rules]),
            seen=tuple(seen),
            done=tuple(done),
        )

    def _may_see(self, book: Book, who: Principal, found: Finding) -> bool:
        whose = found.task or book.runs.get(found.run)
        return who.sees(whose) if whose is not None else not found.run

    def _rule_view(self, rule: Rule, who: Principal) -> w.RuleView:
        """How many runs there are is not one team's to see."""
        is_told = rule.when.kind == "device" or who.teams is None
        looked_at, unknown = self._looked[rule.name] if is_told else (None, None)
        return w.RuleView(
            name=rule.name,
            when=rule.when.words,
            for_s=rule.for_s,
            do=rule.do,
            dry_run=rule.is_dry,
            looked_at=looked_at,
            unknown=unknown,
        )


def _first(rule: Rule) -> str:
    """The outcome that is expected of it."""
    return "would" if rule.is_dry else "done"


def _why(rule: Rule, due: Holding) -> str:
    return due.finding.text + (f", for {span(rule.for_s)}" if rule.for_s else "")
