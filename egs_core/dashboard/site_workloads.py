"""Runs of a site that belong together, as a graph with states; and the list of such workloads. Pure.

outlines ─► Standing, as of a run log's tasks ─► the parts that run logs' pages have
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from egs_core.client.messages import DriverTasks, RunView
from egs_core.client.outlines import Outline
from egs_core.client.waiting_words import HOW_TO_END, cause_words
from egs_core.dashboard.parts import Parts, kept, moment, table
from egs_core.dashboard.workloads import OPEN, Workload, graph_parts, workload_of
from egs_core.errors import counted
from egs_core.report import units
from egs_core.report.html import tag
from egs_core.runlog.standing import Standing

HEADS = ("Run", "State", "Waits", "Waited", "Runs", "Ran", "GPUs", "Where", "User", "Why")
EVICTED_HEADS = ("Run", "Started", "Evicted", "Ran", "Waited", "GPUs", "Where", "Why")
LIST_HEADS = ("Workload", "State", "Runs", "Done", "Running", "Waiting", "Critical path", "User", "Queue")
DRIVER_HEADS = ("Driver", "State", "Running", "Waiting", "User", "Queue")
RUNS = {"granted": "running", "running": "running", "stopping": "running"}
ENDED = {"succeeded": "succeeded", "failed": "failed", "lost": "failed"}


def workload_parts(runs: Sequence[Outline], now: float, waiting: Mapping[str, RunView]) -> Parts:
    """The page of one. now: seconds since 1970; waiting: what is known of those that wait, and why."""
    workload = _workload(runs, now)
    called = {run.id: f"{run.id} {run.name}" for run in runs}
    counts = Counter(task.state for task in workload.tasks.values())
    status = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    rows = [_row(run, workload, waiting.get(run.id)) for run in runs]
    *graph, path_head, path = graph_parts(workload, now, called, is_live=True, noun="runs")
    return {
        "title": (tag("h1", workload.name), tag("p", f"{workload.state}: {status}", id="status", role="status")),
        "graph": tuple(graph),
        "path": (path_head, path),
        "runs": kept(table("Runs", HEADS, rows))
        + kept(table("Evictions", EVICTED_HEADS, [row for run in runs for row in _evicted_rows(run)])),
    }


def list_parts(workloads: Sequence[Sequence[Outline]], now: float, drivers: Sequence[RunView] = ()) -> Parts:
    """The page of all, of what changed last first: what has not ended stands above the rest; and drivers, whose tasks
    are workloads, too."""
    found = [(_workload(runs, now), runs) for runs in workloads]
    found.sort(key=lambda one: all(run.ended_at is not None for run in one[1]))
    shown = table("Workloads of several runs", LIST_HEADS, [_list_row(*one) for one in found])
    none = tag("p", "None yet: ", tag("code", "egs run --after RUN"), " makes one of two runs.", class_="empty")
    rows = [_driver_row(one) for one in drivers]
    return {
        "title": (tag("h1", "Workloads"),),
        "list": kept(shown) or (none,),
        "drivers": kept(table("Tasks of drivers of frameworks", DRIVER_HEADS, rows)),
    }


def _workload(runs: Sequence[Outline], now: float) -> Workload:
    """Called by its latest run, for which the others are."""
    known = {run.id for run in runs}
    last = next((run for run in reversed(runs) if run.follows), runs[-1])
    name = last.name if len(runs) == 1 else f"{last.name} and {len(runs) - 1} more"
    queues = ", ".join(dict.fromkeys(run.queue for run in runs if run.queue))
    return workload_of(last.id, name, queues, {run.id: _standing(run, known) for run in runs}, now)


def _standing(run: Outline, known: set[str]) -> Standing:
    """Its times in seconds since 1970."""
    began, ended = run.started_at, run.ended_at
    state = ENDED.get(run.outcome, "stopped") if ended is not None else RUNS.get(run.state, run.state)
    if state == "waiting" and run.after:
        state = "pending"
    return Standing(
        run.id,
        run.name,
        tuple([one for one in run.follows if one in known]),
        state,
        since_s=ended if ended is not None else began if state == "running" else run.submitted_at,
        started_s=began,
        ended_s=ended,
        waited_s=run.waited_s or 0.0,
        ran_s=ended - began if ended is not None and began is not None else 0.0,
        node=run.host,
        expected_s=run.expected_s,
        when=run.when,
    )


def _row(run: Outline, workload: Workload, seen: RunView | None) -> tuple[object, ...]:
    task = workload.tasks[run.id]
    is_open = run.ended_at is None
    waits = is_open and task.state != "running"
    ran = units.seconds(task.ran_s) if run.started_at is not None and not is_open else ""
    where = f"{run.host}, GPU {', '.join(run.devices)}" if run.devices else run.host if run.started_at else ""
    return (
        f"{run.id} {run.name}" + (" (critical path)" if run.id in workload.critical else ""),
        task.state if is_open or not run.outcome or run.outcome == "succeeded" else run.outcome,
        moment(run.submitted_at if waits else None),
        "" if run.waited_s is None else units.seconds(run.waited_s),
        moment(run.started_at if is_open else None),
        ran,
        f"{run.gpus:g}" if run.gpus else "",
        where,
        run.user,
        _why(run, task, seen),
    )


def _evicted_rows(run: Outline) -> Iterator[tuple[object, ...]]:
    """Each try that was evicted, as far as the server knows it."""
    called = f"{run.id} {run.name}"
    if missing := run.evictions - len(run.earlier):
        yield called, "", "", "", "", "", "", f"{counted(missing, 'eviction')} before, of which no more is known"
    for one in run.earlier:
        yield (
            called,
            _clock(one.started_at),
            _clock(one.ended_at),
            units.seconds(one.ended_at - one.started_at),
            "" if one.waited_s is None else units.seconds(one.waited_s),
            f"{one.gpus:g}" if one.gpus else "",
            one.host,
            cause_words(one.why).removeprefix(", "),
        )


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _why(run: Outline, task: Standing, seen: RunView | None) -> str:
    inside = f"in request {run.inside}" if run.inside else ""
    if task.state == "pending":
        others = [f"run {one}{HOW_TO_END.get(run.when.get(one, ''), '')}" for one in run.after]
        return f"waits for {', '.join(others)}"
    if task.state in ("waiting", "paused"):
        return seen.reason if seen is not None and seen.reason else f"`egs why {run.id}` says it"
    return run.why or inside


def _driver_row(run: RunView) -> tuple[object, ...]:
    tasks = run.tasks or DriverTasks(running=0, waiting=0)
    link = tag("a", f"{run.id} {run.name} ({run.framework})", href=f"/dashboard/workloads/{run.id}")
    return link, run.state, str(tasks.running or ""), str(tasks.waiting or ""), run.user, run.queue


def _list_row(workload: Workload, runs: Sequence[Outline]) -> tuple[object, ...]:
    counts = Counter(task.state for task in workload.tasks.values())
    last = next(run for run in runs if run.id == workload.key)
    return (
        tag("a", f"{last.id} {workload.name}", href=f"/dashboard/workloads/{last.id}"),
        workload.state,
        str(len(workload.tasks)),
        str(len(workload.tasks) - sum(counts[state] for state in OPEN)),
        str(counts["running"] or ""),
        str(sum(counts[state] for state in ("waiting", "pending", "paused")) or ""),
        workload.takes,
        last.user,
        workload.queue,
    )
