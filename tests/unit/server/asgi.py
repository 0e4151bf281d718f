"""Requests to an ASGI application in this process, from any peer: a Unix socket's or an address."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.applications import Starlette


class Answer(msgspec.Struct):
    """What came back."""

    status_code: int
    body: bytes
    headers: dict[str, str] = {}

    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """An application with its lifespan, on an event loop of its own."""

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._lifespan = app.router.lifespan_context(app)

    def __enter__(self) -> Running:
        self._thread.start()
        self._wait(self._lifespan.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._lifespan.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def request(self, peer: str, method: str, path: str, headers: dict[str, str], pieces: Iterable[bytes]) -> Answer:
        return self._wait(self._request(peer, method, path, headers, list(pieces)))  # type: ignore[no-any-return]

    async def _request(self, peer: str, method: str, path: str, headers: dict[str, str], pieces: list[bytes]) -> Answer:
        path, _, query = path.partition("?")
        told = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        told.append({"type": "http.request", "body": b"", "more_body": False})
        answer = Answer(0, b"")

        async def receive() -> dict[str, Any]:
            return told.pop(0) if told else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answer.status_code = message.get("status", answer.status_code)
            answer.body += message.get("body", b"")
            answer.headers |= {name.decode(): value.decode() for name, value in message.get("headers", ())}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": (peer, 0),
            "server": ("site", 80),
        }
        await self.app(scope, receive, send)
        return answer


class Peer:
    """Somebody who asks."""

    def __init__(self, running: Running, peer: str, token: str = "") -> None:
        self._running, self._peer = running, peer
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(
        self,
        method: str,
        path: str,
        json: Any = None,
        content: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        body = msgspec.json.encode(json) if json is not None else content
        sent = {"Content-Type": "application/json", **self._headers, **(headers or {})}
        return self._running.request(self._peer, method, path, sent, [body] if isinstance(body, bytes) else body)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, json: Any = None, content: bytes | Iterable[bytes] = b"") -> Answer:
        return self.request("POST", path, json, content)
