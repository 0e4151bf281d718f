"""`egs replay FILE…`: run workload files on a real framework, or in the simulator, natively or with EGS.

Native is the framework alone: a task holds all it needs from start to end, nothing is loaded ahead, first ready first
served. In the simulator that is policy `fifo` without split and preload. Files are not transferred.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from egs_core.adapter import (
    POLICIES,
    Replaying,
    ReplayRequest,
    ReplayWorkload,
    RunOutcome,
    adapter_names,
    default_adapter,
    load_able,
)
from egs_core.cli.reading import Histories, Read, read_believed
from egs_core.cli.running import shown_progress
from egs_core.cli.simulated import lower_bound_s
from egs_core.errors import InputError, counted
from egs_core.graph.columns import GPU, Graph
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog.figures import figures_from
from egs_core.runlog.io import write_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import ColdStart, Header, Record, Started, Used
from egs_core.sim import SimConfig, SimNode, simulate

SIM = "sim"
LEAST_SCALE, MOST_SCALE = 1e-6, 1e6
MOST_CPUS, MOST_GPUS = 100_000, 10_000


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Workload files, or compiled pipelines.")],
    on: Annotated[str, typer.Option("--on", help="sim (the simulator), or a framework, by its adapter's name.")] = "",
    policy: Annotated[str, typer.Option(help="egs, or native (the framework alone).")] = "egs",
    cpus: Annotated[int, typer.Option(help="Number of CPUs (logical on a real framework).")] = 4,
    gpus: Annotated[int, typer.Option(help="Number of GPUs (logical on a real framework).")] = 2,
    time_scale: Annotated[float, typer.Option(help="Factor for all durations and arrival times.")] = 1.0,
    history: Histories = None,
    runlog: Annotated[Path | None, typer.Option(help="Write the run log to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a workload file on a real framework, natively or with EGS.

    Every task occupies its CPUs and GPUs for its scaled duration, and really waits for what it depends on. A task with
    a warm-up really loads for that long. Memory is not reserved and files are not transferred.
    """
    on = on or default_adapter()
    _check_options(on, policy, cpus, gpus, time_scale)
    _check_output(runlog, files)
    read = [read_believed(file, history) for file in files]
    _need_durations(read)
    workloads = _named(one.workload for one in read)
    with tempfile.TemporaryDirectory(prefix="egs-replay-") as folder:
        path = runlog or Path(folder) / "replay.jsonl"
        run = _simulated if on == SIM else _on_framework
        outcome = run(workloads, on, policy, cpus, gpus, time_scale, path)
    bound = lower_bound_s(workloads, SimConfig(nodes=(SimNode("local", cpus, gpus),))) * time_scale
    about = {"on": on, "policy": policy, "time_scale": time_scale, "cpus": cpus, "gpus": gpus}
    size = {"workloads": len(workloads), "tasks": sum(w.graph.n_tasks for w in workloads)}
    facts = {**about, **size, "lower_bound_s": round(bound, 3), **outcome.metrics}
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        Console().print(_table(facts, runlog))


def _check_options(on: str, policy: str, cpus: int, gpus: int, time_scale: float) -> None:
    targets = [SIM, *adapter_names()]
    if on not in targets:
        raise InputError("--on", f"unknown {on!r}", f"one of {', '.join(targets)}")
    if policy not in POLICIES:
        raise InputError("--policy", f"unknown {policy!r}", f"one of {', '.join(POLICIES)}")
    if not 1 <= cpus <= MOST_CPUS:
        raise InputError("--cpus", f"must be 1 to {MOST_CPUS}, not {cpus}")
    if not 0 <= gpus <= MOST_GPUS:
        raise InputError("--gpus", f"must be 0 to {MOST_GPUS}, not {gpus}")
    if not (math.isfinite(time_scale) and LEAST_SCALE <= time_scale <= MOST_SCALE):
        raise InputError("--time-scale", f"must be {LEAST_SCALE:g} to {MOST_SCALE:g}, not {time_scale:g}")


def _check_output(runlog: Path | None, files: Sequence[Path]) -> None:
    """Whether the run log can be written: found out before the run, not after it."""
    if runlog is None:
        return
    if runlog.is_dir():
        raise InputError(str(runlog), "is a folder", "name a file for the run log")
    if not runlog.parent.is_dir():
        raise InputError(str(runlog.parent), "no such folder", "the run log would be written there")
    if not os.access(runlog if runlog.exists() else runlog.parent, os.W_OK):
        raise InputError(str(runlog), "cannot be written")
    if any(file.exists() and runlog.exists() and runlog.samefile(file) for file in files):
        raise InputError(str(runlog), "is one of the workload files", "choose another name for the run log")


