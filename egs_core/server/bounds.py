"""What a request may be: how long its body, of which kind, how many a second; and how a wrong one is answered."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

from egs_core.server.runs import Refusal

MOST_BODY_BYTES = 256 * 1024
MOST_BATCH_BYTES = 32 * 1024 * 1024  # of a driver's batch, which has graphs
BATCH_PATH = re.compile(r"/v1/drivers/[^/]+/batch")
MOST_WRONG = 10  # fields that are named in one answer
RATE = 500.0  # requests a second of one principal
BURST_S = 2.0
BEAT_COST = 0.1  # of a heartbeat, or a driver's batch, of which there are many
MOST_KNOWN = 10_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Rates:
    """A bucket each principal: filled with `rate` tokens a second up to those of BURST_S, emptied by requests. rate: 0
    for no bound. Used from one thread."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate = rate
        self._left: dict[str, tuple[float, float]] = {}  # of each, and when that was

    def take(self, name: str, cost: float, now: float) -> None:
        """Raises Refusal (429) for a request too many. now: seconds, of any clock that never goes back."""
        if not self.rate:
            return
        most = self.rate * BURST_S
        left, at = self._left.get(name, (most, now))
        left = min(most, left + (now - at) * self.rate)
        if left < cost:
            text = f"{name} asks more than {self.rate:g} times a second: wait, and ask less often"
            raise Refusal(429, text, (cost - left) / self.rate)
        if len(self._left) >= MOST_KNOWN:
            self._left.clear()  # everyone has a full bucket again
        self._left[name] = left - cost, now


class BodyBound:
    """ASGI middleware: a body longer than MOST_BODY_BYTES, or MOST_BATCH_BYTES, is answered with 413, however it is
    sent; one not said to be JSON with 415: a page in a browser may send any other kind to a server without asking
    it."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = MOST_BATCH_BYTES if BATCH_PATH.fullmatch(scope["path"]) else MOST_BODY_BYTES
        pieces, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > most:
                response = JSONResponse({"detail": f"the body is longer than {most} bytes: send less"}, 413)
                await response(scope, receive, send)
                return
        body = b"".join(pieces)
        if body and not _is_json(scope):
            response = JSONResponse({"detail": "the body is not said to be JSON: Content-Type: application/json"}, 415)
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


def _is_json(scope: Scope) -> bool:
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].split(b";")[0].strip().lower() == b"application/json"


def wrong_fields(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """What is wrong with a request, field by field, without what it said: that may be no text, and no number."""
    return [{"loc": [_text(part) for part in one["loc"]], "msg": _text(one["msg"])} for one in errors[:MOST_WRONG]]


def _text(part: Any) -> Any:
    return part.encode("utf-8", "backslashreplace").decode()[:200] if isinstance(part, str) else part
