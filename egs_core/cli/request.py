"""`egs request`: GPUs for a while, without a command; `egs run --in REQUEST` runs commands in them."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.rows import print_rows
from egs_core.cli.site import called, control_of, has_several, number_of, the_site
from egs_core.cli.starting import say
from egs_core.client import requests as q
from egs_core.client.http import connected
from egs_core.client.options import option_error
from egs_core.client.waiting_words import in_words, moment_words
from egs_core.errors import InputError
from egs_core.units import parse_bytes, parse_seconds

Number = Annotated[
    str, typer.Argument(metavar="NUMBER", help="Number or name of the request, as `egs request list` has it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

request = typer.Typer(help="Ask for GPUs for a while; `egs run --in REQUEST` runs commands on them.")


@request.callback(invoke_without_command=True)
def make(
    context: typer.Context,
    gpus: Annotated[
        float, typer.Option(help="GPUs in all, over all hosts: whole ones, or a part of one, as 0.25.")
    ] = 0,
    hosts: Annotated[
        int | None,
        typer.Option(min=1, max=q.MOST_HOSTS, help="On so many hosts of the site, as many GPUs on each, all at once."),
    ] = None,
    on: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="On this host of the site. Repeatable: on each of them.")
    ] = None,
    for_: Annotated[str, typer.Option("--for", help="How long, from when it has them, as 3h; at most 7d.")] = "",
    idle_timeout: Annotated[
        str, typer.Option(help="It ends after so long in which no command was in it, and its GPUs did no work.")
    ] = "",
    gpu_memory: Annotated[str, typer.Option(help="Memory that each of its GPUs has at least, as 40GiB.")] = "0",
    flavor: Annotated[
        list[str] | None,
        typer.Option(help="Only GPUs of this flavor, as a100; where they are unlike. Repeatable: one of these."),
    ] = None,
    queue: Annotated[str, typer.Option(help="Queue whose quota it uses.")] = "",
    priority: Annotated[int, typer.Option(help="Of two in a queue the higher one goes first.")] = 0,
    requeue: Annotated[
        bool,
        typer.Option("--requeue", help="It may be evicted for another that goes first, and begins again in its turn."),
    ] = False,
    name: Annotated[str, typer.Option(help="Name to show.")] = "",
    as_json: AsJson = False,
) -> None:
    """Ask for GPUs for a while, and print the number by which commands run in it. It does not wait for the GPUs: a
    command does, and `egs request show` tells. Other things to do with it are commands of their own."""
    if context.invoked_subcommand is not None:
        return
    if not gpus:
        raise InputError("--gpus", "how many is not said", "egs request --gpus 1 --for 2h")
    if not for_:
        raise InputError("--for", "how long is not said", "egs request --gpus 1 --for 2h")
    fields = {
        "key": secrets.token_hex(16),
        "gpus": gpus,
        "for_s": parse_seconds(for_, "--for"),
        "idle_timeout_s": parse_seconds(idle_timeout, "--idle-timeout") if idle_timeout else None,
        "gpu_memory_bytes": parse_bytes(gpu_memory, "--gpu-memory"),
        "queue": queue,
        "priority": priority,
        "name": name,
        **({"flavors": flavor} if flavor else {}),
        **({"hosts": hosts} if hosts is not None else {}),
        **({"on": on} if on else {}),
        **({"requeue": True} if requeue else {}),
    }
    try:
        ask = q.GpuRequest.model_validate(fields)
    except ValidationError as error:
        raise option_error(error) from None
    with connected(the_site()) as client:
        view, several = client.ask_for(ask), has_several(client.runs())
    if view.notice:
        say(view.notice)
    there = f" (on {', '.join(part.host for part in view.parts)})" if view.parts else ""
    run_in = f"run in it: egs run --in {view.id} -- CMD{there}"
    typer.echo(view.model_dump_json() if as_json else f"{line(view, several)}\n{run_in}")


@request.command("list")
def list_(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the requests: their states, GPUs, and the commands in them."""
    with connected(the_site()) as client:
        found, several = client.gpu_requests(with_ended=ended), has_several(client.runs())
    if as_json:
        typer.echo(found.model_dump_json())
        return
    if not found.requests:
        typer.echo("no GPU requests")
        return
    rows = []
    for one in found.requests:
        state = f"{one.state}, {one.place}." if one.place is not None else one.state
        row = (one.id, one.name, one.user, state, f"{one.gpus:g}", _devices(one, several), _ends(one))
        rows.append((*row, ", ".join(one.commands), one.queue))
    print_rows(("request", "name", "user", "state", "GPUs", "devices", "ends", "runs in it", "queue"), rows)


@request.command("show")
def show(number: Number, as_json: AsJson = False) -> None:
    """Show where a request is: its place in the queue and when it should begin, or its GPUs and what runs in it."""
    with connected(the_site()) as client:
        view, several = client.gpu_request(number_of(client, number)), has_several(client.runs())
    typer.echo(view.model_dump_json() if as_json else line(view, several))


@request.command("extend")
def extend(
    number: Number,
    for_: Annotated[str, typer.Option("--for", help="How much longer, as 1h; it lasts 7d at most in all.")],
    as_json: AsJson = False,
) -> None:
    """Let a request that has begun last longer."""
    try:
        ask = q.Extend(more_s=parse_seconds(for_, "--for"))
    except ValidationError as error:
        raise option_error(error) from None
    with connected(the_site()) as client:
        view, several = client.extend(number_of(client, number), ask), has_several(client.runs())
    typer.echo(view.model_dump_json() if as_json else line(view, several))


@request.command("release")
def release(
    number: Number,
    reason: Annotated[str, typer.Option(help="Reason, for the log.")] = "",
    grace: Annotated[str, typer.Option(help="Time that commands in it get, before what is left is killed.")] = "10s",
    as_json: AsJson = False,
) -> None:
    """End a request before its time, with the commands in it; or take one back that waits."""
    ask = control_of(reason, parse_seconds(grace, "--grace"))
    with connected(the_site()) as client:
        view, several = client.release_request(number_of(client, number), ask), has_several(client.runs())
    typer.echo(view.model_dump_json() if as_json else line(view, several))


def line(view: q.RequestView, several: bool = False) -> str:
    """What a user wants to know of a request, in one line. several: hosts, so that GPUs are named with theirs."""
    head = f"request {view.id} ({view.name}, {view.user}): {view.state}"
    head += f", evicted {view.evictions} times so far" if view.evictions and view.state != "ended" else ""
    if view.state in ("queued", "paused"):
        place = f", place {view.place}" if view.place is not None else ""
        return f"{head}{place}: {view.reason}; {moment_words(view.starts_in_s, 'begin')}"
    if view.state == "ended":
        return f"{head}: {view.outcome}" + (f": {view.reason}" if view.reason else "")
    told = f"{head}: GPUs {_devices(view, several)}"
    if view.commands:
        told += f"; runs in it: {', '.join(view.commands)}"
    if view.stop:
        return f"{told}; {view.stop}"
    return f"{told}; it ends {_ends(view)}"


def _devices(view: q.RequestView, several: bool) -> str:
    if view.parts:
        return ", ".join([called(part.host, one, True) for part in view.parts for one in part.devices])
    return ", ".join([called(view.host, one, several) for one in view.devices])


def _ends(view: q.RequestView) -> str:
    return "" if view.ends_at is None else in_words(max(0.0, view.ends_at - time.time()))
