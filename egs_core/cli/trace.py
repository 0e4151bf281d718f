"""`egs trace`: what ran as OpenTelemetry traces, of run logs and a site server's runs, into a file or a collector."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from egs_core.cli.site import the_site
from egs_core.client.http import connected
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.trace.otlp import lines, send
from egs_core.trace.served import spans_of_runs
from egs_core.trace.span import Span
from egs_core.trace.spans import spans_of


def trace(
    runlogs: Annotated[list[Path] | None, typer.Argument(metavar="[RUNLOG]...", help="Run logs.")] = None,
    server: Annotated[bool, typer.Option("--server", help="The site server's runs, too.")] = False,
    otlp: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Send them to a collector over HTTP, as http://localhost:4318; headers from the variable "
            "OTEL_EXPORTER_OTLP_HEADERS.",
        ),
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Write them as lines of OTLP JSON; -: to standard output.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print how many there were as one JSON object.")] = False,
) -> None:
    """Write what ran as OpenTelemetry traces: a span for each phase, linked along the edges of the graph."""
    if bool(otlp) == bool(out):
        raise InputError("egs trace", "needs --otlp URL or --out FILE", "egs trace run.jsonl --out trace.json")
    if not runlogs and not server:
        raise InputError("egs trace", "no run log is named", "name one, or --server for the site server's runs")
    if as_json and out == "-":
        raise InputError("--json, --out -", "both go to standard output", "choose one")
    spans = [span for path in runlogs or () for span in _of_log(path)]
    spans += _of_server() if server else ()
    refused = 0
    if otlp:
        refused = send(spans, otlp)
    elif out == "-":
        for line in lines(spans):
            print(line)
    else:
        Path(out).write_text("".join(f"{line}\n" for line in lines(spans)))
    _say(spans, refused, as_json, is_quiet=out == "-")
    if refused:
        raise typer.Exit(1)


def _of_log(path: Path) -> list[Span]:
    run = read_run(path)
    if not run.header.started_at:
        typer.echo(f"note: {path} has no date, as a simulation: its spans begin in 1970", err=True)
    if run.truncated:
        typer.echo(f"note: {path} was cut off: its last line is left out", err=True)
    return spans_of(run.header, run.records)


def _of_server() -> Iterator[Span]:
    with connected(the_site()) as client:
        found = client.runs(with_ended=True)
    return spans_of_runs(found.runs, time.time())


def _say(spans: list[Span], refused: int, as_json: bool, *, is_quiet: bool) -> None:
    told = {"traces": len({span.trace for span in spans}), "spans": len(spans), "refused": refused}
    if as_json:
        typer.echo(json.dumps(told))
    elif not is_quiet:
        text = f"{told['spans']} spans of {told['traces']} traces"
        print(text + (f"; {refused} of them were refused" if refused else ""), file=sys.stdout)
