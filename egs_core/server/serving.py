"""What `egs serve` does: one server a folder, its sockets, its user's token, and uvicorn until a signal."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvicorn

from egs_core.client.places import read_token, socket_places, token_file, write_token
from egs_core.engine.specs import QueueSpec
from egs_core.errors import EgsError, InputError
from egs_core.server.access import Access, PeerProtocol, user_name
from egs_core.server.app import Site, make_app
from egs_core.server.devices import DeviceLocks
from egs_core.server.runs import Offer
from egs_core.server.store import SqlStore, StoreError
from egs_core.server.writer import Turns, Writer

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
    folder: Path, host: str, port: int, offer: Offer, queues: tuple[QueueSpec, ...], told: Callable[[Ready], None]
) -> None:
    """Serve until SIGINT or SIGTERM. told: called when clients can connect. Raises EgsError."""
    _check_host(host)
    lock = _folder_lock(folder)
    locks = DeviceLocks()
    locks.take([device for device in offer.devices if device.label != "emulated"])
    listening: list[socket.socket] = []
    path: Path | None = None
    try:
        store = SqlStore(folder, time.time())
        _take_devices(store, offer)
        tcp = _listen(host, port)
        listening.append(tcp)
        url = f"http://{f'[{host}]' if ':' in host else host}:{tcp.getsockname()[1]}"
        path, local = _local_socket(folder)
        listening.append(local)
        access = Access(store)
        _write_own_token(access, url)
        begin, origin = time.time(), time.monotonic()
        turns = Turns(store, offer, queues, clock=lambda: begin + time.monotonic() - origin)
        site = Site(lambda changed: Writer(turns, changed), access)
        ids = tuple([device.id for device in offer.devices])
        is_emulated = any(device.label == "emulated" for device in offer.devices)
        ready = Ready(url, str(path), str(token_file(url)), str(folder), ids, is_emulated)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _nothing)  # uvicorn raises it again when it has ended: what follows has to be done
        _Server(_config(site), site, lambda: told(ready)).run(sockets=listening)
    except StoreError as error:
        raise EgsError(str(error)) from None
    finally:
        for one in listening:
            one.close()
        if path is not None:
            path.unlink(missing_ok=True)
        os.close(lock)


def _nothing(_number: int, _frame: object) -> None:
    """The answer to a signal that has had its effect."""


def _config(site: Site) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(site),
        http=PeerProtocol,
        ws="none",
        loop="asyncio",
        proxy_headers=False,  # else whoever is trusted as a proxy could say who asks
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=60,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, site: Site, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._site, self._told = site, told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.wake_all()
        await super().shutdown(sockets)


def _check_host(host: str) -> None:
    """Without TLS a token would be read by all between: loopback only."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InputError("--host", f"{host!r} is no address of this host", "127.0.0.1 or ::1") from None
    if not is_local:
        raise InputError("--host", f"{host} is no loopback address: there is no TLS yet", "127.0.0.1 or ::1")


def _folder_lock(folder: Path) -> int:
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


def _take_devices(store: SqlStore, offer: Offer) -> None:
    """Leases name devices by their place in the list: it must stay as it is while one is held."""
    known, ids = store.devices(), tuple([device.id for device in offer.devices])
    if known and known != ids:
        held = [run.id for run in store.load().runs if run.is_open and run.lease]
        if held:
            problem = f"run {held[0]} holds devices of {', '.join(known)}, and now there are {', '.join(ids) or 'none'}"
            raise InputError("egs serve", problem, "start with the same devices as before until it has ended")
    if known != ids:
        store.set_devices(ids)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}", f"cannot be used: {error}") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"--port {port}", f"cannot be used: {error.strerror}", "choose another, or 0 for any"
        ) from None
    return listening


def _local_socket(folder: Path) -> tuple[Path, socket.socket]:
    """The first place at which this user may have one and nobody answers; at last the data folder."""
    for path in [*socket_places(), folder / "egs.sock"]:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if _answers(path):
                continue
            path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(path))
            path.chmod(SOCKET_MODE)
            listening.listen(128)
        except OSError as error:
            problem = error
            continue
        return path, listening
    raise InputError("egs serve", f"no place for its Unix socket: {problem}", "choose a shorter --data")


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
    name, now = user_name(os.getuid()), time.time()
    try:
        token = read_token(url)
    except EgsError:
        token = ""
    if not token or not access.knows(token, name, now):
        try:
            write_token(url, access.new_token(name, now))
        except OSError as error:
            raise EgsError(f"{token_file(url)}: cannot be written: {error.strerror}") from None
