"""The dashboard's routes. A cookie says whose page is shown, and opens nothing else: browsers send it to every port of
the host. What is shown and changed needs the session's second secret, which only the answer to a login tells; the
page keeps it in its origin's storage, of one port, and sends it in a header.

GET  /dashboard                  the page; the login page for nobody that is known
GET  /dashboard/login            the login page
POST /dashboard/login            token ─► a session
POST /dashboard/logout
GET  /dashboard/workloads        the list of workloads; /RUN: the one of a run, as a graph; /DRIVER: tasks
GET  /dashboard/plan             what should come next
GET  /dashboard/usage            GPUs over time and by team, a day (a new site: an hour); /SPAN: 1h, 24h, 7d, 30d
GET  /dashboard/events           what changes, as server-sent events; ?view=…&of=…: of one of those pages
POST /dashboard/runs/ID/VERB     abort, pause, resume, priority: asked of the server with the viewer's token
GET  /dashboard/assets/NAME
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from egs_core.client import messages as c
from egs_core.client.http import Refused, Unreachable
from egs_core.cost.prices import Prices
from egs_core.dashboard.asking import PRIORITY, RUN, TOKEN, VERBS, Asking
from egs_core.dashboard.feed import AWAY, Feeds, Measure, Viewer, event
from egs_core.dashboard.pages import ASSETS, PATH, entered_page, login_page, main_page, view_page
from egs_core.dashboard.sessions import LASTS_S, Session, Sessions
from egs_core.dashboard.usage import SPANS
from egs_core.dashboard.views import VIEWS

SILENCE_S = 10.0  # after so long a stream says that it lives, and its token is looked at again
MOST_LOGINS = 4  # at once
DAY = "24h"
NOBODY = "nobody is known by that token here: it is wrong, has expired, or was revoked"
NO_REASON = "the reason may have 200 characters, and none that control a terminal"
NO_PRIORITY = "the priority is a whole number of at most a million, below zero too"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".css": "text/css", ".js": "text/javascript"}


class App:
    """The routes. port: of the server, whose cookie is its own; is_secure: browsers come over TLS, so the cookie is
    for that alone, and no server without TLS sets it; behind_proxy: something in front says which host they asked."""

    def __init__(
        self,
        asking: Asking,
        measure: Measure,
        port: int,
        *,
        is_secure: bool,
        behind_proxy: bool,
        prices: Prices | None = None,
    ) -> None:
        self.sessions = Sessions(time.monotonic)
        self._asking, self._is_secure = asking, is_secure
        self._cookie = f"{'__Secure-' if is_secure else ''}egs_dashboard_{port}"
        self._hosts = ("host", "x-forwarded-host") if behind_proxy else ("host",)
        self._feeds = Feeds(asking, self.sessions, measure, prices)
        self._logins = asyncio.Semaphore(MOST_LOGINS)

    async def page(self, request: Request) -> Response:
        session = self._session(request)
        return _html(login_page()) if session is None else _html(main_page(session), session)

    async def workloads(self, request: Request) -> Response:
        return self._view(request, "workloads", "/workloads", ("list", "drivers"), "workloads")

    async def workload(self, request: Request) -> Response:
        run = request.path_params["run"]
        if not RUN.fullmatch(run):
            return _refusal(404, "there is no such run")
        view, title = ("tasks", f"driver {run}") if run.startswith("r") else ("workload", f"workload of {run}")
        return self._view(request, title, "/workloads", ("graph", "path", "runs"), view, run)

    async def plan(self, request: Request) -> Response:
        return self._view(request, "plan", "/plan", ("starts", "ends", "loaded", "kept", "notes"), "plan")

    async def usage(self, request: Request) -> Response:
        over = request.path_params.get("over") or first_span(self._session(request), time.time())
        if over not in SPANS:
            return _refusal(404, "there is no such page")
        return self._view(request, "usage", "/usage", ("now", "time", "teams", "notes"), "usage", over)

    def _view(
        self, request: Request, title: str, place: str, parts: tuple[str, ...], view: str, of: str = ""
    ) -> Response:
        """Its frame: what is in it comes over the stream, which a cookie alone does not open."""
        session = self._session(request)
        if session is None:
            return _html(login_page())
        return _html(view_page(session, title, place, parts, view, of), session)

    async def entrance(self, _: Request) -> Response:
        return _html(login_page())

    async def login(self, request: Request) -> Response:
        if not self._is_own(request):
            return _refusal(403, "this form was sent by another site's page")
        token = (await _form(request)).get("token", "").strip()
        try:
            cookie, session = await self._begin(token)
        except Refused as error:
            return _html(login_page(NOBODY if error.status == 401 else str(error)), status=error.status)
        except (Unreachable, ValidationError):
            return _html(login_page(AWAY), status=503)
        answer = _html(entered_page(session), session)
        answer.set_cookie(
            self._cookie, cookie, int(LASTS_S), path=PATH, secure=self._is_secure, httponly=True, samesite="strict"
        )
        return answer

    async def logout(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            if not self._is_own(request) or not session.allows((await _form(request)).get("csrf", "")):
                return _refusal(403, "this form is not of this session: load the page again")
            self._feeds.end(session)
        answer = RedirectResponse(PATH, 303, HEADERS)
        answer.delete_cookie(self._cookie, path=PATH, secure=self._is_secure, httponly=True, samesite="strict")
        return answer

    async def events(self, request: Request) -> Response:
        session = self._session(request)
        if session is None:
            return _refusal(401, "log in again")
        if not session.allows(request.headers.get("x-egs-csrf", "")):
            return _refusal(403, "this is not of this session's page: log in again")
        view, of = request.query_params.get("view", ""), request.query_params.get("of", "")
        if (view and view not in VIEWS) or (of and not RUN.fullmatch(of)) or (view == "usage" and of not in SPANS):
            return _refusal(404, "there is no such page")
        headers = {**_headers(session), "X-Accel-Buffering": "no"}  # a proxy in front is to pass each event on at once
        return StreamingResponse(self._stream(session, view, of), 200, headers, "text/event-stream")

    async def control(self, request: Request) -> Response:
        session = self._session(request)
        if session is None:
            return _refusal(401, "log in again")
        if not self._is_own(request) or not session.allows(request.headers.get("x-egs-csrf", "")):
            return _refusal(403, "this is not of this session's page: load it again")
        run, verb = request.path_params["run"], request.path_params["verb"]
        if verb not in (*VERBS, PRIORITY) or not RUN.fullmatch(run):
            return _refusal(404, "there is no such run, or no such change")
        try:
            told = json.loads(await request.body())
            ask = c.Change(priority=told["priority"]) if verb == PRIORITY else c.Control(reason=str(told["reason"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return _refusal(422, NO_PRIORITY if verb == PRIORITY else NO_REASON)
        try:
            if isinstance(ask, c.Change):
                view = await self._asking.change(session.token, run, ask)
            else:
                view = await self._asking.control(session.token, run, verb, ask)
        except Refused as error:
            return _refusal(error.status, str(error))
        except (Unreachable, ValidationError):
            return _refusal(503, AWAY)
        return JSONResponse({"id": view.id, "state": view.state}, 200, _headers(session))

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return _refusal(404, "there is no such file")
        return Response(
            ASSETS[name], 200, {**HEADERS, "Cache-Control": "private, max-age=86400"}, TYPES[Path(name).suffix]
        )

    async def _begin(self, token: str) -> tuple[str, Session]:
        """Raises Refused and Unreachable."""
        if not TOKEN.fullmatch(token):
            raise Refused(401, NOBODY)
        async with self._logins:
            me = await self._asking.me(token)
        if me.role == "agent":
            raise Refused(403, "a token of role agent sees nothing: use one of role viewer")
        return self.sessions.begin(token, me)

    async def _stream(self, session: Session, view: str, of: str) -> AsyncIterator[bytes]:
        """What the feed tells, until the session ends: also while others look on with tokens of their own."""
        viewer, feed = Viewer(session), self._feeds.of(session, view, of)
        feed.join(viewer)
        checked_at = time.monotonic()
        try:
            while True:
                try:
                    found = await asyncio.wait_for(viewer.events.get(), SILENCE_S)
                except TimeoutError:
                    found = b": still here\n\n"
                if time.monotonic() - checked_at >= SILENCE_S:
                    checked_at = time.monotonic()
                    await self._check(session)
                if not self.sessions.lasts(session):
                    yield event("ended", "log in again")
                    return
                yield found
        finally:
            feed.leave(viewer)

    async def _check(self, session: Session) -> None:
        """Its token may have been revoked."""
        try:
            await self._asking.me(session.token)
        except Refused as error:
            if error.status == 401:
                self.sessions.end(session)
        except (Unreachable, ValidationError):
            pass  # the feed says so

    def _session(self, request: Request) -> Session | None:
        return self.sessions.of(request.cookies.get(self._cookie, ""))

    def _is_own(self, request: Request) -> bool:
        """Whether a page of this origin has sent it, as far as browsers say: the second bolt, behind SameSite."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        if site is not None and site not in ("same-origin", "none"):
            return False
        asked = [request.headers.get(name, "").partition(",")[0].strip() for name in self._hosts]
        return origin is None or origin.partition("://")[2] in filter(None, asked)


