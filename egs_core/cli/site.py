"""What `egs ps`, `queue`, `why`, `abort`, `pause` and `resume` do where there is a site server."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from egs_core.adapter import ControlRequest
from egs_core.client import messages as c
from egs_core.client.http import connected
from egs_core.client.places import Address, find_address
from egs_core.client.supervise import starts_words
from egs_core.errors import EgsError, InputError

DONE = {"abort": "ended", "pause": "paused", "resume": "resumed"}


def the_site() -> Address:
    """The address of the server. Raises EgsError where none is named and none is here."""
    found = find_address()
    if found is None:
        raise EgsError("no EGS server here: start `egs serve`, or name one by EGS_URL")
    return found


def show_runs(address: Address, as_json: bool) -> None:
    """`egs ps`."""
    with connected(address) as client:
        found = client.runs()
    if as_json:
        typer.echo(found.model_dump_json())
        return
    free = [device.id for device in found.devices if not device.run]
    if found.runs:
        Console().print(_table(found.runs, time.time()))
    label = next((f"{device.label} " for device in found.devices if device.label == "emulated"), "")
    typer.echo(f"{len(free)} of {len(found.devices)} {label}GPUs free" + (f": {', '.join(free)}" if free else ""))


def show_queue(address: Address, as_json: bool) -> None:
    """`egs queue`."""
    with connected(address) as client:
        found = client.queue()
    if as_json:
        typer.echo(found.model_dump_json())
        return
    if not found.runs:
        typer.echo("nothing waits")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "name", "user", "queue", "GPUs", "starts", "why"):
        table.add_column(column, overflow="fold")
    for view in found.runs:
        starts = starts_words(view).removeprefix("it should start ").replace("when it starts is not known", "not known")
        row = (view.id, view.name, view.user, view.queue, str(view.gpus), starts, view.reason)
        table.add_row(*map(escape, row))
    Console().print(table)


def show_why(address: Address, run: str, as_json: bool) -> None:
    """`egs why RUN`."""
    with connected(address) as client:
        view = client.view(run)
    if as_json:
        typer.echo(view.model_dump_json())
        return
    when = f"; {starts_words(view)}" if view.state == "waiting" else ""
    text = view.reason or f"{view.outcome}, exit code {view.exit_code}"
    typer.echo(f"run {view.id} ({view.name}, {view.user}): {view.state}: {text}{when}")
    if view.lost:
        left = f"; end these processes: {', '.join(map(str, view.processes))}" if view.processes else ""
        typer.echo(f"nothing is heard of its supervisor, so its devices are given to nobody{left}")


def control_run(address: Address, request: ControlRequest, as_json: bool) -> None:
    """`egs abort RUN`, `pause`, `resume`."""
    if request.verb not in DONE:
        raise InputError(f"egs {request.verb}", "a plain command cannot be started again", "abort it, or name --on")
    for option, value in (("stage", request.stage), ("task", request.task), ("driver", request.driver)):
        if value:
            raise InputError(f"--{option}", "a run of the site server has none", "name only the run")
    ask = c.Control(reason=request.reason, grace_s=request.grace_s)
    with connected(address) as client:
        view = client.control(request.workload, request.verb, ask)
    if as_json:
        typer.echo(view.model_dump_json())
        return
    what = "is told to end" if view.state == "stopping" else DONE[request.verb]
    typer.echo(f"run {view.id} ({view.name}): {what}")


def _table(runs: tuple[c.RunView, ...], now: float) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("run", "name", "user", "state", "for", "GPUs", "devices", "queue"):
        table.add_column(column, overflow="fold")
    for view in runs:
        since = view.started_at if view.started_at is not None else view.submitted_at
        state = f"{view.state}, lost" if view.lost else view.state
        devices = ", ".join(view.lease.devices) if view.lease else ""
        row = (view.id, view.name, view.user, state, f"{max(0.0, now - since):,.0f} s", str(view.gpus), devices)
        table.add_row(*map(escape, (*row, view.queue)))
    return table


def queue(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List what waits for the site server, first first, and why."""
    show_queue(the_site(), as_json)
