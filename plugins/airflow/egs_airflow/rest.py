"""Airflow's public REST API, and the login that a token takes; a read is a GET request. Standard library only.

Imports no Airflow, so it works from a machine without one, and before anything of EGS is installed in that Airflow.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from egs_core.errors import InputError

PORT = 8080
PATIENCE_S = 60.0
PAGE = 100  # what Airflow gives at most by default
TOKEN, USER, PASSWORD = "AIRFLOW_CLI_TOKEN", "EGS_AIRFLOW_USER", "EGS_AIRFLOW_PASSWORD"
HOW = f"set {TOKEN}, or {USER} and {PASSWORD}"
_SECRET = re.compile(r"//[^/@]*@")


class Unreachable(InputError):
    """Nobody answers, or the server says that it cannot (5xx): it may be another moment's answer."""


class Rest:
    """One Airflow. `token` where given; else `user` and `password`, else nothing until Airflow asks for it."""

    def __init__(self, url: str, token: str = "", user: str = "", password: str = "") -> None:
        self.url, self._token = url, token
        self._may_log_in = not token
        self._credentials = {"username": user, "password": password} if user else None
        if not token and user:
            self._token = self._login(self._credentials)

    def get(self, path: str, **query: object) -> Any:
        """The answer to GET /api/v2/PATH; a list in the query is said once for each of its values. See `send`."""
        return self.send("GET", path + (f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""))

    def send(self, method: str, path: str, body: object = None, *, may_log_in: bool = True) -> Any:
        """The answer to a request for /api/v2/PATH. None for what is not there (404). Raises InputError that names the
        place, of the kind Unreachable where asking again may help. A token that has expired is asked for again."""
        try:
            return self._send(f"/api/v2/{path}", body, method)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            if error.code != 401 or not (may_log_in and self._may_log_in):
                raise self._refused(path.partition("?")[0], error) from None
        self._token = self._login(self._credentials)
        return self.send(method, path, body, may_log_in=False)

    def rows(self, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        """All rows of a collection, page by page: by cursor where this Airflow has one, else by offset."""
        seen, place = 0, dict[str, object](cursor="")
        while True:
            answer = self.get(path, limit=PAGE, **place, **query)
            try:
                rows, by_cursor = list(answer[key]), "next_cursor" in answer
            except (KeyError, TypeError):
                raise InputError(f"{self.url}/api/v2/{path}", f"answers without {key!r}: not an Airflow 3") from None
            yield from rows
            seen += len(rows)
            place = {"cursor": answer["next_cursor"]} if by_cursor else {"offset": seen}
            if not rows or not (answer["next_cursor"] if by_cursor else seen < answer.get("total_entries", 0)):
                return

    def _login(self, credentials: dict[str, str] | None) -> str:
        """A token for a user, or for nobody: an Airflow in which all are admins gives one."""
        try:
            return str(self._send("/auth/token", credentials)["access_token"])
        except urllib.error.HTTPError as error:
            error.close()
            if credentials is None:
                raise InputError(self.url, "requires a login (401 Unauthorized)", HOW) from None
            raise InputError(self.url, f"refuses user {credentials['username']!r} ({_said(error)})", HOW) from None
        except (KeyError, TypeError):
            raise InputError(f"{self.url}/auth/token", "gives no token", f"set {TOKEN}") from None

    def _send(self, path: str, body: object = None, method: str | None = None) -> Any:
        """One request. Raises HTTPError as it comes, and InputError where nobody, or no Airflow, answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Accept": "application/json"}, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            kind = InputError if isinstance(error, ValueError) else Unreachable
            reason = getattr(error, "reason", None) or error
            hint = f"the address of Airflow's own pages, for example http://127.0.0.1:{PORT}"
            raise kind(self.url, f"no answer from an Airflow 3: {reason}", hint) from None

    def _refused(self, path: str, error: urllib.error.HTTPError) -> InputError:
        if error.code in (401, 403):
            return InputError(self.url, f"refuses the request for {path} ({_said(error)})", HOW)
        kind = Unreachable if error.code >= 500 else InputError
        return kind(f"{self.url}/api/v2/{path}", f"answers {_said(error)}")


def connect(address: str, user: str = "") -> Rest:
    """The Airflow at an address, with what the environment says of who asks; it has answered as an Airflow 3.

    The address may have user and password in it. Raises InputError for another address or another server.
    """
    url, named, password = airflow_url(address)
    user = user or named or os.environ.get(USER, "")
    rest = Rest(url, os.environ.get(TOKEN, "").strip(), user, password or os.environ.get(PASSWORD, ""))
    version = rest.get("version")
    if not isinstance(version, dict) or not str(version.get("version", "")).startswith("3."):
        raise InputError(url, "answers, but is no Airflow 3", "EGS reads the REST API that Airflow has from 3.0 on")
    return rest


def airflow_url(address: str) -> tuple[str, str, str]:
    """URL, user and password from what a user may write: a URL, host:port or host. InputError for another kind."""
    shown = _SECRET.sub("//", address)
    try:
        parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port or (443 if parts.scheme == "https" else PORT)
    except ValueError as error:
        raise InputError("--airflow", f"{shown!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--airflow", f"{shown!r} is not the address of an Airflow", f"try http://127.0.0.1:{PORT}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user, password = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}", user, password


def quoted(name: str) -> str:
    """A name as a part of a path: run ids have ':' and '+' in them."""
    return urllib.parse.quote(name, safe="")


def _said(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}"
