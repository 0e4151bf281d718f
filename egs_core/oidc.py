"""Who may use a site server by a token of an OpenID Connect provider, from one YAML file.

issuer: https://sso.example.org/realms/lab   # whose tokens count
audience: egs                                # and only those that were made for this
name: preferred_username                     # the claim that is a person's name here; left out: email
roles:                                       # who has which; left out: everybody is a submitter
  admin: {groups: gpu-admins}
  submitter: {realm_access.roles: [staff, students]}
teams:                                       # left out: as the file of queues has its users
  vision: {groups: vision}

Read by `egs serve --oidc`; what a token proves is decided by `who_is`, from its claims alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from egs_core.client.messages import PLAIN
from egs_core.errors import InputError
from egs_core.yaml_file import FileModel, input_error, read_text, read_yaml

OidcRole = Literal["viewer", "submitter", "operator", "admin"]
STRONGEST_FIRST: tuple[OidcRole, ...] = ("admin", "operator", "submitter", "viewer")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EMAIL = "email"
MOST_NAME = 200


def is_safe_address(url: str) -> bool:
    """Whether what is read there is what its owner wrote: over TLS, or from this host.

    >>> is_safe_address("https://sso.example.org/realms/lab"), is_safe_address("http://sso.example.org")
    (True, False)
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # ValueError for what is none
    except ValueError:
        return False
    is_local = parts.scheme == "http" and parts.hostname in LOOPBACK
    return bool(parts.hostname) and (parts.scheme == "https" or is_local) and not parts.username and url.isprintable()


def _issuer(url: str) -> str:
    if not is_safe_address(url) or urlsplit(url).query or urlsplit(url).fragment:
        raise ValueError("must be the https:// address of a provider, as its tokens have it")
    return url


def _values(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1, max_length=200)]
Values = Annotated[tuple[Text, ...], BeforeValidator(_values), Field(min_length=1, max_length=1000)]
Claims = Annotated[dict[Text, Values], Field(min_length=1)]


class OidcFile(FileModel):
    """The whole file."""

    issuer: Annotated[str, Field(max_length=500), AfterValidator(_issuer)]
    """Address of the provider, exactly as its tokens have it (`iss`)."""
    audience: Text
    """Only tokens that were made for this count (`aud`)."""
    name: Text = EMAIL
    """The claim that is a person's name at the site: whose runs are whose. One that nobody can set for themselves."""
    roles: Annotated[dict[OidcRole, Claims], Field(min_length=1)] | None = None
    """Which claims give which role: any of them, with any of the values; the strongest counts. Left out: everybody whom
    the provider knows is a submitter."""
    teams: Annotated[dict[Text, Claims], Field(min_length=1)] | None = None
    """Which claims put somebody into which team, the first being one's own. Left out: as the file of queues says."""


@dataclass(frozen=True)
class Person:
    """Whom a token is of. teams: None where the file of queues says it; of an admin none."""

    name: str
    role: OidcRole
    teams: tuple[str, ...] | None = None


def load_oidc(path: Path) -> OidcFile:
    """Raises InputError that names file and line."""
    place = str(path)
    data, lines = read_yaml(read_text(path, "a provider of tokens"), place)
    if not isinstance(data, dict):
        raise InputError(place, "needs an issuer and an audience", "issuer: https://sso.example.org")
    try:
        return OidcFile.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, (*OidcFile.model_fields, *STRONGEST_FIRST)) from None


def who_is(file: OidcFile, claims: Mapping[str, Any]) -> Person | str:
    """Whom the claims of a sound token name; a text: why nobody."""
    name = claim(claims, file.name)
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not re.match(PLAIN, name):
        return f"the token has no name: no claim {file.name!r}"
    if file.name == EMAIL and claims.get("email_verified") is False:
        return "the provider has not verified the email of this token"
    if file.roles is None:
        role: OidcRole | None = "submitter"
    else:
        role = next((one for one in STRONGEST_FIRST if _is_met(file.roles.get(one), claims)), None)
    if role is None:
        return f"the claims of {name} give no role at this site: ask its admin"
    if role == "admin" or file.teams is None:
        return Person(name, role)
    return Person(name, role, tuple([team for team, wanted in file.teams.items() if _is_met(wanted, claims)]) or ("",))


def claim(claims: Mapping[str, Any], name: str) -> object:
    """The value of a claim; dots lead into what it holds, unless a claim has the whole name.

    >>> claim({"realm_access": {"roles": ["staff"]}}, "realm_access.roles"), claim({"a.b": 1}, "a.b")
    (['staff'], 1)
    """
    found: object = claims
    if name in claims:
        return claims[name]
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_met(wanted: Mapping[str, tuple[str, ...]] | None, claims: Mapping[str, Any]) -> bool:
    """One of the claims has one of its values, alone or in a list."""
    for name, values in (wanted or {}).items():
        found = claim(claims, name)
        if any(one in values for one in (found if isinstance(found, list) else [found]) if isinstance(one, str)):
            return True
    return False
