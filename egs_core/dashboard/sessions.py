"""Who is logged in. A session lives in this process alone: a cookie is worth nothing when that has ended. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

from egs_core.client.overview import Me

LASTS_S = 12 * 3600.0
MOST_OF_TOKEN = 10  # so nobody ends another's; how many tokens there are is the admins' affair


class Session(msgspec.Struct, frozen=True):
    """token: of the viewer; csrf: what all but the page needs besides the cookie; ends_at: of `Sessions`' clock."""

    key: str
    token: str
    me: Me
    csrf: str
    ends_at: float

    @property
    def sees(self) -> str | None:
        """All whose value is the same see the same: those of a team, or, None, of the whole site."""
        return None if self.me.every_team else self.me.team

    def allows(self, csrf: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), csrf.encode(errors="replace"))


class Sessions:
    """Kept by a hash of their cookie. clock: seconds; make: a new secret."""

    def __init__(self, clock: Callable[[], float], make: Callable[[], str] = secrets.token_urlsafe) -> None:
        self._clock, self._make = clock, make
        self._found: dict[str, Session] = {}

    def begin(self, token: str, me: Me) -> tuple[str, Session]:
        """The cookie, and its session. Of too many with the same token the oldest ends."""
        now = self._clock()
        self._found = {key: one for key, one in self._found.items() if one.ends_at > now}
        of_token = [key for key, one in self._found.items() if one.token == token]
        for key in of_token[: max(0, len(of_token) - MOST_OF_TOKEN + 1)]:
            del self._found[key]
        cookie = self._make()
        session = Session(_key(cookie), token, me, self._make(), now + LASTS_S)
        self._found[session.key] = session
        return cookie, session

    def of(self, cookie: str) -> Session | None:
        session = self._found.get(_key(cookie)) if cookie else None
        return session if session is not None and self.lasts(session) else None

    def lasts(self, session: Session) -> bool:
        return session.key in self._found and session.ends_at > self._clock()

    def end(self, session: Session) -> None:
        self._found.pop(session.key, None)


def _key(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="surrogatepass")).hexdigest()
