"""Alerts, posted to a webhook, or sent by Apprise, by a thread of its own: a receiver that is slow or gone holds up
nothing.

    {"title": …, "text": …, "body": …, "type": "warning", "egs": {"rule": …, "subject": …, "at": …}}

`text` is what Slack, Mattermost and Google Chat read; `title`, `body` and `type` are what an Apprise API server reads,
which passes it on by mail, SMS and a hundred other ways. So does the library, in a process a message (`apprised`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests

from egs_core.server.watching.apprised import MISSING, is_there
from egs_core.server.watching.rules import Alert

LOG = logging.getLogger("uvicorn.error")
MOST_WAITING = 200
ANSWER_S = 10.0
SENT_S = 60.0
APPRISED = "egs_core.server.watching.apprised"
PAUSES_S = (1.0, 5.0, 30.0)  # before it is tried again


class Alerts:
    """See the module. url: of the webhook, "" for none; apprise: addresses of Apprise. site: what the server is
    called."""

    def __init__(self, url: str, site: str, apprise: Sequence[str] = ()) -> None:
        self._url, self._site, self._apprise = url, site, tuple(apprise)
        self._child: subprocess.Popen[str] | None = None
        self._queue: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egs-alerts", daemon=True)

    def start(self) -> None:
        if self._apprise and not is_there():
            LOG.warning(
                "alerts go to no address of Apprise, only to the log and the webhook if there is one: %s", MISSING
            )
            self._apprise = ()
        if self._url or self._apprise:
            self._thread.start()

    def close(self) -> None:
        """What waits is not sent any more; the log has it."""
        self._is_over.set()
        if (child := self._child) is not None:
            child.kill()
        with contextlib.suppress(queue.Full):  # it sees that all is over
            self._queue.put_nowait(None)

    def send(self, alert: Alert) -> None:
        """Never blocks."""
        if not (self._url or self._apprise):
            return
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            LOG.warning("an alert of rule %s is not sent: %d wait already", alert.rule, MOST_WAITING)

    def _run(self) -> None:
        session = requests.Session()
        session.trust_env = False  # as the site's own client: no proxy, no .netrc
        targets: list[tuple[str, Callable[[Alert], str]]] = []
        if self._url:
            targets.append((_host(self._url), partial(self._try, session)))
        targets += [(f"{_scheme(url)} (Apprise)", partial(self._notify, url)) for url in self._apprise]
        while (alert := self._queue.get()) is not None and not self._is_over.is_set():
            for name, sends in targets:
                if not self._is_over.is_set():
                    self._bring(alert, name, sends)

    def _bring(self, alert: Alert, name: str, sends: Callable[[Alert], str]) -> None:
        problem = sends(alert)
        for pause_s in PAUSES_S:
            if not problem or self._is_over.wait(pause_s):
                break
            problem = sends(alert)
        if problem and not self._is_over.is_set():
            LOG.warning("an alert of rule %s was not taken by %s: %s", alert.rule, name, problem)

    def _notify(self, url: str, alert: Alert) -> str:
        """What went wrong; "" for nothing."""
        told = json.dumps({"url": url, **{part: body_of(alert, self._site)[part] for part in ("title", "body")}})
        command, pipe = [sys.executable, "-m", APPRISED], subprocess.PIPE
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as child:
                self._child = child
                try:
                    said, _ = child.communicate(told, SENT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    return f"no end after {SENT_S:g} s"
        except OSError as error:
            return type(error).__name__
        finally:
            self._child = None
        return "" if child.returncode == 0 else said.strip() or f"exit code {child.returncode}"

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


def _scheme(url: str) -> str:
    return f"{url.partition('://')[0]}://"
