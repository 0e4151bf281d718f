"""The pipeline on kfp's own local runner, which knows no slots and runs one task after the other; and its run log.

    python -m egs_kubeflow.demo.alone ROOT FACTOR        in a process of its own: kfp.local's settings are global

Nothing of it is EGS's but what the tasks note of themselves: a task is held from when its process was made until its
function was over, GPU and all. Who waits for whom is the compiled pipeline's word.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from egs_core.errors import EgsError
from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_core.runlog.added import added_task
from egs_kubeflow.demo import times
from egs_kubeflow.replay.notes import Note, inside, read_notes

RESULT = "result.json"
WORKLOAD = "digits"
LOG = "log.txt"
ONE_BY_ONE = "kfp's runner runs one task at a time"


class Result(msgspec.Struct, frozen=True):
    """When the pipeline was called and when it gave its result (Unix time), and the result."""

    began: float
    ended: float
    output: str


def run_alone(root: Path, factor: float) -> tuple[str, r.Header, list[r.Record]]:
    """The pipeline's result, and the run log. Raises EgsError where kfp has failed."""
    command = [sys.executable, "-m", "egs_kubeflow.demo.alone", str(root), str(factor)]
    own = root / "temp"
    own.mkdir()
    environment = {**os.environ, "TMPDIR": str(own)}  # what kfp leaves there goes with the run
    with (root / LOG).open("w") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        said = " | ".join((root / LOG).read_text().strip().splitlines()[-3:])
        raise EgsError(f"kfp's own runner has failed: {said}")
    from egs_kubeflow.convert.pipeline import convert
    from egs_kubeflow.demo.pipelines import native

    result = msgspec.json.decode((root / RESULT).read_bytes(), type=Result)
    graph = convert(native.digits).graph
    header = r.Header(driver="kubeflow", policy="native", mode="off", started_at=result.began)
    return result.output, header, records_of(graph, read_notes(root), result)


def records_of(graph: Graph, notes: Sequence[Note], result: Result) -> list[r.Record]:
    """The records of a run of which only the tasks' own notes are there, by time."""
    spans: dict[str, tuple[float, float]] = {}
    for note in notes:
        start, end = max(0.0, note.start - result.began), note.end - result.began  # a process's start is told in ticks
        first, last = spans.get(note.task, (start, end))
        spans[note.task] = min(first, start), max(last, end)
    starts = dict(zip(graph.ids, (_started(graph, task, spans) for task in range(graph.n_tasks)), strict=True))
    found: list[r.Record] = [
        r.Capacity(0.0, "local", times.CPUS, times.GPUS),
        r.WorkloadSubmitted(0.0, WORKLOAD, WORKLOAD),
        *(record for task in range(graph.n_tasks) for record in _task(graph, task, spans, starts)),
        *inside(notes, starts, result.began),
        r.WorkloadEnded(result.ended - result.began, WORKLOAD),
    ]
    return r.in_order(found)


def _started(graph: Graph, task: int, spans: dict[str, tuple[float, float]]) -> r.Started:
    shape = graph.shapes[graph.phase_shape[graph.phase_offsets[task]]]
    gpus = shape.gpu_milli / 1000
    at, devices = spans[graph.ids[task]][0], tuple(range(round(gpus)))
    return r.Started(at, WORKLOAD, graph.ids[task], 0, 1, "local", devices, shape.cpu_milli / 1000, gpus)


def _task(
    graph: Graph, task: int, spans: dict[str, tuple[float, float]], starts: dict[str, r.Started]
) -> Iterator[r.Record]:
    name, parents = graph.ids[task], tuple(graph.ids[parent] for parent in graph.parents[task])
    started = starts[name]
    ready = max((spans[parent][1] for parent in parents), default=0.0)
    yield added_task(0.0, WORKLOAD, graph, task, name=name)
    yield r.Ready(ready, WORKLOAD, name)
    yield r.Held(ready, WORKLOAD, name, 0, "order", ONE_BY_ONE)
    yield started
    yield r.Ended(spans[name][1], WORKLOAD, name)


def main(root: str, factor: str) -> None:
    """Run the pipeline as kfp does it, and leave its result."""
    from kfp import local

    from egs_kubeflow.demo.pipelines import native

    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=root)
    began = time.time()
    output: Any = native.digits(factor=float(factor)).output
    Path(root, RESULT).write_text(json.dumps({"began": began, "ended": time.time(), "output": output}))


if __name__ == "__main__":
    main(*sys.argv[1:])
