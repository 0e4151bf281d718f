"""Alerts, posted to a webhook by a thread of its own: a receiver that is slow or gone holds up nothing.

    {"title": …, "text": …, "body": …, "type": "warning", "egs": {"rule": …, "subject": …, "at": …}}

`text` is what Slack, Mattermost and Google Chat read; `title`, `body` and `type` are what an Apprise API server reads,
which passes it on by mail, SMS and a hundred other ways.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import Any
from urllib.parse import urlsplit

import requests

from egs_core.server.watching.rules import Alert

LOG = logging.getLogger("uvicorn.error")
MOST_WAITING = 200
ANSWER_S = 10.0
PAUSES_S = (1.0, 5.0, 30.0)  # before it is tried again


class Alerts:
    """See the module. url: "" for nowhere. site: what the server is called."""

    def __init__(self, url: str, site: str) -> None:
        self._url, self._site = url, site
        self._queue: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egs-alerts", daemon=True)

    def start(self) -> None:
        if self._url:
            self._thread.start()

    def close(self) -> None:
        """What waits is not sent any more; the log has it."""
        self._is_over.set()
        with contextlib.suppress(queue.Full):  # it sees that all is over
            self._queue.put_nowait(None)

    def send(self, alert: Alert) -> None:
        """Never blocks."""
        if not self._url:
            return
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            LOG.warning("an alert of rule %s is not sent: %d wait already", alert.rule, MOST_WAITING)

    def _run(self) -> None:
        session = requests.Session()
        session.trust_env = False  # as the site's own client: no proxy, no .netrc
        while (alert := self._queue.get()) is not None and not self._is_over.is_set():
            problem = self._try(session, alert)
            for pause_s in PAUSES_S:
                if not problem or self._is_over.wait(pause_s):
                    break
                problem = self._try(session, alert)
            if problem:
                LOG.warning("an alert of rule %s was not taken by %s: %s", alert.rule, _host(self._url), problem)

    def _try(self, session: requests.Session, alert: Alert) -> str:
        """What went wrong; "" for nothing."""
        try:
            answer = session.post(self._url, json=body_of(alert, self._site), timeout=ANSWER_S, allow_redirects=False)
        except (requests.RequestException, ValueError) as error:  # urllib3's own, for a host that nobody can have
            return type(error).__name__  # its text has the address, which may be a secret
        return "" if answer.ok and answer.status_code < 300 else f"status {answer.status_code}"


def body_of(alert: Alert, site: str) -> dict[str, Any]:
    """As it is posted."""
    title = f"EGS at {site}: rule {alert.rule}"
    told = {"rule": alert.rule, "subject": alert.subject, "at": alert.at, "site": site}
    return {"title": title, "text": f"{title}: {alert.text}", "body": alert.text, "type": "warning", "egs": told}


def _host(url: str) -> str:
    """Paths and queries of such addresses are secrets."""
    return urlsplit(url).hostname or "its webhook"
