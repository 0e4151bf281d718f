"""Run workload files on a real local Ray, natively or with EGS: every phase lasts its scaled time.

    native   `.remote()` for every task at its workload's arrival; each holds its CPUs and GPUs from start to end
    egs      the same functions as a Ray graph under `egs_ray.run`, with hints: phases, what to load, usual durations

Dependencies are object references. Tasks occupy CPUs and GPUs; memory and the transfer of files are left out: the
machine of the replay is not the machine of the trace. A task with a `warm_key` really loads for its `warmup_s` before
its first phase, unless its process has done so. The run log is made of what the tasks noted themselves, by the same
rules for both; the clock starts with the first submission, when Ray has started its processes, and EGS its own.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import ray
from ray.dag import MultiOutputNode

from egs_core.adapter import ReplayRequest, ReplayWorkload, RunOutcome
from egs_core.graph.analysis import topological_order
from egs_core.replayed import arrivals, check, outcome, seconds_of
from egs_core.runlog.io import read_run
from egs_core.runlog.marks import watched
from egs_core.runlog.records import Header, PreloadEnded, PreloadStarted, Record, in_order
from egs_ray.convert import convert
from egs_ray.local import local_ray
from egs_ray.replay.marked import MarkedWorkload, read_marks, records_of
from egs_ray.replay.tasks import Code, Function, codes_of, expected, make_function
from egs_ray.session.api import Run, run
from egs_ray.session.session import Options, Session

SESSION_LOG = "session.jsonl"
LEAST_COLD_S = 0.001  # a task marks a cold stretch only where it really loads; scaled, that may be short
_TASK_ID = 2  # its place among a task's arguments


class Play(msgspec.Struct):
    """One workload, ready to be submitted: what the tasks run, and how they are wired."""

    workload: ReplayWorkload
    order: list[int]
    functions: list[Function]
    codes: list[Code]
    sinks: list[int]
    time_scale: float

    def arguments(self, folder: str, task: int, results: dict[int, Any]) -> Iterator[Any]:
        """What a task is called with: where and as what it notes itself, its phases' seconds, and its parents."""
        graph = self.workload.graph
        yield from (folder, self.workload.name, graph.ids[task], seconds_of(graph, task, self.time_scale))
        yield from (results[parent] for parent in graph.parents[task])


class Submitted(msgspec.Struct, frozen=True):
    """When a workload was submitted (Unix time), how to wait for it, and what EGS calls its tasks."""

    at: float
    wait: Callable[[], Any]
    task_names: dict[str, str] = {}


def replay(request: ReplayRequest) -> RunOutcome:
    """Run the workloads to their end on a Ray of their own and write the run log. Raises InputError for a workload
    that cannot run on this capacity or whose durations are not known."""
    for workload in request.workloads:
        check(workload, request.cpus, request.gpus)
    plays = [_play(workload, request.time_scale) for workload in request.workloads]
    tasks = sum(workload.graph.n_tasks for workload in request.workloads)
    with tempfile.TemporaryDirectory(prefix="egs-replay-") as folder:
        with local_ray(request.cpus, request.gpus), watched(folder, tasks, request.progress):
            runner = _run_with_egs if request.policy == "egs" else _run_natively
            submitted = runner(plays, folder)
        records = _records(request, folder, submitted)
    if len(ended := {(r.workload, r.task) for r in records if type(r).__name__ == "Ended"}) < tasks:  # type: ignore[attr-defined]  # an Ended has both
        raise RuntimeError(f"only {len(ended)} of {tasks} tasks have noted their end")
    header = Header(driver="ray", started_at=min((one.at for one in submitted), default=0.0))
    return outcome(request, header, records, "Ray")


def _play(workload: ReplayWorkload, time_scale: float) -> Play:
    graph = workload.graph
    codes = codes_of(graph, time_scale)
    seconds: dict[Code, list[list[float]]] = defaultdict(list)
    for task, code in enumerate(codes):
        seconds[code].append(seconds_of(graph, task, time_scale))
    functions = {code: make_function(code, expected(code, lists)) for code, lists in seconds.items()}
    sinks = [task for task, children in enumerate(graph.children()) if not children]
    return Play(workload, topological_order(graph), [functions[code] for code in codes], codes, sinks, time_scale)


