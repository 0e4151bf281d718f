"""What `egs doctor` says of the site server: whether it can be reached from here, its version, and whether it knows who
asks."""

from __future__ import annotations

import os

from egs_core import __version__
from egs_core.checks import Check
from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners, where_to_look
from egs_core.client.places import TOKEN, TOKEN_FILE, URL, Address, find_address, has_listener, token_file
from egs_core.errors import EgsError, counted

NAME = "server"
PATIENCE_S = 5.0


def server_check() -> Check:
    """No server is no failure, unless one is named."""
    try:
        address = find_address()
        if address is None:
            return Check(NAME, True, f"none listens on this host, and {URL} names none; `egs serve` starts one")
        urls = ",".join(one.url for one in (address, *address.others))
        named = f"{urls}, which {URL} names" if os.environ.get(URL) else urls
        if not os.environ.get(URL) and address.socket is not None and not has_listener(address.socket):
            return Check(NAME, False, f"{named} was left by one that has ended: start `egs serve`")
        client = SiteClient(address, trusted_owners(), PATIENCE_S)
        try:
            version = _version(client)
            found = c.Runs.model_validate_json(client.send("GET", "/v1/queue", None, PATIENCE_S))
        finally:
            client.close()
    except Unreachable as error:
        return Check(NAME, False, f"{error}{where_to_look(error)}")
    except (EgsError, ValueError) as error:
        return Check(NAME, False, str(error))
    has = f"{counted(len(found.devices), 'GPU')}, {counted(len(found.runs), 'run')} waiting"
    return Check(NAME, True, f"{named}: {version}; it knows {_by_what(address)}; {has}")


def _version(client: SiteClient) -> str:
    """Of the server; an agent passes no such question on."""
    try:
        told = c.Health.model_validate_json(client.send("GET", "/healthz", None, PATIENCE_S))
    except Refused:
        return "it answers"
    same = "as here" if told.version == __version__ else f"here it is {__version__}"
    return f"EGS {told.version} answers, {same}"


def _by_what(address: Address) -> str:
    """By what it knows who asks."""
    if address.socket is not None:
        return "who asks by the socket"
    stated = next((name for name in (TOKEN, TOKEN_FILE) if os.environ.get(name)), str(token_file(address.url)))
    return f"the token in {stated}"
