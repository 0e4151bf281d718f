"""One kept connection to a site server, over TCP or a Unix socket, and what its answers mean."""

from __future__ import annotations

import os
import socket
import stat
import struct
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import requests
from pydantic import BaseModel, ValidationError
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.client import tokens as t
from egs_core.client.driver_use import DriverUse, path_of
from egs_core.client.options import with_options
from egs_core.client.overview import Overview
from egs_core.client.places import TOKEN, TOKEN_FILE, URL, Address, read_token, trusted_certificates
from egs_core.client.slo import Slos
from egs_core.client.watching import Watching
from egs_core.errors import EgsError

M = TypeVar("M", bound=BaseModel)
CONNECT_S, ANSWER_S = 5.0, 30.0
OTHERS_S = 10.0  # instead of ANSWER_S where there are other servers to ask
DRIVER_S = 5.0  # that a framework's driver waits for an answer: it goes on without the server then
NO_CONNECTION = (NewConnectionError, ConnectTimeoutError, ConnectionRefusedError, FileNotFoundError)
SITE_FILE = Path("/etc/egs/server-uid")
"""A file of root's with the user id, a number, that the host's server runs as."""


class Unreachable(EgsError):
    """Nobody answers, or the server says that it cannot now, or was asked too often: it may at another moment."""


class NotTaken(Unreachable):
    """It has certainly not done what it was asked for."""


class Nobody(NotTaken):
    """There is no server at the address, or none that can be reached."""


