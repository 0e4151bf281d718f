"""Airflow's REST API without a network: its application is called in this process, as whoever asked for the page.

page's thread ── get ──► the api-server's event loop ── ASGI ──► Airflow's own routes, with the asker's cookie
"""

from __future__ import annotations

import json
from typing import Any

from anyio import from_thread
from fastapi import Request

from egs_airflow.rest import Rest
from egs_airflow.view import OUTER
from egs_core.web import Refused

PASSED_ON = ("authorization", "cookie")


class OwnRest(Rest):
    """The REST API as the asker of one request sees it; to be used in a thread that the event loop has started.

    refused: the status of the last answer that was none; 0 without one.
    """

    def __init__(self, request: Request) -> None:
        super().__init__("http://airflow", token="the asker's")  # which is in the headers
        self._app = request.scope[OUTER]
        self._headers = {name: value for name in PASSED_ON if (value := request.headers.get(name))}
        self.refused = 0

    def _send(self, path: str, body: object = None, method: str = "") -> Any:
        if body is not None or method not in ("", "GET"):
            raise ValueError("pages only read")
        answer = from_thread.run(self._ask, path)
        if answer.status_code >= 400:
            self.refused = answer.status_code
            raise Refused(answer.status_code, answer.reason_phrase)
        return json.loads(answer.content)

    async def _ask(self, path: str) -> Any:
        import httpx

        transport = httpx.ASGITransport(app=self._app)
        async with httpx.AsyncClient(transport=transport, base_url=self.url, headers=self._headers) as client:
            return await client.get(path)
