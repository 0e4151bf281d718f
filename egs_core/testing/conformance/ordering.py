"""Which task goes first where all want the same GPUs. In each scenario a first task holds them all until the rest of
the pipeline is there, so that nothing depends on who was quicker to submit."""

from __future__ import annotations

import time

from egs_core.testing.conformance.bench import Bench, Running, begun, give_signal, marks_of, wait_for_mark, wait_until
from egs_core.testing.conformance.pipeline import HOLDS, Phase, Pipeline, Task, cpu_task, gpu_task

LEAVES = 5
SETTLE_S = 1.0


def order(bench: Bench) -> None:
    """Of ready tasks the one that others wait for goes first, though it was submitted last; it is last by name, too,
    since some frameworks take tasks in that order."""
    gpus = float(bench.gpus)
    tasks = (
        gpu_task("first", gpus=gpus, until=("go",)),
        *(gpu_task(f"leaf{i}", gpus=gpus) for i in range(LEAVES)),
        gpu_task("trunk", gpus=gpus),
        cpu_task("next", "trunk"),
        cpu_task("last", "next"),
    )
    running = _run_after_first(bench, Pipeline("ordered", tasks))
    _require_before_leaves(bench, running, ["trunk"])


def inversion(bench: Bench) -> None:
    """A successor that becomes ready when its predecessor frees the GPUs gets them, not a lower-ranked task that has
    waited for them since long before (apache/airflow#26933)."""
    gpus = float(bench.gpus)
    tasks = (
        gpu_task("first", gpus=gpus, until=("go",)),
        *(gpu_task(f"leaf{i}", gpus=gpus) for i in range(LEAVES)),
        gpu_task("second", "first", gpus=gpus),
        gpu_task("third", "second", gpus=gpus),
        cpu_task("last", "third"),
    )
    running = _run_after_first(bench, Pipeline("inverted", tasks))
    _require_before_leaves(bench, running, ["second", "third"])


def gang_starts_whole(bench: Bench) -> None:
    """Two gangs, each as large as the cluster, whose members wait for each other: neither starts in part, so neither
    waits for ever for GPUs that the other holds."""
    members = tuple(_member(gang, i, bench.gpus) for i in range(bench.gpus) for gang in ("red", "blue"))
    tasks = (gpu_task("first", gpus=float(bench.gpus), until=("go",)), *members)
    running = _run_after_first(bench, Pipeline("gangs", tasks))
    marks = marks_of(running)
    for gang in ("red", "blue"):
        begins = [m.at for m in marks if m.task.startswith(gang) and m.what == "begin"]
        ends = [m.at for m in marks if m.task.startswith(gang) and m.what == "end"]
        assert len(begins) == len(ends) == bench.gpus, f"gang {gang}: {len(begins)} began, {len(ends)} ended"
        assert max(begins) < min(ends), f"gang {gang} did not run together"


def gang_is_not_starved(bench: Bench) -> None:
    """A gang that others wait for gets all its GPUs though smaller tasks stand in line and the GPUs come free one by
    one: those are kept for it until it is whole."""
    firsts = tuple(gpu_task(f"first{i}", until=(f"go{i}",)) for i in range(bench.gpus))
    members = tuple(_member("gang", i, bench.gpus) for i in range(bench.gpus))
    names = tuple(member.name for member in members)
    small = tuple(gpu_task(f"leaf{i}", seconds=HOLDS * (2 + i % 3)) for i in range(6 * bench.gpus))
    after = Task("after", names, (Phase(),), (10.0,))  # believed to be long, so the gang comes before all small ones
    pipeline = Pipeline("starving", (*firsts, *small, *members, after))
    running = bench.start(pipeline, "on")
    for first in firsts:
        wait_for_mark(running, first.name)
    for number, first in enumerate(firsts):
        give_signal(running, f"go{number}")
        wait_for_mark(running, first.name, "end")
        time.sleep(SETTLE_S)  # for who would take this GPU from the gang; who does not, does not in no time either
    outcome = running.wait()
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"
    order = begun(running)
    earlier = [name for name in order[: order.index(names[0])] if name.startswith("leaf")]
    assert len(earlier) <= bench.gpus, f"{len(earlier)} of {len(small)} small tasks began before the gang: {order}"


def _member(gang: str, number: int, size: int) -> Task:
    """A member ends only once all of its gang have begun."""
    all_begun = tuple(f"{gang}{i}.0" for i in range(size))
    return Task(f"{gang}{number}", (), (Phase(1.0, HOLDS, all_begun),), (HOLDS,), gang=gang)


def _run_after_first(bench: Bench, pipeline: Pipeline) -> Running:
    """Let `first` go once it runs and the bench says that all others were submitted; wait for the end."""
    running = bench.start(pipeline, "on")
    wait_for_mark(running, "first")
    wait_until(lambda: bench.held_gpus() >= bench.gpus, "the first task holds all GPUs")
    give_signal(running, "go")
    outcome = running.wait()
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"
    return running


def _require_before_leaves(bench: Bench, running: Running, names: list[str]) -> None:
    order = begun(running)
    for name in names:
        leaves = [other for other in order[: order.index(name)] if other.startswith("leaf")]
        assert len(leaves) <= bench.ahead, f"{name} waited for {', '.join(leaves)}; begun in order: {order}"
