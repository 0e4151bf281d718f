"""What open dashboards cost the site server: its processor time, and how long grants take, with and without them.

    python -m benchmarks.dashboards --viewers 200 --gpus 1000 --tasks 10000 --seconds 30
    python -m benchmarks.dashboards --view usage     # as many look at another page: usage, plan, workloads, tasks

A site of so many emulated GPUs, each held by a run; drivers of a framework have so many tasks that wait. Somebody asks
for a GPU that is free, ten times a second at even distances: submit (answered with the lease), claim, end. That goes on
for so long without a page open, and then with all of them, each a connection that reads its stream, as a browser does.
grant: the slowest submission, and the 99th percentile. paint: from asking for the page to the first rows of a stream
that is opened beside all others, without what a browser takes to draw. cpu: share of one core.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks import server as site
from benchmarks.server_clients import SUBMITTERS, Connection, Server
from benchmarks.server_tasks import Waiting
from egs_core.client import messages as c

EVERY_S = 0.1
FREE = 4  # GPUs that no run holds
DRIVERS = 4


class Viewer:
    """A page that is open, by one session: what a browser would ask for, and how many bytes came."""

    def __init__(self, url: str, cookie: str, secret: str, query: str = "") -> None:
        self.began = time.perf_counter()
        self.paint_s, self.bytes = 0.0, 0
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)
        for path in ("/dashboard", "/dashboard/assets/page.css", "/dashboard/assets/page.js"):
            self._connection.request("GET", path, headers={"Cookie": cookie})
            answer = self._connection.getresponse()
            assert answer.read(), path
        self._connection.request("GET", f"/dashboard/events{query}", headers={"Cookie": cookie, "X-EGS-CSRF": secret})
        self._answer = self._connection.getresponse()
        if self._answer.status != 200:
            raise SystemExit(f"/dashboard/events: {self._answer.status}: {self._answer.read()[:200]!r}")
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while part := self._answer.read1(1 << 20):
                self.bytes += len(part)
                if not self.paint_s and b"event: change" in part:
                    self.paint_s = time.perf_counter() - self.began
        except (OSError, ValueError, http.client.HTTPException):
            return  # it was closed

    def close(self) -> None:
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


def log_in(server: Server) -> tuple[str, str]:
    """Its cookie, and the secret of its page."""
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)
    body = urllib.parse.urlencode({"token": server.token})
    connection.request("POST", "/dashboard/login", body, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    found = re.search(r'data-csrf="([^"]+)"', answer.read().decode())
    assert found is not None, answer.status
    cookie = str(answer.getheader("set-cookie")).partition(";")[0]
    connection.close()
    return cookie, found[1]


def hold(server: Server, gpus: int) -> None:
    """So many runs that have a GPU each, and say that they run."""
    left, lock = iter(range(gpus)), threading.Lock()

    def work() -> None:
        connection = Connection(server)
        while True:
            with lock:
                if next(left, None) is None:
                    return
            run = connection.submit(gpus=1)
            connection.ask(f"/v1/runs/{run['id']}/claim", c.Claim(token=run["lease"]["token"]))

    threads = [threading.Thread(target=work) for _ in range(SUBMITTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def granted(server: Server, seconds: float) -> dict[str, float]:
    """Submissions at even distances for so long, and what the server and its dashboard took of a core meanwhile."""
    connection, took = Connection(server), []
    page = next((one for one in psutil.Process(server.pid).children() if "egs_core.dashboard" in one.cmdline()), None)
    before, page_before = server.cpu_s, _cpu_s(page)
    begin = time.perf_counter()
    due = begin
    while due < begin + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        run = connection.submit(gpus=1)
        took.append(1000 * (time.perf_counter() - asked))
        token, place = run["lease"]["token"], f"/v1/runs/{run['id']}"
        connection.ask(f"{place}/claim", c.Claim(token=token))
        connection.ask(f"{place}/end", c.End(token=token, outcome="succeeded", exit_code=0))
        due = max(due + EVERY_S, time.perf_counter())
    lasted = time.perf_counter() - begin
    took.sort()
    return {
        "cpu": (server.cpu_s - before) / lasted,
        "dashboard_cpu": (_cpu_s(page) - page_before) / lasted,
        "grants": len(took),
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[min(len(took) - 1, int(0.99 * len(took)))],
        "slowest_ms": took[-1],
    }


def _cpu_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process is not None else 0.0


QUERIES = {
    "": "",
    "workloads": "?view=workloads",
    "usage": "?view=usage&of=24h",
    "plan": "?view=plan",
    "tasks": "?view=tasks&of=r1",
}


def measure(viewers: int, gpus: int, tasks: int, seconds: float, view: str = "") -> dict[str, Any]:
    """Rows without and with the viewers, and what the pages got. view: of `QUERIES`."""
    site.GPUS = gpus + FREE
    with tempfile.TemporaryDirectory() as folder, site.egs_server(Path(folder)) as server:
        hold(server, gpus)
        drivers = [Waiting(server, tasks // DRIVERS) for _ in range(DRIVERS if tasks else 0)]
        try:
            found: dict[str, Any] = {"without": granted(server, seconds)}
            sessions = [log_in(server)] * viewers
            pages = [Viewer(server.url, *session, QUERIES[view]) for session in sessions]
            time.sleep(2.0)  # until all have their first rows
            before = sum(page.bytes for page in pages)
            found["with"] = granted(server, seconds)
            found["bytes_a_page_and_s"] = (sum(page.bytes for page in pages) - before) / seconds / max(1, viewers)
            late = Viewer(server.url, *log_in(server), QUERIES[view])
            until = time.monotonic() + 60
            while not late.paint_s and time.monotonic() < until:
                time.sleep(0.01)
            found["paint_s"] = late.paint_s
            for page in [*pages, late]:
                page.close()
        finally:
            for driver in drivers:
                driver.close()
    found["more_cpu"] = found["with"]["cpu"] - found["without"]["cpu"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What open dashboards cost the site server.")
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10_000, help="of frameworks' drivers, which wait")
    parser.add_argument("--seconds", type=float, default=30.0, help="without viewers, and again with them")
    parser.add_argument(
        "--view", choices=sorted(QUERIES), default="", help="the page that they look at; left out: what is now"
    )
    options = parser.parse_args()
    found = measure(options.viewers, options.gpus, options.tasks, options.seconds, options.view)
    json.dump({"cores": os.cpu_count(), **vars(options), **found}, sys.stdout, indent=1, default=float)
    print()


if __name__ == "__main__":
    main()
