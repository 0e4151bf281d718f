"""From marks to run log, on marks written by hand, with figures computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from benchmarks.gpu_time import gpu_time_of
from egs_core.dashboard.log_pages import seen, workload_page
from egs_core.graph.columns import Graph
from egs_core.graph.merging import merge_phases
from egs_core.runlog.figures import figures_of
from egs_core.runlog.io import Run
from egs_core.runlog.marks import MARKS_FILE, append
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Header,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
    in_order,
)
from egs_ray.demo.graph import demo_graph
from egs_ray.demo.log import preloads_of, reasons_of
from egs_ray.demo.marks import task_id
from egs_ray.replay.marked import Mark, MarkedWorkload, held_start, read_marks, records_of

ORIGIN = 1_000.0
R = TypeVar("R", bound=Record)


def mark(task: str, start: float, end: float, number: int = 0, **fields: Any) -> Mark:
    """A mark of pipeline 0 at times counted from the first submission, in an old and warm process."""
    defaults: dict[str, Any] = {
        "workload": "pipeline-0",
        "part": 0,
        "process_start": -50.0,
        "stretches": [],
        "devices": "",
        "resources": {"CPU": 1.0},
        "framework_id": "",
        "pid": 1,
        "outcome": "succeeded",
    }
    raw = defaults | fields
    if raw["process_start"] is not None:
        raw["process_start"] += ORIGIN
    raw["stretches"] = [(kind, ORIGIN + begin, ORIGIN + stop) for kind, begin, stop in raw["stretches"]]
    return Mark(task=task_id(task, number), start=ORIGIN + start, end=ORIGIN + end, **raw)


UPSTREAM = [mark("load", 0.0, 1.0), mark("preprocess", 1.0, 2.0)]
WHOLE: dict[str, Any] = {"resources": {"CPU": 1.0, "GPU": 1.0}, "devices": "1"}
TRAIN = [("cold", 3.0, 5.0), ("cpu", 5.0, 6.0), ("held", 6.0, 8.5), ("cold", 6.0, 7.0), ("gpu", 7.0, 8.5)]
WRITE = ("cpu", 8.5, 8.8)


def records_for(*marks: Mark, graph: Graph | None = None) -> list[Record]:
    workload = MarkedWorkload("pipeline-0", "digits", ORIGIN, graph or demo_graph())
    return records_of(sorted([*UPSTREAM, *marks], key=lambda m: m.start), [workload], 4, 2)


def of_task(records: list[Record], kind: type[R], task: str) -> list[R]:
    return [record for record in records if isinstance(record, kind) and getattr(record, "task", "") == task]


def test_whole_task_holds_its_gpu_from_process_start_to_end() -> None:
    """A process created for the task at 2.5 s holds the GPU from then on; only the fit uses it."""
    train = mark("train", 3.0, 8.8, **WHOLE, pid=7, process_start=2.5, stretches=[*TRAIN, WRITE])
    records = records_for(train)
    (started,) = of_task(records, Started, "train-0")
    assert (started.t, started.cpus, started.gpus, started.devices, started.warm) == (2.5, 1.0, 1.0, (1,), False)
    assert [r.t for r in of_task(records, Ended, "train-0")] == [pytest.approx(8.8)]
    assert [(r.t, r.end_t) for r in of_task(records, Used, "train-0")] == [(7.0, 8.5)]
    assert [(r.t, r.end_t) for r in of_task(records, ColdStart, "train-0")] == [(2.5, 3.0), (3.0, 5.0), (6.0, 7.0)]


def test_figures_of_a_whole_task_by_hand() -> None:
    """Held 2.5 to 8.8, used 7.0 to 8.5, one cold start: the definitions of the run log applied to these marks."""
    train = mark("train", 3.0, 8.8, **WHOLE, pid=7, process_start=2.5, stretches=[*TRAIN, WRITE])
    metrics = summarise(records_for(train))
    assert metrics.makespan_s == pytest.approx(8.8)
    assert metrics.gpu_held_s == pytest.approx(6.3)
    assert metrics.gpu_used_s == pytest.approx(1.5)
    assert metrics.cold_starts == 1


def test_gpu_asked_for_inside_is_held_only_there() -> None:
    """Where Ray gave the function no GPU, the task has three phases and waits for its GPU between two of them."""
    stretches = [("cold", 3.0, 3.00001), ("cpu", 3.0, 4.0), ("held", 6.0, 7.5), ("gpu", 6.0, 7.5), ("cpu", 7.5, 7.8)]
    records = records_for(mark("train", 3.0, 7.8, devices="0", stretches=stretches))
    added = of_task(records, TaskAdded, "train-0")[0]
    assert [(kind, gpus) for kind, _, gpus, _ in added.phases] == [("cpu", 0.0), ("gpu", 1.0), ("cpu", 0.0)]
    assert [r.t for r in of_task(records, Ready, "train-0")] == pytest.approx([2.0, 4.0, 7.5])
    assert [r.t for r in of_task(records, Started, "train-0")] == pytest.approx([3.0, 6.0, 7.5])
    assert [r.t for r in of_task(records, Ended, "train-0")] == pytest.approx([4.0, 7.5, 7.8])
    assert all(r.warm for r in of_task(records, Started, "train-0"))


def test_task_split_by_hand_is_one_task_with_a_phase_a_part() -> None:
    """Three Ray tasks of one training become its three phases, ready one after the other."""
    gpu: dict[str, Any] = {"resources": {"GPU": 1.0}, "devices": "0"}
    records = records_for(
        mark("train", 2.0, 3.0, part=0, stretches=[("cpu", 2.0, 3.0)]),
        mark("train", 5.0, 6.5, part=1, **gpu, stretches=[("held", 5.0, 6.5), ("gpu", 5.0, 6.5)]),
        mark("train", 6.5, 6.8, part=2, stretches=[("cpu", 6.5, 6.8)]),
    )
    assert [(r.phase, r.gpus) for r in of_task(records, Started, "train-0")] == [(0, 0.0), (1, 1.0), (2, 0.0)]
    assert [r.t for r in of_task(records, Ready, "train-0")] == pytest.approx([2.0, 3.0, 6.5])


def test_process_that_followed_another_task_on_the_device_holds_it_only_from_then() -> None:
    """A process created while the device was still in use was not created for this task alone: held from its start."""
    first = mark("train", 3.0, 8.8, **WHOLE, pid=7, process_start=2.5, stretches=[*TRAIN, WRITE])
    second = mark("train", 9.5, 12.0, **WHOLE, number=1, pid=8, process_start=8.0)
    third = mark("train", 12.5, 14.0, **WHOLE, number=2, pid=9, process_start=12.1)
    records = records_for(first, second, third)
    assert [r.t for r in of_task(records, Started, "train-1")] == [9.5]
    assert [r.t for r in of_task(records, Started, "train-2")] == [pytest.approx(12.1)]


LEASED: dict[str, Any] = {"resources": {}, "devices": "0"}


def test_leased_phases_hold_what_the_graph_says() -> None:
    """Where Ray gave the function nothing, each phase holds its own CPU or GPU, and the waits between hold neither."""
    stretches = [("cpu", 3.0, 4.0), ("held", 6.0, 7.5), ("gpu", 6.0, 7.5), ("cpu", 8.0, 8.3)]
    started = of_task(records_for(mark("train", 3.0, 8.3, **LEASED, stretches=stretches)), Started, "train-0")
    assert [(r.t, r.cpus, r.gpus) for r in started] == [
        (3.0, 1.0, 0.0),
        (6.0, 0.0, 1.0),
        (pytest.approx(8.0), 1.0, 0.0),
    ]


def test_leased_task_of_one_gpu_phase_holds_it_throughout() -> None:
    """Without split the lease spans the task, whatever its code asks for inside."""
    stretches = [("cpu", 3.0, 4.0), ("held", 4.0, 5.5), ("gpu", 4.0, 5.5), ("cpu", 5.5, 5.8)]
    train = mark("train", 3.0, 5.8, **LEASED, stretches=stretches)
    metrics = summarise(records_for(train, graph=merge_phases(demo_graph())))
    assert metrics.gpu_held_s == pytest.approx(2.8)
    assert metrics.gpu_used_s == pytest.approx(1.5)


def test_several_gpu_stretches_are_several_phases() -> None:
    """A task that asks for its GPU twice holds it twice, and a CPU in between."""
    stretches = [("held", 3.0, 4.0), ("gpu", 3.0, 4.0), ("cpu", 4.0, 5.0), ("held", 6.0, 7.0), ("gpu", 6.0, 7.0)]
    started = of_task(records_for(mark("train", 3.0, 7.0, **LEASED, stretches=stretches)), Started, "train-0")
    assert [(r.t, r.gpus) for r in started] == [(3.0, 1.0), (4.0, 0.0), (6.0, 1.0)]


def test_gpu_time_adds_up_to_the_capacity() -> None:
    """By hand, 2 GPUs for 8.8 s: device 1 idle to 2.5 s, cold 3.5 s, in CPU phases 1.3 s, used 1.5 s; device 0 idle."""
    train = mark("train", 3.0, 8.8, **WHOLE, pid=7, process_start=2.5, stretches=[*TRAIN, WRITE])
    assert gpu_time_of(records_for(train)) == {
        "used": 1.5,
        "held_cold": 3.5,
        "held_else": 1.3,
        "idle_before": 2.5 + 8.8,
        "idle_between": 0.0,
        "idle_after": 0.0,
    }


def test_preloads_of_the_session_get_the_names_and_clock_of_the_demo() -> None:
    """`digits#3` is pipeline 3, its only load is `load`; nothing begins before the first submission."""
    node = "n"
    own: list[Record] = [
        WorkloadSubmitted(0.1, "digits#3"),
        PreloadStarted(0.2, "digits#3", "train-2", node),
        PreloadEnded(5.0, "digits#3", "evaluate-0", "used"),
    ]
    found = preloads_of(Run(Header(started_at=ORIGIN - 1.0), own), ORIGIN)
    assert found == [
        PreloadStarted(0.0, "pipeline-3", "train-2", node),
        PreloadEnded(4.0, "pipeline-3", "evaluate", "used"),
    ]


def test_reasons_of_the_session_get_the_names_and_clock_of_the_demo() -> None:
    """Why each phase waited and by which term it started: on the page of the demo's workload, in words. The node has
    the demo's name, and figures are as they were."""
    ray_node, gpu = "7703c47658c57dc92023b7fb8004925f79f21fd38ba4bfb33c3277de", (("gpu", 1.0, 1.0, 0),)
    own: list[Record] = [
        Capacity(0.0, ray_node, 4.0, 2),
        Held(0.2, "digits#3", "train-2", 0, "warming", f"its process is being loaded on {ray_node}"),
        Held(1.5, "digits#3", "evaluate-0", 0, "capacity", "", ("train-2",)),
        Granted(5.0, "digits#3", "evaluate-0", 0, reason="remaining_path"),
    ]
    found = reasons_of(Run(Header(started_at=ORIGIN - 1.0), own), ORIGIN, "local")
    assert found == [
        Held(0.0, "pipeline-3", "train-2", 0, "warming", "its process is being loaded on local"),
        Held(0.5, "pipeline-3", "evaluate", 0, "capacity", "", ("train-2",)),
        Granted(4.0, "pipeline-3", "evaluate", 0, reason="remaining_path"),
    ]
    demo: list[Record] = [
        Capacity(0.0, "local", 4.0, 2),
        WorkloadSubmitted(0.0, "pipeline-3", "digits"),
        TaskAdded(0.0, "pipeline-3", "train-2", "train-2", (), gpu),
        TaskAdded(0.0, "pipeline-3", "evaluate", "evaluate", ("train-2",), gpu),
        Ready(0.0, "pipeline-3", "train-2"),
        Started(0.4, "pipeline-3", "train-2", node="local", devices=(0,), gpus=1.0),
        Ended(0.5, "pipeline-3", "train-2"),
        Ready(0.5, "pipeline-3", "evaluate"),
        Started(4.1, "pipeline-3", "evaluate", node="local", devices=(0,), gpus=1.0),
        Ended(5.0, "pipeline-3", "evaluate"),
        WorkloadEnded(5.0, "pipeline-3"),
    ]
    one = seen(Run(Header(), in_order([*demo, *found])))
    page = workload_page("/x", [one], 0, 0, "v")
    for words in ("its process is being loaded on local", "remaining path"):
        assert words in page, words
    assert figures_of([*demo, *found]) == figures_of(demo)


@pytest.mark.parametrize(
    ("process_start", "first_of_process", "expected"),
    [(2.5, True, 2.5), (1.5, True, 3.0), (2.5, False, 3.0), (None, True, 3.0)],
    ids=["created for it", "was there before", "kept process", "system does not say"],
)
def test_held_start(process_start: float | None, first_of_process: bool, expected: float) -> None:
    """Only a process created after the task could have its GPU (2 s) was created holding it."""
    task = mark("evaluate", 3.0, 4.0, process_start=process_start)
    assert held_start(task, ORIGIN + 2.0, first_of_process) == ORIGIN + expected


def test_marks_are_read_in_order_of_their_start(tmp_path: Path) -> None:
    """Tasks write when they end; the log needs them by when they began."""
    for one in (mark("report", 5.0, 6.0), mark("load", 0.0, 9.0)):
        append(tmp_path / MARKS_FILE, msgspec.to_builtins(one))
    assert [one.task for one in read_marks(tmp_path)] == ["load", "report"]
