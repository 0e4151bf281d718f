"""`egs ps`, `abort`, `pause`, `resume`, `preempt`: see and steer, by workload, stage and task, what others run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import typer

from egs_core.adapter import (
    Controlling,
    ControlOutcome,
    ControlRequest,
    RunningTask,
    RunningWorkload,
    Sought,
    default_adapter,
    load_able,
)
from egs_core.cli.rows import print_rows
from egs_core.cli.site import control_run, show_runs
from egs_core.client import places
from egs_core.errors import EgsError, InputError, counted, node_words
from egs_core.units import parse_seconds

T = TypeVar("T")
On = Annotated[str, typer.Option("--on", help="Framework on which it runs, by its adapter's name.")]
Workload = Annotated[str, typer.Argument(help="Name of the workload, or a run's number or name, as in `egs ps`.")]
Stage = Annotated[str, typer.Option(help="Only this stage of it.")]
Task = Annotated[str, typer.Option(help="Only this task of it.")]
Address = Annotated[str, typer.Option(help="Address of the cluster; default: the one that the framework finds.")]
Driver = Annotated[str, typer.Option(help="Process that runs it, if several do (as `egs ps` lists it).")]
Reason = Annotated[str, typer.Option(help="Reason, for the run log and for users whose tasks wait.")]
Actor = Annotated[str, typer.Option(help="Name of the user who asks; default: user@host.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

DONE = {"abort": "ended", "pause": "paused", "resume": "resumed", "preempt": "stopped, to start again"}
SHOWN = 8


def abort(
    workload: Workload,
    on: On = "",
    stage: Stage = "",
    task: Task = "",
    address: Address = "",
    driver: Driver = "",
    reason: Reason = "",
    actor: Actor = "",
    grace: Annotated[
        str, typer.Option(help="Time that tasks get to save a checkpoint; default: 0s, for a site server's runs 10s.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Stop a workload, a stage or a task for good, with the tasks that depend on it. Nothing is retried."""
    grace_s = parse_seconds(grace or ("10s" if _site(on, address) else "0s"), "--grace")
    _carry_out(on, ControlRequest("abort", workload, stage, task, address, driver, actor, reason, grace_s), as_json)


def _command(verb: str, what_it_does: str) -> Callable[..., None]:
    """A command that needs nothing but who is meant, and why."""

    def command(
        workload: Workload,
        on: On = "",
        stage: Stage = "",
        task: Task = "",
        address: Address = "",
        driver: Driver = "",
        reason: Reason = "",
        actor: Actor = "",
        as_json: AsJson = False,
    ) -> None:
        _carry_out(on, ControlRequest(verb, workload, stage, task, address, driver, actor, reason), as_json)

    command.__doc__ = what_it_does
    return command


pause = _command("pause", "Start no more phases of a workload, a stage or a task; running phases continue.")
resume = _command("resume", "End the pause of exactly this workload, stage or task.")
preempt = _command(
    "preempt", "Stop the running tasks of a workload or a stage, or one task, and restart them when their turn comes."
)


def ps(
    on: On = "",
    address: Address = "",
    as_json: AsJson = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also the last runs of the site server that have ended, the latest last.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="With --all: how many of those that have ended.")] = 20,
) -> None:
    """List the runs and devices of the site server; with --on, or where there is none, the workloads that run with EGS
    on a framework, and their running tasks: since when, on how many GPUs. It says whose they are."""
    if (site := _site(on, address)) is not None:
        show_runs(site, as_json, limit if every else 0)
        return
    if every:
        raise InputError("--all", "only a site server keeps runs that have ended", "start egs serve, or set EGS_URL")
    found, asked = _of_framework(on, address, lambda adapter, there: adapter.running(there))
    if as_json:
        told = {"framework": asked.framework, "address": asked.address, "workloads": msgspec.to_builtins(found)}
        typer.echo(json.dumps(told))
        return
    if not asked.is_named:
        typer.echo(f"no EGS server is here: this is {asked}")
    if found:
        _print_running(found, time.time())
    else:
        typer.echo("nothing runs")


