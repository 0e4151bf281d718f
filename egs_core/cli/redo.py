"""`egs redo RUN`: the same command once more, as a new run."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from egs_core.cli.site import the_site
from egs_core.cli.starting import start_detached, start_here
from egs_core.client import jobs
from egs_core.client.http import Refused, SiteClient, connected
from egs_core.client.places import Address
from egs_core.errors import EgsError

NOT_RUN = ("aborted", "skipped")


def redo(
    run: Annotated[str, typer.Argument(help="Number or name of a run of this user that has ended.")],
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also those that waited for it and were never started; all are detached.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Go on without this terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="When it is detached: print one JSON object.")] = False,
) -> int:
    """Run a command again that has ended: the same arguments, folder and wishes, from a file that `egs run` keeps for
    this user alone, with the environment of this terminal."""
    address = the_site()
    with connected(address) as client:
        view = client.view(run, named=True)
        if view.state != "ended":
            raise EgsError(f"run {view.id} ({view.name}) has not ended: it is {view.state}")
        job = _not_held(jobs.kept(view))
        plan = _after_it(client, view.id) if cascade else []
    if not (detach or cascade or job.is_detached):
        return start_here(address, job)
    numbers = _start(address, [(view.id, job), *plan])
    if as_json:
        typer.echo(json.dumps({"id": numbers[view.id], "runs": numbers}))
    else:
        for old, new in numbers.items():
            typer.echo(f"run {new}, again what run {old} was; its output: egs logs {new}")
    return 0


def _after_it(client: SiteClient, run: str) -> list[tuple[str, jobs.Job]]:
    """The runs that ended unstarted because this one, or one of them, had failed; each after those it waits for."""
    found: dict[str, jobs.Job] = {}
    pending = [run]
    while pending:
        for number, job in jobs.waiting_for(client.view(pending.pop(0))):
            try:
                view = client.view(number)
            except Refused:
                continue  # forgotten
            if number not in found and view.outcome in NOT_RUN and view.started_at is None:
                found[number] = _not_held(job)
                pending.append(number)
    return sorted(found.items(), key=lambda one: int(one[0]))


def _not_held(job: jobs.Job) -> jobs.Job:
    """Whoever says that it is to be done again wants it to start."""
    return msgspec.structs.replace(job, fields={**job.fields, "hold": False})


def _start(address: Address, plan: list[tuple[str, jobs.Job]]) -> dict[str, str]:
    """Detached, in this order; the new number of each."""
    numbers: dict[str, str] = {}
    for old, job in plan:
        after = [{**one, "run": numbers.get(one["run"], one["run"])} for one in job.fields.get("after", ())]
        again = msgspec.structs.replace(job, fields={**job.fields, "after": after}, is_detached=True)
        numbers[old] = start_detached(address, again)
    return numbers
