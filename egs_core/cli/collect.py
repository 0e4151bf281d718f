"""`egs collect`: receive the events that a framework pushes, so that its history outlives the cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from egs_core.adapter import Collector, CollectRequest, adapter_names, installed_adapters, load_able
from egs_core.errors import InputError


def collect(
    out: Annotated[Path, typer.Option(help="Folder for events and run logs.")],
    on: Annotated[
        str, typer.Option("--on", help="Framework, by its adapter's name; by default the one that can.")
    ] = "",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0: any free one.")] = "127.0.0.1:8266",
) -> None:
    """Receive the events that a framework pushes, until SIGTERM: a run log for each job, and durations for the history.

    Events are kept in --out, which `egs audit --events` reads. Durations go to EGS_HISTORY, else to the user's data
    folder. There is no login: listen on an address that only the cluster can reach.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError("--listen", f"{listen!r} is no HOST:PORT", "for example 127.0.0.1:8266")
    request = CollectRequest(host.strip("[]"), int(port), out, os.environ.get("EGS_HISTORY", ""), _tell)
    load_able(on or _only_collector(), Collector, "collect").collect(request)


def _only_collector() -> str:
    able = [name for name, one in installed_adapters().items() if isinstance(one, Collector)]
    if len(able) != 1:
        problem = f"{len(able)} installed adapters can collect"
        raise InputError("egs collect", problem, f"name one with --on; installed: {', '.join(adapter_names())}")
    return able[0]


def _tell(line: str) -> None:
    print(line, flush=True)
