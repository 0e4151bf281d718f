"""`egs update RUN`: other wishes of a run of the site server."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.site import number_of, the_site
from egs_core.client import messages as c
from egs_core.client.http import connected
from egs_core.client.options import option_error
from egs_core.client.waiting_words import why_words
from egs_core.units import parse_bytes, parse_seconds

WAITING = ("waiting", "paused")


def update(
    run: Annotated[str, typer.Argument(help="Number or name of the run, as `egs ps` lists it.")],
    priority: Annotated[int | None, typer.Option(help="Of two in a queue the higher one goes first.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue whose quota it uses.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs: whole ones, or a part of one, as 0.25.")] = None,
    gpu_memory: Annotated[str, typer.Option(help="Memory of a GPU, as 20GiB.")] = "",
    cpus: Annotated[float | None, typer.Option(help="CPUs to count for it.")] = None,
    memory: Annotated[str, typer.Option(help="Main memory to count for it, as 20GiB.")] = "",
    expect: Annotated[str, typer.Option(help="How long it is believed to take, as 2h; also while it runs.")] = "",
    for_: Annotated[
        str, typer.Option("--for", help="After so long from its start it is ended; also while it runs.")
    ] = "",
    deadline: Annotated[str, typer.Option(help="In so long, from now, it should have ended.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change what a run that waits asked for; it then goes behind those of its priority that wait already. Of one that
    runs the time box can be made longer or shorter."""
    fields = {
        "priority": priority,
        "queue": queue,
        "gpus": gpus,
        "gpu_memory_bytes": parse_bytes(gpu_memory, "--gpu-memory") if gpu_memory else None,
        "cpus": cpus,
        "memory_bytes": parse_bytes(memory, "--memory") if memory else None,
        "expected_s": parse_seconds(expect, "--expect") if expect else None,
        "for_s": parse_seconds(for_, "--for") if for_ else None,
        "deadline_s": parse_seconds(deadline, "--deadline") if deadline else None,
    }
    try:
        ask = c.Change.model_validate(fields)
    except ValidationError as error:
        raise option_error(error) from None
    with connected(the_site()) as client:
        view = client.update(number_of(client, run), ask)
    if as_json:
        typer.echo(view.model_dump_json())
    else:
        what = why_words(view) if view.state in WAITING else f"is {view.state}"
        typer.echo(f"run {view.id} ({view.name}): changed; it {what}")
