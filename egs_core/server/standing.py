"""One of several servers of a PostgreSQL: where it stands, what has to be true before it begins, and how it ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from egs_core.errors import InputError
from egs_core.server.leader import Leader, Row
from egs_core.server.leader_row import LeaderRow
from egs_core.server.store import SqlStore

MACHINE = Path("/etc/machine-id")


class Ending:
    """Ends a server from another thread. why: "" as long as it goes on."""

    def __init__(self) -> None:
        self.server: uvicorn.Server | None = None
        self.why = ""

    def end(self, why: str) -> None:
        self.why = why
        if self.server is not None:
            self.server.should_exit = True


def led(store: SqlStore, url: str, begin: Callable[[], None], ending: Ending) -> Leader:
    """The leader's part of a server; from now on the store takes nothing while it stands by. begin: called when it has
    become active."""
    place = _place()

    def begins(before: Row) -> None:
        _check_host(store, before, place)
        begin()

    name = f"{url} (process {os.getpid()} on {socket.gethostname()})"
    leader = Leader(LeaderRow(store), name, place, begins, ending.end)
    store.guard = leader.guard
    return leader


def _check_host(store: SqlStore, before: Row, place: str) -> None:
    """Raises InputError where runs may live on the host that the site had: here all their processes would seem gone."""
    if before.place and before.host != place.partition("/")[0]:
        is_open = [run.id for run in store.load().runs if run.is_open]
        if is_open:
            problem = (
                f"run {is_open[0]} is open, and the site was on another host: {before.holder or 'its last server'}"
            )
            raise InputError("egs serve", problem, "start it there, until all have ended")


def _place() -> str:
    """The host and the process namespace: who is elsewhere sees other processes."""
    try:
        machine = MACHINE.read_text().strip()
    except OSError:
        machine = ""
    return f"{machine or socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
