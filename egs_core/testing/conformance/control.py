"""What ends before it would by itself: tasks past a limit, and what an operator aborts."""

from __future__ import annotations

from egs_core.runlog.records import Ended, TaskAdded
from egs_core.testing.conformance.bench import Bench, Mark, Outcome, begun, give_signal, wait_for_mark, wait_until
from egs_core.testing.conformance.pipeline import Phase, Pipeline, Task, cpu_task, gpu_task

LONGEST_S = 4.0
"""The limit of a task that would never end: long enough that its code begins first on a busy machine."""


def limits(bench: Bench) -> None:
    """A task past its limit of time ends with its process, says why, and frees its GPU; what waits for it never starts,
    and another pipeline goes on."""
    endless = Task("endless", (), (Phase(1.0, until=("never",)),), max_runtime_s=LONGEST_S)
    tasks = (endless, cpu_task("after", "endless"))
    other = bench.start(Pipeline("other", (cpu_task("patient", until=("go",)),)), "on")
    running = bench.start(Pipeline("limited", tasks), "on")
    mark = wait_for_mark(running, "endless")
    outcome = running.wait()
    read = " ".join((outcome.error, *outcome.said))
    assert outcome.error, "the user gets a value"
    assert "limit" in read, f"the user does not read of the limit: {read!r}"
    assert _outcome_of("endless", outcome) in ("failed", "aborted"), (
        f"by the run log: {_outcome_of('endless', outcome)}"
    )
    _require_gone(bench, mark)
    assert begun(running) == ["endless"], f"tasks that began: {begun(running)}"
    give_signal(other, "go")
    assert other.wait().values == {"patient": "patient()"}, "another pipeline was hit"


def abort_all(bench: Bench) -> None:
    """An aborted pipeline ends: its process is dead, its GPU free, nothing more of it starts, nothing is tried again;
    another pipeline goes on."""
    tasks = (gpu_task("running", until=("never",)), gpu_task("waiting", "running"))
    other = bench.start(Pipeline("other", (cpu_task("patient", until=("go",)),)), "on")
    wait_for_mark(other, "patient")
    aborted = bench.start(Pipeline("aborted", tasks), "on")
    mark = wait_for_mark(aborted, "running")
    aborted.abort()
    outcome = aborted.wait()
    assert outcome.error, f"the user is not told: {outcome}"
    assert _outcome_of("running", outcome) == "aborted", f"by the run log: {_outcome_of('running', outcome)}"
    _require_gone(bench, mark)
    assert begun(aborted) == ["running"], f"tasks that began: {begun(aborted)}"
    give_signal(other, "go")
    assert other.wait().values == {"patient": "patient()"}, "another pipeline was hit"


def abort_one(bench: Bench) -> None:
    """An aborted task ends, and what waits for it never starts; the rest of its pipeline goes on to its end."""
    tasks = (gpu_task("running", until=("never",)), cpu_task("waiting", "running"), cpu_task("apart", until=("go",)))
    running = bench.start(Pipeline("partly", tasks), "on")
    mark = wait_for_mark(running, "running")
    apart = wait_for_mark(running, "apart")
    running.abort("running")
    _require_gone(bench, mark)
    assert bench.is_alive(apart), "a task that does not wait for the aborted one ended with it"
    give_signal(running, "go")
    wait_for_mark(running, "apart", "end")
    running.wait()
    assert sorted(begun(running)) == ["apart", "running"], f"tasks that began: {begun(running)}"


def _outcome_of(name: str, outcome: Outcome) -> str:
    """How a task ended, its last try; "" where the run log does not say. Of others some may have ended before it."""
    names = {record.task: record.name for record in outcome.records if isinstance(record, TaskAdded)}
    ends = (record for record in outcome.records if isinstance(record, Ended))
    found = [record.outcome for record in ends if names.get(record.task) == name]
    return found[-1] if found else ""


def _require_gone(bench: Bench, mark: Mark) -> None:
    wait_until(lambda: not bench.is_alive(mark), f"the process of {mark.task} has ended")
    wait_until(lambda: bench.held_gpus() == 0, "its GPU is free")
