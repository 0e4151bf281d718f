"""Who is asking: the process at the other end of a Unix socket, as the kernel names it, or whoever has a token.

A request over the socket needs no token, one over TCP always does. uvicorn tells an application the address of a peer;
for a Unix socket it knows none, so `PeerProtocol` puts `uid:N` there. Proxy headers, which may say anything, are off.

Tokens are random, and kept as their hashes: in the store, and in memory, so that a request needs no database. One
server owns a store, so what it has in memory is all there is.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import pwd
import re
import secrets
import socket
import threading
from typing import Any, Protocol

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from egs_core.client import tokens as t
from egs_core.client.http import peer_uid
from egs_core.oidc import Person
from egs_core.queues import Teams
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.store import KeptToken, LoggedChange, SqlStore

PEER = "uid:"
PREFIX = "egs_"  # so that a token is known for one where it was left
MOST_TOKENS = 10_000
MOST_HEAD_BYTES = 512 * 1024  # more than one read of a connection, which may begin with another request's end
HEAD_S, BODY_S = 15.0, 60.0  # in which a request's headers, and then its body, have to be there
MOST_STRANGERS = 256  # connections over TCP of those that nobody knows yet
MOST_OF_A_USER = 32_768  # over the socket: each `egs run` has two, and 10,000 may be open
STRANGERS = "strangers"
DOTS_OF_JWT = 2  # the server's own tokens have none
NO_UID = -1
IS_KNOWN = "is_known"  # in a request's state: what to call when it is known who asks
USER_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+\-\\]{0,63}\$?")
_numbers = itertools.count()


class PeerProtocol(HttpToolsProtocol):
    """HTTP whose `client` is `uid:N` where the connection is a Unix socket, and whose peers cannot use up the server's
    connections: headers have a bound and a request a deadline, which uvicorn and its parser do not set, and of those
    over TCP who have not been known by a token yet, and of each user over the socket, only the latest are kept.

        a connection, or its first byte after an answer ─ HEAD_S ─► the headers are there ─ BODY_S ─► so is the body
    """

    _is_in_head = True
    _head_bytes = 0
    _counts_for = STRANGERS
    _number = 0  # of the connection
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of uvicorn's own
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.client = (f"{PEER}{peer_uid(connection)}", 0)
            self._counts_for = self.client[0]
        self._number = next(_numbers)
        self._due_in(HEAD_S)
        if len(self.connections) > min(MOST_STRANGERS, MOST_OF_A_USER):
            self._close_the_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_due_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:  # also empty lines before a request, which the parser skips
            self._due_in(HEAD_S)
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.send_400_response(f"the headers are longer than {MOST_HEAD_BYTES} bytes: send less")

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        if self._deadline is None:
            self._due_in(HEAD_S)
        super().on_message_begin()
        self.scope["state"][IS_KNOWN] = self._is_known

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._is_due_no_more()
        self._due_in(BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_due_no_more()
        super().on_message_complete()

    def _is_known(self) -> None:
        """Whoever asks over this connection had a good token."""
        if self._counts_for == STRANGERS:
            self._counts_for = ""

    def _close_the_oldest(self) -> None:
        own = self._counts_for
        same = [one for one in self.connections if isinstance(one, PeerProtocol) and one._counts_for == own]
        if len(same) > (MOST_STRANGERS if own == STRANGERS else MOST_OF_A_USER):
            oldest = min(same, key=lambda one: one._number)
            oldest._counts_for = ""  # it is gone, though the loop will say so only later
            oldest.transport.abort()

    def _due_in(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._too_late, seconds)

    def _is_due_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self, seconds: float) -> None:
        self._deadline = None
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if not is_answering or (cycle.more_body and not cycle.response_started and not self.pipeline):
            self._answer_late(f"the request was not there in {seconds:g} s: send it at once")
        else:
            self.transport.abort()  # an answer is under way, which may never be read

    def _answer_late(self, text: str) -> None:
        """408: a client may ask again. It may be the server that was slow, as after it was suspended."""
        body = f'{{"detail": "{text}"}}'
        head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()


class Provider(Protocol):
    """Of tokens that this server has not made: see `oidc`."""

    @property
    def issuer(self) -> str: ...

    def person(self, token: str, now: float) -> Person | str: ...

    def close(self) -> None: ...


class Access:
    """Names who asks, and keeps the tokens; from any thread. teams: of the host's users. The user of the server, and
    root, are admins; other users of the host are submitters of their teams, or of all where the site names none.
    provider: whose tokens count besides the server's own."""

    def __init__(self, store: SqlStore, teams: Teams | None = None, provider: Provider | None = None) -> None:
        self._store, self._provider = store, provider
        self._teams = teams or Teams()
        self._lock = threading.Lock()
        self._tokens: dict[str, KeptToken] = {}
        self.reload()

    def reload(self) -> None:
        """As the store has them: another server may have changed them before this one became active."""
        with self._lock:
            self._tokens = {token.digest: token for token in self._store.tokens()}

    def of_request(
        self, scope: Any, authorization: str | None, now: float, *, by_token: bool = False
    ) -> Principal | None:
        """None for nobody that is known. scope: of ASGI; now: second since 1970; by_token: whose process asks over the
        socket counts for nothing, the token alone does. Raises Refusal (401) for a provider's token that does not
        hold."""
        host, port = scope.get("client") or ("", 0)
        if str(host).startswith(PEER) and not by_token:
            return self._of_user(int(str(host).removeprefix(PEER)))
        kind, _, token = (authorization or "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        where = f"{host} port {port}" if port else f"socket, {str(host).replace(':', ' ')}"
        if self._provider is not None and token.count(".") == DOTS_OF_JWT:
            person = self._of_provider(self._provider, token, where, now)
            scope.get("state", {}).get(IS_KNOWN, _nobody)()
            return person
        found = self._tokens.get(_digest(token)) if token else None
        if found is None or not found.is_good(now):
            return None
        scope.get("state", {}).get(IS_KNOWN, _nobody)()
        origin = f"{where}, token {found.id}"
        host = found.name if found.role == "agent" else ""
        home = self._home(found.name) if found.role == "admin" else ""
        return Principal(found.name, found.role, (found.team,) if found.team else None, origin, host, home)

    def _of_provider(self, provider: Provider, token: str, where: str, now: float) -> Principal:
        found = provider.person(token, now)
        if isinstance(found, str):
            raise Refusal(401, found)
        teams = found.teams
        if teams is None and found.role != "admin":
            teams = self._teams.of_user(found.name, NO_UID)
        home = self._home(found.name) if found.role == "admin" else ""
        return Principal(found.name, found.role, teams, f"{where}, by {provider.issuer}", home=home)

    def at_host(self, agent: Principal, peer: str) -> Principal:
        """A user for whom the agent of their host asks: never more than a submitter, and bound to that host. peer: user
        id and name. Raises Refusal."""
        uid, _, name = peer.partition(" ")
        if agent.role != "agent":
            raise Refusal(403, "only a host's agent may say who asks: leave EGS-Peer out")
        if not uid.isdecimal() or len(uid) > 10 or not USER_NAME.fullmatch(name):
            raise Refusal(400, "EGS-Peer: needs a user id and a name")
        teams = self._teams.of_user(name, int(uid))
        return Principal(name, "submitter", teams, f"{agent.origin}, host {agent.host}, uid {uid}", agent.host)

    def _of_user(self, uid: int) -> Principal:
        name, origin = user_name(uid), f"socket, uid {uid}"
        if uid in (0, os.getuid()):
            return Principal(name, "admin", None, origin, home=self._home(name, uid))
        return Principal(name, "submitter", self._teams.of_user(name, uid), origin)

    def _home(self, name: str, uid: int = NO_UID) -> str:
        """The first team that the file has an admin in; "" for none."""
        return (self._teams.of_user(name, uid) or ("",))[0]

    # --- tokens: each change is in the store, with its line in the log, before it is answered ---

    def new_token(self, who: Principal, ask: t.TokenRequest, now: float) -> t.NewToken:
        """A token, which nobody can read from the store. Raises Refusal."""
        who.need(("admin",), "to make a token")
        if ask.role == "admin" and ask.team:
            raise Refusal(422, "team: an admin is of the whole site: leave the team out, or ask for an operator")
        if ask.team and self._teams.names and ask.team not in self._teams.names:
            raise Refusal(422, f"team: there is no team {ask.team!r}; there are {', '.join(self._teams.names)}")
        if (ask.role == "agent") != bool(ask.host):
            rule = "a token of role agent speaks for one host: name it by --host; tokens of other roles have none"
            raise Refusal(422, f"host: {rule}")
        if ask.host and (ask.team or ask.name not in ("", ask.host)):
            raise Refusal(422, "host: the token of a host's agent has the host's name and no team")
        number = secrets.token_hex(6)
        name = ask.host or ask.name or f"{ask.role}-{number}"
        token = PREFIX + secrets.token_urlsafe(32)
        with self._lock:
            self._check_name(name, ask.team)
            kept = KeptToken(number, _digest(token), name, ask.role, ask.team, now, who.name, now + ask.expires_s)
            self._store.put_token(kept, _change(who, "token create", kept, now))
            self._tokens[kept.digest] = kept
        return t.NewToken(**_view(kept).model_dump(), token=token)

    def _check_name(self, name: str, team: str) -> None:
        """A name is one principal: of two teams, a token of one would have the runs of the other for its own."""
        if len(self._tokens) >= MOST_TOKENS:
            raise Refusal(429, f"there are {MOST_TOKENS} tokens: no more can be made here")
        other = next((one for one in self._tokens.values() if one.name == name and one.team != team), None)
        if other is not None:
            of = f"team {other.team!r}" if other.team else "no team"
            raise Refusal(409, f"name: {name!r} is the name of a token of {of}: choose another")
        of_user = self._teams.of_user(name, _uid_of(name)) if team else None
        if of_user and of_user != ("",) and team not in of_user:
            raise Refusal(409, f"name: {name!r} is a user of team {of_user[0]!r}: choose another")

    def tokens(self, who: Principal) -> t.Tokens:
        who.need(("admin",), "to list tokens")
        return t.Tokens(tokens=tuple([_view(one) for one in self._tokens.values()]))

    def revoke(self, who: Principal, number: str, now: float) -> t.TokenView:
        """From now on nobody is known by it. Raises Refusal (404)."""
        who.need(("admin",), "to revoke a token")
        with self._lock:
            found = next((one for one in self._tokens.values() if one.id == number), None)
            if found is None:
                raise Refusal(404, f"there is no token {number!r}: `egs token list` has their ids")
            if found.revoked_at is None:
                found = msgspec.structs.replace(found, revoked_at=now)
                self._store.put_token(found, _change(who, "token revoke", found, now))
                self._tokens[found.digest] = found
        return _view(found)

    def log(self, who: Principal, limit: int) -> t.Log:
        """The last changes: all of them for an admin, those of its teams for an operator."""
        who.need(("operator", "admin"), "to read the log")
        found = self._store.log(limit, who.teams)
        return t.Log(entries=tuple([t.LogEntry(**msgspec.structs.asdict(one)) for one in found]))

    # --- the token of the server's own user ---

    def own_token(self, now: float) -> str:
        """A token for the user who started the server, as the socket names them."""
        name = user_name(os.getuid())
        who = Principal(name, "admin", None, "egs serve")
        return self.new_token(who, t.TokenRequest(role="admin", name=name), now).token

    def knows_own(self, token: str, now: float) -> bool:
        """Whether the token is this user's, and good for most of its time still."""
        found = self._tokens.get(_digest(token))
        is_own = found is not None and (found.name, found.role) == (user_name(os.getuid()), "admin")
        return found is not None and is_own and found.is_good(now + t.TOKEN_S / 2)


def _nobody() -> None:
    """Who is told that an asker is known, where there is no connection."""


def user_name(uid: int) -> str:
    """The user's name, or `uidN` where the host knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"


def _uid_of(name: str) -> int:
    """Of the host's user of that name; `NO_UID` for none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return NO_UID


def _view(kept: KeptToken) -> t.TokenView:
    return t.TokenView.model_validate(msgspec.structs.asdict(kept))


def _change(who: Principal, verb: str, kept: KeptToken, now: float) -> LoggedChange:
    text = f"{kept.role} {kept.name}"
    return LoggedChange(now, who.name, who.role, who.origin, verb, kept.id, kept.team, text)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
