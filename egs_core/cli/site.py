"""What `egs ps`, `queue`, `why`, `abort`, `pause` and `resume` do where there is a site server."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from pydantic import ValidationError

from egs_core.adapter import ControlRequest
from egs_core.budgets import hours_words, money
from egs_core.cli.rows import print_rows
from egs_core.client import messages as c
from egs_core.client.http import SiteClient, connected
from egs_core.client.options import option_error
from egs_core.client.places import URL, Address, find_address, has_listener, none_here
from egs_core.client.waiting_words import evicted_words, starts_cell, starts_words, time_words
from egs_core.errors import EgsError, InputError, counted
from egs_core.units import parse_seconds

NUMBER = re.compile(r"r?\d+")  # as a site server numbers runs, and drivers of frameworks
DONE = {"abort": "ended", "pause": "paused", "resume": "resumed"}


def the_site() -> Address:
    """The address of the server. Raises EgsError where none is named and none is here, also where a server that was
    killed left its socket: who asks would wait for ever."""
    found = find_address()
    if found is None:
        raise EgsError(none_here())
    if found.socket is not None and not os.environ.get(URL) and not has_listener(found.socket):
        raise EgsError(f"no EGS server here: {found.socket} was left by one that has ended: start `egs serve`")
    return found


def number_of(client: SiteClient, word: str) -> str:
    """Of the run or driver that a command line names: by its number, or by the name of the only open run that has it,
    else of the latest that has ended. Raises Refused where there is none, and where several are open."""
    return word if NUMBER.fullmatch(word) else client.view(word, named=True).id


def show_runs(address: Address, as_json: bool, ended: int = 0) -> None:
    """`egs ps`. ended: so many of the runs that have ended come first, the latest last."""
    with connected(address) as client:
        found = client.runs(with_ended=ended > 0, last=ended)
    if ended:
        over = sorted((run for run in found.runs if run.state == "ended"), key=lambda run: run.ended_at or 0.0)
        still = [run for run in found.runs if run.state != "ended"]
        more = found.more_ended + max(0, len(over) - ended)
        found = found.model_copy(update={"runs": (*over[-ended:], *still), "more_ended": more})
    if as_json:
        typer.echo(found.model_dump_json())
        return
    several = has_several(found)
    free = [_called(device, several) for device in found.devices if device.state == "free"]
    if found.runs:
        _print_runs(found.runs, time.time(), several)
    if found.more_ended:
        typer.echo(f"{counted(found.more_ended, 'run')} more that ended before: --limit {found.more_ended + ended}")
    label = next((f"{device.label} " for device in found.devices if device.label == "emulated"), "")
    held = [device for device in found.devices if device.state == "held" and device.free]
    shared = [f"{device.free:g} of {_called(device, several)}" for device in held]
    parts = f"; parts: {', '.join(shared)}" if shared else ""
    typer.echo(
        f"{len(free)} of {len(found.devices)} {label}GPUs free"
        + (f": {', '.join(free)}" if free else "")
        + parts
        + f" (server at {address.url})"
    )
    suspect = sorted({device.host for device in found.devices if device.suspect})
    for host in suspect:
        typer.echo(f"host {host} is silent: its GPUs are given to nobody new, and what runs there goes on")
    drained = [device for device in found.devices if device.drained]
    if drained:
        typer.echo(f"{len(drained)} drained, nothing new starts there{_named(drained, several)}")


def show_queue(address: Address, as_json: bool) -> None:
    """`egs queue`."""
    with connected(address) as client:
        found = client.queue()
    if as_json:
        typer.echo(found.model_dump_json())
        return
    drained, several = [device for device in found.devices if device.drained], has_several(found)
    if drained:
        typer.echo(f"{len(drained)} of {len(found.devices)} GPUs drained{_named(drained, several)}")
    for budget in found.budgets:
        typer.echo(budget_line(budget))
    if not found.runs:
        typer.echo("nothing waits")
        return
    rows = []
    for view in found.runs:
        gpus, starts = f"{view.gpus:g}", starts_cell(view)
        if view.tasks is not None:
            gpus, starts = counted(view.tasks.waiting, "task"), view.framework
        where = (view.host,) if several else ()
        rows.append((view.id, view.name, view.user, *where, view.queue, gpus, starts, view.reason))
    print_rows(("run", "name", "user", *(["host"] if several else []), "queue", "GPUs", "starts", "why"), rows)


def budget_line(one: c.BudgetView) -> str:
    """What is used of a budget, and when it begins anew."""
    owner = f"queue {one.queue}" if one.queue else f"team {one.team}"
    used, most = "" if one.used is None else f"{hours_words(one.used)} of ", f"{one.gpu_hours:g} GPU hours"
    if one.cost is not None:
        most = money(one.cost, one.currency)
        used = "" if one.cost_used is None else f"{money(one.cost_used, '')} of "
    left = "" if one.state != "used up" else ", used up"
    if left and one.then == "stop":
        left += ": nothing new of it gets a GPU"
    end = datetime.fromtimestamp(one.ends_at, ZoneInfo(one.zone))
    return f"{owner}: {used}{most} of {one.period}{left}; until {end:%Y-%m-%d %H:%M} ({one.zone})"


def show_why(address: Address, run: str, as_json: bool) -> None:
    """`egs why RUN`: by its number or name."""
    with connected(address) as client:
        view = client.view(run, named=True)
    if as_json:
        typer.echo(view.model_dump_json())
        return
    if view.tasks is not None:
        count = f"{view.tasks.running} GPU tasks run, {view.tasks.waiting} wait"
        why = f"; first {view.reason}" if view.reason else ""
        typer.echo(f"driver {view.id} ({view.name}, {view.user}, {view.framework}): {view.state}: {count}{why}")
        for told in view.tasks.told:
            typer.echo(_progress_line(f"task {told.task}", told))
        return
    when = f"; {starts_words(view)}" if view.state == "waiting" else ""
    text = view.reason or f"{view.outcome}{'' if view.exit_code is None else f', exit code {view.exit_code}'}"
    on = f", on {view.host}" if view.host else ""
    typer.echo(f"run {view.id} ({view.name}, {view.user}{on}): {view.state}: {text}{when}")
    if view.state == "ended":
        typer.echo(lasted(view))
    for line in evicted_words(view):
        typer.echo(line)
    if view.note:
        typer.echo(view.note)
    if view.progress is not None and view.progress.words:
        typer.echo(_progress_line("progress", view.progress))
    if view.lost:
        left = f"; end these processes: {', '.join(map(str, view.processes))}" if view.processes else ""
        typer.echo(f"nothing is heard of its supervisor, so its devices are given to nobody{left}")


def lasted(view: c.RunView) -> str:
    """How long a run that has ended had waited, and then ran, on what; of one that was evicted without the time that it
    ran before. What it waited for, the server has not kept."""
    begun = (view.ended_at if view.started_at is None else view.started_at) or view.submitted_at
    ran_before_s = sum(one.ended_at - one.started_at for one in view.earlier)
    waited = f"it waited {time_words(max(0.0, begun - view.submitted_at - ran_before_s))}"
    if view.started_at is None or view.ended_at is None:
        return f"{waited} and was not started"
    devices = f"{view.gpus:g} {view.flavor or 'GPU'}{'s' if view.gpus > 1 and not view.flavor else ''}"
    on = f" on {devices}" if view.gpus else ", without a GPU"
    began = f"started{' again' if view.earlier else ''} at {datetime.fromtimestamp(view.started_at):%Y-%m-%d %H:%M:%S}"
    return f"{waited}, {began} and ran {time_words(view.ended_at - view.started_at)}{on}"


def _progress_line(whose: str, told: c.ProgressView) -> str:
    return f"{whose}: {told.words}, told {max(0.0, time.time() - told.told_at):,.0f} s ago"


def control_run(address: Address, request: ControlRequest, as_json: bool) -> None:
    """`egs abort RUN`, `pause`, `resume`."""
    if request.verb not in DONE:
        raise InputError(f"egs {request.verb}", "a plain command cannot be started again", "abort it, or name --on")
    for option, value in (("stage", request.stage), ("task", request.task), ("driver", request.driver)):
        if value:
            raise InputError(f"--{option}", "the site server knows runs and drivers only", "name only that")
    ask = control_of(request.reason, request.grace_s)
    with connected(address) as client:
        view = client.control(number_of(client, request.workload), request.verb, ask)
    if as_json:
        typer.echo(view.model_dump_json())
        return
    what = "is told to end" if view.state == "stopping" else DONE[request.verb]
    if request.verb == "pause" and view.tasks is None and view.lease is not None:
        what = "has started and goes on: a pause holds only what waits"
    if request.verb == "resume" and view.tasks is None and view.lease is not None and view.state == "running":
        what = "runs"
    kind = "driver" if view.tasks is not None else "run"
    typer.echo(f"{kind} {view.id} ({view.name}): {what}")


def control_of(reason: str, grace_s: float) -> c.Control:
    """What an operator wants. Raises InputError."""
    try:
        return c.Control(reason=reason, grace_s=grace_s)
    except ValidationError as error:
        raise option_error(error) from None


def called(host: str, device: str, several: bool) -> str:
    """A GPU, by its id; where there are several hosts with its host's name."""
    return f"{host}/{device}" if several else device