def _site(on: str, address: str) -> places.Address | None:
    """The site server, where no framework is named and there is one."""
    return None if on or address else places.find_address()


class Asked(NamedTuple):
    """Who answers. address: "" for the one that the framework finds; is_named: by who asks, not found by itself."""

    framework: str
    address: str
    is_named: bool

    def __str__(self) -> str:
        return f"{self.framework} at {self.address}" if self.address else self.framework


def _of_framework(on: str, address: str, ask: Callable[[Controlling, str], T]) -> tuple[T, Asked]:
    """What a framework answers, and which. Where neither is named, errors say also that there is no site server, and
    who was asked instead."""
    if on or address:
        adapter, asked = _asked(on, address)
        return ask(adapter, asked.address), asked
    instead = ""
    try:
        adapter, asked = _asked(on, address)
        instead = f"{asked} was asked instead: " if asked.address else ""
        return ask(adapter, asked.address), asked
    except EgsError as error:
        raise EgsError(f"{places.none_here()}; and {instead}{error}") from None


def _asked(on: str, address: str) -> tuple[Controlling, Asked]:
    """The adapter to ask. Where nothing was named, a framework is asked only if it is at hand."""
    name = on or default_adapter()
    adapter = load_able(name, Controlling, "be controlled from here")
    is_named = bool(on or address)
    if not is_named and isinstance(adapter, Sought) and not (address := adapter.at_hand()):
        raise EgsError(f"no {name} of this user on this host answers: --on {name} --address ADDRESS asks another")
    return adapter, Asked(name, address, is_named)


def _carry_out(on: str, request: ControlRequest, as_json: bool) -> None:
    if (site := _site(on, request.address)) is not None:
        control_run(site, request, as_json)
        return
    outcome, asked = _of_framework(
        on, request.address, lambda adapter, there: adapter.control(msgspec.structs.replace(request, address=there))
    )
    if as_json:
        typer.echo(json.dumps({"verb": request.verb, **msgspec.to_builtins(outcome)}))
        return
    if not asked.is_named:
        typer.echo(f"no EGS server is here: {asked} was asked")
    typer.echo(_told(request, outcome))


def _told(request: ControlRequest, outcome: ControlOutcome) -> str:
    what = f"{request.workload}" + (f", stage {request.stage}" if request.stage else "")
    tasks = ", ".join(outcome.tasks[:SHOWN]) + (" …" if len(outcome.tasks) > SHOWN else "")
    about = f" ({counted(len(outcome.tasks), 'task')}: {tasks})" if tasks else ""
    if not outcome.hangs:
        return f"{what}: {DONE[request.verb]}{about}"
    did = f"what ran of it was ended{about}" if request.verb == "abort" else "nothing was done"
    return f"{what}: its driver does not answer: {did}; it is told when it goes on"


def _state(task: RunningTask) -> str:
    if not task.waiting_for:
        return task.state
    more = f" +{len(task.waiting_for) - 1}" if len(task.waiting_for) > 1 else ""
    return f"after {task.waiting_for[0]}{more}"


def _print_running(found: list[RunningWorkload], now: float) -> None:
    rows: list[tuple[str, ...]] = []
    for one in found:
        ended = f"{one.tasks - one.open} of {one.tasks} ended"
        rows.append((one.workload, one.driver, "", ended, one.state, "", "", "", ""))
        for task in one.running:
            since = f"{max(0.0, now - task.since):,.0f} s"
            node, pid = node_words(task.node), str(task.pid or "")
            rows.append(("", "", task.stage, task.task, _state(task), since, f"{task.gpus:g}", node, pid))
    print_rows(("workload", "driver", "stage", "task", "state", "for", "GPUs", "node", "process"), rows)