class Refused(EgsError):
    """The server answers that the request cannot be met. status: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SiteClient:
    """Speaks to the server at an address; one thread at a time. owners: user ids that a socket's server may have.

    Of several servers it stays with the one that answers. The next one is asked at once where a request was not taken
    (no connection, by a standby, or by one that does not know who asks), and from the next request on where nobody
    knows whether it was. While one of them does not answer it may be the site's: that others refuse is no end then.
    """

    def __init__(self, address: Address, owners: frozenset[int], connect_s: float = CONNECT_S) -> None:
        self.address = address
        self._ways = deque([_Way(one, owners, connect_s) for one in (address, *address.others)])

    def close(self) -> None:
        for way in self._ways:
            way.close()

    # --- the protocol ---

    def submit(self, ask: c.RunRequest) -> c.RunView:
        return self._post("/v1/runs", ask, c.RunView)

    def check(self, ask: c.RunRequest) -> c.RunView:
        return self._post("/v1/check", ask, c.RunView)

    def beat(self, run: str, ask: c.Beat) -> c.RunView:
        return self._post(f"/v1/runs/{run}/beat", ask, c.RunView, ANSWER_S + ask.wait_s)

    def claim(self, run: str, ask: c.Claim) -> c.RunView:
        return self._post(f"/v1/runs/{run}/claim", ask, c.RunView)

    def end(self, run: str, ask: c.End) -> c.RunView:
        return self._post(f"/v1/runs/{run}/end", ask, c.RunView)

    def control(self, run: str, verb: str, ask: c.Control) -> c.RunView:
        return self._post(f"/v1/runs/{_segment(run)}/{verb}", ask, c.RunView)

    def update(self, run: str, ask: c.Change) -> c.RunView:
        return self._post(f"/v1/runs/{_segment(run)}/update", ask, c.RunView)

    def view(self, run: str, *, named: bool = False) -> c.RunView:
        """named: a name means the only open run or driver that has it, else the run that has ended latest."""
        return self._ask("GET", f"/v1/runs/{_segment(run)}{'?named=true' if named else ''}", None, c.RunView)

    def runs(self, *, with_ended: bool = False, last: int = 0) -> c.Runs:
        """last: at most so many that have ended, 0 for all; a server of an older version has all in any case."""
        more = f"&last={last}" if last else ""
        return self._ask("GET", f"/v1/runs?ended={str(with_ended).lower()}{more}", None, c.Runs)

    def drain(self, target: str, drained: bool) -> c.Runs:
        return self._post("/v1/drain", c.Drain(target=target, drained=drained), c.Runs)

    def queue(self) -> c.Runs:
        return self._ask("GET", "/v1/queue", None, c.Runs)

    def overview(self) -> Overview:
        return self._ask("GET", "/v1/overview", None, Overview)

    def driver_use(self, over_s: float) -> DriverUse:
        return msgspec.json.decode(self.send("GET", path_of(over_s), None), type=DriverUse)

    def slos(self) -> Slos:
        return self._ask("GET", "/v1/slo", None, Slos)

    def watching(self) -> Watching:
        return self._ask("GET", "/v1/watch", None, Watching)

    def ask_for(self, ask: q.GpuRequest) -> q.RequestView:
        return self._post("/v1/requests", ask, q.RequestView)

    def gpu_requests(self, *, with_ended: bool = False) -> q.Requests:
        return self._ask("GET", f"/v1/requests?ended={str(with_ended).lower()}", None, q.Requests)

    def gpu_request(self, number: str) -> q.RequestView:
        return self._ask("GET", f"/v1/requests/{_segment(number)}", None, q.RequestView)

    def extend(self, number: str, ask: q.Extend) -> q.RequestView:
        return self._post(f"/v1/requests/{_segment(number)}/extend", ask, q.RequestView)

    def release_request(self, number: str, ask: c.Control) -> q.RequestView:
        return self._post(f"/v1/requests/{_segment(number)}/release", ask, q.RequestView)

    def new_token(self, ask: t.TokenRequest) -> t.NewToken:
        return self._post("/v1/tokens", ask, t.NewToken)

    def tokens(self) -> t.Tokens:
        return self._ask("GET", "/v1/tokens", None, t.Tokens)

    def revoke(self, token: str) -> t.TokenView:
        return self._ask("POST", f"/v1/tokens/{_segment(token)}/revoke", None, t.TokenView)

    def hosts(self) -> h.Hosts:
        return self._ask("GET", "/v1/hosts", None, h.Hosts)

    def forget_host(self, name: str) -> h.Hosts:
        return self._ask("POST", f"/v1/hosts/{_segment(name)}/forget", None, h.Hosts)

    def log(self, limit: int) -> t.Log:
        return self._ask("GET", f"/v1/log?limit={limit}", None, t.Log)

    def join(self, ask: c.DriverRequest) -> c.Driver:
        return self._post("/v1/drivers", ask, c.Driver, DRIVER_S)

    def leave(self, driver: str, ask: c.Leave) -> None:
        self._post(f"/v1/drivers/{driver}/leave", ask, c.Left, DRIVER_S)

    # --- one request ---

    def _post(self, path: str, ask: c.Ask, kind: type[M], patience_s: float = ANSWER_S) -> M:
        return self._ask("POST", path, ask, kind, patience_s)

    def _ask(self, method: str, path: str, ask: c.Ask | None, kind: type[M], patience_s: float = ANSWER_S) -> M:
        """Raises Unreachable, and Refused for what the server does not do."""
        # what is not said is left out: an older server refuses fields that it does not know
        body = None if ask is None else ask.model_dump_json(exclude_none=True).encode()
        try:
            return kind.model_validate_json(self.send(method, path, body, patience_s))
        except ValidationError as error:
            raise Unreachable(f"{self.address.url}: no answer from an EGS server ({_cause(error)})") from None

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        patience_s: float = ANSWER_S,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """One request, and the body of its answer. more: headers. Raises as `_ask`."""
        if len(self._ways) > 1:
            patience_s -= ANSWER_S - OTHERS_S if patience_s >= ANSWER_S else 0
        problems: list[Unreachable | Refused] = []
        for _ in range(len(self._ways)):
            try:
                return self._ways[0].send(method, path, body, patience_s, more)
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and error.status != c.UNKNOWN:
                    raise
                problems.append(error)
                self._ways.rotate(-1)
                if not isinstance(error, (NotTaken, Refused)):
                    break
        told = "; ".join(map(str, problems))
        if all(isinstance(one, Refused) for one in problems):
            raise Refused(c.UNKNOWN, told) from problems[-1]
        kind = Nobody if all(isinstance(one, Nobody) for one in problems) else Unreachable
        raise kind(told) from problems[-1]


class _Way:
    """To one server."""

    def __init__(self, address: Address, owners: frozenset[int], connect_s: float) -> None:
        self.address, self._connect_s = address, connect_s
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy and no .netrc: the token goes to the server alone
        self._session.verify = trusted_certificates()
        self._base = address.url
        if address.socket is not None:
            self._base = "http://site"
            self._session.mount("http://site", _SocketAdapter(address.socket, owners))
        self._session.headers[c.PROTOCOL_HEADER] = str(c.PROTOCOL)
        if address.token:
            self._session.headers["Authorization"] = f"Bearer {address.token}"

    def close(self) -> None:
        self._session.close()

    def send(
        self, method: str, path: str, body: bytes | None, patience_s: float, more: Mapping[str, str] | None
    ) -> bytes:
        headers = {**({"Content-Type": "application/json"} if body else {}), **(more or {})}
        try:
            answer = self._session.request(
                method, self._base + path, data=body, headers=headers, timeout=(self._connect_s, patience_s)
            )
            if answer.status_code == c.UNKNOWN and self._take_new_token():
                return self.send(method, path, body, patience_s, more)
            is_busy = answer.status_code == 408 or (answer.status_code == 429 and "Retry-After" in answer.headers)
            if is_busy or answer.status_code >= 500:
                kind = NotTaken if c.STANDBY_HEADER in answer.headers else Unreachable
                raise kind(f"{self.address.url}: {answer.status_code}: {_detail(answer)}")
            if answer.status_code >= 400:
                raise Refused(answer.status_code, self._refusal(answer))
            return answer.content
        except requests.RequestException as error:
            if isinstance(error, requests.ConnectionError) and (own := _own_error(error)):
                raise own from None
            kind = Nobody if _was_not_sent(error) else Unreachable
            raise kind(f"{self.address.url}: no answer from an EGS server ({_cause(error)})") from None

    def _take_new_token(self) -> bool:
        """A server that has been started after this client has written another token, or a short one was renewed."""
        if self.address.socket is not None or os.environ.get(TOKEN):
            return False
        wanted = f"Bearer {read_token(self.address.url)}"
        is_new = wanted not in ("Bearer ", self._session.headers.get("Authorization"))
        if is_new:
            self._session.headers["Authorization"] = wanted
        return is_new

    def _refusal(self, answer: requests.Response) -> str:
        stated = next((one for one in (TOKEN, TOKEN_FILE) if os.environ.get(one)), "")
        if answer.status_code == c.UNKNOWN and stated:
            why = _detail(answer)
            said = "" if c.NOBODY in why else f" ({why})"
            problem = f"the token in {stated} is not known there, or no longer good{said}"
            return f"{self.address.url}: {problem}: ask for another"
        if answer.status_code == c.UNKNOWN:
            return f"{self.address.url}: the server does not know who asks: set {TOKEN} (`egs token create` makes one)"
        return with_options(_detail(answer))


class _SocketAdapter(HTTPAdapter):
    """HTTP over a Unix socket whose server is trusted: root's, one's own, or the one that root has named."""

    def __init__(self, path: Path, owners: frozenset[int]) -> None:
        super().__init__()
        self._pool = _Pool(path, owners)

    def get_connection_with_tls_context(self, *_args: Any, **_more: Any) -> HTTPConnectionPool:
        return self._pool

    def request_url(self, request: requests.PreparedRequest, _proxies: Any) -> str:
        return request.path_url

    def close(self) -> None:
        self._pool.close()


class _Pool(HTTPConnectionPool):
    def __init__(self, path: Path, owners: frozenset[int]) -> None:
        super().__init__("site")
        self._path, self._owners = path, owners

    def _new_conn(self) -> HTTPConnection:
        return _Connection(self._path, self._owners)


class _Connection(HTTPConnection):
    def __init__(self, path: Path, owners: frozenset[int]) -> None:
        super().__init__("site", timeout=ANSWER_S)
        self._path, self._owners = path, owners

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(str(self._path))
            peer = peer_uid(connection)
            if peer not in self._owners:
                problem = f"unix://{self._path}: its server is of user {peer}, whom nobody trusts"
                raise EgsError(f"{problem} (root may write that number into {SITE_FILE})")
        except BaseException:
            connection.close()
            raise
        connection.settimeout(self.timeout if isinstance(self.timeout, float) else ANSWER_S)
        self.sock = connection


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket, as the kernel has it."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", found)[1]
    return uid


def _segment(run: str) -> str:
    """A run's id in a path; what is none is looked up as it stands, and not found."""
    return urllib.parse.quote(run, safe="") or "-"


