"""What there is to see, as rows of the page's tables, and what has changed of it since. Pure.

A cell is a text, or a number: seconds since 1970 in columns of the kinds `since` and `starts`, which the page shows
as time from now, so that a row changes only when something has happened; a share in those of the kind `share`. None:
not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from egs_core.client import messages as c
from egs_core.client.overview import Overview, QueueView
from egs_core.dashboard.measured import Use

GIB = 1 << 30
EMULATED = "emulated"  # the label of a device that is none, and so has no memory
OTHERS = "another team's"
Cell = str | float | None
Row = tuple[Cell, ...]
Rows = dict[str, Row]


class Column(msgspec.Struct, frozen=True):
    """kind: text, since, starts, share; run: leads to its workload; or actions: verbs with spaces between, buttons for
    whoever may use them."""

    head: str
    kind: str = "text"


class Section(msgspec.Struct, frozen=True):
    """A table; its first column names the row. empty: what is said instead of no rows."""

    title: str
    empty: str
    columns: tuple[Column, ...]


ACTIONS = Column("Actions", "actions")
SECTIONS = {
    "devices": Section(
        "GPUs",
        "This site has no GPUs.",
        (
            Column("GPU"),
            Column("State"),
            Column("Held by"),
            Column("Since", "since"),
            Column("Computes", "share"),
            Column("Memory"),
            Column("Kind"),
        ),
    ),
    "queues": Section(
        "Queues",
        "There are no queues: all share the GPUs.",
        (
            Column("Queue"),
            Column("Team"),
            Column("Quota, GPUs"),
            Column("Used, GPUs"),
            Column("Waiting"),
            Column("Next start", "starts"),
        ),
    ),
    "waiting": Section(
        "Waiting",
        "Nothing waits.",
        (
            Column("Run", "run"),
            Column("User"),
            Column("Why"),
            Column("Starts", "starts"),
            Column("Waits", "since"),
            Column("GPUs"),
            Column("Queue"),
            Column("Priority"),
            ACTIONS,
        ),
    ),
    "running": Section(
        "Running",
        "Nothing runs.",
        (
            Column("Run", "run"),
            Column("User"),
            Column("State"),
            Column("Started", "since"),
            Column("GPUs"),
            Column("Host"),
            Column("Queue"),
            ACTIONS,
        ),
    ),
    "drivers": Section(
        "Drivers of frameworks",
        "No driver of a framework shares this site.",
        (
            Column("Driver", "run"),
            Column("User"),
            Column("State"),
            Column("Tasks running"),
            Column("Tasks waiting"),
            Column("Why the first one waits"),
            Column("Queue"),
            ACTIONS,
        ),
    ),
    "hosts": Section("Hosts", "There are no hosts.", (Column("Host"), Column("State"), Column("GPUs"), Column("Runs"))),
}


class Snapshot(msgspec.Struct, frozen=True):
    """rows: by section and the row's key, in their order; totals: one line for all."""

    rows: dict[str, Rows]
    totals: str


class Part(msgspec.Struct, omit_defaults=True):
    """What is new of a section. rows: those that are new or differ; order: keys of all rows, where that has changed."""

    rows: Rows = {}
    order: list[str] | None = None


class Change(msgspec.Struct):
    """What the page is told. now: of the server's clock. Without sections: nothing but the time has changed."""

    now: float
    sections: dict[str, Part]
    totals: str | None = None


NOTHING = Snapshot({}, "")


def snapshot(seen: Overview, used: Mapping[str, Use]) -> Snapshot:
    """used: of some devices, by their id."""
    several = len(seen.hosts) > 1
    started = {run.id: run for run in seen.running}
    rows: dict[str, Rows] = {
        "devices": {f"{one.host}/{one.id}": _device(one, started, used, several) for one in seen.devices},
        "queues": {one.name: _queue(one, seen.now) for one in seen.queues},
        "waiting": {run.id: _waiting(run, seen.now) for run in seen.waiting},
        "running": {run.id: _running(run, several) for run in seen.running},
        "drivers": {run.id: _driver(run) for run in seen.drivers},
        "hosts": {one.name: (one.name, one.state, str(len(one.devices)), str(len(one.runs))) for one in seen.hosts},
    }
    return Snapshot(rows, _totals(seen))


def change(before: Snapshot, after: Snapshot, now: float) -> Change:
    """What makes `after` of `before`; of NOTHING: all of it."""
    found: dict[str, Part] = {}
    for name, rows in after.rows.items():
        known = before.rows.get(name)
        part = Part({key: row for key, row in rows.items() if known is None or known.get(key) != row})
        if known is None or list(known) != list(rows):
            part.order = list(rows)
        if part.rows or part.order is not None:
            found[name] = part
    return Change(now, found, after.totals if after.totals != before.totals else None)


