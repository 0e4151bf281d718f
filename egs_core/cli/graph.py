"""`egs graph FILE`: what is in a workload file, and the same workload in another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from egs_core.cli.reading import Histories, read_believed
from egs_core.errors import InputError, counted
from egs_core.graph.analysis import critical_path, depth_and_width, edges_bytes, topological_order, work_s
from egs_core.graph.bounds import lower_bound
from egs_core.graph.columns import GPU
from egs_core.graph.load import TARGETS, LoadedWorkload, encode_workload, save_workload
from egs_core.units import format_bytes, shown_s

_SHOWN_TASKS = 6
UNKNOWN = "unknown, as no duration is known"


def graph(
    file: Annotated[
        Path,
        typer.Argument(help="Workload file: EGS JSON, WfFormat 1.5 or 1.6 (plain or gzip), or a compiled pipeline."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    to: Annotated[str | None, typer.Option("--to", help=f"Convert: {', '.join(TARGETS)}.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the converted workload here.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Framework that the file belongs to, by its adapter's name.")
    ] = None,
    select: Annotated[str, typer.Option("--select", help="With --from: name of the pipeline in the file.")] = "",
    slots: Annotated[
        int | None, typer.Option("--slots", help="Add the lower bound of the makespan on this many equal slots.")
    ] = None,
    history: Histories = None,
) -> None:
    """Read a workload file and show its graph: tasks, edges, critical path; convert it."""
    if to is not None and to not in TARGETS:
        raise InputError("--to", f"unknown format {to!r}", f"one of {', '.join(TARGETS)}")
    if as_json and to is not None and output is None:
        raise InputError("--json", "cannot be combined with --to on stdout", "give -o a file, or use one")
    if select and source is None:
        raise InputError("--select", "selects a pipeline in a file of a framework", "add --from")
    if slots is not None and slots < 1:
        raise InputError("--slots", f"must be at least 1, not {slots}")
    loaded = read_believed(file, history, source or "", select).workload
    if output is not None:
        save_workload(loaded, output, to or "egs", str(file))
    if as_json:
        typer.echo(json.dumps(summarise(loaded, slots)))
    elif output is not None:
        typer.echo(f"{output}: {counted(loaded.graph.n_tasks, 'task')} written as {to or 'egs'}")
    elif to is not None:
        typer.echo(encode_workload(loaded, to, str(file)).decode(), nl=False)
    else:
        Console().print(_table(summarise(loaded, slots)))


def summarise(loaded: LoadedWorkload, slots: int | None = None) -> dict[str, Any]:
    """Figures of a workload; unknown durations count as zero seconds and are counted themselves. Where none is known,
    neither is what follows from them: None."""
    graph = loaded.graph
    unknown = sum(d is None for d in graph.phase_duration_s)
    is_known = unknown < graph.n_phases
    order = topological_order(graph)
    seconds, path = critical_path(graph, order=order)
    levels = depth_and_width(graph, order)
    gpu_phases = [phase for phase, kind in enumerate(graph.phase_kind) if kind == GPU]
    return {
        "id": loaded.id,
        "name": loaded.name,
        "tasks": graph.n_tasks,
        "edges": sum(map(len, graph.parents)),
        "phases": graph.n_phases,
        "gpu_phases": len(gpu_phases),
        "depth": levels.depth,
        "width": levels.width,
        "critical_path_s": seconds if is_known else None,
        "critical_path": [graph.ids[task] for task in path] if is_known else None,
        "work_s": work_s(graph) if is_known else None,
        "gpu_work_s": sum(graph.phase_duration_s[phase] or 0.0 for phase in gpu_phases) if is_known else None,
        "unknown_durations": unknown,
        "files": len(graph.file_ids),
        "files_bytes": sum(graph.file_sizes),
        "edges_bytes": edges_bytes(graph),
        "slots": slots,
        "lower_bound_s": None if slots is None or not is_known else lower_bound(graph, slots, order=order),
    }


def _table(facts: dict[str, Any]) -> Table:
    table = Table(title=Text(facts["name"] or facts["id"]), show_header=False, title_justify="left")
    files, on_edges = format_bytes(facts["files_bytes"]), format_bytes(facts["edges_bytes"])
    rows = {
        "tasks": f"{facts['tasks']:,}",
        "edges": f"{facts['edges']:,}",
        "phases": f"{facts['phases']:,}, {facts['gpu_phases']:,} of them on a GPU",
        "levels": f"{facts['depth']:,}, the fullest with {counted(facts['width'], 'task')}",
        "critical path": UNKNOWN,
        "work": UNKNOWN,
        "files": f"{facts['files']:,}, {files}; {on_edges} on edges",
    }
    if facts["work_s"] is not None:
        rows["critical path"] = f"{shown_s(facts['critical_path_s'])} s: {_shortened(facts['critical_path'])}"
        rows["work"] = f"{shown_s(facts['work_s'])} s, {shown_s(facts['gpu_work_s'])} s of it on a GPU"
    if facts["unknown_durations"]:
        how = "counted as 0 s" if facts["work_s"] is not None else "all of them (--history has those of runs before)"
        rows["unknown durations"] = f"{facts['unknown_durations']:,}, {how}"
    if facts["lower_bound_s"] is not None:
        rows[f"lower bound on {facts['slots']:,} slots"] = f"{shown_s(facts['lower_bound_s'])} s"
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _shortened(ids: list[str]) -> str:
    if len(ids) <= _SHOWN_TASKS:
        return " → ".join(ids)
    half = _SHOWN_TASKS // 2
    return " → ".join([*ids[:half], f"… {len(ids) - 2 * half} more …", *ids[-half:]])
