"""Promises of queues, as a site tells its engine of them: when one is at risk, and what a real server makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import AtRisk, QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.promises import AGAIN_S, Promises, changes, count, risks_of
from egs_core.server.runs import SiteFacts
from egs_core.server.slo import Objectives as BySlo
from egs_core.server.writer import Unavailable
from egs_core.slo import Objectives
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER

PROMISED = {"q": Objectives(wait_p95=60, jct_p95=300, deadline_share=0.5).slos()}


class Site:
    """A site's logic with a queue and three GPUs. `ask` answers at once, as the writer does when all is durable."""

    def __init__(self) -> None:
        self.logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
        self.logic.offer(OFFER, (QueueSpec("q"),))

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any:
        return question(self.logic)

    def look(self, objectives: BySlo | None = None) -> AtRisk:
        """What is told after a look, and what the engine then has."""
        book = self.logic.book
        for event in changes(book, risks_of(count(book, PROMISED if objectives is None else objectives)), {}):
            book.handle(event)
        self.logic.validate()
        return book.engine.state.queues[0].at_risk


def test_what_waits_too_long_has_failed_before_it_is_granted() -> None:
    """All GPUs are held: after its minute the run that waits puts the promise at risk; what waits for
    another run has not had its turn."""
    site = Site()
    first = start(site.logic, 1, 3, queue="q")
    site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.submit(ANN, request(3, 1, queue="q", after=[{"run": first.id, "when": "any"}]))
    site.logic.at(60.0)
    assert not site.look()
    site.logic.at(61.0)
    risk = site.look()
    assert (risk.waits_s, risk.ends_s, risk.share) == ((60.0,), (), 0.95)
    assert risk.why == "wait_p95 (95% within 60 s)"  # one of two was late
    (event,) = site.logic.book.engine.state.queues
    assert event.at_risk_since == 61.0


def test_what_is_given_another_place_in_line_has_waited_all_the_same() -> None:
    """A run whose priority was changed meanwhile is as late as one that was left alone."""
    site = Site()
    start(site.logic, 1, 3, queue="q")
    waiting = site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.at(30.0)
    site.logic.update(ANN, waiting.id, c.Change(priority=5))
    site.logic.at(61.0)
    assert site.look().waits_s == (60.0,)


def test_it_is_at_risk_until_little_enough_fails_again() -> None:
    """Of 40 runs that had their GPUs at once one that failed to is within the 5 % that may."""
    site = Site()
    first = start(site.logic, 1, 3, queue="q")
    waiting = site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.at(100.0)
    assert site.look().waits_s == (60.0,)
    end(site.logic, first)
    lease = site.logic.view(ANN, waiting.id).lease
    assert lease is not None
    end(site.logic, site.logic.claim(ANN, waiting.id, c.Claim(token=lease.token)))
    assert site.look().waits_s == (60.0,)
    for number in range(10, 50):
        end(site.logic, start(site.logic, number, 1, queue="q"))
    assert not site.look()


def test_what_is_open_too_long_has_failed_its_end() -> None:
    """Also while it runs; deadlines need no promise to go first."""
    site = Site()
    start(site.logic, 1, 3, queue="q", deadline_s=10.0)
    site.logic.at(301.0)
    assert site.look() == AtRisk((), (300.0,), 0.95, site.look().why)
    assert site.look().why == "jct_p95 (95% within 300 s)"
    assert not site.look({"q": Objectives(deadline_share=0.9).slos()}).waits_s


def test_it_is_told_once_and_again_after_an_hour() -> None:
    """Looks that find nothing new leave the engine, and its journal, alone."""
    site = Site()
    start(site.logic, 1, 3, queue="q")
    site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.at(61.0)
    book = site.logic.book
    risks = risks_of(count(book, PROMISED))
    (event,) = changes(book, risks, {})
    book.handle(event)
    assert not changes(book, risks, {"q": 61.0})
    site.logic.at(61.0 + AGAIN_S)
    assert changes(book, risks, {"q": 61.0}) == [event]
    (over,) = changes(book, {}, {"q": 61.0})
    assert not over.risk


def test_a_file_without_promises_ends_what_was_at_risk() -> None:
    """The server was started anew with another file: one look, and the engine knows; nothing more is looked at."""
    site = Site()
    start(site.logic, 1, 3, queue="q")
    site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.at(61.0)
    assert site.look()
    asyncio.run(asyncio.wait_for(Promises({}).follow(site), 10.0))
    assert not site.logic.book.engine.state.queues[0].at_risk


@pytest.mark.parametrize("where", ["count", "risks_of"])
def test_a_bug_ends_the_promises_alone(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On the writer's thread or beside it. What was at risk is so no more, as nobody would say when it is not, also
    where the writer is away at first; it is said once."""
    site = Site()
    start(site.logic, 1, 3, queue="q")
    site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.at(61.0)
    assert site.look()
    promises, left = Promises(PROMISED, look_s=0.0), [1]

    async def ask(question: Callable[[SiteLogic], Any]) -> Any:
        if promises.problem and left:
            left.pop()
            raise Unavailable("a commit has failed")
        return question(site.logic)

    monkeypatch.setattr(f"egs_core.server.promises.{where}", lambda *_: 1 / 0)
    asyncio.run(asyncio.wait_for(promises.follow(SimpleNamespace(ask=ask)), 60.0))
    assert not left
    assert promises.problem == "ZeroDivisionError: division by zero"
    assert not site.logic.book.engine.state.queues[0].at_risk
    assert caplog.text.count("the order heeds no promises any more") == 1


@pytest.mark.slow
def test_a_served_queue_puts_what_would_break_its_promise_first(tmp_path: Path) -> None:
    """`egs serve` with a file that promises 12 s, and one GPU. A run waits longer: `egs slo` shows that the order heeds
    it. Then a long run has waited six seconds, is put forward, and a short one comes: `egs why` tells both the reason,
    a server that was killed and started again too, and the long run gets the GPU."""
    (tmp_path / "queues.yaml").write_text("queues: [{name: q, slo: {wait_p95: 12s}}]\n")
    site = RealSite(tmp_path / "site", gpus=1)

    def detached(expect: str) -> str:
        run: str = site.detached("--gpus", "1", "--queue", "q", "--expect", expect, "--", "sleep", "600")["id"]
        return run

    try:
        site.start("--queues", str(tmp_path / "queues.yaml"))
        busy = detached("1h")
        wait_for(lambda: any(site.devices().values()), "it runs")
        broken = detached("2h")
        wait_for(lambda: site.told("slo")["slos"][0]["at_risk"], "the promise is at risk")
        site.kill()
        site.start("--queues", str(tmp_path / "queues.yaml"))
        long = detached("40m")
        wait_for(
            lambda: (
                "it goes first in its queue: its promise wait_p95 (95% within 12 s) is at risk since"
                in site.egs("why", long).stdout
            ),
            "it is put forward",
        )
        short = detached("30s")
        assert "would be the next to break a promise of its queue" in site.egs("why", short).stdout
        assert "it goes first" not in site.egs("why", broken).stdout
        site.egs("abort", busy)
        holder = wait_for(lambda: next((h for h in site.devices().values() if h not in ("", busy)), ""), "it is given")
        assert holder == long
    finally:
        site.close()
