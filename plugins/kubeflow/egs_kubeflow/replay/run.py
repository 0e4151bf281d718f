"""Run workload files as a real kfp pipeline on EGS's local runner: every phase lasts its scaled time.

    native   policy fifo; each task as it is in the file is one kfp task
    egs      EGS's order, with usual durations known; tasks of CPU and GPU phases split

kfp's own local runner runs one task after the other and knows neither slots nor arrivals: natively, too, it is EGS's.
Every task is a process of its own, so a task with a `warm_key` loads in both. Memory and the transfer of files are left
out: the machine of the replay is not the machine of the trace. The clock starts when the pipeline does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from egs_core.adapter import ReplayRequest, RunOutcome
from egs_core.errors import EgsError, InputError
from egs_core.graph.columns import Graph
from egs_core.replayed import check, outcome
from egs_core.runlog import records as r
from egs_core.runlog.added import added_task
from egs_core.runlog.io import read_run
from egs_core.runlog.marks import watched
from egs_kubeflow import compat
from egs_kubeflow.replay.notes import inside, read_notes, zero_of
from egs_kubeflow.replay.parts import Part, check_expressible, code_of, groups_of, parts_of, place_of

MOST_AT_ONCE = 256
MOST_TASKS = 5_000
NO_CPU = 0.001
"""What the runner sets aside for a task that needs no CPU, in CPUs."""
POLICIES = {"native": "fifo", "egs": "egs"}
PIPELINE, RUNLOG = "pipeline.yaml", "run.jsonl"


def replay(request: ReplayRequest) -> RunOutcome:
    """Run the workloads to their end and write the run log. Raises InputError for a workload that cannot run on this
    capacity, whose durations are not known, or that kfp has no way to express; EgsError where a task has failed."""
    _check(request)
    parts = [parts_of(workload.graph, request.time_scale, request.policy == "egs") for workload in request.workloads]
    with tempfile.TemporaryDirectory(prefix="egs-replay-") as folder:
        root = Path(folder)
        with watched(folder, sum(map(len, parts)), request.progress):
            logged = _run(request, parts, root)
        records, zero = _records(request, logged, root)
    return outcome(request, r.Header(driver="kubeflow", started_at=zero), records, "Kubeflow")


def require_kfp() -> None:
    """InputError where kfp is not installed."""
    if not compat.kfp_version():
        raise InputError("--on kubeflow", "kfp is not installed here", "pip install egs-kubeflow")


def _check(request: ReplayRequest) -> None:
    require_kfp()
    tasks = sum(workload.graph.n_tasks for workload in request.workloads)
    if tasks > MOST_TASKS:
        problem = f"{tasks} tasks are too many for a process each: at most {MOST_TASKS}"
        raise InputError("--on kubeflow", problem, "use --on sim")
    if request.cpus > MOST_AT_ONCE:
        problem = f"{request.cpus} are more than this machine has processes for: at most {MOST_AT_ONCE}"
        raise InputError("--cpus", problem, "use --on sim")
    for workload in request.workloads:
        check(workload, request.cpus, request.gpus)
        check_expressible(workload)


def _run(request: ReplayRequest, parts: Sequence[Sequence[Part]], root: Path) -> Sequence[r.Record]:
    """The runner's own run log."""
    from egs_kubeflow.convert.documents import dump_documents
    from egs_kubeflow.replay.pipeline import BEGAN, pipeline_of
    from egs_kubeflow.run import PipelineFailed, run

    path = root / PIPELINE
    path.write_text(dump_documents(pipeline_of(request.workloads, parts, request.time_scale)))
    without = sum(not part.code.cpu_milli for of_workload in parts for part in of_workload)
    slots: dict[str, Any] = {"cpus": request.cpus + NO_CPU * (1 + min(without, 100)), "gpus": request.gpus}
    own: dict[str, Any] = {"root": root, "runlog": str(root / RUNLOG), "history": f"sqlite:///{root}/history.sqlite"}
    policy: Any = POLICIES[request.policy]
    try:
        result = run(path, {BEGAN: time.time()}, policy=policy, emulate_gpus=True, **slots, **own)
    except PipelineFailed as error:
        raise EgsError(str(error)) from error
    return read_run(result.runlog).records


# --- the run log ------------------------------------------------------------------------------------------------------


def _records(request: ReplayRequest, logged: Sequence[r.Record], root: Path) -> tuple[list[r.Record], float]:
    """The runner's records under the names of the files, with what the tasks noted; and the Unix time of their zero."""
    renamed = dict(_renamed(request, logged))
    starts = {path: record for (path, _), record in renamed.items() if isinstance(record, r.Started)}
    notes = read_notes(root)
    zero = zero_of(notes, starts)
    records = [
        r.Capacity(0.0, "local", request.cpus, request.gpus),
        *renamed.values(),
        *inside(notes, starts, zero),
    ]
    records += _workloads(request, records)
    return r.in_order(records), zero


def _renamed(request: ReplayRequest, logged: Iterable[r.Record]) -> Iterator[tuple[tuple[str, int], r.Record]]:
    """What became of the kfp tasks, each record with the path of its kfp task and its place in the runner's log."""
    for number, record in enumerate(logged):
        if isinstance(record, r.Ready | r.Held | r.Granted | r.Started | r.Ended):
            place = place_of(record.task)
            if place is not None:
                workload = request.workloads[place[0]]
                named = {"workload": workload.name, "task": workload.graph.ids[place[1]], "phase": place[2]}
                yield (record.task, number), msgspec.structs.replace(record, **named)


def _workloads(request: ReplayRequest, records: Sequence[r.Record]) -> Iterator[r.Record]:
    """When each workload came and was over, and its tasks as they ran."""
    came: dict[str, float] = {}
    over: dict[str, float] = {}
    for record in records:
        if isinstance(record, r.Ready):
            came[record.workload] = min(record.t, came.get(record.workload, record.t))
        elif isinstance(record, r.Ended):
            over[record.workload] = max(record.t, over.get(record.workload, record.t))
    for workload in request.workloads:
        graph, at = workload.graph, came[workload.name]
        yield r.WorkloadSubmitted(at, workload.name, workload.name)
        for task in range(graph.n_tasks):
            yield added_task(at, workload.name, graph, task, phases=_needs(request, graph, task))
        yield r.WorkloadEnded(over[workload.name], workload.name)


def _needs(request: ReplayRequest, graph: Graph, task: int) -> list[r.PhaseNeeds]:
    """What each kfp task of a task held."""
    codes = [code_of(graph, phases) for phases in groups_of(graph, task, request.policy == "egs")]
    return [r.phase_needs(code.cpu_milli / 1000, float(code.gpus)) for code in codes]
