"""The run log of a demo run: the marks of its tasks by the rules of `replay.marked`, and what only EGS knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from egs_core.graph.merging import merge_phases
from egs_core.runlog.io import Run, read_run
from egs_core.runlog.labels import relabelled
from egs_core.runlog.records import Capacity, Granted, Header, Held, PreloadEnded, PreloadStarted, Record, in_order
from egs_ray.demo import pipelines as demo
from egs_ray.demo.graph import demo_graph
from egs_ray.demo.marks import workload_id
from egs_ray.demo.variants import EGS_LOG, Variant
from egs_ray.replay.marked import MarkedWorkload, read_marks, records_of


def header_of(variant: Variant, submitted: Sequence[float]) -> Header:
    return Header(
        run_id=f"demo-{variant.name}",
        driver="ray",
        policy=variant.policy,
        mode=variant.mode,
        emulated_gpus=demo.EMULATED_GPUS,
        started_at=submitted[0],
        label=variant.name,
    )


def demo_records(folder: str | Path, submitted: Sequence[float], *, split: bool = True) -> list[Record]:
    """The records of a run whose tasks noted themselves in `folder`; submitted: Unix time, by pipeline."""
    graph = demo_graph() if split else merge_phases(demo_graph())
    workloads = [MarkedWorkload(workload_id(n), "digits", at, graph) for n, at in enumerate(submitted)]
    records = records_of(read_marks(folder), workloads, demo.CPUS, demo.GPUS)
    log = Path(folder) / EGS_LOG
    if log.exists():
        own, node = read_run(log), next((one.node for one in records if isinstance(one, Capacity)), "")
        records = in_order([*records, *preloads_of(own, submitted[0]), *reasons_of(own, submitted[0], node)])
    return records


def preloads_of(run: Run, origin: float) -> list[Record]:
    """What the session loaded ahead, under the names and on the clock of the demo's run log."""
    return [_moved(one, run, origin) for one in run.records if isinstance(one, PreloadStarted | PreloadEnded)]


def reasons_of(run: Run, origin: float, node: str) -> list[Record]:
    """Why the session let tasks wait, and by which term they then started, the same way. node: what the demo calls the
    only one, which Ray names by a number."""
    names = {one.node: node for one in run.records if isinstance(one, Capacity)}
    out: list[Record] = []
    for record in run.records:
        if isinstance(record, Held):
            reason = relabelled(record.reason, names)
            out.append(_moved(msgspec.structs.replace(record, reason=reason), run, origin))
        elif isinstance(record, Granted):
            out.append(_moved(record, run, origin))
    return out


Told = PreloadStarted | PreloadEnded | Held | Granted


def _moved(record: Told, run: Run, origin: float) -> Record:
    t = max(0.0, record.t + run.header.started_at - origin)  # the two clocks differ by some milliseconds
    workload, task = _workload_of(record), _task_of(record.task)
    if not isinstance(record, Held):
        return msgspec.structs.replace(record, t=t, workload=workload, task=task)
    others = tuple(map(_task_of, record.waiting_for))
    return msgspec.structs.replace(record, t=t, workload=workload, task=task, waiting_for=others)


def _workload_of(record: Told) -> str:
    """A session numbers its runs in the order of their submission: `digits#3` is pipeline 3."""
    return workload_id(int(record.workload.rpartition("#")[2]))


def _task_of(converted: str) -> str:
    """The conversion numbers every task of a function; the demo only the trainings."""
    return converted if converted.startswith("train-") else converted.rpartition("-")[0]
