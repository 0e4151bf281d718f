"""Tokens of an OpenID Connect provider: signed by a key of its own, which it publishes.

    its configuration ─► the address of its keys ─► keys ─► a token's signature, issuer, audience, time ─► who it is

The keys are read in a thread of its own, when the server starts, each hour, and when a token names one that is not
there: no request waits for the provider, and no stranger makes the server ask it more often than `SOONEST_S`. As long
as it does not answer, the keys that were read last count.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
import requests

from egs_core.notices import warn_once
from egs_core.oidc import OidcFile, Person, is_safe_address, who_is

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
AGAIN_S, SOONEST_S, FIRST_S = 3600.0, 30.0, 5.0
LEEWAY_S = 30.0  # by which the provider's clock may differ
MOST_BYTES = 1 << 20
MOST_TOKEN = 8192  # characters
MOST_KNOWN = 10_000
NEEDED = ["exp", "iss", "aud"]


class _Known(msgspec.Struct, frozen=True):
    """A token that was found sound. until: second since 1970."""

    person: Person
    until: float


class Provider:
    """Knows people by tokens; from any thread."""

    def __init__(self, file: OidcFile) -> None:
        self._file = file
        self._keys: dict[str, jwt.PyJWK] = {}
        self._known: dict[str, _Known] = {}
        self._asked, self._read, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="egs-oidc", daemon=True)

    @property
    def issuer(self) -> str:
        return self._file.issuer

    def start(self) -> None:
        """The first keys are there when it returns, unless the provider takes longer than `FIRST_S`."""
        self._thread.start()
        self._read.wait(FIRST_S)

    def close(self) -> None:
        self._ended.set()
        self._asked.set()

    def person(self, token: str, now: float) -> Person | str:
        """Whom a token names, now; a text: why nobody. now: second since 1970."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
        known = self._known.get(digest)
        if known is not None and now < known.until:
            return known.person
        found = self._check(token)
        if isinstance(found, str):
            return found
        person = who_is(self._file, found)
        if isinstance(person, Person):
            if len(self._known) >= MOST_KNOWN:
                self._known = {}
            self._known[digest] = _Known(person, float(found["exp"]) + LEEWAY_S)
        return person

    def _check(self, token: str) -> dict[str, Any] | str:
        """The claims of a token that this provider has signed for this site, and that is good now."""
        if len(token) > MOST_TOKEN:
            return "the token is too long"
        try:
            name = str(jwt.get_unverified_header(token).get("kid", ""))
            keys = self._keys
            key = keys.get(name) or (next(iter(keys.values())) if not name and len(keys) == 1 else None)
            if key is None:
                self._asked.set()
                return f"{self.issuer} has no such key: if it has a new one, ask again in a minute"
            options: Any = {"require": NEEDED, "strict_aud": False}
            return jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._file.audience,
                issuer=self._file.issuer,
                leeway=LEEWAY_S,
                options=options,
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            return f"the token does not hold: {error}"

    # --- its keys ---

    def _keep(self) -> None:
        while not self._ended.is_set():
            try:
                keys = read_keys(self._file.issuer)
            except (requests.RequestException, ValueError, jwt.PyJWTError) as error:
                warn_once(f"--oidc: {self.issuer}: its keys cannot be read ({error}): tried again")
                wait_s = SOONEST_S
            else:
                self._keys, self._known = keys, {}  # what a key has proven that is gone counts no more
                wait_s = AGAIN_S
            self._read.set()
            self._ended.wait(SOONEST_S)
            self._asked.wait(wait_s - SOONEST_S)
            self._asked.clear()


def read_keys(issuer: str) -> dict[str, jwt.PyJWK]:
    """The keys that sign, by their names. Raises RequestException, ValueError, PyJWTError."""
    found = _read_json(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if found.get("issuer") != issuer:
        raise ValueError(f"it says that it is {str(found.get('issuer'))[:200]!r}")
    address = found.get("jwks_uri")
    if not isinstance(address, str) or not is_safe_address(address):
        raise ValueError("it names no https:// address of its keys")
    keys = {}
    for one in _read_json(address).get("keys", []):
        if isinstance(one, dict) and one.get("use", "sig") == "sig" and one.get("kty") != "oct":
            try:
                keys[str(one.get("kid", ""))] = jwt.PyJWK(one)
            except jwt.PyJWTError:
                continue  # of a kind that is not for tokens like these
    if not keys:
        raise ValueError("it has no key")
    return keys


def _read_json(url: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10.0
    with requests.get(url, timeout=5.0, stream=True, allow_redirects=False) as answer:
        if answer.status_code != 200:
            raise ValueError(f"{urlsplit(url).path}: answers {answer.status_code}")
        body = b""
        for part in answer.iter_content(65536):
            body += part
            if len(body) > MOST_BYTES or time.monotonic() > deadline:
                raise ValueError(f"{urlsplit(url).path}: is too long, or too slow")
    found = msgspec.json.decode(body)
    if not isinstance(found, dict):
        raise ValueError(f"{urlsplit(url).path}: is no JSON object")
    return found
