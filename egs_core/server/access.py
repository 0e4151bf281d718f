"""Who is asking: the process at the other end of a Unix socket, as the kernel names it, or whoever has a token.

A request over the socket needs no token, one over TCP always does. uvicorn tells an application the address of a peer;
for a Unix socket it knows none, so `peer_protocol` puts `uid:N` there. Proxy headers, which may say anything, are off.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import secrets
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from egs_core.client.http import peer_uid
from egs_core.server.runs import Principal
from egs_core.server.store import SqlStore

PEER = "uid:"
TOKEN_DAYS = 90
DAY_S = 86400.0


class PeerProtocol(H11Protocol):
    """HTTP whose `client` is `uid:N` where the connection is a Unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of uvicorn's own
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.client = (f"{PEER}{peer_uid(connection)}", 0)


class Access:
    """Names who asks. The user of the server, and root, are its operators."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def of_request(self, scope: Any, authorization: str | None, now: float) -> Principal | None:
        """None for nobody that is known. scope: of ASGI; now: second since 1970."""
        host = str((scope.get("client") or ("", 0))[0])
        if host.startswith(PEER):
            return _principal(int(host.removeprefix(PEER)))
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            return None
        name = self._store.token_name(_digest(token.strip()), now)
        return None if name is None else Principal(name, is_operator=name == user_name(os.getuid()))

    def new_token(self, name: str, now: float) -> str:
        """A token for a user, which nobody can read from the store."""
        token = secrets.token_urlsafe(32)
        self._store.add_token(_digest(token), name, now + TOKEN_DAYS * DAY_S)
        return token

    def knows(self, token: str, name: str, now: float) -> bool:
        """Whether the token is this user's, and good for most of its time still."""
        return self._store.token_name(_digest(token), now + TOKEN_DAYS * DAY_S / 2) == name


def user_name(uid: int) -> str:
    """The user's name, or `uidN` where the host knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"


def _principal(uid: int) -> Principal:
    return Principal(user_name(uid), is_operator=uid in (0, os.getuid()))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