def _device(one: c.Device, runs: Mapping[str, c.RunView], used: Mapping[str, Use], several: bool) -> Row:
    use = Use() if one.others else used.get(one.id, Use())  # what others' runs do is not told
    holders = [runs[run] for run in one.runs if run in runs]
    held = ", ".join(f"{run.id} ({run.name}, {run.user})" for run in holders)
    if not held and one.state == "held":
        held = ", ".join(one.runs) or OTHERS  # runs beyond those that are shown
    elif one.processes:
        held = f"processes {', '.join(map(str, one.processes))} without a lease"
    since = max((run.started_at for run in holders if run.started_at is not None), default=None)
    more = ", drained" if one.drained and one.state != "drained" else ", host is silent" if one.suspect else ""
    state = f"{one.state}{more}" + (f", {one.free:g} free" if one.state == "held" and one.free else "")
    name = f"{one.host}/{one.id}" if several else one.id
    return (
        name,
        state,
        held,
        _whole(since),
        use.busy,
        _memory(0 if one.label == EMULATED else one.memory_bytes, use.memory_bytes),
        one.label,
    )


def _memory(total: int, used: int | None) -> str:
    if not total:
        return "" if used is None else f"{used / GIB:.1f} GiB"
    return f"{total / GIB:.0f} GiB" if used is None else f"{used / GIB:.1f} of {total / GIB:.0f} GiB"


def _queue(one: QueueView, now: float) -> Row:
    return (
        one.name,
        one.team,
        one.bound,
        "" if one.used is None else f"{one.used:g}",
        str(one.waiting),
        _starts(one.starts_in_s, now) if one.waiting else "",
    )


def _waiting(run: c.RunView, now: float) -> Row:
    why = "is paused; " * (run.state == "paused" and run.kind != "paused") + run.reason
    starts = _starts(run.starts_in_s, now)
    why = why or f"`egs why {run.id}` says it"
    return _named(run), run.user, why, starts, _whole(run.submitted_at), _gpus(run), run.queue, *_place(run)


def _place(run: c.RunView) -> tuple[str, str]:
    """Its priority, and its verbs; what runs inside of a request has that one's place."""
    verbs = _verbs(run)
    return str(run.priority), verbs.replace("abort", "priority abort") if not run.inside else verbs


def _running(run: c.RunView, several: bool) -> Row:
    state = f"{run.state}, lost" if run.lost else f"{run.state}: {run.stop}" if run.stop else run.doing
    if run.is_request:
        state += f", part of {run.gang.name}" if run.gang else ", a request"
    state += f", in {run.inside}" if run.inside else ""
    where = run.host if several else ""
    return _named(run), run.user, state, _whole(run.started_at), _gpus(run), where, run.queue, _verbs(run)


def _driver(run: c.RunView) -> Row:
    tasks = run.tasks or c.DriverTasks(running=0, waiting=0)
    called = f"{run.id} {run.name} ({run.framework})"
    return called, run.user, run.doing, str(tasks.running), str(tasks.waiting), run.reason, run.queue, _verbs(run)


def _named(run: c.RunView) -> str:
    return f"{run.id} {run.name}"


def _gpus(run: c.RunView) -> str:
    ids = f" ({', '.join(run.lease.devices)})" if run.lease is not None and run.lease.devices else ""
    return f"{run.gpus:g}{ids}"


def _verbs(run: c.RunView) -> str:
    """What makes sense now; a pause holds only what waits."""
    pausing = "resume " if run.state == "paused" else "" if run.lease is not None else "pause "
    return "" if run.state == "stopping" else f"{pausing}abort"


def _starts(starts_in_s: float | None, now: float) -> float | None:
    return None if starts_in_s is None else float(round(now + starts_in_s))


def _whole(at: float | None) -> float | None:
    return None if at is None else float(round(at))


def _totals(seen: Overview) -> str:
    free = sum(1 for one in seen.devices if one.state == "free")
    kind = "emulated GPUs" if any(one.label == EMULATED for one in seen.devices) else "GPUs"
    text = f"{free} of {len(seen.devices)} {kind} free; {seen.running_count} running, {seen.waiting_count} waiting"
    shown = [
        f"the first {len(runs)} that {word}"
        for runs, count, word in ((seen.running, seen.running_count, "run"), (seen.waiting, seen.waiting_count, "wait"))
        if len(runs) < count
    ]
    return f"{text}; shown: {' and '.join(shown)}" if shown else text
