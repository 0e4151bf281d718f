"""Requests for `/dashboard` go to its process, as they come and as it answers; all others are the server's.

A bound for what is sent on, a deadline for what comes back, and a plain page where nobody answers: whatever becomes of
the dashboard, a lease never waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from html import escape

import httptools
from fastapi.responses import HTMLResponse, PlainTextResponse

from egs_core.server.access import IS_KNOWN
from egs_core.server.bounds import Receive, Scope, Send
from egs_core.server.dashboard import Away, Dashboard

PATH = "/dashboard"
METHODS = ("GET", "HEAD", "POST")
PASSED = (
    *(b"accept", b"cookie", b"content-type", b"host", b"x-forwarded-host", b"origin", b"sec-fetch-site"),
    b"x-egs-csrf",
)
OWN = (b"connection", b"keep-alive", b"transfer-encoding", b"date")  # of one connection, or said by this server anyway
KNOWN = b"egs-known"  # of an answer to somebody who is logged in
MOST_BODY_BYTES, MOST_PASSED_BYTES = 16 * 1024, 16 * 1024
ANSWER_S = 60.0  # also between two pieces of a stream, which says something more often
LOOK_S = 0.25  # how often it is looked whether the process that is to answer still lives
PIECE_BYTES = 64 * 1024
MOST_AT_ONCE = 1024

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Forward:
    """ASGI middleware; see the module."""

    def __init__(self, app: App, dashboard: Dashboard) -> None:
        self._app, self._dashboard = app, dashboard
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PATH or path.startswith(PATH + "/")):
            await self._app(scope, receive, send)
            return
        if scope["method"] not in METHODS:
            await PlainTextResponse("this cannot be done here", 405)(scope, receive, send)
            return
        if self._count >= MOST_AT_ONCE:
            await _away(Away("too many look at it at once", 10.0))(scope, receive, send)
            return
        self._count += 1
        try:
            await self._forward(scope, receive, send)
        finally:
            self._count -= 1

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            await PlainTextResponse(f"more than {MOST_BODY_BYTES} bytes", 413)(scope, receive, send)
            return
        answer = _Answer(scope, send)
        asked = asyncio.create_task(self._ask(_request(scope, body), answer))
        gone = asyncio.create_task(_gone(receive))
        problem: Exception | None = None
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                return
            await asked
        except (Away, OSError, httptools.HttpParserError) as error:
            problem = error
        finally:
            for one in (asked, gone):
                one.cancel()
        if not answer.has_begun:
            found = problem if isinstance(problem, Away) else Away("its process did not answer", 2.0)
            await _away(found)(scope, receive, send)
        elif not answer.is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ask(self, request: bytes, answer: _Answer) -> None:
        """Raises Away and OSError; what has come by then has been sent."""
        reader, writer = await self._dashboard.connect()
        try:
            writer.write(request)
            while not answer.is_whole:
                piece = await self._piece(reader)
                if not piece:
                    return
                await answer.take(piece)
        finally:
            writer.close()

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        """What comes next; nothing where nothing will: the process may have ended before it took the connection."""
        reading = asyncio.create_task(reader.read(PIECE_BYTES))
        try:
            for _ in range(math.ceil(ANSWER_S / LOOK_S)):
                done, _ = await asyncio.wait({reading}, timeout=LOOK_S)
                if done:
                    return await reading
                if not self._dashboard.is_there:
                    break
            return b""
        finally:
            reading.cancel()


class _Answer:
    """What comes back, sent on piece by piece. has_begun: its head is sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._has_head = self.has_begun = self.is_whole = False

    async def take(self, piece: bytes) -> None:
        self._parser.feed_data(piece)
        if not self._has_head:
            return
        if not self.has_begun:
            self.has_begun = True
            status = self._parser.get_status_code()
            await self._send({"type": "http.response.start", "status": status, "headers": self._headers})
        body, self._pieces = b"".join(self._pieces), []
        if body or self.is_whole:
            await self._send({"type": "http.response.body", "body": body, "more_body": not self.is_whole})

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == KNOWN:
            self._scope.get("state", {}).get(IS_KNOWN, _nobody)()
        elif name not in OWN:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_head = True
        self.is_whole = self._scope["method"] == "HEAD"

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True


def _nobody() -> None:
    """Who is told that an asker is known, where there is no connection."""


def _request(scope: Scope, body: bytes) -> bytes:
    """In HTTP/1.1, with the few headers that it has a use for."""
    target = scope.get("raw_path") or scope["path"].encode()
    if scope.get("query_string"):
        target += b"?" + scope["query_string"]
    passed = [(name, value) for name, value in scope["headers"] if name in PASSED]
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1"]
    size = 0
    for name, value in passed:
        size += len(name) + len(value)
        if size <= MOST_PASSED_BYTES:
            lines.append(name + b": " + value)
    lines += [b"content-length: " + str(len(body)).encode(), b"connection: close", b"", b""]
    return b"\r\n".join(lines) + body


async def _body(receive: Receive) -> bytes | None:
    """None for one that is too long."""
    found, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return b""  # the client has gone, and the next `receive` says so again
        found += message.get("body", b"")
        more = message.get("more_body", False)
        if len(found) > MOST_BODY_BYTES:
            return None
    return found


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _away(problem: Away) -> HTMLResponse:
    """A page of its own, which asks again by itself."""
    words, wait_s = str(problem), max(1, math.ceil(problem.wait_s))
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>EGS dashboard: away</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        'content="light dark"><main><h1>The dashboard is away</h1>'
        f"<p>{escape(words[:1].upper() + words[1:])}. This page asks again in {wait_s} s.</p>"
        "<p>The server itself runs: leases, runs and what waits are as they were; "
        "<code>egs ps</code> and <code>egs top</code> show them.</p>"
        "</main></html>"
    )
    headers = {
        "Retry-After": str(wait_s),
        "Refresh": str(wait_s),
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(text, 503, headers)
