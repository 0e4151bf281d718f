"""`egs dashboard RUNLOG…`: run logs in a browser, as the site server's dashboard shows a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egs_core.cost.prices import load_prices
from egs_core.dashboard.log_serving import Logs, serve
from egs_core.queues import load_teams


def dashboard(
    runlogs: Annotated[
        list[Path], typer.Argument(metavar="RUNLOG...", help="One or more run logs, also such as grow.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any that is free.")] = 0,
    prices: Annotated[Path | None, typer.Option(help="YAML file with the prices of GPUs.")] = None,
    queues: Annotated[
        Path | None, typer.Option(help="YAML file of queues, for their teams; without it a queue counts as a team.")
    ] = None,
) -> None:
    """Show run logs in a browser: workloads as graphs with states and critical path, what runs, waits and why, what is
    loaded ahead, wastage over time, GPU hours and cost by team. Of a run that goes on as far as it has come. On this
    host alone, at an address with a secret; Ctrl-C ends it."""
    teams = load_teams(queues).of_queue if queues is not None else None
    known = load_prices(prices) if prices is not None else None
    logs = Logs(runlogs, known, lambda queue: queue if teams is None else teams.get(queue, ""))
    serve(logs, port, lambda address: typer.echo(f"see it: {address}   (Ctrl-C ends it)"))
