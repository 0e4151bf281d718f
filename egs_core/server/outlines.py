"""The runs of a site in the order in which they changed last, and what is told of them: see `egs_core.client.outlines`.

number   1    2    3    4    5          whoever knows what there was up to 3 is told of runs c and a
run      a    b    d    c    a again
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import takewhile

from egs_core.client.outlines import Outline, Outlines
from egs_core.server.book import Book
from egs_core.server.principals import Principal
from egs_core.server.runs import Run
from egs_core.server.steps import Steps, at_once

MOST_IN_A_STEP = 100
MOST_TOLD = 500


class Changes:
    """See the module. epoch: of these numbers."""

    def __init__(self, runs: Iterable[str] = ()) -> None:
        self.epoch = secrets.token_hex(8)
        self._last = 0
        self._numbers: dict[str, int] = {}  # of runs, by their latest change
        self.note(runs)

    def note(self, runs: Iterable[str]) -> None:
        """These have changed."""
        for run in runs:
            self._last += 1
            self._numbers.pop(run, None)
            self._numbers[run] = self._last

    def forget(self, runs: Iterable[str]) -> None:
        for run in runs:
            self._numbers.pop(run, None)

    def after(self, number: int) -> list[tuple[str, int]]:
        """Those that have changed since this number, and theirs."""
        return list(takewhile(lambda one: one[1] > number, reversed(self._numbers.items())))[::-1]


def outlines(book: Book, changes: Changes, who: Principal, epoch: str = "", since: int = 0) -> Outlines:
    """What it sees. Raises Refusal for the role that sees nothing."""
    return at_once(outlines_steps(book, changes, who, epoch, since))


def outlines_steps(book: Book, changes: Changes, who: Principal, epoch: str = "", since: int = 0) -> Steps[Outlines]:
    """The same in steps, between which others may be answered."""
    who.need_to_see()
    number = since if epoch == changes.epoch else 0
    changed = changes.after(number)
    found: list[Outline] = []
    for begin in range(0, len(changed), MOST_IN_A_STEP):
        if begin:
            yield
        part = changed[begin : begin + MOST_IN_A_STEP]
        number = part[-1][1]
        known = [run for run_id, _ in part if (run := book.runs.get(run_id)) is not None]
        found += [_outline(book, run, who) for run in known if who.sees(run)]
        if len(found) >= MOST_TOLD:
            break
    more = bool(changed) and number < changed[-1][1]
    return Outlines(changes.epoch, number, book.facts.epoch + book.now, tuple(found), more)


def _outline(book: Book, run: Run, who: Principal) -> Outline:
    epoch, lease, views = book.facts.epoch, run.lease, book.views
    after = [one for one, _ in run.after]
    when = {**run.follows_when, **{one: how for one, how in run.after if how != "ok"}}  # of older servers the latter
    time_is_up_at = run.time_is_up_at if run.is_open else None
    devices = views.devices_of(run.host) if lease is not None and lease.devices else ()
    return Outline(
        id=run.id,
        name=run.name,
        user=run.user,
        state=run.state,
        gpus=run.gpus,
        submitted_at=epoch + run.submitted_at,
        team=run.team,
        queue=run.queue,
        host=views.name_of(run.host),
        flavor=run.flavor,
        started_at=None if run.started_at is None else epoch + run.started_at,
        ended_at=None if run.ended_at is None else epoch + run.ended_at,
        outcome=run.outcome,
        waited_s=run.waited_s,
        expected_s=run.expected_s,
        follows=_seen(book, dict.fromkeys([*run.follows, *after]), who),  # older servers kept `after` alone
        after=_seen(book, after, who),
        gang=run.gang.number if run.gang else "",
        inside=run.inside,
        is_request=run.is_request,
        devices=tuple([devices[number].id for number in lease.devices]) if lease is not None and devices else (),
        why=views.told_text(run.stop or run.why, who.sees) if run.stop or run.why else "",
        evictions=run.evictions,
        earlier=views.earlier(run, who.sees),
        ends_at=None if time_is_up_at is None else epoch + time_is_up_at,
        when={one: when[one] for one in _seen(book, when, who)},
    )


def _seen(book: Book, runs: Iterable[str], who: Principal) -> tuple[str, ...]:
    return tuple([one for one in runs if one in book.runs and who.sees(book.runs[one])])
