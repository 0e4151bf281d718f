"""Clients of the site server's benchmark (`benchmarks.server`): pairs of runs, closed and open loop; runs that wait."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import requests

from egs_core.client import messages as c
from egs_core.client.processes import process

PROCESSES = 2
SUBMITTERS = 16
READY_S = 600.0


class Server(NamedTuple):
    """Its address, its token, its process."""

    url: str
    token: str
    pid: int

    @property
    def cpu_s(self) -> float:
        """Processor time that it has had."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Connection:
    """One kept connection and what it asks."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update(
            {
                "Authorization": f"Bearer {server.token}",
                c.PROTOCOL_HEADER: str(c.PROTOCOL),
                "Content-Type": "application/json",
            }
        )
        own = process(os.getpid())
        assert own is not None
        self._own = own

    def post(self, path: str, body: bytes | str) -> requests.Response:
        answer = self._session.post(self._url + path, data=body, timeout=120)
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code}: {answer.text[:300]}")
        return answer

    def ask(self, path: str, ask: c.Ask) -> dict[str, Any]:
        return self.post(path, ask.model_dump_json()).json()  # type: ignore[no-any-return]  # an object

    def submit(self, gpus: int = 0, cpus: float = 0.0) -> dict[str, Any]:
        ask = c.RunRequest(key=uuid.uuid4().hex, supervisor=self._own, name="pair", gpus=gpus, cpus=cpus)
        return self.ask("/v1/runs", ask)

    def pair(self) -> None:
        """Submit, claim, end."""
        run = self.submit(gpus=1)
        token, place = run["lease"]["token"], f"/v1/runs/{run['id']}"
        self.ask(f"{place}/claim", c.Claim(token=token))
        self.ask(f"{place}/end", c.End(token=token, outcome="succeeded", exit_code=0))


Made = Callable[[Server, int], Callable[[], object]]
"""Of the connection with this number: what it asks again and again."""


def pairs(server: Server, _number: int) -> Callable[[], object]:
    return Connection(server).pair


class Load(NamedTuple):
    """How many asked things a second; milliseconds of one; processor time of the server for one."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def _many(
    server: Server, numbers: list[int], seconds: float, rate: float, made: Made, ready: Any, results: Any
) -> None:
    """A process of clients: puts the seconds of each, and how long all took. rate: a second of this process, at even
    distances; 0: as fast as answers come. ready: begins when all processes are."""
    took: list[float] = []
    count, lock = iter(range(10**9)), threading.Lock()
    asking = [made(server, number) for number in numbers]
    ready.wait()
    begin = time.perf_counter()
    end = begin + seconds

    def work(ask: Callable[[], object]) -> None:
        while True:
            with lock:
                due = begin + next(count) / rate if rate else time.perf_counter()
            if due >= end:
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            ask()
            took.append(time.perf_counter() - due)

    threads = [threading.Thread(target=work, args=(ask,)) for ask in asking]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((took, time.perf_counter() - begin))


def load(server: Server, connections: int, seconds: float, rate: float = 0.0, made: Made = pairs) -> Load:
    """So many connections ask, of two processes. rate: of all of them; 0: as fast as answers come."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    shares = [list(range(n, connections, PROCESSES)) for n in range(PROCESSES)]
    shares = [share for share in shares if share]
    ready = context.Barrier(len(shares) + 1)
    children = [
        context.Process(
            target=_many, args=(server, share, seconds, rate * len(share) / connections, made, ready, results)
        )
        for share in shares
    ]
    for child in children:
        child.start()
    ready.wait(READY_S)
    before = server.cpu_s
    found = [results.get(timeout=seconds * 10 + 120) for _ in children]
    for child in children:
        child.join()
    took = sorted(second for seconds_of, _ in found for second in seconds_of)
    if not took:
        raise SystemExit("nothing was answered")
    return Load(
        per_s=sum(len(seconds_of) / lasted for seconds_of, lasted in found),
        p50_ms=1000 * statistics.median(took),
        p99_ms=1000 * took[min(len(took) - 1, int(0.99 * len(took)))],
        cpu_ms=1000 * (server.cpu_s - before) / len(took),
    )


def fill(server: Server, queued: int) -> float:
    """Runs that wait: one holds a CPU, and each of these wants all. Seconds that a submission took."""
    cpus = float(os.cpu_count() or 1)
    Connection(server).submit(cpus=1.0)
    left, lock = iter(range(queued)), threading.Lock()

    def work() -> None:
        connection = Connection(server)
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
