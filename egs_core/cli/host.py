"""`egs host list` and `forget`: hosts that have joined the site server."""

from __future__ import annotations

from typing import Annotated

import typer

from egs_core.cli.rows import print_rows
from egs_core.cli.site import the_site
from egs_core.client import hosts as h
from egs_core.client.http import connected

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

host = typer.Typer(help="List hosts that have joined the site server (`egs serve --join`), or say that one is gone.")


@host.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the hosts: whether their agents are heard of, their GPUs, and what runs and waits there."""
    with connected(the_site()) as client:
        _show(client.hosts(), as_json)


@host.command("forget")
def forget(
    name: Annotated[str, typer.Argument(help="Name of a host whose agent is silent.")], as_json: AsJson = False
) -> None:
    """Say that nothing of EGS runs on a host any more, as after it was switched off: its runs end as lost, and its GPUs
    leave the site. It may join again."""
    with connected(the_site()) as client:
        _show(client.forget_host(name), as_json)


def _show(found: h.Hosts, as_json: bool) -> None:
    if as_json:
        typer.echo(found.model_dump_json())
        return
    rows = [(one.name, one.state, ", ".join(one.devices), ", ".join(one.runs)) for one in found.hosts]
    print_rows(("host", "state", "GPUs", "runs"), rows)
