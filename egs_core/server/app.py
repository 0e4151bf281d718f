"""The protocol over HTTP: routes, bounds, who asks, and long polls. What a request means is the logic's affair."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Request
from fastapi.responses import JSONResponse

from egs_core import __version__
from egs_core.client import messages as c
from egs_core.client.processes import is_alive, living
from egs_core.server.access import Access
from egs_core.server.logic import Seen, SiteLogic, Watch
from egs_core.server.runs import Principal, Refusal
from egs_core.server.writer import Unavailable, Writer

T = TypeVar("T")
LOG = logging.getLogger("uvicorn.error")
MOST_BODY_BYTES = 256 * 1024
LOOK_S = 1.0
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RunId = Annotated[str, Path(max_length=32)]


class Site:
    """What the routes share: the writer, and those who wait for a run to change."""

    def __init__(self, make_writer: Callable[[Callable[[list[str]], None]], Writer], access: Access) -> None:
        self.access = access
        self.is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.writer = make_writer(self._changed)

    async def ask(self, question: Callable[[SiteLogic], T]) -> T:
        found: Future[T] = self.writer.ask(question)
        return await asyncio.wrap_future(found)

    async def changed_view(
        self, run: str, seen: int, wait_s: float, ask: Callable[[SiteLogic], c.RunView]
    ) -> c.RunView:
        """The answer, held back while the run's version is `seen`, for at most so long."""
        event = asyncio.Event()
        self._waiting.setdefault(run, set()).add(event)
        try:
            view = await self.ask(ask)
            if view.version == seen and wait_s > 0 and not self.is_closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), wait_s)
                view = await self.ask(ask)
            return view
        finally:
            self._waiting[run].discard(event)
            if not self._waiting[run]:
                del self._waiting[run]

    def wake_all(self) -> None:
        """Answer all that wait: the server ends."""
        self.is_closing = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def look_at_processes(self) -> None:
        """Again and again: which supervisors and processes are there."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                watched = await self.ask(lambda logic: logic.watched())
                if watched:
                    found = await asyncio.to_thread(look_at_all, watched)
                    await self.ask(partial(_tell_seen, found))
            except Exception as error:  # what is not seen now is seen the next time
                LOG.warning("processes could not be looked for: %s: %s", type(error).__name__, error)

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.writer.start()

    def _changed(self, runs: list[str]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake, runs)

    def _wake(self, runs: list[str]) -> None:
        for run in runs:
            for event in self._waiting.get(run, ()):
                event.set()


def _tell_seen(found: list[Seen], logic: SiteLogic) -> None:
    logic.seen(found)


def look_at_all(watched: list[Watch]) -> list[Seen]:
    return [look_at(watch) for watch in watched]


def look_at(watch: Watch) -> Seen:
    """What the kernel says of a watch. Processes are looked for only where the supervisor does not do that."""
    supervisor = watch.supervisor.asked()
    if is_alive(supervisor):
        return Seen(watch.run, watch.token, has_supervisor=True)
    named = [one.asked() for one in watch.named]
    left = living(named, watch.mark) if watch.is_claimed else []
    return Seen(watch.run, watch.token, has_supervisor=False, living=tuple([one.pid for one in left]))


def make_app(site: Site) -> FastAPI:
    """The application. Its routes are those of `egs_core.client.messages`."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> Any:
        site.begin()
        looking = asyncio.create_task(site.look_at_processes())
        yield
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await asyncio.to_thread(site.writer.close)

    app = FastAPI(title="EGS site server", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.site = site
    app.add_middleware(BodyBound)
    _add_errors(app)
    _add_routes(app, site)
    return app


async def principal(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    egs_protocol: Annotated[str | None, Header()] = None,
) -> Principal:
    """Who asks, in a version of the protocol that this server has."""
    if egs_protocol is not None and egs_protocol != str(c.PROTOCOL):
        raise HTTPException(400, f"protocol {egs_protocol[:20]!r} is unknown: this server has version {c.PROTOCOL}")
    access: Access = request.app.state.site.access
    found = await asyncio.to_thread(access.of_request, request.scope, authorization, time.time())
    if found is None:
        raise HTTPException(401, "send a token: Authorization: Bearer …", headers={"WWW-Authenticate": "Bearer"})
    return found


Who = Annotated[Principal, Depends(principal)]


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=error.status)

    @app.exception_handler(Unavailable)
    async def unavailable(_request: Request, error: Unavailable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})


def _add_routes(app: FastAPI, site: Site) -> None:
    @app.get("/healthz")
    async def healthz() -> c.Health:
        await site.ask(lambda logic: logic.now)
        return c.Health(ok=True, version=__version__)

    @app.get("/v1/runs")
    async def runs(_who: Who, ended: bool = False) -> c.Runs:
        return await site.ask(lambda logic: logic.views.listed(with_ended=ended))

    @app.get("/v1/queue")
    async def queue(_who: Who) -> c.Runs:
        return await site.ask(lambda logic: logic.views.queue())

    @app.get("/v1/runs/{run}")
    async def run_view(_who: Who, run: RunId) -> c.RunView:
        return await site.ask(lambda logic: logic.view(run))

    @app.post("/v1/runs")
    async def submit(who: Who, ask: c.RunRequest) -> c.RunView:
        if not is_alive(ask.supervisor):
            problem = f"supervisor: there is no process {ask.supervisor.pid} here"
            raise HTTPException(422, f"{problem}: the client must run on the server's host, in its process namespace")
        return await site.ask(lambda logic: logic.submit(who, ask))

    @app.post("/v1/check")
    async def check(who: Who, ask: c.RunRequest) -> c.RunView:
        return await site.ask(lambda logic: logic.check(who, ask))

    @app.post("/v1/runs/{run}/beat")
    async def beat(who: Who, run: RunId, ask: c.Beat) -> c.RunView:
        return await site.changed_view(run, ask.seen, ask.wait_s, lambda logic: logic.beat(who, run, ask))

    @app.post("/v1/runs/{run}/claim")
    async def claim(who: Who, run: RunId, ask: c.Claim) -> c.RunView:
        return await site.ask(lambda logic: logic.claim(who, run, ask))

    @app.post("/v1/runs/{run}/end")
    async def end(who: Who, run: RunId, ask: c.End) -> c.RunView:
        watch = await site.ask(lambda logic: logic.watch(run))
        if watch is not None and watch.token == ask.token:
            named = [one.asked() for one in watch.named]
            left = await asyncio.to_thread(living, named, watch.mark, watch.supervisor.asked())
            if left:
                raise HTTPException(409, f"processes of its lease still run: {left[0].pid}")
        return await site.ask(lambda logic: logic.end(who, run, ask))

    @app.post("/v1/runs/{run}/{verb}")
    async def control(who: Who, run: RunId, verb: Literal["abort", "pause", "resume"], ask: c.Control) -> c.RunView:
        return await site.ask(lambda logic: logic.control(who, run, verb, ask))


class BodyBound:
    """ASGI middleware: a body longer than MOST_BODY_BYTES is answered with 413, however it is sent."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_BODY_BYTES:
                response = JSONResponse({"detail": f"the body is longer than {MOST_BODY_BYTES} bytes"}, 413)
                await response(scope, receive, send)
                return
        is_told = False

        async def told() -> MutableMapping[str, Any]:
            nonlocal is_told
            if is_told:
                return await receive()
            is_told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, told, send)
