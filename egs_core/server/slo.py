"""How far a site keeps what its file of queues promises: from the runs that it keeps. Pure.

    turn, or submission ── in time ──► promised until ── late ──► GPUs, or end
                              │              │
      GPUs, or success: good ─┘              └─► bad, from this moment on and for good

A run counts for the objectives of the queue in which it is: for `wait` what it waits for its GPUs, for `jct` and
`deadline` what it takes from its submission to its end. What is late counts as soon as it is, and stays so however it
ends. What ended before, and was not well, says nothing of `jct`, and what its user ended nothing of either; what runs
in a GPU request waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egs_core.client.slo import Slos, SloView
from egs_core.engine.specs import SAFE, AtRisk
from egs_core.server import turns
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
    found = report(slo, events_of(slo, runs, now), now)
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


def events_of(slo: Slo, runs: Iterable[Run], now: float) -> Iterator[Event]:
    """Of the site's clock, which says now; of a run that was evicted also each wait before."""
    for run in runs:
        if slo.kind == "wait" and not run.inside:
            for one in run.earlier:
                if one.turn_at is not None and one.waited_s is not None:
                    yield _had(one.turn_at, one.waited_s, slo.target_s or 0.0)
        if (event := event_of(slo, run, now)) is not None:
            yield event


def event_of(slo: Slo, run: Run, now: float) -> Event | None:
    """What a run says of an objective by now, of its latest wait; None for nothing, or nothing yet. One that is late
    says so with the moment at which it became late, whenever it is asked."""
    if run.inside:
        return None
    if slo.kind == "wait":
        return _waited(run, slo.target_s or 0.0, now)
    return None if run.is_request else _ended(slo, run, now)


def _waited(run: Run, target_s: float, now: float) -> Event | None:
    found = turns.wait_of(run, now)
    if found is None:
        return None
    since, waited_s = found
    return None if run.waited_s is None and waited_s <= target_s else _had(since, waited_s, target_s)


def _had(since: float, waited_s: float, target_s: float) -> Event:
    """What has waited so long, or until it was late."""
    return Event(since + min(waited_s, target_s), is_good=waited_s <= target_s)


def _ended(slo: Slo, run: Run, now: float) -> Event | None:
    within_s = run.deadline_s if slo.kind == "deadline" else slo.target_s
    if within_s is None:
        return None
    took_s = (now if run.ended_at is None else run.ended_at) - run.submitted_at
    if took_s > within_s:
        return Event(run.submitted_at + within_s, is_good=False)
    is_well = run.outcome == "succeeded"
    if run.ended_at is None or run.outcome in ("aborted", "refused") or not (is_well or slo.kind == "deadline"):
        return None
    return Event(run.ended_at, is_well)
