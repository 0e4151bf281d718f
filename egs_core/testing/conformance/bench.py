"""What an adapter's tests implement so that scenarios can run on its framework, and how scenarios read the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from egs_core.runlog.records import Record, TaskAdded
from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Pipeline

LIMIT_S = 150.0

Mode = Literal["native", "observe", "on"]

BREAKAGES = {
    "store": "the history is no database",
    "disk": "the disk is full when the run log is written",
    "graph": "the pipeline has edges that EGS cannot see",
    "api": "the framework's private API has changed",
    "worker": "the workers' environment has no EGS",
    "engine": "the engine raises in the middle of a run",
    "process": "a process of EGS's own is killed in the middle of a run",
    "uninstalled": "EGS is uninstalled in the middle of a run",
}
"""The ways in which EGS can break, and what a user would say has happened."""

LATER = ("engine", "process", "uninstalled")
"""Breakages that come in the middle of a run, through `Running.break_now`; the others are there from its start."""


class Mark(msgspec.Struct, frozen=True):
    """See `body.mark`. at: Unix seconds of the machine's clock."""

    at: float
    task: str
    what: str
    phase: int
    pid: int
    devices: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What a run has led to. values: of the pipeline's leaves, empty after an error; error: `Type: text` of the
    exception as the user gets it; said: EGS's lines to the user; records: of the run log, empty where there is none;
    submitted: what the framework was given and what was started for it, in its own words without ids."""

    values: Mapping[str, str] = {}
    error: str = ""
    said: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    submitted: tuple[str, ...] = ()


class Running(Protocol):
    """A pipeline under way. folder: where its tasks leave marks and look for signals."""

    folder: Path

    def wait(self) -> Outcome:
        """Wait for its end."""
        ...

    def abort(self, task: str = "") -> None:
        """What an operator does to end the run, or one task of it, by the adapter's public means."""
        ...

    def break_now(self, how: str) -> None:
        """One of `LATER`."""
        ...


class Bench(Protocol):
    """One way of using an adapter on its real framework, with `gpus` GPUs and nothing else running there.

    ahead: how many tasks may already be with the framework, out of the adapter's reach, when a better one comes.
    shows_devices: whether a task that holds GPUs is told which; where GPUs are slots of a pool nobody knows.
    """

    name: str
    gpus: int
    ahead: int
    shows_devices: bool

    def capabilities(self) -> Mapping[str, str]:
        """As the adapter declares them: `yes` or `no: why`, by the names of `egs_core.adapter.CAPABILITIES`."""
        ...

    def breakages(self) -> Mapping[str, str]:
        """For each of `BREAKAGES` `yes`, or `no: why` where it cannot happen to this way of using the adapter."""
        ...

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> Running:
        """Start a pipeline. broken: what is so from the start or, of `LATER`, will be so by `break_now`."""
        ...

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        """For each source that the adapter cannot represent: what its error has to name, and a call that raises it."""
        ...

    def held_gpus(self) -> float:
        """GPUs held at this moment, by the framework's own books."""
        ...

    def is_alive(self, mark: Mark) -> bool:
        """Whether the process that left this mark still runs."""
        ...

    def audit(self, outcome: Outcome) -> Mapping[str, float]:
        """GPU seconds held by task, as the adapter's audit computes them from the framework's history of a run."""
        ...


def marks_of(running: Running) -> list[Mark]:
    """All marks so far, in the order of time."""
    path = running.folder / body.MARKS
    lines = path.read_bytes().splitlines() if path.exists() else []
    return sorted((msgspec.json.decode(line, type=Mark) for line in lines), key=lambda mark: mark.at)


def wait_for_mark(running: Running, task: str, what: str = "begin", phase: int = 0) -> Mark:
    """Wait for a mark and return it."""
    found: list[Mark] = []

    def is_there() -> bool:
        found[:] = [m for m in marks_of(running) if (m.task, m.what, m.phase) == (task, what, phase)]
        return bool(found)

    wait_until(is_there, f"'{what}' of phase {phase} of task {task}")
    return found[0]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition; AssertionError with `what` when it does not come true in time."""
    deadline, rest_s = time.monotonic() + LIMIT_S, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"did not come about within {LIMIT_S:g} s: {what}"
        time.sleep(rest_s)
        rest_s = min(1.2 * rest_s, 0.15)  # to ask a framework costs what its tasks could use


def begun(running: Running) -> list[str]:
    """Names of tasks in the order in which their first phases began."""
    return list(dict.fromkeys(m.task for m in marks_of(running) if m.what == "begin"))


def run(bench: Bench, pipeline: Pipeline, mode: Mode) -> Outcome:
    """Start a pipeline that needs no signals and wait for its end."""
    return bench.start(pipeline, mode).wait()


def give_signal(running: Running, *names: str) -> None:
    for name in names:
        body.signal(str(running.folder), name)


def edges_in(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """Task name -> sorted names of its parents, as a run log has them."""
    added = [record for record in records if isinstance(record, TaskAdded)]
    names = {record.task: record.name for record in added}
    return {record.name: tuple(sorted(names[parent] for parent in record.parents)) for record in added}