# --- the two ways to run ----------------------------------------------------------------------------------------------


def _run_natively(plays: Sequence[Play], folder: str) -> list[Submitted]:
    def start(play: Play, at: float) -> Submitted:
        refs: dict[int, Any] = {}
        remotes = _remotes(play, lambda code: {"num_cpus": code.whole_cpus, "num_gpus": code.gpus})
        for task in play.order:
            refs[task] = remotes[task].remote(*play.arguments(folder, task, refs))
        return Submitted(at, lambda: ray.get([refs[task] for task in play.sinks]))

    return _run(plays, start)


def _run_with_egs(plays: Sequence[Play], folder: str) -> list[Submitted]:
    options = Options(runlog=f"{folder}/{SESSION_LOG}", history=f"sqlite:///{folder}/history.sqlite")
    with Session(options) as session:

        def start(play: Play, at: float) -> Submitted:
            dag = _bind(play, folder)
            started: Run = run(dag, name=play.workload.name, session=session)
            converted = convert(dag, play.workload.name)
            names = {payload.task_id: payload.args[_TASK_ID] for payload in converted.nodes}
            return Submitted(at, started.get, names)

        return _run(plays, start)


def _bind(play: Play, folder: str) -> Any:
    """The workload as a static Ray graph: what its author would have written with `bind`."""
    nodes: dict[int, Any] = {}
    remotes = _remotes(play, lambda code: {"num_cpus": code.cpus or code.whole_cpus, "num_gpus": code.gpus})
    for task in play.order:
        nodes[task] = remotes[task].bind(*play.arguments(folder, task, nodes))
    return MultiOutputNode([nodes[task] for task in play.sinks])


def _remotes(play: Play, options: Callable[[Code], dict[str, float]]) -> list[Any]:
    """The remote function of each task; tasks of one code share it: Ray exports each once."""
    made = {
        code: ray.remote(**options(code))(function) for code, function in zip(play.codes, play.functions, strict=True)
    }
    return [made[code] for code in play.codes]


def _run(plays: Sequence[Play], start: Callable[[Play, float], Submitted]) -> list[Submitted]:
    """Submit each workload at its arrival, and wait for all; in the order given."""
    if not plays:
        return []
    submitted: dict[int, Submitted] = {}
    for number in arrivals([play.workload.submit_s for play in plays], plays[0].time_scale):
        submitted[number] = start(plays[number], time.time())
    for one in submitted.values():
        one.wait()
    return [submitted[number] for number in range(len(plays))]


# --- the run log ------------------------------------------------------------------------------------------------------


def _records(request: ReplayRequest, folder: str, submitted: Sequence[Submitted]) -> list[Record]:
    workloads = [
        MarkedWorkload(workload.name, workload.name, one.at, workload.graph)
        for workload, one in zip(request.workloads, submitted, strict=True)
    ]
    records = records_of(read_marks(folder), workloads, request.cpus, request.gpus, LEAST_COLD_S)
    if request.policy == "egs":
        records += _preloads(request, f"{folder}/{SESSION_LOG}", submitted)
    return in_order(records)


def _preloads(request: ReplayRequest, path: str, submitted: Sequence[Submitted]) -> Iterator[Record]:
    """What the session loaded ahead, under the workloads' own names and on the run log's clock."""
    log = read_run(path)
    shift_s = log.header.started_at - min((one.at for one in submitted), default=0.0)
    in_order = sorted(range(len(submitted)), key=lambda number: submitted[number].at)  # a session numbers its runs
    for record in log.records:
        if isinstance(record, PreloadStarted | PreloadEnded):
            number = in_order[int(record.workload.rpartition("#")[2])]
            workload, task = request.workloads[number].name, submitted[number].task_names[record.task]
            t = max(0.0, record.t + shift_s)  # the two clocks differ by some milliseconds
            yield msgspec.structs.replace(record, t=t, workload=workload, task=task)
