"""`egs collect`: receive the events that Ray pushes, so that its history outlives the cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from egs_core.adapter import CollectRequest, load_collector
from egs_core.errors import InputError


def collect(
    out: Annotated[Path, typer.Option(help="Folder for events and run logs.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0: any free one.")] = "127.0.0.1:8266",
) -> None:
    """Receive Ray's pushed events until SIGTERM: run logs of each job, and durations for the history.

    What comes is kept in --out, which `egs audit --events` reads. Durations go to EGS_HISTORY, else to the user's data
    folder. Anybody who reaches the port can send: listen on an address that only the cluster reaches.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError("--listen", f"{listen!r} is no HOST:PORT", "for example 127.0.0.1:8266")
    request = CollectRequest(host.strip("[]"), int(port), out, os.environ.get("EGS_HISTORY", ""), _tell)
    load_collector("ray").collect(request)


def _tell(line: str) -> None:
    print(line, flush=True)
