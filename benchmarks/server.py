"""What the site server costs: pairs of acquire and release a second, each durable, beside a shell without an engine.

    python -m benchmarks.server --connections 1,32,200 --queued 0,5000 --tasks 0,100000 [--database URL]

A pair is what `egs run` asks for around a command that does nothing: submit (answered with the lease, as a GPU is
free), claim, end: three requests over a kept TCP connection with a token, each answered when its batch is on the disk.
`shell`: the same routes, messages, group commit and SQLite settings, and nothing behind them. Two processes of clients,
on the same processors. All servers are up all the time and are asked by turns; each figure is the median of the rounds,
`of_shell` that of the ratios of each round: a machine that others use, too, is slow for all of them. closed: each
connection sends its next pair when it has the last answer; open (half_…): pairs begin at even distances at half the
closed rate, and what one waits for a free connection counts as its own time. cpu_ms: processor time of the server.

queued: runs that wait meanwhile for more CPUs than are free: for GPUs they would be kept some in time. tasks: of a
framework's driver. Behind as many the tasks of drivers are measured, in batches of 100: see `server_tasks`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.server_clients import READY_S, Load, Server, fill, load
from benchmarks.server_tasks import TASKS, Waiting, batches_behind
from egs_core.client import messages as c

GPUS = 256
SHELL = "shell"
NUMBERS = ("per_s", "p50_ms", "p99_ms", "cpu_ms")


# --- the servers ---


@contextlib.contextmanager
def egs_server(folder: Path, database: str = "") -> Iterator[Server]:
    """`egs serve` as a user starts it, with everything of it in the folder. database: of PostgreSQL, an empty one."""
    own = {name: str(folder / name) for name in ("EGS_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    command = [sys.executable, "-m", "egs_core.cli.app", "serve", "--emulated-gpus", str(GPUS), "--port", "0", "--json"]
    place = ["--database", database] if database else ["--data", str(folder / "data")]
    with _started([*command, *place], own) as (ready, pid):
        token, until = Path(ready["token"]), time.monotonic() + READY_S
        while not token.exists() and time.monotonic() < until:  # one of several writes it when it is the active one
            time.sleep(0.1)
        yield Server(ready["url"], token.read_text().strip(), pid)


@contextlib.contextmanager
def shell_server(folder: Path) -> Iterator[Server]:
    with _started([sys.executable, "-m", "benchmarks.server", "--shell", str(folder)], {}) as (ready, pid):
        yield Server(ready["url"], "shell", pid)


@contextlib.contextmanager
def _started(command: list[str], own: dict[str, str]) -> Iterator[tuple[dict[str, Any], int]]:
    child = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield json.loads(child.stdout.readline()), child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)
        child.stdout.close()


def run_shell(folder: Path) -> None:
    """FastAPI, one writer thread that commits what waits, no logic: every run has the first GPU."""
    import queue
    import socket

    import uvicorn
    from fastapi import FastAPI

    waiting: queue.SimpleQueue[tuple[bytes, concurrent.futures.Future[None]]] = queue.SimpleQueue()

    def write() -> None:
        store = sqlite3.connect(folder / "shell.db", isolation_level=None)
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("PRAGMA synchronous=FULL")
        store.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, entry BLOB)")
        while True:
            batch = [waiting.get()]
            while not waiting.empty():
                batch.append(waiting.get())
            store.execute("BEGIN")
            store.executemany("INSERT INTO entries (entry) VALUES (?)", [(entry,) for entry, _ in batch])
            store.execute("COMMIT")
            for _, future in batch:
                future.set_result(None)

    app = FastAPI()
    numbers = iter(range(1, 10**9))

    async def keep(ask: c.Ask) -> None:
        import asyncio

        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        waiting.put((ask.model_dump_json().encode(), future))
        await asyncio.wrap_future(future)

    def view(run: str, state: str, token: int) -> c.RunView:
        lease = c.Lease(token=token, devices=("0",), mark="shell")
        return c.RunView(
            id=run,
            name="pair",
            user="shell",
            state=state,
            version=1,
            gpus=1,
            cpus=0,
            memory_bytes=0,
            queue="",
            priority=0,
            submitted_at=0.0,
            lease=lease,
        )

    @app.post("/v1/runs")
    async def submit(ask: c.RunRequest) -> c.RunView:
        number = next(numbers)
        await keep(ask)
        return view(str(number), "granted", number)

    @app.post("/v1/runs/{run}/claim")
    async def claim(run: str, ask: c.Claim) -> c.RunView:
        await keep(ask)
        return view(run, "running", ask.token)

    @app.post("/v1/runs/{run}/end")
    async def end(run: str, ask: c.End) -> c.RunView:
        await keep(ask)
        return view(run, "ended", ask.token)

    threading.Thread(target=write, daemon=True).start()
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
    config = uvicorn.Config(app, http="httptools", loop="uvloop", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


# --- what is measured ---


class Bench:
    """All servers, and rows of what was measured."""

    def __init__(self, servers: dict[str, Server], seconds: float, rounds: int) -> None:
        self._servers, self._seconds, self._rounds = servers, seconds, rounds
        self.rows: list[dict[str, Any]] = []
        for server in servers.values():
            load(server, 2, 1.0)  # first requests import
        self._egs = {name: server for name, server in servers.items() if name != SHELL}

    def pairs(self, connections: list[int], waiting: str, costs: dict[str, dict[str, float]] | None = None) -> None:
        """A row for each server and number of connections, while this waits. costs: of what waits, by server."""
        for number in connections:
            closed: dict[str, list[Load]] = {name: [] for name in self._servers}
            opened: dict[str, list[Load]] = {name: [] for name in self._servers}
            for _ in range(self._rounds):
                for name, server in self._servers.items():
                    closed[name].append(load(server, number, self._seconds))
                    opened[name].append(load(server, number, self._seconds, closed[name][-1].per_s / 2))
            for name in self._servers:
                ratios = [own.per_s / shell.per_s for own, shell in zip(closed[name], closed[SHELL], strict=True)]
                row = {"what": "pairs", "server": name, "connections": number, "waiting": waiting}
                row |= _medians(closed[name]) | {"of_shell": round(statistics.median(ratios), 2)}
                row |= {f"half_{key}": value for key, value in _medians(opened[name]).items() if key.startswith("p")}
                self.rows.append(row | (costs or {}).get(name, {}))

    def runs(self, connections: list[int], queued: list[int]) -> None:
        """The same while runs wait: more and more of them."""
        there = 0
        for waiting in sorted(queued):
            costs: dict[str, dict[str, float]] = {}
            for name, server in self._egs.items():
                before = server.resident_bytes
                each_s = fill(server, waiting - there)
                grown = (server.resident_bytes - before) / (waiting - there)
                costs[name] = {"submit_ms": round(each_s * 1000, 2), "bytes_each": round(grown)}
            there = waiting
            self.pairs(connections, f"{waiting} runs", costs)

    def tasks(self, connections: list[int], drivers: list[int], waiting: int) -> None:
        """Drivers' batches behind so many tasks that wait; then pairs while they do."""
        label = f"{waiting} tasks" if waiting else ""
        for number in drivers:
            for name, server in self._egs.items():
                made: Callable[..., Any] = partial(batches_behind, waiting // number)
                found = _medians([load(server, number, self._seconds, made=made) for _ in range(self._rounds)])
                row = {"what": f"batches of {TASKS}", "server": name, "connections": number, "waiting": label}
                self.rows.append(row | found | {"tasks_per_s": round(found["per_s"] * TASKS)})
        if not waiting:
            return
        costs: dict[str, dict[str, float]] = {}
        held = []
        for name, server in self._egs.items():
            before = server.resident_bytes
            held.append(Waiting(server, waiting))
            costs[name] = {"bytes_each": round((server.resident_bytes - before) / waiting)}
        self.pairs(connections, label, costs)
        for one in held:
            one.close()


def _medians(loads: list[Load]) -> dict[str, float]:
    return {name: round(statistics.median([getattr(one, name) for one in loads]), 2) for name in NUMBERS}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    connections, queued, tasks, drivers = [
        [int(word) for word in text.split(",") if word]
        for text in (options.connections, options.queued, options.tasks, options.drivers)
    ]
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="egs-server-"))) for _ in range(3)]
        servers = {SHELL: stack.enter_context(shell_server(folders[0]))}
        servers["egs"] = stack.enter_context(egs_server(folders[1]))
        if options.database:
            servers["egs, PostgreSQL"] = stack.enter_context(egs_server(folders[2], options.database))
        bench = Bench(servers, options.seconds, options.rounds)
        if 0 in queued:
            bench.pairs(connections, "")
        for waiting in tasks:
            bench.tasks(connections, drivers, waiting)
        bench.runs(connections, [number for number in queued if number])
        return bench.rows


def show(rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*[str(row.get(name, "")) for name in columns])
    Console(width=200).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", default="1,32,200")
    parser.add_argument("--queued", default="0,5000", help="runs that wait")
    parser.add_argument("--tasks", default="0,100000", help="tasks of a driver that wait")
    parser.add_argument("--drivers", default="1,16")
    parser.add_argument("--database", default="", help="of PostgreSQL, an empty one: measured besides")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--shell", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shell:
        run_shell(Path(options.shell))
        return
    rows = measure(options)
    if options.json:
        print(json.dumps({"suite": "server", "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