def _called(device: c.Device, several: bool) -> str:
    return called(device.host, device.id, several)


def _asked(view: c.RunView) -> str:
    """What it has to do with a GPU request, to be written behind its state."""
    if view.is_request:
        return f", part of {view.gang.name}" if view.gang else ", a request"
    return f", in {view.inside}" if view.inside else ""


def _print_runs(runs: tuple[c.RunView, ...], now: float, several: bool) -> None:
    rows = []
    has_flavors = any(view.flavor for view in runs)
    for view in runs:
        since = view.started_at if view.started_at is not None else view.submitted_at
        state = f"{view.state}, lost" if view.lost else view.doing
        state += f": {view.outcome}" if view.state == "ended" and view.outcome else ""
        state += f", gang {view.gang.name}" if view.gang and not (view.inside or view.is_request) else ""
        state += _asked(view)
        devices = ", ".join(view.lease.devices) if view.lease else ""
        if view.tasks is not None:
            devices = f"{view.framework}: {view.tasks.running} tasks run, {view.tasks.waiting} wait"
        where = (view.host,) if several else ()
        until = now if view.ended_at is None else view.ended_at
        since_s = f"{max(0.0, until - since):,.0f} s"
        had = view.lease is not None or (view.state == "ended" and view.started_at is not None)
        held = (devices, *([view.flavor if had else ""] if has_flavors else []))
        rows.append((view.id, view.name, view.user, *where, state, since_s, f"{view.gpus:g}", *held, view.queue))
    place, kind = ["host"] if several else [], ["flavor"] if has_flavors else []
    columns = ("run", "name", "user", *place, "state", "for", "GPUs", "devices", *kind, "queue")
    print_rows(columns, rows)


