"""Airflow's public REST API, and the login that a token takes; a read is a GET request.

Imports no Airflow, so it works from a machine without one, and before anything of EGS is installed in that Airflow.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from egs_core.errors import InputError
from egs_core.web import Api, Refused, parse_address
from egs_core.web import Unreachable as Unreachable

PORT = 8080
PAGE = 100  # what Airflow gives at most by default
TOKEN, USER, PASSWORD = "AIRFLOW_CLI_TOKEN", "EGS_AIRFLOW_USER", "EGS_AIRFLOW_PASSWORD"
HOW = f"set {TOKEN}, or {USER} and {PASSWORD}"
HINT = f"the address of Airflow's own pages, for example http://127.0.0.1:{PORT}"


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
        except Refused as error:
            if error.status == 404:
                return None
            if error.status != 401 or not (may_log_in and self._may_log_in):
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
        except Refused as error:
            if credentials is None:
                raise InputError(self.url, "requires a login (401 Unauthorized)", HOW) from None
            raise InputError(self.url, f"refuses user {credentials['username']!r} ({error})", HOW) from None
        except (KeyError, TypeError):
            raise InputError(f"{self.url}/auth/token", "gives no token", f"set {TOKEN}") from None

    def _send(self, path: str, body: object = None, method: str = "") -> Any:
        """One request, by default one that fits the body. Raises Refused as it comes."""
        method = method or ("GET" if body is None else "POST")
        return Api(self.url, "an Airflow 3", HINT).ask(path, method, body, self._token)

    def _refused(self, path: str, error: Refused) -> InputError:
        if error.status in (401, 403):
            return InputError(self.url, f"refuses the request for {path} ({error})", HOW)
        kind = Unreachable if error.status >= 500 else InputError
        return kind(f"{self.url}/api/v2/{path}", f"answers {error}")


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
    return parse_address("--airflow", address, PORT, "an Airflow")


def quoted(name: str) -> str:
    """A name as a part of a path: run ids have ':' and '+' in them."""
    return urllib.parse.quote(name, safe="")
