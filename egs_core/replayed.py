"""What a replay is on every real framework: which workloads can run, how long they last, and when they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from egs_core.adapter import ReplayRequest, ReplayWorkload, RunOutcome
from egs_core.errors import InputError
from egs_core.graph.columns import Graph
from egs_core.runlog.figures import figures_from
from egs_core.runlog.io import write_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Header, Record


def check(workload: ReplayWorkload, cpus: int, gpus: int) -> None:
    """Whether every task can run: durations known, and no phase larger than the machine."""
    graph = workload.graph
    for task, task_id in enumerate(graph.ids):
        place = f"{workload.name}: task {task_id!r}"
        for phase in graph.phases_of(task):
            shape = graph.shapes[graph.phase_shape[phase]]
            if graph.phase_duration_s[phase] is None:
                raise InputError(place, "its duration is unknown", "state it in the file, or give --history")
            _check_fits(place, "CPUs", shape.cpu_milli, cpus)
            _check_fits(place, "GPUs", shape.gpu_milli, gpus)


def _check_fits(place: str, what: str, needed_milli: int, offered: int) -> None:
    if needed_milli > offered * 1000:
        hint = f"give more with --{what.lower()}"
        raise InputError(place, f"needs {needed_milli / 1000:g} {what}, there are {offered}", hint)


def seconds_of(graph: Graph, task: int, time_scale: float) -> list[float]:
    """How long each phase of a task is to last."""
    return [(graph.phase_duration_s[phase] or 0.0) * time_scale for phase in graph.phases_of(task)]


def arrivals(submit_s: Sequence[float], time_scale: float = 1.0) -> Iterator[int]:
    """The places in the list in the order of these times, each when it is due: the first at once."""
    began = time.time()
    for place in sorted(range(len(submit_s)), key=lambda place: submit_s[place]):
        due = began + (submit_s[place] - min(submit_s)) * time_scale
        time.sleep(max(0.0, due - time.time()))
        yield place


def outcome(request: ReplayRequest, header: Header, records: Sequence[Record], framework: str) -> RunOutcome:
    """Write the run log of a replay, whose header says what is known of its times, and give its figures."""
    facts = {
        "run_id": f"replay-{request.policy}",
        "policy": request.policy,
        "mode": "on" if request.policy == "egs" else "off",
        "emulated_gpus": True,
        "label": f"replay on {framework}, {request.policy}",
    }
    write_run(request.runlog_path, msgspec.structs.replace(header, **facts), records)
    metrics = summarise(records)
    more = {name: getattr(metrics, name) for name in ("cold_start_s", "mean_jct_s", "p95_jct_s")}
    figures = {name: None if value is None else round(value, 3) for name, value in more.items()}
    return RunOutcome({**figures_from(metrics), **figures, "phases": metrics.phases}, request.runlog_path)
