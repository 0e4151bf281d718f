"""One snapshot a second for all viewers who see the same: asked for once, compared once, written once.

    server ─ overview ─► snapshot ─► what has changed ─► bytes ─► every viewer's stream

Nobody looks: nothing is asked. It is asked for with the token of one of the viewers, so nobody here can see more than
the server shows somebody who is logged in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from egs_core.client.http import Refused, Unreachable
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.measured import Use
from egs_core.dashboard.sessions import Session, Sessions
from egs_core.dashboard.snapshot import NOTHING, Snapshot, change, snapshot

LOG = logging.getLogger("uvicorn.error")
EVERY_S = 1.0
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
    """Of those who see the same. used: what was measured last."""

    def __init__(self, asking: Asking, sessions: Sessions, used: Callable[[], Mapping[str, Use]]) -> None:
        self._asking, self._sessions, self._used = asking, sessions, used
        self._viewers: dict[Viewer, None] = {}
        self._latest, self._now, self._problem = NOTHING, 0.0, ""
        self._task: asyncio.Task[None] | None = None

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

    async def _run(self) -> None:
        while self._viewers:
            began = time.monotonic()
            await self._turn()
            await asyncio.sleep(max(EVERY_S, REST * (time.monotonic() - began)))
        self._latest, self._problem = NOTHING, ""  # whoever comes next wants to see what is then

    async def _turn(self) -> None:
        session = next((one.session for one in self._viewers if self._sessions.lasts(one.session)), None)
        if session is None:
            return
        try:
            seen = await self._asking.overview(session.token)
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
            self._tell(snapshot(seen, self._used()), seen.now)

    def _tell(self, found: Snapshot, now: float) -> None:
        news = change(self._latest, found, now)
        is_news = news.sections or news.totals is not None or self._problem
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
        if self._latest is not NOTHING:
            viewer.events.put_nowait(event("change", change(NOTHING, self._latest, self._now)))
        if self._problem:
            viewer.events.put_nowait(event("problem", self._problem))


class Feeds:
    """All of them, and what measures the devices: at most one look at a time, for a driver may hang."""

    def __init__(self, asking: Asking, sessions: Sessions, measure: Measure) -> None:
        self._asking, self._sessions, self._measure = asking, sessions, measure
        self._feeds: dict[str | None, Feed] = {}
        self._used: dict[str, Use] = {}
        self._looking: asyncio.Task[None] | None = None

    def of(self, session: Session) -> Feed:
        if session.sees not in self._feeds:
            self._feeds[session.sees] = Feed(self._asking, self._sessions, self._measured)
        return self._feeds[session.sees]

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
