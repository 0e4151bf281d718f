"""What `egs serve` does: one server a folder, its sockets, its user's token, and uvicorn until a signal."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from egs_core.budgets import Budget
from egs_core.client.gpu_users import users_of
from egs_core.client.places import SOCKET_NAME, read_token, socket_places, token_file, write_token
from egs_core.client.sockets import by_turns, leave_socket
from egs_core.engine.specs import LEARNED, QueueSpec
from egs_core.errors import EgsError, InputError
from egs_core.json_log import uvicorn_options
from egs_core.queues import Teams
from egs_core.server.access import HEAD_S, Access, PeerProtocol, Provider
from egs_core.server.app import Site, make_app
from egs_core.server.bounds import RATE, Rates
from egs_core.server.dashboard import Dashboard
from egs_core.server.devices import DeviceLocks
from egs_core.server.doors import Door
from egs_core.server.leader import Leader
from egs_core.server.ordering import Ordering
from egs_core.server.promises import Promises
from egs_core.server.runs import Offer
from egs_core.server.sharing import Sharing
from egs_core.server.spending import Rates as PriceRates
from egs_core.server.spending import Spending
from egs_core.server.standing import Ending, led
from egs_core.server.store import SqlStore, StoreError
from egs_core.server.watching.watcher import Watcher
from egs_core.server.writer import Turns, Writer
from egs_core.site.spanning import Spanning
from egs_core.watch_rules import Rules

COLLECT_AFTER = (20_000, 5, 100)  # objects, and collections of the younger generation: see `collect_seldom`
SOCKET_MODE = 0o666  # who asks is told by the kernel, for each connection


class Ready(msgspec.Struct, frozen=True):
    """Where a server can be reached. url: over TCP; socket: a path, "" for none; token: the file of its user's."""

    url: str
    socket: str
    token: str
    data: str
    devices: tuple[str, ...]
    emulated: bool


def serve(
    folder: Path,
    door: Door,
    offer: Offer,
    queues: tuple[QueueSpec, ...],
    teams: Teams,
    told: Callable[[Ready], None],
    rate: float = RATE,
    database: sa.URL | None = None,
    budgets: tuple[Budget, ...] = (),
    gather_s: float | None = None,
    rules: Rules | None = None,
    prices: PriceRates | None = None,
    provider: Provider | None = None,
    price_file: Path | None = None,
    chosen: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. told: called when clients can connect; rate: requests a second that one principal
    may make, 0: no bound; database: of PostgreSQL, which another server may have besides; gather_s: see `SharedPools`;
    rules: by which it watches, None for none; prices: of GPUs, for budgets of money; provider: of
    tokens that count besides the server's own, closed with it; price_file: of the prices, for its dashboard;
    chosen: where its Unix socket is to be, None for the first place that is free. Raises EgsError."""
    door.check()
    tls = door.tls()
    lock = None
    if database is None:
        lock = folder_lock(folder)
    else:
        _make_folder(folder)
    allow_connections()
    collect_seldom()
    locks, real = DeviceLocks(), [device for device in offer.devices if device.label != "emulated"]
    if database is None:
        locks.take(real)
    listening: list[socket.socket] = []
    path: Path | None = None
    leader: Leader | None = None
    dashboard: Dashboard | None = None
    try:
        store = SqlStore(database or folder, time.time())
        if database is not None:
            locks.take(real, store.site())
        _check_devices(store, offer)
        tcp = door.listen()
        listening.append(tcp)
        port = tcp.getsockname()[1]
        url = door.url(port)
        path, local = local_socket(folder, f"egs-{port}.sock" if database is not None else "", chosen)
        place = path.stat()
        listening.append(local)
        access = Access(store, teams, provider)

        def begin() -> Offer:
            access.reload()
            _write_own_token(access, url)
            return _take_devices(store, offer)

        clock = _steady_clock()
        spending = Spending(budgets, clock, prices)
        ending, spanning, turn = Ending(), Spanning(spending), threading.Lock()
        if database is not None:
            leader = led(store, url, lambda: setattr(turns, "offer", begin()), ending)
        first = offer if leader else begin()
        turns = Turns(store, first, queues, clock, teams.of_queue, spanning, turn, leader, spending)
        turns.tally.slos.objectives = teams.slos
        looks = users_of if offer.is_watched and offer.devices else None
        sharing = Sharing(queues, teams.of_queue, spanning, turn, spending, gather_s)
        check = leader.check_quickly if leader else _always
        site = Site(lambda changed: Writer(turns, changed), access, Rates(rate), sharing, looks, check)
        site.watcher = Watcher(rules, offer) if rules is not None else None
        learned = [queue.name for queue in queues if queue.order == LEARNED]
        site.ordering = Ordering(learned) if learned else None
        site.promises = Promises(teams.slos) if queues else None
        is_secure, behind_proxy = tls is not None or door.behind_proxy, door.behind_proxy
        dashboard = site.dashboard = Dashboard(
            folder, port, path, is_secure=is_secure, behind_proxy=behind_proxy, prices=price_file
        )
        ids = tuple([device.id for device in offer.devices])
        is_emulated = any(device.label == "emulated" for device in offer.devices)
        ready = Ready(url, str(path), str(token_file(url)), store.place if leader else str(folder), ids, is_emulated)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, nothing)  # uvicorn raises it again when it has ended: what follows has to be done
        server = _Server(_config(site), site, lambda: told(ready), tls)
        ending.server = server
        if leader:
            leader.start(site.writer.wake)
        server.run(sockets=listening)
        if ending.why:
            raise EgsError(ending.why)
    except StoreError as error:
        raise EgsError(str(error)) from None
    finally:
        if provider is not None:
            provider.close()
        if dashboard is not None:
            dashboard.close()
        if leader:
            leader.close()
        for one in listening:
            one.close()
        if path is not None:
            leave_socket(path, place)
        if lock is not None:
            os.close(lock)


def _steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never go back."""
    begin, origin = time.time(), time.monotonic()
    return lambda: begin + time.monotonic() - origin


def _always() -> None:
    """A server whose database is its own is the active one."""


def nothing(_number: int, _frame: object) -> None:
    """The answer to a signal that has had its effect."""


def _config(site: Site) -> uvicorn.Config:
    return config_of(make_app(site))


def config_of(app: FastAPI) -> uvicorn.Config:
    """For whatever listens on a socket whose peers the kernel names."""
    return uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        loop="uvloop",
        proxy_headers=False,  # else whoever is trusted as a proxy could say who asks
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=60,
        **uvicorn_options(),
    )


