"""`egs serve`: the server of a host's GPUs, for all who share them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.errors import EgsError
from egs_core.places import data_folder
from egs_core.queues import load_queues

DEFAULT_PORT = 8470


def serve(
    host: Annotated[str, typer.Option(help="Loopback address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")] = DEFAULT_PORT,
    data: Annotated[Path | None, typer.Option(help="Folder of its database; default: one of this user's.")] = None,
    devices: Annotated[
        str, typer.Option(help="UUIDs of the GPUs to offer, with commas between; default: all that NVML finds.")
    ] = "",
    emulated_gpus: Annotated[
        int | None, typer.Option(help="Offer so many emulated GPUs, 0 to N-1; refused where there are real ones.")
    ] = None,
    queues: Annotated[Path | None, typer.Option(help="YAML file with queues and their quotas.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")] = False,
) -> None:
    """Share the GPUs of this host among users: `egs run` asks it for leases. Ends on SIGINT or SIGTERM."""
    try:
        from egs_core.server.devices import host_offer
        from egs_core.server.serving import Ready
        from egs_core.server.serving import serve as begin
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        raise EgsError(f"egs serve: needs {missing}: pip install 'egs-core[server]'") from error

    def told(ready: Ready) -> None:
        print(json.dumps(msgspec.to_builtins(ready)) if as_json else _line(ready), flush=True)

    def _line(ready: Ready) -> str:
        kind = "emulated GPUs" if ready.emulated else "GPUs"
        named = f" ({', '.join(ready.devices)})" if ready.devices else ""
        return (
            f"{len(ready.devices)} {kind}{named} at {ready.url} and unix://{ready.socket}; "
            f"token of this user in {ready.token}; data in {ready.data}"
        )

    specs = load_queues(queues, has_prices=False) if queues is not None else ()
    chosen = [one.strip() for one in devices.split(",") if one.strip()]
    begin(data or data_folder() / "server", host, port, host_offer(emulated_gpus, chosen), specs, told)
