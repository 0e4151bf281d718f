"""What client and server tell each other of tokens, and of the log of changes.

POST /v1/tokens               TokenRequest ─► NewToken   the one answer that has the token itself
POST /v1/tokens/ID/revoke                  ─► TokenView  from then on nobody is known by it
GET  /v1/tokens                            ─► Tokens
GET  /v1/log                               ─► Log        who changed what, newest last
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from egs_core.client.messages import Ask, Name, Seconds, Told

Role = Literal["viewer", "submitter", "operator", "admin", "agent"]
DAYS_S = 86400.0
TOKEN_S = 90 * DAYS_S
MOST_LOGGED = 1000


class TokenRequest(Ask):
    """team: whose runs alone it is good for; "": all. name: whose runs are its own, and what the log says; "": one is
    made. host: of an agent, the one host for which it speaks; expires_s: how long it is good."""

    role: Role
    team: Name = ""
    name: Name = ""
    host: Annotated[str, Field(max_length=200, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")] = ""
    expires_s: Seconds = TOKEN_S


class TokenView(Told):
    """A token, without itself. Moments are seconds since 1970; revoked_at: None while it is not revoked."""

    id: str
    name: str
    role: Role
    team: str = ""
    created_at: float
    created_by: str = ""
    expires_at: float
    revoked_at: float | None = None


class NewToken(TokenView):
    """token: to be kept by who gets it; the server has a hash of it."""

    token: str


class Tokens(Told):
    """All that were made and have not been forgotten, oldest first."""

    tokens: tuple[TokenView, ...]


class LogEntry(Told):
    """A change. at: second since 1970; who, role, origin: of the principal, and where the request came from; verb,
    subject: what was done, to which run or token; team: the subject's; text: more."""

    number: int = 0
    at: float
    who: str
    role: str
    origin: str
    verb: str
    subject: str
    team: str = ""
    text: str = ""


class Log(Told):
    """Changes, oldest first."""

    entries: tuple[LogEntry, ...]