class _Server(uvicorn.Server):
    """tls: for TCP; the Unix socket, whose peer the kernel names, has none."""

    def __init__(
        self, config: uvicorn.Config, site: Site, told: Callable[[], None], tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(config)
        self._site, self._told, self._tls = site, told, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        wrapped = [one for one in sockets or () if self._tls is not None and one.family != socket.AF_UNIX]
        await super().startup([one for one in sockets or () if one not in wrapped])
        for one in wrapped:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                self._protocol, sock=one, ssl=self._tls, backlog=self.config.backlog, ssl_handshake_timeout=HEAD_S
            )
            self.servers.append(server)
        if not self.should_exit:
            self._told()

    def _protocol(self) -> PeerProtocol:
        return PeerProtocol(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.wake_all()
        await super().shutdown(sockets)


def collect_seldom() -> None:
    """Python looks for cycles in all that there is once per ten million new objects, not per 70,000: behind 100,000
    tasks such a look takes a sixth of a second, in which nobody is answered, and what tasks leave has no cycles."""
    gc.set_threshold(*COLLECT_AFTER)


def allow_connections() -> None:
    """As many open files as the system lets this process have: each client has a connection or two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def folder_lock(folder: Path) -> int:
    """One server a folder: the lock ends with this process."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"--data {folder}", f"cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InputError(f"--data {folder}", "another server uses it", "end it, or choose another folder") from None
    return handle


def _make_folder(folder: Path) -> None:
    """For a socket: the database is elsewhere."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--data {folder}", f"cannot be used: {error.strerror}") from None


def _check_devices(store: SqlStore, offer: Offer) -> None:
    """Leases name devices by their place in the list: it must stay as it is while one is held. Raises InputError."""
    known, ids = store.devices(), tuple([device.id for device in offer.devices])
    if known and known != ids:
        held = [run.id for run in store.load().runs if run.is_open and run.lease]
        if held:
            problem = f"run {held[0]} holds devices of {', '.join(known)}, and now there are {', '.join(ids) or 'none'}"
            raise InputError("egs serve", problem, "start with the same devices as before until it has ended")


def _take_devices(store: SqlStore, offer: Offer) -> Offer:
    """They are those that the site offers from now on. Raises InputError."""
    _check_devices(store, offer)
    known, ids = store.devices(), tuple([device.id for device in offer.devices])
    if known != ids:
        store.set_devices(ids)
    return msgspec.structs.replace(offer, is_new=known != ids)


def local_socket(folder: Path, second: str = "", chosen: Path | None = None) -> tuple[Path, socket.socket]:
    """The place that is chosen, and no other. None is: the first place at which this user may have one and nobody
    answers; at last the data folder. second: its name beside another server's: users of the host reach a standby
    there, while a data folder is its owner's alone. Raises InputError."""
    names = [SOCKET_NAME, second] if second else [SOCKET_NAME]
    shared = [place.with_name(name) for place in socket_places() for name in names]
    for path in [chosen.absolute()] if chosen is not None else [*shared, folder / SOCKET_NAME]:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            listening = _listening(path)
        except OSError as error:
            problem = error.strerror or str(error)
            continue
        if listening is not None:
            return path, listening
        problem = "another server listens there"
    if chosen is not None:
        hint = "choose another path, of at most 107 bytes, in a folder that its users can read"
        raise InputError(f"--socket {chosen}", problem, hint)
    raise InputError("egs serve", f"no place for its Unix socket: {problem}", "choose one by --socket")


def _listening(path: Path) -> socket.socket | None:
    """At this place; None where another server has it. Raises OSError."""
    with by_turns(path.parent):
        if _answers(path):
            return None
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(SOCKET_MODE)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
        return listening


def _answers(path: Path) -> bool:
    """Whether a server listens there; one that was killed leaves its socket behind. Raises OSError for what is there
    and is no socket."""
    if not path.exists():
        return False
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(f"{path} is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def _write_own_token(access: Access, url: str) -> None:
    """For the clients of the user who started this; the one that is there is kept while it is good."""
    now = time.time()
    try:
        token = read_token(url)
    except EgsError:
        token = ""
    if not token or not access.knows_own(token, now):
        try:
            write_token(url, access.own_token(now))
        except OSError as error:
            raise EgsError(f"{token_file(url)}: cannot be written: {error.strerror}") from None
