"""JSON from a framework's own HTTP API: one request, one answer, and errors that name the address and what to do.

On `requests`, which takes proxies and `REQUESTS_CA_BUNDLE` from the environment; the machine's own certificates count
too. A `.netrc` does not: who asks is said by the caller alone.
"""

from __future__ import annotations

import ssl
import urllib.parse
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from egs_core.errors import InputError

PATIENCE_S = 60.0


class Unreachable(InputError):
    """Nobody answers, or the server says that it cannot (5xx): it may be another moment's answer."""


class Refused(Exception):
    """An answer with a status of 400 or more, for the caller to say what it means. text: of the answer."""

    def __init__(self, status: int, reason: str, text: str = "") -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.text = status, text


@dataclass(frozen=True)
class Api:
    """The API at a URL. what: who should answer there, "a dashboard"; hint: what the user may do when nobody does."""

    url: str
    what: str
    hint: str = ""

    def ask(self, path: str, method: str = "GET", body: Any = None, token: str = "") -> Any:
        """The decoded answer, None for an empty one. token: sent as a bearer's. Raises Refused, Unreachable where
        nobody answers, and InputError for what is not JSON."""
        try:
            with requests.Session() as session:
                if self.url.startswith("https:"):
                    session.mount("https://", _SystemTrust())
                headers = {"Accept": "application/json"}
                answer = session.request(
                    method, self.url + path, json=body, headers=headers, auth=_Bearer(token), timeout=PATIENCE_S
                )
            if answer.status_code >= 400:
                raise Refused(answer.status_code, answer.reason, answer.text)
            return answer.json() if answer.content else None
        except (requests.RequestException, ValueError) as error:
            kind = InputError if isinstance(error, ValueError) else Unreachable
            raise kind(self.url, f"no answer from {self.what}: {_cause(error)}", self.hint) from None


def parse_address(option: str, address: str, port: int, what: str) -> tuple[str, str, str]:
    """URL, user and password from what a user may write: a URL, host:port or host. what: whose address it should be.
    Raises InputError for another kind; it does not show the password."""
    shown = address if "@" not in address else f"…@{address.rpartition('@')[2]}"
    hint = f"for example http://127.0.0.1:{port}"
    try:
        parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port or (443 if parts.scheme == "https" else port)
    except ValueError as error:
        raise InputError(option, f"{shown!r} is no address: {error}", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(option, f"{shown!r} is not the address of {what}", hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user, password = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}", user, password


class _Bearer(requests.auth.AuthBase):
    """Also without a token, so that `requests` takes none from a .netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _SystemTrust(HTTPAdapter):
    """Trusts the machine's certificates beside those of `requests`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=ssl.create_default_context())


def _cause(error: BaseException) -> BaseException:
    """The error of the system or the reader below those of `requests` and its pools, whose texts name the pool."""
    inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
    if not isinstance(inner, BaseException):
        inner = error.__cause__
    return error if inner is None or isinstance(error, ValueError) else _cause(inner)
