"""`egs plan FILE`: the order in which EGS would run a workload, why, and what it would load ahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from egs_core.cli import simulated as shared
from egs_core.cli.reading import Histories, read_believed
from egs_core.engine import POLICIES
from egs_core.errors import InputError
from egs_core.graph.analysis import critical_path, slack, upward_rank
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim import SimResult, simulate
from egs_core.units import shown_s

SHOWN = 40


def plan(
    file: Annotated[Path, typer.Argument(help="A workload file, or a compiled pipeline.")],
    slots: Annotated[int | None, typer.Option(help=shared.SLOTS_HELP)] = None,
    cpus: Annotated[float | None, typer.Option(help=shared.CPUS_HELP)] = None,
    gpus: Annotated[int | None, typer.Option(help=shared.GPUS_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help=shared.NODES_HELP)] = None,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")] = "egs",
    history: Histories = None,
    limit: Annotated[int, typer.Option(help="Number of tasks to show; --json gives all.")] = SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the order in which EGS would run a workload, and why. Unknown durations are assumed and counted."""
    config = msgspec.structs.replace(
        shared.cluster_config(slots, cpus, gpus, nodes), policy=shared.known_policy(policy)
    )
    if limit < 1:
        raise InputError("--limit", f"must be at least 1, not {limit}")
    read = read_believed(file, history)
    workload, assumed = shared.with_assumed_durations(shared.with_applied_limits(read.workload), read.predictor)
    result = simulate([workload], config)
    rows = planned_tasks(workload, result)
    summary = {
        "id": workload.id,
        "policy": policy,
        "makespan_s": result.makespan_s,
        "lower_bound_s": shared.lower_bound_s([workload], config),
        "critical_path_s": critical_path(workload.graph)[0],
        "known_durations": read.known,
        "assumed_durations": assumed,
    }
    if as_json:
        typer.echo(json.dumps(summary | {"tasks": rows}))
    else:
        _show(summary, rows, limit)


def planned_tasks(workload: LoadedWorkload, result: SimResult) -> list[dict[str, Any]]:
    """One row a task, in the order of their starts. rank_s: longest path from its start to the end; slack_s: how late
    it could be without delaying the end, were there room for everything; decided_by: what put it before the next."""
    graph = workload.graph
    rank, room = upward_rank(graph), slack(graph)
    number = {task_id: i for i, task_id in enumerate(graph.ids)}
    rows: dict[str, dict[str, Any]] = {}
    preloads: dict[str, r.PreloadStarted] = {}
    deciding: dict[str, str] = {}
    for record in result.records:
        if isinstance(record, r.PreloadStarted):
            preloads[record.task] = record
        elif isinstance(record, r.Granted) and record.phase == 0:
            deciding[record.task] = record.reason
        elif isinstance(record, r.Started) and record.task not in rows:
            i = number[record.task]
            loaded = preloads.get(record.task)
            rows[record.task] = {
                "order": len(rows) + 1,
                "task": record.task,
                "rank_s": rank[i],
                "slack_s": room[i],
                "critical": room[i] < 1e-9,
                "start_s": record.t,
                "end_s": None,
                "node": record.node,
                "decided_by": deciding.get(record.task, ""),
                "warm": record.warm,
                "preload_s": None if loaded is None else loaded.t,
            }
        elif isinstance(record, r.Ended):
            rows[record.task]["end_s"] = record.t
    return list(rows.values())


def _show(summary: dict[str, Any], rows: list[dict[str, Any]], limit: int) -> None:
    table = Table(title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("#", "task", "start s", "end s", "rank s", "slack s", "ahead by", "preload at s"):
        table.add_column(name, justify="left" if name in ("task", "ahead by") else "right")
    takes, at_best = shown_s(summary["makespan_s"]), shown_s(summary["lower_bound_s"])
    table.title = Text(f"{summary['id']}: {takes} s, at best {at_best} s")
    for row in rows[:limit]:
        style = "bold" if row["critical"] else ""
        preload = "" if row["preload_s"] is None else shown_s(row["preload_s"])
        times = (shown_s(row[key]) for key in ("start_s", "end_s", "rank_s"))
        room = "critical" if row["critical"] else shown_s(row["slack_s"])
        table.add_row(str(row["order"]), Text(row["task"]), *times, room, row["decided_by"], preload, style=style)
    notes = [f"{len(rows) - limit} more tasks (--limit)"] if len(rows) > limit else []
    if summary["known_durations"]:
        notes.append(f"{summary['known_durations']} durations are from the history")
    if summary["assumed_durations"]:
        notes.append(f"{summary['assumed_durations']} unknown durations were assumed")
    table.caption = "; ".join(notes) or None
    Console().print(table)
