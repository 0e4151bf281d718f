"""`egs token create`, `list`, `revoke`: who may ask the site server over TCP, and for what."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.rows import print_rows
from egs_core.cli.site import the_site
from egs_core.client import tokens as t
from egs_core.client.http import connected
from egs_core.client.options import option_error
from egs_core.units import parse_seconds

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

token = typer.Typer(help="Make, list and revoke the tokens by which the site server knows who asks over TCP.")


@token.command("create")
def create(
    role: Annotated[str, typer.Option(help="viewer, submitter, operator, admin or agent.")],
    team: Annotated[str, typer.Option(help="Team to which it is bound; default: all.")] = "",
    expires: Annotated[str, typer.Option(help="How long it is good, as 12h or 30d.")] = "90d",
    name: Annotated[str, typer.Option(help="Whose runs are its own, and what the log says; default: made up.")] = "",
    host: Annotated[str, typer.Option(help="Host for which an agent's token speaks: the name that it joins by.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it: this once, for the server keeps but its hash."""
    fields = {"role": role, "team": team, "name": name, "host": host, "expires_s": parse_seconds(expires, "--expires")}
    try:
        request = t.TokenRequest.model_validate(fields)
    except ValidationError as error:
        raise option_error(error) from None
    with connected(the_site()) as client:
        made = client.new_token(request)
    typer.echo(made.model_dump_json() if as_json else made.token)


@token.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the tokens: whose they are, for what, and until when. Not the tokens themselves."""
    with connected(the_site()) as client:
        found = client.tokens()
    if as_json:
        typer.echo(found.model_dump_json())
        return
    now = time.time()
    rows = [(one.id, one.name, one.role, one.team, one.created_by, _state(one, now)) for one in found.tokens]
    print_rows(("id", "name", "role", "team", "made by", "state"), rows)


@token.command("revoke")
def revoke(
    number: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `egs token list` has it.")],
    as_json: AsJson = False,
) -> None:
    """End a token: from now on nobody is known by it."""
    with connected(the_site()) as client:
        view = client.revoke(number)
    typer.echo(view.model_dump_json() if as_json else f"token {view.id} ({view.name}): revoked")


def _state(one: t.TokenView, now: float) -> str:
    if one.revoked_at is not None:
        return "revoked"
    return "expired" if one.expires_at <= now else f"good for {(one.expires_at - now) / t.DAYS_S:.1f} days"
