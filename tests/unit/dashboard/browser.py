"""Somebody at the dashboard without a browser: cookies, forms, and the stream of events."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.unit.server.real_app import Answer, Asker
from tests.unit.server.real_site import PATIENCE_S

FORM = "application/x-www-form-urlencoded"


class Visitor:
    """At one server. cookie: of the session, once logged in; csrf: from its page."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = self.csrf = ""
        self._asker = Asker(lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S))

    def get(self, path: str = "/dashboard", **headers: str | None) -> Answer:
        return self._asker.get(path, **{"Content_Type": None, "Cookie": self.cookie or None, **headers})

    def post(self, path: str, form: dict[str, str], **headers: str | None) -> Answer:
        body = urllib.parse.urlencode(form).encode()
        sent = {"Content_Type": FORM, "Cookie": self.cookie or None, **headers}
        return self._asker.ask("POST", path, None, body, **sent)

    def log_in(self, token: str, **headers: str | None) -> Answer:
        answer = self.post("/dashboard/login", {"token": token}, **headers)
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].split(";")[0]
            found = re.search(r'data-csrf="([^"]+)"', answer.body.decode())
            assert found is not None
            self.csrf = found[1]
        return answer

    def control(self, run: str, verb: str, csrf: str | None = None, **headers: str | None) -> Answer:
        """As the page's buttons do."""
        sent = {"X_EGS_CSRF": self.csrf if csrf is None else csrf, "Cookie": self.cookie or None, **headers}
        return self._asker.ask("POST", f"/dashboard/runs/{run}/{verb}", {"reason": "by hand"}, None, **sent)

    def change_priority(self, run: str, body: object, csrf: str | None = None, **headers: str | None) -> Answer:
        sent = {"X_EGS_CSRF": self.csrf if csrf is None else csrf, "Cookie": self.cookie or None, **headers}
        return self._asker.ask("POST", f"/dashboard/runs/{run}/priority", body, None, **sent)

    def stream(self, query: str = "") -> Stream:
        return Stream(self.port, self.cookie, self.csrf, query)


class Stream:
    """The events of a session. seen: kinds and data of all that came; text: of all that came."""

    def __init__(self, port: int, cookie: str, csrf: str, query: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.request("GET", f"/dashboard/events{query}", headers={"Cookie": cookie, "X-EGS-CSRF": csrf})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self.seen: list[tuple[str, Any]] = []
        self.text = ""

    def next(self) -> tuple[str, Any]:
        """The next event; ("", None) where the stream has ended."""
        kind = ""
        while line := self._line():
            self.text += line
            if line.startswith("event: "):
                kind = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                self.seen.append((kind, json.loads(line.removeprefix("data: "))))
                return self.seen[-1]
        return "", None

    def until(self, wanted: Callable[[str, Any], Any], words: str) -> Any:
        """The data of the first event that is wanted."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            kind, data = self.next()
            if wanted(kind, data):
                return data
            assert kind, f"{words}: the stream has ended after {self.seen}"
        raise AssertionError(f"{words}: it did not come; {self.seen}")

    def close(self) -> None:
        self._connection.close()

    def _line(self) -> str:
        try:
            return self._answer.readline().decode()
        except (http.client.HTTPException, ConnectionError):
            return ""


def rows(data: Any, section: str) -> dict[str, Any]:
    """Of a section, of what a change tells."""
    found: dict[str, Any] = data["sections"].get(section, {}).get("rows", {})
    return found
