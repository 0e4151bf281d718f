"""The page of a driver's tasks, and the plan ahead of a site. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from egs_core.client.ahead import Ahead, DriverTasksView, Planned, TaskOutline
from egs_core.client.messages import RunView
from egs_core.client.outlines import Outline
from egs_core.dashboard.parts import MOST_ROWS, Parts, coming, kept, moment, table
from egs_core.dashboard.workloads import Workload, graph_parts, workload_of
from egs_core.errors import labelled, node_words
from egs_core.report import units
from egs_core.report.html import Markup, tag
from egs_core.runlog.labels import OPAQUE
from egs_core.runlog.standing import Standing

TASK_HEADS = ("Task", "State", "Since", "Takes", "Progress", "Told", "GPUs", "Where", "Workload", "Why")
START_HEADS = ("What", "Starts", "GPUs", "User", "Queue", "Why it waits")
END_HEADS = ("Run", "Ends", "GPUs", "User", "Host")
LOADED_HEADS = ("Task", "Node", "State", "Driver", "User", "Workload")
KEPT_HEADS = ("Task", "Node", "From", "GPUs", "Driver", "User", "Queue")
ORDER = ("running", "waiting", "failed", "pending", "stopped", "succeeded")
MOST_PLANNED = 50


def task_parts(found: DriverTasksView) -> Parts:
    """The page of a driver."""
    tasks = {str(one.number): _standing(one) for one in found.tasks}
    workload = workload_of(found.id, f"{found.id} {found.name} ({found.framework})", found.queue, tasks, found.now)
    called = _called(found.tasks)
    counts = Counter(task.state for task in tasks.values())
    status = ", ".join(f"{count:,} {state}" for state, count in counts.most_common()) or "no task yet"
    title = tag("h1", workload.name), tag("p", f"{found.user}: {status}", id="status", role="status")
    if not tasks:
        return {"title": title, "graph": (), "path": (), "runs": ()}
    *graph, path_head, path = graph_parts(workload, found.now, called, is_live=True, noun="tasks")
    note = tag("p", "By how long tasks are believed to take: the site keeps no durations of them.", class_="note")
    ordered = sorted(found.tasks, key=lambda one: ORDER.index(one.state) if one.state in ORDER else len(ORDER))
    rows = [_task_row(one, called[str(one.number)], workload) for one in ordered[: MOST_ROWS + 1]]
    shown = table("Tasks", TASK_HEADS, rows, len(ordered))
    return {"title": title, "graph": tuple(graph), "path": (path_head, path, note), "runs": kept(shown)}


def plan_parts(found: Ahead, waiting: Sequence[RunView], runs: Iterable[Outline], now: float) -> Parts:
    """The page of what comes: of runs that wait and run, and of drivers' tasks."""
    starts = [
        (now + run.starts_in_s, _run_row(run, now + run.starts_in_s)) for run in waiting if run.starts_in_s is not None
    ]
    starts += [(one.at or now, _start_row(one)) for one in found.starts]
    starts.sort(key=lambda one: one[0])
    holding = [run for run in runs if run.ended_at is None and run.gpus and not run.inside]
    ends = [(at, run) for run in holding if (at := _end_of(run)) is not None]
    ends.sort(key=lambda one: one[0])
    tables = {
        "starts": table("Next starts", START_HEADS, [row for _, row in starts[:MOST_PLANNED]]),
        "ends": table("Expected ends", END_HEADS, [_end_row(run, at) for at, run in ends[:MOST_PLANNED]]),
        "loaded": table("Loaded ahead", LOADED_HEADS, [_loaded_row(one) for one in found.loaded]),
        "kept": table("Room kept for tasks", KEPT_HEADS, [_kept_row(one) for one in found.kept]),
    }
    empty = {
        "starts": "Of nothing that waits it is known when it starts: of what runs nobody has said how long it takes "
        "(egs run --expect), or nothing waits.",
        "ends": "Nothing runs whose end is known: egs run --expect and --for say it, and a GPU request has one.",
        "loaded": "Nothing is loaded ahead now: drivers of frameworks do that, for tasks that say what they load.",
        "kept": "No room is kept for a task.",
    }
    parts: Parts = {name: kept(one) or (tag("p", empty[name], class_="empty"),) for name, one in tables.items()}
    known = "As known now: what comes later and goes first, and CPUs, are not in it; nor is what a quota will keep out."
    note = tag("p", known, class_="note")
    return {
        "title": (tag("h1", "Plan"), tag("p", "what should come next", id="status", role="status")),
        **parts,
        "notes": (note,),
    }


def _standing(one: TaskOutline) -> Standing:
    return Standing(
        str(one.number),
        one.name,
        tuple(map(str, one.parents)),
        one.state,
        since_s=one.since,
        ended_s=0.0 if one.state in ("succeeded", "failed", "stopped") else None,
        ran_s=(one.seconds or 0.0) if one.state == "succeeded" else 0.0,
        expected_s=one.seconds,
    )


def _called(tasks: Sequence[TaskOutline]) -> dict[str, str]:
    """By their names; where several have that, by their ids, or by how those begin that are only long numbers."""
    count = Counter(one.name for one in tasks)
    return {
        str(one.number): one.name
        if count[one.name] < 2
        else labelled(one.name, one.id)
        if OPAQUE.fullmatch(one.id)
        else one.id
        for one in tasks
    }


def _task_row(one: TaskOutline, called: str, workload: Workload) -> tuple[object, ...]:
    devices = f"GPU {', '.join(map(str, one.devices))}" if one.node and one.devices else ""
    where = ", ".join(filter(None, (node_words(one.node), devices)))
    state = f"{one.state}, loaded ahead" if one.is_warm and one.state in ("waiting", "pending") else one.state
    return (
        called + (" (critical path)" if str(one.number) in workload.critical else ""),
        state,
        moment(one.since),
        "" if one.seconds is None else units.seconds(one.seconds),
        one.progress,
        moment(one.told_at),
        f"{one.gpus:g}" if one.gpus else "",
        where,
        one.workload,
        one.why,
    )


def _run_row(run: RunView, at: float) -> tuple[object, ...]:
    link = tag("a", f"{run.id} {run.name}", href=f"/dashboard/workloads/{run.id}")
    return link, coming(at), f"{run.gpus:g}", run.user, run.queue, run.reason


def _start_row(one: Planned) -> tuple[object, ...]:
    return _link(one, f"{one.task} of {one.driver}"), coming(one.at), f"{one.gpus:g}", one.user, one.queue, ""


def _end_of(run: Outline) -> float | None:
    """When it should end: when it is expected to, or its time is over, what is sooner; None where nobody knows."""
    known = [] if run.ends_at is None else [run.ends_at]
    known += [run.started_at + run.expected_s] if run.started_at is not None and run.expected_s else []
    return min(known, default=None)


def _end_row(run: Outline, at: float) -> tuple[object, ...]:
    link = tag("a", f"{run.id} {run.name}", href=f"/dashboard/workloads/{run.id}")
    return link, coming(at), f"{run.gpus:g}", run.user, run.host


def _loaded_row(one: Planned) -> tuple[object, ...]:
    return one.task, node_words(one.node), one.state, _link(one, one.driver), one.user, one.workload


def _kept_row(one: Planned) -> tuple[object, ...]:
    return one.task, node_words(one.node), coming(one.at), f"{one.gpus:g}", _link(one, one.driver), one.user, one.queue


def _link(one: Planned, words: str) -> Markup:
    return tag("a", words, href=f"/dashboard/workloads/{one.driver}")
