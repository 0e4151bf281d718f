"""Promises of queues that are about to break, as the engine is told of them.

    writer's thread   the runs that it keeps, and what waits ─┐               ┌─► where that is new: `PromisesAtRisk`
    another thread                                            └─► burn rates ─┘   into the engine and its journal

A promise is at risk while more of what it speaks of fails than may: in the last hour, six hours or day, or so much in
the period that the error budget is used up. What waits too long already, and what is open too long, has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from egs_core.engine import messages as m
from egs_core.engine.specs import SAFE, AtRisk
from egs_core.server.book import Book
from egs_core.server.leader import NotActive
from egs_core.server.logic import SiteLogic
from egs_core.server.runs import Run
from egs_core.server.slo import Objectives, events_of
from egs_core.server.writer import Unavailable
from egs_core.slo import Event, Report, Slo, report

LOOK_S = 10.0
AGAIN_S = 3600.0
WINDOWS = ("1h", "6h", "1d")
LOG = logging.getLogger("uvicorn.error")


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable."""

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


class Counted(NamedTuple):
    """What one objective of a queue speaks of, at that moment of the site's clock."""

    queue: str
    slo: Slo
    events: tuple[Event, ...]
    now: float


class Promises:
    """See the module. objectives: of each queue; look_s: between two looks."""

    def __init__(self, objectives: Objectives, look_s: float = LOOK_S) -> None:
        self.problem = ""
        timed = {queue: tuple([slo for slo in slos if slo.kind != "deadline"]) for queue, slos in objectives.items()}
        self._objectives = {queue: slos for queue, slos in timed.items() if slos}
        self._look_s = look_s
        self._told_at: dict[str, float] = {}  # what is at risk

    async def follow(self, site: Asks) -> None:
        """Look again and again, as long as the server is there; where nothing is promised, once: what was at risk, by
        an earlier file of queues, is so no more."""
        while True:
            try:
                risks = await self._reckon(await site.ask(self._look))
                await site.ask(partial(self._tell, risks))
                if self.problem or not self._objectives:
                    return
            except (Unavailable, NotActive):  # the writer has said why; the next look goes on from what is durable
                pass
            await asyncio.sleep(self._look_s)

    async def _reckon(self, counted: list[Counted]) -> Mapping[str, AtRisk]:
        try:
            return {} if self.problem else await asyncio.to_thread(risks_of, counted)
        except Exception as error:
            self._give_up(error)
            return {}

    # --- on the writer's thread ---

    def _look(self, logic: SiteLogic) -> list[Counted]:
        """It changes nothing, so a bug ends this and nothing else."""
        try:
            return [] if self.problem else count(logic.book, self._objectives)
        except Exception as error:
            self._give_up(error)
            return []

    def _give_up(self, error: Exception) -> None:
        """Nothing is looked at any more; the engine is still to hear that nothing is at risk."""
        self.problem = f"{type(error).__name__}: {error}"
        LOG.exception("the order heeds no promises any more, until the server is started again: this is a bug")

    def _tell(self, risks: Mapping[str, AtRisk], logic: SiteLogic) -> None:
        book = logic.book
        for event in changes(book, {} if self.problem else risks, self._told_at):
            self._told_at[event.queue] = book.now
            book.handle(event)


def count(book: Book, objectives: Objectives) -> list[Counted]:
    """What the objectives of these queues speak of, now."""
    by_queue: dict[str, list[Run]] = {queue: [] for queue in objectives}
    for run in book.runs.values():
        if run.queue in by_queue:
            by_queue[run.queue].append(run)
    return [
        Counted(queue, slo, tuple(events_of(slo, by_queue[queue], book.now)), book.now)
        for queue, slos in objectives.items()
        for slo in slos
    ]


def risks_of(counted: list[Counted]) -> dict[str, AtRisk]:
    """What is at risk, by queue; a queue that keeps its promises is left out."""
    found: dict[str, AtRisk] = {}
    for queue, slo, events, now in counted:
        target_s = slo.target_s
        if target_s is None or not _is_at_risk(report(slo, events, now)):
            continue
        why = f"{slo.name} ({slo.share:.0%} within {target_s:g} s)"
        before = found.get(queue, SAFE)
        waits_s = (*before.waits_s, target_s) if slo.kind == "wait" else before.waits_s
        ends_s = (*before.ends_s, target_s) if slo.kind == "jct" else before.ends_s
        share = max(slo.share, before.share) if before else slo.share
        found[queue] = AtRisk(waits_s, ends_s, share, f"{before.why} and {why}" if before.why else why)
    return found


def _is_at_risk(found: Report) -> bool:
    """Whether its error budget is used up, or faster than it lasts."""
    is_used_up = found.budget_left is not None and found.budget_left < 0
    return is_used_up or any((found.burn[name] or 0.0) > 1 for name in WINDOWS)


def changes(book: Book, risks: Mapping[str, AtRisk], told_at: Mapping[str, float]) -> list[m.PromisesAtRisk]:
    """What the engine is to be told: what is at risk, or is not any more; and what still is `AGAIN_S` after it was
    told, as the engine then looks anew at what has the most work. told_at: when that was, by queue."""
    found = []
    for queue in book.engine.state.queues:
        name, old = queue.spec.name, queue.at_risk
        new = risks.get(name, SAFE)
        is_old = bool(new) and book.now - told_at.get(name, 0.0) >= AGAIN_S
        if is_old or (old.waits_s, old.ends_s) != (new.waits_s, new.ends_s):
            found.append(m.PromisesAtRisk(name, new))
    return found
