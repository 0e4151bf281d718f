"""The writer: what is told is durable, a full disk undoes a batch, and a refusal is its asker's alone."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from egs_core.client import messages as c
from egs_core.server import writer as writer_module
from egs_core.server.logic import Batch, SiteLogic
from egs_core.server.runs import Refusal
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns, Unavailable, Writer
from tests.unit.server.real_site import wait_for
from tests.unit.server.site_steps import ANN, behind, end, request, start
from tests.unit.server.site_world import OFFER, MemoryStore


def test_what_waits_for_a_run_is_known_after_a_restart() -> None:
    turns = run_with(store := MemoryStore())
    turns.take([lambda site: start(site, 1), lambda site: site.submit(ANN, behind(2, site.view(ANN, "1")))])
    again = run_with(store).logic
    assert again.view(ANN, "2").kind == "dependency"
    end(again, again.view(ANN, "1"))
    assert again.view(ANN, "2").state == "granted"


def submitted(number: int, gpus: int, site: SiteLogic) -> c.RunView:
    return site.submit(ANN, request(number, gpus))


def run_with(store: SqlStore | MemoryStore) -> Turns:
    return Turns(store, OFFER, clock=lambda: 1000.0)


def test_nothing_is_told_before_it_is_durable() -> None:
    """A batch that the disk does not take is answered with Unavailable, and undone; the same request then succeeds, and
    a device that was granted in it is free."""
    store, told = MemoryStore(), list[list[str]]()
    writer = Writer(run_with(store), told.append)
    store.fails = "before"
    asked = [writer.ask(partial(submitted, n, 3)) for n in (1, 2)]
    writer.start()
    for one in asked:
        with pytest.raises(Unavailable, match="the disk failed before the commit"):
            one.result(30)
    assert told == []
    view = writer.ask(lambda site: site.submit(ANN, request(2, gpus=3))).result(30)
    assert (view.id, view.state) == ("1", "granted")
    writer.close()
    assert told[-1] == ["1"]


def test_a_full_disk_is_said_once_and_the_site_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit on pages stands for the disk: each request hears what is wrong and that it passes, the log has
    one line however often it is tried, and with room again the site has what it had, and takes what it is asked."""
    monkeypatch.setattr(writer_module, "LOG", logging.getLogger("egs.test"))  # uvicorn's may have handlers of its own
    store, pages = SqlStore(tmp_path, 0.0), [1_000_000]
    sa.event.listen(
        store._engine, "checkout", lambda connection, *_: connection.execute(f"PRAGMA max_page_count={pages[0]}")
    )
    writer = Writer(run_with(store), lambda _: None)
    writer.start()
    assert writer.ask(partial(submitted, 1, 1)).result(30).state == "granted"
    pages[0] = 1  # SQLite makes it the number of pages that there are
    states = [writer.ask(partial(submitted, number, 1)).exception(30) for number in range(2, 200)]
    kept = 1 + states.count(None)  # until a page more is needed
    assert {type(one) for one in states} == {type(None), Unavailable}
    text = "database or disk is full); the server goes on by itself"
    assert all(text in str(one) for one in states if one)
    for _ in range(3):
        with pytest.raises(Unavailable):
            writer.ask(lambda site: site.submit(ANN, request(999))).result(30)
    assert len([one for one in caplog.records if "disk is full" in one.message]) == 1
    pages[0] = 1_000_000
    wait_for(lambda: writer.ask(lambda site: site.now).exception(30) is None, "the site has room again")
    assert len(writer.ask(lambda site: site.views.listed().runs).result(30)) == kept
    assert writer.ask(partial(submitted, 999, 1)).result(30).state == "waiting"
    writer.close()
    assert "takes changes" in caplog.records[-1].message


def test_requests_that_wait_share_a_commit() -> None:
    """Group commit: what came in while nothing was taken is one transaction."""
    commits: list[int] = []

    class Counting(MemoryStore):
        def commit(self, batch: Batch) -> None:
            commits.append(len(batch.runs))
            super().commit(batch)

    writer = Writer(run_with(Counting()), lambda _: None)
    asked = [writer.ask(partial(submitted, n, 1)) for n in range(1, 41)]
    writer.start()
    assert {one.result(30).state for one in asked} == {"granted", "waiting"}
    writer.close()
    assert commits == [0, 40]


def test_a_refusal_is_its_askers_alone() -> None:
    """The others of its batch are answered."""
    writer = Writer(run_with(MemoryStore()), lambda _: None)
    bad, good = writer.ask(lambda site: site.view(ANN, "7")), writer.ask(lambda site: site.submit(ANN, request(1)))
    writer.start()
    assert good.result(30).state == "granted"
    with pytest.raises(Refusal, match="there is no run '7'"):
        bad.result(30)
    writer.close()
