"""GPUs only in GPU phases, and the next task warm before its turn."""

from __future__ import annotations

from functools import partial

from egs_core.errors import counted
from egs_core.testing.conformance.bench import Bench, give_signal, marks_of, wait_for_mark, wait_until
from egs_core.testing.conformance.pipeline import HOLDS, Phase, Pipeline, Task, cpu_task, gpu_task


def split(bench: Bench) -> None:
    """A task of a CPU, a GPU and a CPU phase holds GPUs, and sees devices where it is told them, in the second only."""
    steps = tuple(Phase(gpus, until=(f"go{number}",)) for number, gpus in enumerate((0.0, 1.0, 0.0)))
    pipeline = Pipeline("split", (Task("mixed", (), steps, (HOLDS, HOLDS, HOLDS)),))
    running = bench.start(pipeline, "on")
    for number, phase in enumerate(steps):
        mark = wait_for_mark(running, "mixed", "begin", number)
        wait_until(partial(_holds, bench, phase.gpus), f"{counted(phase.gpus, 'GPU')} held in phase {number}")
        shown = phase.gpus if bench.shows_devices else 0.0
        assert len(mark.devices) == shown, f"devices seen in phase {number}: {mark.devices}"
        give_signal(running, f"go{number}")
    outcome = running.wait()
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"


def _holds(bench: Bench, gpus: float) -> bool:
    return bench.held_gpus() == gpus


def gpu_is_lent_meanwhile(bench: Bench) -> None:
    """While as many tasks as there are GPUs are in their CPU phases, another task gets all GPUs and ends."""
    mixed = tuple(
        Task(f"mixed{i}", (), (Phase(0.0, until=("other.ended",)), Phase(1.0, HOLDS)), (1.0, HOLDS))
        for i in range(bench.gpus)
    )
    pipeline = Pipeline("lent", (*mixed, gpu_task("other", gpus=float(bench.gpus))))
    running = bench.start(pipeline, "on")
    for task in mixed:
        wait_for_mark(running, task.name)
    wait_for_mark(running, "other", "end")
    give_signal(running, "other.ended")
    outcome = running.wait()
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"


def preload(bench: Bench) -> None:
    """The next task's load function runs while its predecessor does, no GPU is held for it, and the task runs in the
    process that has loaded."""
    tail = Task("tail", ("head",), (Phase(1.0),), (HOLDS,), loads=True)
    head = Task("head", (), (Phase(0.0, until=("loaded",)),), (2.0,))
    pipeline = Pipeline("preloaded", (head, tail, cpu_task("last", "tail")))
    running = bench.start(pipeline, "on")
    loaded = wait_for_mark(running, "tail", "load")
    assert bench.held_gpus() == 0, f"{counted(bench.held_gpus(), 'GPU')} held for a preload"
    assert not loaded.devices, f"the load function sees devices {loaded.devices}"
    assert not [m for m in marks_of(running) if (m.task, m.what) == ("head", "end")], "head has ended"
    give_signal(running, "loaded")
    outcome = running.wait()
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"
    began = wait_for_mark(running, "tail")
    assert began.pid == loaded.pid, "the task ran in another process than the one that was warm"
    assert len(began.devices) == bench.shows_devices, f"devices seen by the task: {began.devices}"
