"""`egs report`: run logs as one self-contained page, or their metrics as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from egs_core.errors import InputError
from egs_core.report.build import write_report
from egs_core.runlog.io import Run, read_run
from egs_core.runlog.metrics import summarise

DEFAULT_OUTPUT = Path("report.html")


def report(
    runlogs: Annotated[list[Path] | None, typer.Argument(metavar="RUNLOG...", help="One or more run logs.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The page to write (default report.html; with --json none).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics of each log as one JSON object.")] = False,
) -> None:
    """Write run logs as one self-contained HTML page.

    Of several logs the one whose policy is native counts as before, else the first. A site server's runs have none:
    `egs cost`, `egs ps --all` and its dashboard show them.
    """
    if not runlogs:
        site = "name one; a site server's runs are shown by egs cost, egs ps --all and, at its address, /dashboard"
        raise InputError("egs report", "no run log is named", site)
    runs = [read_run(path) for path in runlogs]
    page = output or (None if as_json else DEFAULT_OUTPUT)
    written = write_report(runs, page) if page is not None else None
    if as_json:
        shown = {"report": str(written) if written else None, "runs": [_metrics(run) for run in runs]}
        typer.echo(json.dumps(shown, indent=2))
    else:
        typer.echo(f"{written}: {len(runs)} run{'s' if len(runs) > 1 else ''}")


def _metrics(run: Run) -> dict[str, Any]:
    """The metrics of one log after what identifies it."""
    header = run.header
    about = {"path": run.path, "label": header.label, "driver": header.driver, "policy": header.policy}
    state = {"mode": header.mode, "emulated_gpus": header.emulated_gpus, "truncated": run.truncated}
    return about | state | summarise(run.records).to_dict()
