"""How far a site keeps what its file of queues promises: from the runs that it keeps. Pure.

A run counts for the objectives of the queue in which it is: for `wait` when its command or request has begun, for `jct`
when it has succeeded, for `deadline` when it has ended and had one. What its user ended says nothing, and what runs in
a GPU request waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egs_core.client.slo import Slos, SloView
from egs_core.engine.specs import SAFE, AtRisk
from egs_core.server.book import Book
from egs_core.server.principals import Principal
from egs_core.server.runs import Run
from egs_core.slo import PERIOD_S, Event, Slo, report

Objectives = Mapping[str, tuple[Slo, ...]]


def slos_of(book: Book, objectives: Objectives, who: Principal) -> Slos:
    """Those of queues of the asker's teams, of queues without a team only where it is bound to none: others' runs are
    in them. Raises Refusal for one that sees nothing."""
    who.need_to_see()
    visible = {queue: slos for queue, slos in objectives.items() if who.is_of(book.team_of_queue.get(queue, ""))}
    by_queue: dict[str, list[Run]] = {queue: [] for queue in visible}
    for run in book.runs.values():
        if run.queue in by_queue:
            by_queue[run.queue].append(run)
    since = max(book.facts.epoch, book.facts.epoch + book.now - PERIOD_S)
    risks = {queue.spec.name: queue.at_risk for queue in book.engine.state.queues}
    found = [
        _view(queue, slo, by_queue[queue], book.now, risks.get(queue, SAFE))
        for queue, slos in visible.items()
        for slo in slos
    ]
    return Slos(since=since, slos=tuple(found))


def _view(queue: str, slo: Slo, runs: Iterable[Run], now: float, risk: AtRisk) -> SloView:
    found = report(slo, events_of(slo, runs), now)
    return SloView(
        queue=queue,
        slo=slo.name,
        objective=slo.share,
        target_s=slo.target_s,
        events=found.events,
        bad=found.bad,
        budget_left=found.budget_left,
        burn=found.burn,
        alert=found.alert,
        at_risk=slo.target_s in {"wait": risk.waits_s, "jct": risk.ends_s}.get(slo.kind, ()),
    )


def events_of(slo: Slo, runs: Iterable[Run]) -> Iterator[Event]:
    """Of the site's clock."""
    for run in runs:
        event = waited(slo, run) if slo.kind == "wait" else ended(slo, run)
        if event is not None:
            yield event


def waited(slo: Slo, run: Run) -> Event | None:
    """Of a run that has had its turn."""
    if run.waited_s is None or run.started_at is None or run.inside or slo.target_s is None:
        return None
    return Event(run.started_at, run.waited_s <= slo.target_s)


def ended(slo: Slo, run: Run) -> Event | None:
    """Of a run that has ended; None for one that says nothing of such an objective."""
    if run.ended_at is None or run.inside or run.is_request or run.outcome in ("", "aborted", "refused"):
        return None
    took_s, is_well = run.ended_at - run.submitted_at, run.outcome == "succeeded"
    if slo.kind == "jct":
        return Event(run.ended_at, took_s <= (slo.target_s or 0.0)) if is_well else None
    if run.deadline_s is None:
        return None
    return Event(run.ended_at, is_well and took_s <= run.deadline_s)
