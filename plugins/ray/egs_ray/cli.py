"""`egs ray …`: what is done for a Ray cluster besides the commands of every framework."""

from __future__ import annotations

import signal
from threading import Event
from typing import Annotated

import typer

from egs_core.errors import EgsError, InputError

PLACE = "egs ray keep-ready"

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def _group() -> None:
    """Ray clusters: processes that stand ready between drivers."""


@app.command("keep-ready")
def keep_ready(
    processes: Annotated[int, typer.Argument(min=1, help="At most so many stand ready on each node.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="By default RAY_ADDRESS, else the one here.")] = "",
) -> None:
    """Have worker processes stand ready between drivers, until SIGTERM, by when tasks' processes came before.

    Ray starts them, for the runtime environments of the drivers that came, and the next driver's tasks take them. What
    they import is said where Ray is started, on every node: RAY_preload_python_modules=torch,numpy ray start …
    """
    at = _address(address)
    from egs_ray.ready.keeping import keep
    from egs_ray.ready.loaded import told_of
    from egs_ray.ready.raylets import Cluster

    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _tell(f"up to {processes} processes on each node of {at}, with what RAY_preload_python_modules said there")
    for line in told_of(at, stop):
        _tell(line)
    keep(Cluster(at), processes, _tell, stop)


def _address(named: str) -> str:
    """HOST:PORT of a cluster that answers this user. Raises InputError where there is none."""
    from egs_ray import compat
    from egs_ray.control.at_hand import answering, at_hand
    from egs_ray.control.reachable import chosen_address

    if not compat.available("prestart"):
        raise EgsError(f"{PLACE}: not with this version of Ray: {compat.FEATURES['prestart'].lost}")
    if not named:
        found = at_hand(PLACE)
        if ":" not in found or "://" in found:
            raise InputError(PLACE, "no cluster is named, and none is found here", "--address HOST:PORT")
        return found
    if not answering([chosen_address(named, PLACE)]):
        raise InputError(f"--address {named}", "no Ray answers there", "HOST:PORT of its GCS, as `ray start` says it")
    return chosen_address(named, PLACE)


def _tell(line: str) -> None:
    print(line, flush=True)
