"""What the site server costs: pairs of acquire and release a second, each durable, beside a shell without an engine.

    python -m benchmarks.server --connections 1,32,200 --queued 0,5000

A pair is what `egs run` asks for around a command that does nothing: submit (answered with the lease, as a GPU is
free), claim, end: three requests over a kept TCP connection with a token, each answered when its batch is on the disk.
`shell`: the same routes, messages, group commit and SQLite settings, and nothing behind them. Two processes of clients,
on the same processors. closed: each connection sends its next pair when it has the last answer; open: pairs begin at
even distances at half the closed rate, and what one waits for a free connection counts as its own time. queued: runs
that wait meanwhile for more CPUs than are free: for GPUs they would be kept some in time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from rich.console import Console
from rich.table import Table

from egs_core.client import messages as c
from egs_core.client.processes import process

GPUS = 256
PROCESSES = 2
SUBMITTERS = 16
Server = tuple[str, str, int]
"""Its address, its token, its process."""


# --- the two servers ---


@contextlib.contextmanager
def egs_server(folder: Path) -> Iterator[Server]:
    """`egs serve` as a user starts it, with everything of it in the folder."""
    own = {name: str(folder / name) for name in ("EGS_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    command = [sys.executable, "-m", "egs_core.cli.app", "serve", "--emulated-gpus", str(GPUS), "--port", "0"]
    with _started([*command, "--data", str(folder / "data"), "--json"], own) as (ready, pid):
        yield ready["url"], Path(ready["token"]).read_text().strip(), pid


@contextlib.contextmanager
def shell_server(folder: Path) -> Iterator[Server]:
    with _started([sys.executable, "-m", "benchmarks.server", "--shell", str(folder)], {}) as (ready, pid):
        yield ready["url"], "shell", pid


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


# --- clients ---


class Connection:
    """One kept connection and what it asks."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update(
            {"Authorization": f"Bearer {token}", c.PROTOCOL_HEADER: str(c.PROTOCOL), "Content-Type": "application/json"}
        )
        own = process(os.getpid())
        assert own is not None
        self._own = own

    def ask(self, path: str, ask: c.Ask) -> dict[str, Any]:
        answer = self._session.post(self._url + path, data=ask.model_dump_json(), timeout=120)
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code}: {answer.text[:300]}")
        return answer.json()  # type: ignore[no-any-return]  # an object

    def submit(self, gpus: int = 0, cpus: float = 0.0) -> dict[str, Any]:
        ask = c.RunRequest(key=uuid.uuid4().hex, supervisor=self._own, name="pair", gpus=gpus, cpus=cpus)
        return self.ask("/v1/runs", ask)

    def pair(self) -> None:
        """Submit, claim, end."""
        run = self.submit(gpus=1)
        token, place = run["lease"]["token"], f"/v1/runs/{run['id']}"
        self.ask(f"{place}/claim", c.Claim(token=token))
        self.ask(f"{place}/end", c.End(token=token, outcome="succeeded", exit_code=0))


def _many(url: str, token: str, connections: int, seconds: float, rate: float, results: Any) -> None:
    """A process of clients: puts the seconds of each pair, and how long all took. rate: pairs a second of this
    process, at even distances; 0: as fast as answers come."""
    took: list[float] = []
    number, lock = iter(range(10**9)), threading.Lock()
    begin = time.perf_counter()
    end = begin + seconds

    def work() -> None:
        connection = Connection(url, token)
        while True:
            with lock:
                due = begin + next(number) / rate if rate else time.perf_counter()
            if due >= end:
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.pair()
            took.append(time.perf_counter() - due)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((took, time.perf_counter() - begin))


def load(server: Server, connections: int, seconds: float, rate: float = 0.0) -> dict[str, float]:
    """Pairs a second, and milliseconds of a pair."""
    url, token, _ = server
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    shares = [len(range(n, connections, PROCESSES)) for n in range(PROCESSES)]
    children = [
        context.Process(target=_many, args=(url, token, share, seconds, rate * share / connections, results))
        for share in shares
        if share
    ]
    for child in children:
        child.start()
    found = [results.get(timeout=seconds * 10 + 120) for _ in children]
    for child in children:
        child.join()
    took = sorted(second for seconds_of, _ in found for second in seconds_of)
    if not took:
        raise SystemExit("no pair was answered")
    return {
        "pairs_s": round(sum(len(seconds_of) / lasted for seconds_of, lasted in found), 1),
        "p50_ms": round(1000 * statistics.median(took), 2),
        "p99_ms": round(1000 * took[min(len(took) - 1, int(0.99 * len(took)))], 2),
    }


def fill(server: Server, queued: int) -> float:
    """Runs that wait: one holds a CPU, and each of these wants all. Seconds that a submission took."""
    url, token, _ = server
    cpus = float(os.cpu_count() or 1)
    Connection(url, token).submit(cpus=1.0)
    left, lock = iter(range(queued)), threading.Lock()

    def work() -> None:
        connection = Connection(url, token)
        while True:
            with lock:
                if next(left, None) is None:
                    return
            connection.submit(cpus=cpus)

    begin = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(SUBMITTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) / max(1, queued)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(connections: list[int], queued: list[int], seconds: float) -> list[dict[str, Any]]:
    """A row for each server, number of connections and length of the queue; the two servers by turns."""
    rows: list[dict[str, Any]] = []
    for name, start in (("shell", shell_server), ("egs", egs_server)):
        for waiting in queued if name == "egs" else [0]:
            with tempfile.TemporaryDirectory(prefix="egs-server-") as folder, start(Path(folder)) as server:
                load(server, 2, 1.0)  # first requests import
                before = resident_bytes(server[2])
                each_s = fill(server, waiting) if waiting else 0.0
                grown = (resident_bytes(server[2]) - before) / waiting if waiting else 0.0
                for number in connections:
                    closed = load(server, number, seconds)
                    opened = load(server, number, seconds, closed["pairs_s"] / 2)
                    row = {"server": name, "connections": number, "queued": waiting, **closed}
                    row |= {f"half_{key}": value for key, value in opened.items()}
                    rows.append({**row, "submit_ms": round(each_s * 1000, 2), "bytes_a_run": round(grown)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", default="1,32,200")
    parser.add_argument("--queued", default="0,5000")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--shell", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shell:
        run_shell(Path(options.shell))
        return
    numbers = [[int(word) for word in text.split(",")] for text in (options.connections, options.queued)]
    rows = measure(numbers[0], numbers[1], options.seconds)
    if options.json:
        print(json.dumps({"suite": "server", "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
