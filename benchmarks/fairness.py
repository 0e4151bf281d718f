"""Three teams whose demand changes, in real time at a real `egs serve` with emulated GPUs: what each gets, beside what
it is entitled to.

    python -m benchmarks.fairness [--seconds 600]

    team   GPUs wanted at one time, by the part of the run             nominal quota 2 of 6 each, one cohort, weights 1
    a      6 ............................................. 6
    b      6 ............ 6 | 0 ............. 0 | 3 ...... 3
    c      1 .................... 1 | 6 .................. 6

Runs last one to three seconds and may be evicted (`--requeue`); their clients speak the protocol and compute nothing.
All figures are of the server's journal. Entitlement at a moment: max-min fair shares of the GPUs, none above what the
team holds and waits for. idle: GPU time that nobody had while somebody waited; unclaimed: that was granted to somebody
who had not begun yet. deficit: how long a team had less than
its nominal quota while it waited for more; what has to give way has a grace of 10 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, trusted_owners
from egs_core.client.places import Address
from egs_core.client.supervise import request_of
from egs_core.driver.journal import Entry
from egs_core.engine.state.journal import fold
from egs_core.engine.state.state import State
from egs_core.server.store import SqlStore

GPUS, NOMINAL = 6, 2
SHORTEST_S, LONGEST_S = 1.0, 3.0
END_S = 300.0  # a busy machine takes its time
HALF_LIFE_S = 30.0  # of what a share remembers: a demand lasts for minutes here, not for days
QUEUES = f"""
queues:
  - {{name: a, cohort: site, nominal: {{gpus: {NOMINAL}}}, half_life: {HALF_LIFE_S:g}s}}
  - {{name: b, cohort: site, nominal: {{gpus: {NOMINAL}}}, half_life: {HALF_LIFE_S:g}s}}
  - {{name: c, cohort: site, nominal: {{gpus: {NOMINAL}}}, half_life: {HALF_LIFE_S:g}s}}
