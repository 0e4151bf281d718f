"""Whatever of EGS breaks, the pipeline ends as it would without EGS, after at most a few lines to the user."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.testing.conformance.bench import LATER, Bench, give_signal, run, wait_for_mark, wait_until
from egs_core.testing.conformance.pipeline import HOLDS, Pipeline, cpu_task, gpu_task

MOST_LINES = 2  # the warning, and what the hook says at its end anyway
NAMES_ITS_RUN_LOG = "egs: run log: "  # what `run` says in the end, whatever happened
WARNED = ("disk", "engine")  # what EGS cannot mend, and what costs the user something

# Something runs, something waits for it, and something waits for a GPU.
PIPELINE = Pipeline(
    "faulty",
    (
        gpu_task("first", until=("go",)),
        gpu_task("second", "first"),
        *(gpu_task(f"leaf{i}", seconds=HOLDS) for i in range(4)),
        cpu_task("last", "second", "leaf0"),
    ),
)


def fail_open(how: str) -> Callable[[Bench], None]:
    """The scenario for one of `BREAKAGES`."""

    def check(bench: Bench) -> None:
        running = bench.start(PIPELINE, "on", how)
        wait_for_mark(running, "first")
        if how in LATER:
            running.break_now(how)
        give_signal(running, "go")
        outcome = running.wait()
        assert outcome.values == PIPELINE.values, f"what the user got: {outcome.values} {outcome.error} {outcome.said}"
        said = [line for line in outcome.said if not line.startswith(NAMES_ITS_RUN_LOG)]
        assert len(said) <= MOST_LINES, f"EGS said {len(said)} lines: {said}"
        assert len(outcome.said) <= len(said) + 1, f"the run log is named more than once: {outcome.said}"
        assert outcome.said or how not in WARNED, "the user is not warned"
        wait_until(lambda: bench.held_gpus() == 0, "no GPU is held any more")

    return check


def off_is_off(bench: Bench) -> None:
    """The pipeline that the faults are injected into gives the same natively: what they are held against is right."""
    pipeline = Pipeline("plain", (gpu_task("first"), *PIPELINE.tasks[1:]))
    outcome = run(bench, pipeline, "native")
    assert outcome.values == pipeline.values, f"what the user got: {outcome.values} {outcome.error}"
    assert not outcome.said, f"EGS speaks where it is off: {outcome.said}"
