"""One snapshot a second for all viewers who see the same: asked for once, compared once, written once.

    server ─ overview ─► snapshot ─► what has changed ─► bytes ─► every viewer's stream

Nobody looks: nothing is asked. It is asked for with the token of one of the viewers, so nobody here can see more than
the server shows somebody who is logged in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from egs_core.client.http import Refused, Unreachable
from egs_core.cost.prices import Prices
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.measured import Use
from egs_core.dashboard.sessions import Session, Sessions
from egs_core.dashboard.snapshot import NOTHING, Snapshot, change, snapshot
from egs_core.dashboard.source import Source
from egs_core.dashboard.views import VIEWS, Pace, Seeing

LOG = logging.getLogger("uvicorn.error")
EVERY_S, EVERY_VIEW_S = 1.0, 2.0
REST = 10  # times as long as the answer took: a server that has much to do is asked less often
AWAY = "the server does not answer now, or stands by for another one: it is asked again each second"
MOST_UNREAD = 8  # events; who is slower gets a whole snapshot instead
Measure = Callable[[], dict[str, Use]]


class Viewer:
    """A stream. events: encoded ones that it has not sent yet."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: asyncio.Queue[bytes] = asyncio.Queue()


class Feed:
    """Of those who see the same. every_s: how often it is looked for something new at most; 0: EVERY_S."""

    def __init__(self, sessions: Sessions, every_s: float = 0.0) -> None:
        self._sessions, self._every_s = sessions, every_s
        self._viewers: dict[Viewer, None] = {}
        self._latest: Any = None
        self._now, self._problem = 0.0, ""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_watched(self) -> bool:
        return bool(self._viewers)

    def join(self, viewer: Viewer) -> None:
        """From now on it is told what changes; at first all that is known."""
        self._viewers[viewer] = None
        self._put_whole(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def leave(self, viewer: Viewer) -> None:
        self._viewers.pop(viewer, None)

    def end(self, session: Session) -> None:
        """Its streams end at once."""
        self._sessions.end(session)
        for viewer in self._viewers:
            if viewer.session == session:
                viewer.events.put_nowait(b"")

    async def _look(self, token: str) -> tuple[Any, float]:
        """What there is to see, and the time of the server's clock. Raises Refused, Unreachable, ValidationError."""
        raise NotImplementedError

    def _news(self, found: Any, now: float) -> tuple[Any, bool]:
        """What is to be told so that a page that shows `_latest` shows this; whether that is anything."""
        raise NotImplementedError

    async def _run(self) -> None:
        while self._viewers:
            began = time.monotonic()
            await self._turn()
            await asyncio.sleep(max(self._every_s or EVERY_S, REST * (time.monotonic() - began)))
        self._latest, self._problem = None, ""  # whoever comes next wants to see what is then

    async def _turn(self) -> None:
        session = next((one.session for one in self._viewers if self._sessions.lasts(one.session)), None)
        if session is None:
            return
        try:
            found, now = await self._look(session.token)
        except Refused as error:
            if error.status == 401:
                self.end(session)  # its token is no longer good: the next one's is tried
            else:
                self._tell_problem(str(error))
        except (Unreachable, ValidationError):
            self._tell_problem(AWAY)
        except Exception:
            LOG.exception("the dashboard's figures could not be made")
            self._tell_problem("this is a bug in the dashboard: the server's log has more")
        else:
            self._tell(found, now)

    def _tell(self, found: Any, now: float) -> None:
        news, is_news = self._news(found, now)
        is_news = is_news or bool(self._problem)
        self._latest, self._now, self._problem = found, now, ""
        if is_news:
            self._publish(event("change", news))

    def _tell_problem(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._publish(event("problem", text))

    def _publish(self, encoded: bytes) -> None:
        for viewer in self._viewers:
            if viewer.events.qsize() >= MOST_UNREAD:
                while not viewer.events.empty():
                    viewer.events.get_nowait()
                self._put_whole(viewer)
            else:
                viewer.events.put_nowait(encoded)

    def _put_whole(self, viewer: Viewer) -> None:
        """The problem last: a page takes a change for the end of one."""
        if self._latest is not None:
            found, self._latest = self._latest, None
            viewer.events.put_nowait(event("change", self._news(found, self._now)[0]))
            self._latest = found
        if self._problem:
            viewer.events.put_nowait(event("problem", self._problem))


class Tables(Feed):
    """The page of what is now. used: what was measured last."""

    def __init__(self, source: Source, sessions: Sessions, used: Callable[[], Mapping[str, Use]]) -> None:
        super().__init__(sessions)
        self._source, self._used = source, used

    async def _look(self, token: str) -> tuple[Snapshot, float]:
        seen = await self._source.overview(token)
        return snapshot(seen, self._used()), seen.now

    def _news(self, found: Snapshot, now: float) -> tuple[Any, bool]:
        news = change(self._latest or NOTHING, found, now)
        return news, bool(news.sections) or news.totals is not None


class ViewChange(msgspec.Struct):
    """What a page of parts is told. now: of the server's clock; parts: those that differ, encoded trees."""

    now: float
    parts: dict[str, msgspec.Raw]


class Pages(Feed):
    """A page that is made of parts. make: all of them, encoded; see `views.View`."""

    def __init__(
        self, sessions: Sessions, make: Callable[[str], Awaitable[tuple[dict[str, bytes], float]]], every_s: float
    ) -> None:
        super().__init__(sessions, every_s)
        self._make = make

    async def _look(self, token: str) -> tuple[dict[str, bytes], float]:
        return await self._make(token)

    def _news(self, found: dict[str, bytes], now: float) -> tuple[Any, bool]:
        before = self._latest or {}
        parts = {name: msgspec.Raw(one) for name, one in found.items() if before.get(name) != one}
        return ViewChange(now, parts), bool(parts)


class Feeds:
    """All of them, and what measures the devices: at most one look at a time, for a driver may hang."""

    def __init__(self, asking: Asking, sessions: Sessions, measure: Measure, prices: Prices | None = None) -> None:
        self._asking, self._sessions, self._measure = asking, sessions, measure
        self._feeds: dict[tuple[str | None, str, str], Feed] = {}
        self._sources: dict[str | None, Source] = {}
        self._pace, self._prices = Pace(), prices
        self._used: dict[str, Use] = {}
        self._looking: asyncio.Task[None] | None = None

    def of(self, session: Session, view: str = "", of: str = "") -> Feed:
        """view: of `VIEWS`, "" for the page of what is now; of: a run."""
        key = session.sees, view, of
        if key not in self._feeds:
            self._feeds = {known: one for known, one in self._feeds.items() if not known[1] or one.is_watched}
            self._feeds[key] = self._new(session, view, of)
        return self._feeds[key]

    def end(self, session: Session) -> None:
        """All of its streams end at once."""
        self._sessions.end(session)
        for one in self._feeds.values():
            one.end(session)

    def _new(self, session: Session, view: str, of: str) -> Feed:
        source = self._sources.setdefault(session.sees, Source(self._asking))
        if not view:
            return Tables(source, self._sessions, self._measured)
        seeing = Seeing(source, session.sees is None, self._pace, self._prices)
        return Pages(self._sessions, VIEWS[view](seeing, of), EVERY_VIEW_S)

    def _measured(self) -> Mapping[str, Use]:
        """What was last found, while the next look is under way."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return self._used

    async def _look(self) -> None:
        try:
            self._used = await asyncio.to_thread(self._measure)
        except Exception as error:
            LOG.warning("the GPUs could not be measured: %s: %s", type(error).__name__, error)
            self._used = {}


def event(kind: str, data: Any) -> bytes:
    """As a browser's EventSource reads it: JSON has no line break, in its strings they are escaped."""
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