"""
DEMAND = {  # of each team: from which part of the run on how many GPUs
    "a": ((0.0, 6),),
    "b": ((0.0, 6), (1 / 3, 0), (2 / 3, 3)),
    "c": ((0.0, 1), (0.5, 6)),
}


def wanted(team: str, part: float) -> int:
    """GPUs at one time, when so much of the run is over."""
    return [gpus for begin, gpus in DEMAND[team] if begin <= part][-1]


class Piece(NamedTuple):
    """Between two moments nothing changes. held, waiting: GPUs, by team."""

    begin: float
    end: float
    held: dict[str, int]
    waiting: dict[str, int]

    @property
    def seconds(self) -> float:
        return self.end - self.begin


# --- load ---


class Teams:
    """One thread a GPU that a team may want at one time; each asks for one again and again while it is wanted."""

    def __init__(self, socket: Path, seconds: float) -> None:
        self._socket, self._seconds = socket, seconds
        self._begin = time.monotonic()

    def run(self) -> None:
        """Until the time is over, and all that was begun has ended. Raises what the first thread has failed by."""
        problems: list[BaseException] = []
        threads = [
            threading.Thread(target=self._work, args=(team, number, problems))
            for team in DEMAND
            for number in range(GPUS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def _work(self, team: str, number: int, problems: list[BaseException]) -> None:
        client = SiteClient(Address(f"unix://{self._socket}", self._socket), trusted_owners())
        chosen = random.Random(f"{team} {number}")
        try:
            while (part := (time.monotonic() - self._begin) / self._seconds) < 1.0:
                if number < wanted(team, part):
                    self._one(client, team, chosen.uniform(SHORTEST_S, LONGEST_S))
                else:
                    time.sleep(0.1)
        except BaseException as error:
            problems.append(error)

    def _one(self, client: SiteClient, team: str, length_s: float) -> None:
        """A run, to its end, however often it has to give way."""
        view = client.submit(request_of({"name": team, "queue": team, "gpus": 1, "requeue": True}))
        while view.state != "ended":
            if view.lease is None:
                view = client.beat(view.id, c.Beat(seen=view.version, wait_s=5.0))
                continue
            token = view.lease.token
            with contextlib.suppress(Refused):  # taken back meanwhile: the next look says so
                client.claim(view.id, c.Claim(token=token))
                is_whole = self._hold(client, view.id, token, length_s)
                outcome = "succeeded" if is_whole else "evicted"
                end = c.End.model_validate({"token": token, "outcome": outcome, "exit_code": 0 if is_whole else 143})
                view = client.end(view.id, end)
                continue
            view = client.view(view.id)

    def _hold(self, client: SiteClient, run: str, token: int, length_s: float) -> bool:
        """Whether it could do that for so long."""
        until, seen = time.monotonic() + length_s, -1
        while (left := until - time.monotonic()) > 0:
            view = client.beat(run, c.Beat(seen=seen, wait_s=left, token=token))
            if view.stop:
                return False
            seen = view.version
        return True


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Path]:
    """Its socket."""
    own = {name: str(folder / name) for name in ("EGS_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    (folder / "queues.yaml").write_text(QUEUES)
    words = ["--emulated-gpus", str(GPUS), "--port", "0", "--json", "--data", str(folder / "data"), "--rate", "0"]
    command = [sys.executable, "-m", "egs_core.cli.app", "serve", *words, "--queues", str(folder / "queues.yaml")]
    child = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield Path(json.loads(child.stdout.readline())["socket"])
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(END_S)
        child.stdout.close()


# --- what has happened ---


class Had(NamedTuple):
    """A lease of a run, by the number of its task; moments of the site's clock. begun: when it was claimed; `until`
    where that never came."""

    task: int
    since: float
    begun: float
    until: float


def leases(entries: list[bytes]) -> list[Had]:
    """Of all runs, by the journal; none is open at its end."""
    state, found, open_ = State(), list[Had](), dict[int, list[float]]()
    task_of: dict[int, int] = {}
    for data in entries:
        entry = msgspec.json.decode(data, type=Entry)
        fold(state, entry.event, entry.transitions)
        now = {lease.decision: state.task_of[phase] for phase, lease in state.leases.items()}
        for token in open_.keys() - now.keys():
            since, begun = (*open_.pop(token), entry.now)[:2]
            found.append(Had(task_of.pop(token), since, begun, entry.now))
        for token, task in now.items():
            task_of[token] = task
            moments = open_.setdefault(token, [entry.now])
            if len(moments) == 1 and token not in state.decisions:
                moments.append(entry.now)
    return found


def pieces(folder: Path) -> tuple[list[Piece], float]:
    """All of the time in which somebody wanted something; and the GPU seconds between grants and claims."""
    with contextlib.closing(SqlStore(folder, time.time())) as store:
        kept = store.load()
    had: dict[int, list[Had]] = {}
    for lease in leases(kept.entries):
        had.setdefault(lease.task, []).append(lease)
    moments: list[tuple[float, str, int, int]] = []  # when; whose; more held; more that wait
    for run in kept.runs:
        since = run.submitted_at
        for lease in sorted(had[run.task], key=lambda one: one.since):
            moments += [(since, run.queue, 0, 1), (lease.since, run.queue, 1, -1), (lease.until, run.queue, -1, 0)]
            since = lease.until
    found = []
    held, waiting = dict.fromkeys(DEMAND, 0), dict.fromkeys(DEMAND, 0)
    for (at, team, more, waits), (until, *_) in pairwise(sorted(moments)):
        held[team] += more
        waiting[team] += waits
        if until > at:
            found.append(Piece(at, until, dict(held), dict(waiting)))
    return found, sum(lease.begun - lease.since for leases_of in had.values() for lease in leases_of)


def entitled(demand: dict[str, int]) -> dict[str, float]:
    """Max-min fair: what is left is divided by those who want more, until all have what they want or nothing is left.

    >>> entitled({"a": 6, "b": 3, "c": 1})
    {'a': 2.5, 'b': 2.5, 'c': 1.0}
    """
    found, left = dict.fromkeys(demand, 0.0), float(GPUS)
    while left > 1e-9 and (short := [team for team in demand if demand[team] > found[team]]):
        more = min(left / len(short), min(demand[team] - found[team] for team in short))
        for team in short:
            found[team] += more
        left -= more * len(short)
    return found


def figures(found: list[Piece], unclaimed_s: float) -> dict[str, object]:
    """See the module."""
    got, due = dict.fromkeys(DEMAND, 0.0), dict.fromkeys(DEMAND, 0.0)
    idle_s, deficits = 0.0, list[float]()
    short_since: dict[str, float] = {}
    for piece in found:
        demand = {team: piece.held[team] + piece.waiting[team] for team in DEMAND}
        fair = entitled(demand)
        for team in DEMAND:
            got[team] += piece.held[team] * piece.seconds
            due[team] += fair[team] * piece.seconds
            if piece.held[team] < min(NOMINAL, demand[team]):
                short_since.setdefault(team, piece.begin)
            elif team in short_since:
                deficits.append(piece.begin - short_since.pop(team))
        free = GPUS - sum(piece.held.values())
        idle_s += min(free, sum(piece.waiting.values())) * piece.seconds
    lasted = found[-1].end - found[0].begin
    deficits.sort()
    return {
        "seconds": round(lasted, 1),
        "gpu_s": {team: round(value) for team, value in got.items()},
        "of_entitled": {team: round(got[team] / due[team], 3) for team in DEMAND},
        "idle_percent": round(100 * idle_s / (GPUS * lasted), 2),
        "unclaimed_percent": round(100 * unclaimed_s / (GPUS * lasted), 2),
        "deficits": len(deficits),
        "deficit_p50_s": round(deficits[len(deficits) // 2], 2) if deficits else 0.0,
        "deficit_most_s": round(deficits[-1], 2) if deficits else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="egs-") as name:
        folder = Path(name)
        with server(folder) as socket:
            Teams(socket, seconds).run()
            found = figures(*pieces(folder / "data"))  # all has ended, and is durable
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
