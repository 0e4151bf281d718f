"""The protocol over HTTP: routes, bounds, who asks, and long polls. What a request means is the logic's affair."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from egs_core import __version__
from egs_core.client import messages as c
from egs_core.client.processes import Snapshot, is_alive
from egs_core.server import requests
from egs_core.server.access import Access
from egs_core.server.access_routes import add_access_routes
from egs_core.server.answers import Answers
from egs_core.server.bounds import BodyBound, Rates, wrong_fields
from egs_core.server.dashboard import Dashboard
from egs_core.server.devices import strangers, working
from egs_core.server.driver_routes import add_driver_routes
from egs_core.server.forwarding import Forward
from egs_core.server.host_routes import add_host_routes
from egs_core.server.leader import NotActive
from egs_core.server.logic import Seen, SiteLogic, Watch
from egs_core.server.metrics_routes import add_metrics_route
from egs_core.server.ordering import Ordering
from egs_core.server.outlook_routes import add_outlook_routes
from egs_core.server.overview_routes import add_overview_routes
from egs_core.server.pools import is_driver
from egs_core.server.principals import Principal
from egs_core.server.promises import Promises
from egs_core.server.request_routes import add_request_routes
from egs_core.server.runs import Refusal
from egs_core.server.sharing import Sharing
from egs_core.server.short import ShortWay
from egs_core.server.slo_routes import add_slo_route
from egs_core.server.store import StoreError
from egs_core.server.watching.routes import add_watch_route
from egs_core.server.watching.watcher import Watcher
from egs_core.server.who import Who
from egs_core.server.writer import Unavailable, Writer

T = TypeVar("T")
LOG = logging.getLogger("uvicorn.error")
LOOK_S = 1.0
CLIENTS = (
    "the client must run on the server's host, in its process namespace, or at the socket of a host that has joined"
)
UsersOf = Callable[[Sequence[str]], Mapping[str, Sequence[int]]]
RunId = Annotated[str, Path(max_length=32)]


def _nothing() -> None:
    """A site with one server needs no check."""


class Site:
    """What the routes share: the writer, and those who wait for a run to change. users_of: tells the processes on each
    device; None where the devices are nobody else's. check_active: raises StoreError where another server of the site
    is to be asked."""

    def __init__(
        self,
        make_writer: Callable[[Callable[[list[str]], None]], Writer],
        access: Access,
        rates: Rates | None = None,
        sharing: Sharing | None = None,
        users_of: UsersOf | None = None,
        check_active: Callable[[], None] = _nothing,
    ) -> None:
        self.check_active = check_active
        self._users_of = users_of
        self.access = access
        self.rates = rates or Rates()
        self.sharing = sharing or Sharing()
        self.is_closing = False
        self.dashboard: Dashboard | None = None
        self.watcher: Watcher | None = None
        self.ordering: Ordering | None = None
        self.promises: Promises | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers = Answers()
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Task[Snapshot] | None = None
        self._last_look: Snapshot | None = None
        self.writer = make_writer(self._changed)

    async def ask(self, question: Callable[[SiteLogic], T]) -> T:
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.writer.put(question, partial(self._answers.told, found))
        return await found

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

    @property
    def clients(self) -> int:
        """That wait for something to change."""
        return sum(len(events) for events in self._waiting.values()) + self.sharing.clients

    async def processes(self) -> Snapshot:
        """As they are after this call: one look for all who ask while the one before is under way."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
        return await asyncio.shield(self._next_look)

    async def _look(self) -> Snapshot:
        async with self._looking:
            self._next_look = None  # who asks from now on needs a later one
            self._last_look = await asyncio.to_thread(Snapshot, self._last_look)
            return self._last_look

    def wake_all(self) -> None:
        """Answer all that wait: the server ends."""
        self.is_closing = True
        self.sharing.wake_all()
        if self.dashboard is not None:
            self.dashboard.end_soon()
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def look_at_processes(self) -> None:
        """Again and again: which supervisors and processes are there."""
        while True:
            try:
                watched = await self.ask(lambda logic: logic.watched())
                if watched:
                    found = await asyncio.to_thread(look_at_all, watched)
                    await self.ask(partial(_tell_seen, found))
                if self._users_of is not None:
                    await self._look_at_devices(self._users_of)
            except (Unavailable, NotActive):  # the writer has said why; what is not seen now is seen the next time
                pass
            except Exception as error:
                LOG.warning("processes could not be looked for: %s: %s", type(error).__name__, error)
            await asyncio.sleep(LOOK_S)

    async def _look_at_devices(self, users_of: UsersOf) -> None:
        holders = await self.ask(lambda logic: logic.holders())
        users = await asyncio.to_thread(users_of, list(holders))
        found = await asyncio.to_thread(strangers, users, holders)
        numbered = {number: found[one] for number, one in enumerate(holders) if one in found}
        await self.ask(lambda logic: logic.occupied(numbered))
        measured = await self.ask(lambda logic: requests.measured(logic.book))
        if measured:
            at_work = await asyncio.to_thread(working, list(measured))
            await self.ask(lambda logic: requests.worked(logic.book, {measured[one] for one in at_work}))

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.writer.start()

    def _changed(self, runs: list[str]) -> None:
        """On the writer's thread: who begins to wait from now on sees the change itself."""
        if self._loop is not None and not self._waiting.keys().isdisjoint(runs):
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
    left = Snapshot().living(named, watch.mark) if watch.is_claimed else []
    return Seen(watch.run, watch.token, has_supervisor=False, living=tuple([one.pid for one in left]))