def make_app(
    asking: Asking,
    measure: Measure,
    port: int,
    *,
    is_secure: bool = False,
    behind_proxy: bool = False,
    prices: Prices | None = None,
) -> Starlette:
    """The application. measure: what the GPUs of this host do."""
    app = App(asking, measure, port, is_secure=is_secure, behind_proxy=behind_proxy, prices=prices)
    return Starlette(
        routes=[
            Route(PATH, app.page),
            Route(f"{PATH}/", app.page),
            Route(f"{PATH}/login", app.entrance),
            Route(f"{PATH}/login", app.login, methods=["POST"]),
            Route(f"{PATH}/logout", app.logout, methods=["POST"]),
            Route(f"{PATH}/workloads", app.workloads),
            Route(f"{PATH}/workloads/{{run}}", app.workload),
            Route(f"{PATH}/plan", app.plan),
            Route(f"{PATH}/usage", app.usage),
            Route(f"{PATH}/usage/{{over}}", app.usage),
            Route(f"{PATH}/events", app.events),
            Route(f"{PATH}/runs/{{run}}/{{verb}}", app.control, methods=["POST"]),
            Route(f"{PATH}/assets/{{name}}", app.asset),
        ]
    )


def first_span(session: Session | None, now: float) -> str:
    """What the usage opens with: a day, or the shortest one that has all since there is the site."""
    since = None if session is None else session.me.since
    return DAY if since is None else next(one for one in SPANS if SPANS[one] >= min(now - since, SPANS[DAY]))


async def _form(request: Request) -> dict[str, str]:
    text = (await request.body()).decode(errors="replace")
    return dict(urllib.parse.parse_qsl(text, max_num_fields=10))


def _headers(session: Session | None) -> Mapping[str, str]:
    """EGS-Known: for the server in front, which keeps connections of strangers within a bound."""
    return HEADERS if session is None else {**HEADERS, "EGS-Known": "1"}


def _html(text: str, session: Session | None = None, status: int = 200) -> Response:
    return HTMLResponse(text, status, _headers(session))


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, HEADERS)