def _need_durations(read: Sequence[Read]) -> None:
    """Raises InputError for pipelines of frameworks, which state none, and of which the history knows none yet; others
    are told of by who runs them."""
    for one in read:
        graph = one.workload.graph
        if one.source and None in graph.phase_duration_s:
            phase = graph.phase_duration_s.index(None)
            task = next(n for n in range(graph.n_tasks) if phase in graph.phases_of(n))
            hint = "run it once, which your history then knows, or give --history; `egs plan` assumes what is unknown"
            raise InputError(f"{one.workload.id}: task {graph.ids[task]!r}", "its duration is unknown", hint)


def _named(loaded: Any) -> list[LoadedWorkload]:
    """The workloads, with ids that differ: where several files share one, each with its place in the list."""
    workloads: list[LoadedWorkload] = list(loaded)
    count = Counter(workload.id for workload in workloads)
    for number, workload in enumerate(workloads):
        if count[workload.id] > 1:
            workload.id = f"{workload.id}-{number}"
    return workloads


def _on_framework(
    workloads: list[LoadedWorkload], on: str, policy: str, cpus: int, gpus: int, time_scale: float, path: Path
) -> RunOutcome:
    given = tuple(ReplayWorkload(w.id, w.graph, w.arrival_s) for w in workloads)
    with shown_progress(f"{on}, {policy}") as progress:
        request = ReplayRequest(given, policy, cpus, gpus, time_scale, path, progress)
        return load_able(on, Replaying, "replay").replay(request)


def _simulated(
    workloads: list[LoadedWorkload], on: str, policy: str, cpus: int, gpus: int, time_scale: float, path: Path
) -> RunOutcome:
    with_egs = policy == "egs"
    node = SimNode("local", cpus, gpus)
    engine_policy = "egs" if with_egs else "fifo"
    config = SimConfig((node,), policy=engine_policy, preload=with_egs, split=with_egs, warmup_factor=time_scale)
    scaled = [_scaled(workload, time_scale) for workload in workloads]
    records = [record for record in simulate(scaled, config).records if not isinstance(record, Header)]
    if not with_egs:
        records += used_stretches(records, scaled)
    label = f"replay in the simulator, {policy}"
    header = Header(run_id=f"replay-{policy}", driver=on, policy=policy, mode="on" if with_egs else "off", label=label)
    write_run(path, header, records)
    metrics = summarise(records)
    return RunOutcome({**figures_from(metrics), "phases": metrics.phases}, path)


def used_stretches(records: Sequence[Record], workloads: Sequence[LoadedWorkload]) -> list[Record]:
    """When the GPU phases inside of whole tasks ran, counted from a task's start, or from the end of its load."""
    graphs = {workload.id: (workload.graph, {t: n for n, t in enumerate(workload.graph.ids)}) for workload in workloads}
    begins = {(r.workload, r.task): r.t for r in records if isinstance(r, Started)}
    begins |= {(r.workload, r.task): r.end_t for r in records if isinstance(r, ColdStart)}
    out: list[Record] = []
    for (workload, task), at in begins.items():
        graph, numbers = graphs[workload]
        for phase in graph.phases_of(numbers[task]):
            seconds = graph.phase_duration_s[phase] or 0.0
            if graph.phase_kind[phase] == GPU:
                out.append(Used(at, at + seconds, workload, task))
            at += seconds
    return out


def _scaled(workload: LoadedWorkload, time_scale: float) -> LoadedWorkload:
    """Durations and arrival on the replay's clock, and no memory: as on a real framework."""
    graph = workload.graph
    seconds = [None if s is None else s * time_scale for s in graph.phase_duration_s]
    shapes = [msgspec.structs.replace(shape, memory_bytes=0, gpu_memory_bytes=0) for shape in graph.shapes]
    scaled: Graph = msgspec.structs.replace(graph, phase_duration_s=seconds, shapes=shapes)
    return msgspec.structs.replace(workload, graph=scaled, arrival_s=workload.arrival_s * time_scale)


def _table(facts: dict[str, Any], runlog: Path | None) -> Table:
    table = Table(title=f"replay on {facts['on']}, {facts['policy']}", show_header=False, title_justify="left")
    waste = facts["wastage_effective"]
    rows = {
        "tasks": f"{facts['tasks']:,} in {facts['workloads']:,} workloads, times x {facts['time_scale']:g}",
        "ran on": f"{counted(facts['cpus'], 'CPU')}, {counted(facts['gpus'], 'GPU')}",
        "makespan": f"{facts['makespan_s']:,.2f} s; no schedule is under {facts['lower_bound_s']:,.2f} s",
        "wasted": "nothing to waste" if waste is None else f"{waste:.1%} of the {'GPUs' if facts['gpus'] else 'CPUs'}",
        "GPU time": f"{facts['gpu_held_s']:,.2f} s held, {facts['gpu_used_s']:,.2f} s of it used",
        "cold starts": f"{facts['cold_starts']:,}",
    }
    if runlog is not None:
        rows["run log"] = str(runlog)
    for name, value in rows.items():
        table.add_row(name, value)
    return table