def _detail(answer: requests.Response) -> str:
    try:
        found = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.text[:200] or str(answer.reason)
    if isinstance(found, list):  # one entry a field that is wrong
        found = "; ".join(f"{'.'.join(map(str, one.get('loc', ())[1:]))}: {one.get('msg', '')}" for one in found[:3])
    return str(found)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__


def _own_error(error: BaseException) -> EgsError | None:
    return next((one for one in _causes(error) if isinstance(one, EgsError)), None)


def _was_not_sent(error: BaseException) -> bool:
    """Whether there was no connection to send it over."""
    return any(isinstance(one, NO_CONNECTION) for one in _causes(error))


def where_to_look(error: Unreachable) -> str:
    """What a user can do, to be written behind the error; "" for a server that is there."""
    if not isinstance(error, Nobody):
        return ""
    named = f"is the server up (`egs serve`), and is {URL} right? Unset, it is the server of this host"
    return f": {named}" if os.environ.get(URL) else ": `egs serve` starts one"


def _cause(error: BaseException) -> str:
    *_, last = _causes(error)
    return " ".join(str(last).split())[:200]


def trusted_owners(file: Path = SITE_FILE) -> frozenset[int]:
    """User ids that the server behind a Unix socket may have: root's, one's own, and the one that a file of root's has.
    Raises EgsError for a file that is not root's alone to write."""
    found = {0, os.getuid()}
    try:
        with file.open() as named:
            status = os.fstat(named.fileno())
            if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise EgsError(f"{file}: must be root's, and writable for root alone")
            found.add(int(named.read()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise EgsError(f"{file}: needs one user id, a number ({error})") from None
    return frozenset(found)


@contextmanager
def connected(address: Address) -> Iterator[SiteClient]:
    """A client for one command, which is told what to do where there is no server."""
    client = SiteClient(address, trusted_owners())
    try:
        yield client
    except Nobody as error:
        raise Nobody(f"{error}{where_to_look(error)}") from None
    finally:
        client.close()
