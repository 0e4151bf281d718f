"""What viewers are told each second: asked for once for all who see the same, and whole for who is too slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client.http import Unreachable
from egs_core.client.overview import Me, Overview
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.feed import MOST_UNREAD, Feeds, Tables, Viewer
from egs_core.dashboard.sessions import Session, Sessions
from egs_core.dashboard.snapshot import snapshot
from egs_core.dashboard.source import Source
from tests.unit.dashboard.test_snapshot import run, site
from tests.unit.server.real_app import FILE, Asker, RealApp
from tests.unit.server.real_site import PATIENCE_S


class Counting(Asking):
    """Asks a real server, and counts."""

    count = 0

    async def overview(self, token: str) -> Overview:
        self.count += 1
        return await super().overview(token)


@pytest.fixture(scope="module")
def app() -> Iterator[RealApp]:
    found = RealApp(FILE)
    yield found
    found.close()


def session(sessions: Sessions, asker: Asker) -> Session:
    return sessions.begin(asker.token, Me.model_validate(asker.get("/v1/me").told))[1]


def test_who_sees_the_same_is_told_the_same_bytes(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty viewers of a team: one question, and one event that is written once. Another team has its own."""
    monkeypatch.setattr("egs_core.dashboard.feed.EVERY_S", 3600.0)  # one turn, however slow this machine is
    sessions, asking = Sessions(lambda: 0.0), Counting(app.path)
    feeds = Feeds(asking, sessions, dict)
    one, two = (app.token(role, "vision") for role in ("viewer", "operator"))
    of_team = [Viewer(session(sessions, asker)) for asker in [one, two] * 10]
    other = Viewer(session(sessions, app.token("viewer", "speech")))

    async def look() -> list[bytes]:
        for viewer in (*of_team, other):
            feeds.of(viewer.session).join(viewer)
        async with asyncio.timeout(PATIENCE_S):
            return [await viewer.events.get() for viewer in (*of_team, other)]

    found = asyncio.run(look())
    assert {id(event) for event in found[:20]} == {id(found[0])}
    assert found[20] is not found[0]
    assert asking.count == 2


def test_nobody_looks_and_nothing_is_asked(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed whose last viewer has gone ends; the next one begins with what is then."""
    monkeypatch.setattr("egs_core.dashboard.feed.EVERY_S", 0.0)
    sessions, asking = Sessions(lambda: 0.0), Counting(app.path)
    feed = Tables(Source(asking), sessions, dict)
    viewer = Viewer(session(sessions, app.admin))

    async def look() -> None:
        async with asyncio.timeout(PATIENCE_S):
            feed.join(viewer)
            await viewer.events.get()
            feed.leave(viewer)
            assert feed._task is not None
            await feed._task
            count = asking.count
            await asyncio.sleep(0.1)
            assert asking.count == count
            feed.join(viewer)
            assert viewer.events.empty()
            assert json.loads((await viewer.events.get()).split(b"data: ", 1)[1])["totals"]
            feed.leave(viewer)

    asyncio.run(look())


def test_a_revoked_token_is_not_anothers_trouble(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first viewer's token ends: its stream does, and the second one is told what there is, by its own."""
    monkeypatch.setattr("egs_core.dashboard.feed.EVERY_S", 0.0)
    sessions = Sessions(lambda: 0.0)
    feed = Tables(Source(Asking(app.path)), sessions, dict)
    first, second = (Viewer(session(sessions, app.token("viewer", "vision", name))) for name in ("first", "second"))
    token = next(one["id"] for one in app.admin.get("/v1/tokens").told["tokens"] if one["name"] == "first")
    app.admin.post(f"/v1/tokens/{token}/revoke")

    async def look() -> tuple[bytes, bytes]:
        async with asyncio.timeout(PATIENCE_S):
            feed.join(first)
            feed.join(second)
            found = await first.events.get(), await second.events.get()
            feed.leave(first)
            feed.leave(second)
            return found

    ended, told = asyncio.run(look())
    assert (ended, sessions.lasts(first.session)) == (b"", False)
    assert told.startswith(b"event: change")
    assert sessions.lasts(second.session)


def test_a_slow_viewer_gets_the_whole(app: RealApp) -> None:
    """Who reads nothing has but a few events waiting; the last of them has all that there is, with no gap before it."""
    sessions = Sessions(lambda: 0.0)
    feed = Tables(Source(Asking(app.path)), sessions, dict)
    viewer = Viewer(session(sessions, app.admin))
    feed._viewers[viewer] = None
    for number in range(2, 100):
        feed._tell(snapshot(site(waiting=(run(number, "waiting"), run(number + 1, "waiting")), waiting_count=2), {}), 0)
        assert viewer.events.qsize() <= MOST_UNREAD
    shown: dict[str, object] = {}
    while not viewer.events.empty():
        part = json.loads(viewer.events.get_nowait().split(b"data: ", 1)[1])["sections"]["waiting"]
        known = shown | part["rows"]
        shown = {key: known[key] for key in part["order"]}
    assert list(shown) == ["99", "100"]


def test_a_slow_viewer_keeps_the_problem(app: RealApp) -> None:
    """A problem that comes when too much is unread is the last that is told: a change after it would take it back."""
    sessions = Sessions(lambda: 0.0)
    feed = Tables(Source(Asking(app.path)), sessions, dict)
    viewer = Viewer(session(sessions, app.admin))
    feed._viewers[viewer] = None
    for number in range(2, 2 + MOST_UNREAD):
        feed._tell(snapshot(site(waiting=(run(number, "waiting"),)), {}), 0)
    assert viewer.events.qsize() == MOST_UNREAD
    feed._tell_problem("away")
    told = [viewer.events.get_nowait() for _ in range(viewer.events.qsize())]
    assert [event.split(b"\n")[0] for event in told] == [b"event: change", b"event: problem"]


def test_a_server_that_is_away_is_not_asked_for_each_viewer(app: RealApp, tmp_path: Path) -> None:
    """Those who want to know a moment later hear the same; then it is asked again."""
    away, token = Counting(tmp_path / "nobody.sock"), app.admin.token
    source = Source(away)

    async def look() -> list[BaseException | Overview]:
        return await asyncio.gather(*(source.overview(token) for _ in range(50)), return_exceptions=True)

    assert all(isinstance(one, Unreachable) for one in asyncio.run(look()))
    assert away.count == 1


def test_pages_of_parts_are_made_once_for_all_who_see_the_same(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten viewers of a list: one question, and the same bytes; nothing new, and nothing is sent."""
    monkeypatch.setattr("egs_core.dashboard.feed.EVERY_VIEW_S", 0.01)
    sessions, asking = Sessions(lambda: 0.0), Counting(app.path)
    feeds = Feeds(asking, sessions, dict)
    viewers = [Viewer(session(sessions, app.admin)) for _ in range(10)]

    async def look() -> list[bytes]:
        for viewer in viewers:
            feeds.of(viewer.session, "workloads").join(viewer)
        async with asyncio.timeout(PATIENCE_S):
            found = [await viewer.events.get() for viewer in viewers]
            count = asking.count
            while asking.count < count + 2:  # turns in which nothing has changed
                await asyncio.sleep(0.05)
        assert all(viewer.events.empty() for viewer in viewers)
        for viewer in viewers:
            feeds.of(viewer.session, "workloads").leave(viewer)
        return found

    found = asyncio.run(look())
    assert {id(one) for one in found} == {id(found[0])}
    assert set(json.loads(found[0].split(b"data: ", 1)[1])["parts"]) == {"title", "list", "drivers"}