def queue(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List what waits for the site server, first first, and why."""
    show_queue(the_site(), as_json)


Target = Annotated[str, typer.Argument(help="Name of the host, or id of a GPU, as `egs ps` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def release(
    run: Annotated[str, typer.Argument(help="Number or name of a run that has started.")],
    reason: Annotated[str, typer.Option(help="Reason, for the log.")] = "",
    grace: Annotated[str, typer.Option(help="Time to save what it has, before what is left is killed.")] = "10s",
    as_json: AsJson = False,
) -> None:
    """End a run before its time, as when its time box is over: it counts as succeeded, and what waits for it starts.
    What `egs abort` ends has not succeeded."""
    ask = control_of(reason, parse_seconds(grace, "--grace"))
    with connected(the_site()) as client:
        view = client.control(number_of(client, run), "release", ask)
    typer.echo(view.model_dump_json() if as_json else f"run {view.id} ({view.name}): is told to end")


def drain(target: Target, as_json: AsJson = False) -> None:
    """Start nothing new on a GPU, or on the host; what runs there goes on. It holds over restarts of the server."""
    _drain(target, True, as_json)


def undrain(target: Target, as_json: AsJson = False) -> None:
    """End a drain of a GPU, or of the host with all of its GPUs."""
    _drain(target, False, as_json)


def _drain(target: str, is_wanted: bool, as_json: bool) -> None:
    with connected(the_site()) as client:
        found = client.drain(target, is_wanted)
    if as_json:
        typer.echo(found.model_dump_json())
        return
    drained, several = [device for device in found.devices if device.drained], has_several(found)
    busy = [f"{_called(device, several)} (run {', '.join(device.runs)})" for device in drained if device.runs]
    still = f"; still in use: {', '.join(busy)}" if busy else ""
    typer.echo(f"{len(drained)} of {len(found.devices)} GPUs drained{_named(drained, several)}{still}")


def has_several(found: c.Runs) -> bool:
    """Whether there is more than one host, so that a GPU's number alone does not name it."""
    return len({device.host for device in found.devices} | {run.host for run in found.runs} - {""}) > 1


def _named(devices: list[c.Device], several: bool) -> str:
    return f": {', '.join(_called(device, several) for device in devices)}" if devices else ""
