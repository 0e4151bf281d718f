"""What EGS makes of a pipeline, and that watching it changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.errors import InputError
from egs_core.runlog.records import Ended
from egs_core.testing.conformance.bench import Bench, Mode, begun, edges_in, marks_of, run
from egs_core.testing.conformance.pipeline import HOLDS, Phase, Pipeline, Task, cpu_task, gpu_task

# A diamond with a long edge, and a task on its own.
DIAMOND = Pipeline(
    "diamond",
    (
        cpu_task("load"),
        gpu_task("left", "load", seconds=0.1),
        gpu_task("right", "load", seconds=0.1),
        cpu_task("join", "left", "right", "load"),
        cpu_task("apart"),
    ),
)
FAILING = Pipeline("failing", (Task("bad", (), (Phase(1.0),), fails=True), cpu_task("after", "bad")))


def convert(bench: Bench) -> None:
    """Every task and every edge is in the run log, and values go where they should; what EGS cannot represent is an
    error that names it."""
    mode: Mode = "on" if bench.capabilities()["order"] == "yes" else "observe"
    outcome = run(bench, DIAMOND, mode)
    expected = {task.name: tuple(sorted(task.after)) for task in DIAMOND.tasks}
    assert edges_in(outcome.records) == expected, f"edges in the run log: {edges_in(outcome.records)}"
    assert outcome.values == DIAMOND.values, f"what the user got: {outcome.values} {outcome.error}"
    for named, call in bench.refusals():
        problem = _refusal(call)
        assert problem, f"'{named}' was converted, and is nothing that a task graph can say"
        assert named in problem, f"the error does not name '{named}': {problem}"


def _refusal(call: Callable[[], object]) -> str:
    """What the InputError of this call says; "" when it raises none."""
    try:
        call()
    except InputError as error:
        return str(error)
    return ""


def observe_changes_nothing(bench: Bench) -> None:
    """Observed, a pipeline gives the framework the same as natively, to the last option, and the user gets the same."""
    for pipeline in (DIAMOND, FAILING):
        native, observed = run(bench, pipeline, "native"), run(bench, pipeline, "observe")
        assert native.submitted, "the bench does not show what the framework was given"
        more = sorted(set(observed.submitted) - set(native.submitted))
        less = sorted(set(native.submitted) - set(observed.submitted))
        assert native.submitted == observed.submitted, f"observed only: {more}; natively only: {less}"
        assert (native.values, native.error) == (observed.values, observed.error), f"{native} became {observed}"
        assert len(observed.said) <= 1, f"more than one line to the user: {observed.said}"
        ended = {r.task for r in observed.records if isinstance(r, Ended)}
        assert len(ended) >= len(pipeline.tasks) - 1, f"ends in the run log: {ended}"  # `after` never started


def failures_stay_the_users(bench: Bench) -> None:
    """A task that raises: with EGS on, the user gets the same exception, and what waits for the task never starts."""
    native, running = run(bench, FAILING, "native"), bench.start(FAILING, "on")
    outcome = running.wait()
    assert native.error, "natively the failing task does not fail"
    assert (outcome.error, outcome.values) == (native.error, native.values), f"{native} became {outcome}"
    assert begun(running) == ["bad"], f"tasks that began: {begun(running)}"


def audit(bench: Bench) -> None:
    """From the framework's own history of a native run: the GPU time that tasks held is what they held."""
    pipeline = Pipeline("audited", (gpu_task("short", seconds=HOLDS), gpu_task("long", seconds=4 * HOLDS)))
    running = bench.start(pipeline, "native")
    outcome = running.wait()
    held = bench.audit(outcome)
    assert set(held) == {"short", "long"}, f"tasks that held GPUs: {sorted(held)}"
    times = {(m.task, m.what): m.at for m in marks_of(running)}
    for name in held:
        least_s = times[name, "end"] - times[name, "begin"]
        assert held[name] >= 0.9 * least_s, f"{name} held a GPU for {least_s:.2f} s, audited are {held[name]:.2f}"
    assert held["long"] > held["short"], f"the longer one held less: {held}"
