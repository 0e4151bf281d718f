"""What became of the gate: it fails, pauses, and tries again; and where others can see that.

    works ── a query fails ──► paused 5 s ──► tries again ── fails again ──► paused 10 s … at most 5 min
                                              └── works for as long as the last pause ──► works

While it is paused Airflow counts its slots alone. No other process can ask the scheduler's, so it writes its state to a
small file in the user's data folder, for `airflow egs doctor` and for the UI where they have the same home; each pause
and recovery is also an event in Airflow's own log, for all others.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from egs_airflow import config
from egs_airflow.order.published import follows
from egs_core.places import data_folder, replace_file

FORMAT = "egs-airflow-gate"
VERSION = 1
EVENT = "egs slot keeping"
PATTERN = "gate-*.json"

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
SAY_S = 15.0
"""How often the file is written where nothing has changed: a reader sees by its age that the scheduler still runs."""
SILENT_S = 120.0
FORGOTTEN_S = 3600.0
"""A file of another host that is older than this is of a scheduler that is gone."""


@dataclass
class Health:
    """faults: how often something failed; pause_s: the last pause, 0 where it works; missing: what this Airflow cannot
    do, or what was switched off for good, by part, with the reason. Times are of `clock`."""

    clock: Callable[[], float] = time.monotonic
    faults: int = 0
    problem: str = ""
    pause_s: float = 0.0
    again_s: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be tried now."""
        return self.pause_s > 0 and self.clock() < self.again_s

    def fail(self, error: BaseException) -> None:
        """Something failed: pause, longer than before."""
        self.faults += 1
        self.problem = f"{type(error).__name__}: {error}".splitlines()[0]
        self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s or FIRST_PAUSE_S)
        self.again_s = self.clock() + self.pause_s

    def recovers(self) -> bool:
        """Whether it has worked since the pause for as long as that was: said once."""
        if not self.pause_s or self.clock() < self.again_s + self.pause_s:
            return False
        self.pause_s, self.problem = 0.0, ""
        return True


@dataclass(frozen=True)
class State:
    """What one scheduler has said of its gate; times are Unix times. again: when it tries again, 0 where it works;
    follows: whose order, "" where no agent hosts the engine, or nothing waits."""

    host: str
    pid: int
    at: float
    faults: int = 0
    problem: str = ""
    again: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)
    follows: str = ""

    def check(self, now_s: float) -> tuple[bool, str]:
        """Whether all is well, and one clause that says so."""
        who = f"scheduler {self.pid} on {self.host}"
        if now_s - self.at > SILENT_S:
            return False, f"{who} has said nothing for {now_s - self.at:.0f} s"
        off = "; ".join(f"{part} off: {why}" for part, why in sorted(self.missing.items()))
        if self.problem:
            wait_s = self.again - now_s
            then = f"paused, tries again in {wait_s:.0f} s" if wait_s > 0 else "trying again"
            return False, f"{who}: {then} (fault {self.faults}: {self.problem})" + (f"; {off}" if off else "")
        if off:
            return False, f"{who}: {off}"
        order = f", in the engine's order ({self.follows})" if self.follows else ""
        return True, f"{who} works{order}" + (f", after faults: {self.faults}" if self.faults else "")


class Reporter:
    """Writes what a gate says of itself, at most each SAY_S and whenever it changes. What fails here is one warning."""

    def __init__(self, health: Health) -> None:
        self._health, self._said, self._due_s = health, "", 0.0

    def tick(self) -> None:
        """Write, if it is time. Never raises."""
        health, now_s = self._health, self._health.clock()
        what = f"{health.faults} {health.problem} {health.missing} {follows()}"
        if what == self._said and now_s < self._due_s:
            return
        self._said, self._due_s = what, now_s + SAY_S
        try:
            replace_file(own_path(), json.dumps(self._content()).encode())
        except OSError as error:
            config.warn(f"{own_path()}: `airflow egs doctor` cannot see whether slots are kept: {error.strerror}")

    def _content(self) -> dict[str, Any]:
        health, now_s = self._health, time.time()
        again = now_s + health.again_s - health.clock() if health.problem else 0.0
        own = (socket.gethostname(), os.getpid(), now_s)
        state = State(*own, health.faults, health.problem, again, health.missing, follows())
        return {"format": FORMAT, "version": VERSION, **asdict(state)}

    def close(self) -> None:
        """The scheduler ends: nothing is to be said any more."""
        try:
            own_path().unlink(missing_ok=True)
        except OSError:
            return  # its age tells


def own_path() -> Path:
    """The file of this process."""
    return data_folder() / "airflow" / f"gate-{socket.gethostname()}-{os.getpid()}.json"


def read_states(now_s: float) -> list[State]:
    """What the schedulers with this home have said that still run, as far as anybody can know."""
    states = [state for path in sorted((data_folder() / "airflow").glob(PATTERN)) if (state := _read(path))]
    return [state for state in states if _may_run(state, now_s)]


def drop_dead() -> None:
    """Remove what schedulers of this host have left that were killed."""
    for path in (data_folder() / "airflow").glob(PATTERN):
        state = _read(path)
        if state is not None and not _may_run(state, time.time()):
            path.unlink(missing_ok=True)


def newest(events: Iterable[tuple[float, Any]], now_s: float) -> list[State]:
    """What each scheduler has said last of pauses and recoveries. events: when, and what, in any order.

    After LONGEST_PAUSE_S and as long again without another word a paused scheduler has ended, or another has begun.
    """
    found: dict[tuple[str, int], State] = {}
    for at_s, extra in sorted(events, key=lambda event: event[0]):
        state = _state_of(extra, at_s, now_s)
        if state is not None:
            found[state.host, state.pid] = state
            if state.problem and now_s - at_s > 2 * LONGEST_PAUSE_S:
                del found[state.host, state.pid]
    return list(found.values())


def _state_of(extra: Any, at_s: float, now_s: float) -> State | None:
    """What an event says; None for one that is not understood."""
    try:
        told = json.loads(extra)
        again_s = at_s + float(told["again_in_s"]) if told["problem"] else 0.0
        return State(str(told["host"]), int(told["pid"]), now_s, int(told["faults"]), str(told["problem"]), again_s)
    except (KeyError, TypeError, ValueError):
        return None


def event_of(health: Health) -> str:
    """What an event of a pause or a recovery says, beside its time."""
    told = {"host": socket.gethostname(), "pid": os.getpid(), "faults": health.faults, "problem": health.problem}
    return json.dumps(told | {"again_in_s": round(health.pause_s, 1)})


def _read(path: Path) -> State | None:
    try:
        stored = json.loads(path.read_bytes())
        if (stored.pop("format"), stored.pop("version")) != (FORMAT, VERSION):
            return None
        return State(**stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _may_run(state: State, now_s: float) -> bool:
    if state.host != socket.gethostname():
        return now_s - state.at < FORGOTTEN_S
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