def make_app(site: Site) -> FastAPI:
    """The application. Its routes are those of `egs_core.client.messages`."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> Any:
        site.begin()
        loops = [site.look_at_processes(), site.sharing.tick()]
        loops += [site.watcher.follow(site)] if site.watcher is not None else []
        loops += [site.ordering.follow(site)] if site.ordering is not None else []
        loops += [site.promises.follow(site)] if site.promises is not None else []
        tasks = [asyncio.create_task(one) for one in loops]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(site.writer.close)

    app = FastAPI(title="EGS site server", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.site = site
    app.add_middleware(BodyBound)
    if site.dashboard is not None:
        app.add_middleware(Forward, dashboard=site.dashboard)
    _add_errors(app)
    _add_routes(app, site)
    add_access_routes(app, site.access)
    add_driver_routes(app, site.sharing)
    add_request_routes(app, site)
    add_host_routes(app, site)
    add_metrics_route(app, site)
    add_overview_routes(app, site)
    add_slo_route(app, site)
    add_outlook_routes(app)
    add_watch_route(app, site)
    app.router.routes.insert(0, ShortWay(app))
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_request: Request, error: Refusal) -> JSONResponse:
        headers = {"Retry-After": f"{math.ceil(error.wait_s)}"} if error.wait_s else {}
        if error.status == c.UNKNOWN:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"detail": str(error)}, status_code=error.status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": wrong_fields(error.errors())}, status_code=422)

    @app.exception_handler(NotActive)
    async def not_active(_request: Request, error: NotActive) -> JSONResponse:
        headers = {"Retry-After": "1", c.STANDBY_HEADER: "1"}
        return JSONResponse({"detail": str(error)}, status_code=503, headers=headers)

    @app.exception_handler(StoreError)
    async def not_stored(_request: Request, error: StoreError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})

    @app.exception_handler(Unavailable)
    async def unavailable(_request: Request, error: Unavailable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})


def _add_routes(app: FastAPI, site: Site) -> None:
    @app.get("/healthz")
    async def healthz() -> c.Health:
        await site.ask(lambda logic: logic.now)
        return c.Health(ok=True, version=__version__)

    @app.get("/v1/runs")
    async def runs(who: Who, ended: bool = False, last: Annotated[int, Query(ge=0)] = 0) -> c.Runs:
        found = await site.ask(lambda logic: logic.listed(who, with_ended=ended, last=last))
        return _with_drivers(found, await site.sharing.ask(lambda pools: pools.listed(who)))

    @app.get("/v1/queue")
    async def queue(who: Who) -> c.Runs:
        found = await site.ask(lambda logic: logic.queue(who))
        return _with_drivers(found, await site.sharing.ask(lambda pools: pools.queue(who)))

    @app.post("/v1/drain")
    async def drain(who: Who, ask: c.Drain) -> c.Runs:
        return await site.ask(lambda logic: logic.drain(who, ask))

    @app.get("/v1/runs/{run}")
    async def run_view(who: Who, run: Annotated[str, Path(max_length=200)], named: bool = False) -> c.RunView:
        if named and not is_driver(run):
            drivers = await site.sharing.ask(lambda pools: pools.called(who, run))
            run = await site.ask(lambda logic: logic.called(who, run, drivers))
        if is_driver(run):
            return await site.sharing.ask(lambda pools: pools.view(who, run))
        return await site.ask(lambda logic: logic.view(who, run))

    @app.post("/v1/runs")
    async def submit(who: Who, ask: c.RunRequest) -> c.RunView:
        if not who.host and not is_alive(ask.supervisor):  # else its agent has looked
            problem = f"supervisor: there is no process {ask.supervisor.pid} here"
            raise HTTPException(422, f"{problem}: {CLIENTS}")
        return await site.ask(lambda logic: logic.submit(who, ask))

    @app.post("/v1/check")
    async def check(who: Who, ask: c.RunRequest) -> c.RunView:
        return await site.ask(lambda logic: logic.check(who, ask))

    @app.post("/v1/runs/{run}/beat")
    async def beat(who: Who, run: RunId, ask: c.Beat) -> c.RunView:
        return await site.changed_view(
            run, ask.seen, ask.wait_s, lambda logic: _beat(logic, who, run, ask, site.watcher)
        )

    @app.post("/v1/runs/{run}/claim")
    async def claim(who: Who, run: RunId, ask: c.Claim) -> c.RunView:
        return await site.ask(lambda logic: logic.claim(who, run, ask))

    @app.post("/v1/runs/{run}/end")
    async def end(who: Who, run: RunId, ask: c.End) -> c.RunView:
        there = None if who.host else await site.processes()  # else its agent has looked
        return await site.ask(lambda logic: _end(logic, who, run, ask, there))

    @app.post("/v1/runs/{run}/update")
    async def update(who: Who, run: RunId, ask: c.Change) -> c.RunView:
        return await site.ask(lambda logic: logic.update(who, run, ask))

    @app.post("/v1/runs/{run}/{verb}")
    async def control(
        who: Who, run: RunId, verb: Literal["abort", "release", "pause", "resume"], ask: c.Control
    ) -> c.RunView:
        if is_driver(run):
            view = await site.sharing.ask(lambda pools: pools.control(who, run, verb, ask))
            await site.ask(lambda logic: logic.note_change(who, verb, run, view.team, ask.reason))
            return view
        return await site.ask(lambda logic: logic.control(who, run, verb, ask))


def _beat(logic: SiteLogic, who: Principal, run: str, ask: c.Beat, watcher: Watcher | None) -> c.RunView:
    view = logic.beat(who, run, ask)
    wants_told = watcher is not None and watcher.reads_progress
    if watcher is not None and view.lease is not None and view.lease.token == ask.token:
        watcher.told(logic, run, ask)
    return view.model_copy(update={"wants_told": wants_told, "wants_progress": True})


def _end(logic: SiteLogic, who: Principal, run: str, ask: c.End, there: Snapshot | None) -> c.RunView:
    """there: the processes of the host, as they were after the client had said that none of the lease is left."""
    watch = logic.watch(who, run)
    if watch is not None and there is not None and watch.token == ask.token:
        living = there.living([one.asked() for one in watch.named], watch.mark, watch.supervisor.asked())
        left = there.running(living, ask.aside or ())
        if left:
            raise Refusal(409, f"processes of its lease still run: {left[0].pid}")
    return logic.end(who, run, ask)


def _with_drivers(found: c.Runs, drivers: tuple[c.RunView, ...]) -> c.Runs:
    return found.model_copy(update={"runs": (*found.runs, *drivers)})
