"""Phases move by the table, through every event; late, repeated and unknown events change nothing."""

from __future__ import annotations

import pytest

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ALLOWED, ENDED, HOLDS_LEASE, OUTCOMES, STATUS_NAMES
from egs_core.engine.state.state import State
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, canonical, cpu, gpu, graph_of


def chain(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: names[max(0, i - 1) : i] for i, name in enumerate(names)}


def test_table_is_closed() -> None:
    """Every status has a row, and rows name only statuses; what is over for good goes nowhere."""
    assert set(ALLOWED) == set(range(len(STATUS_NAMES)))
    assert all(next_ < len(STATUS_NAMES) for row in ALLOWED.values() for next_ in row)
    assert {s for s in ENDED if not ALLOWED[s]} == {
        STATUS_NAMES.index(n) for n in ("succeeded", "failed", "aborted", "skipped")
    }
    assert set(OUTCOMES.values()) <= ENDED
    assert not HOLDS_LEASE & ENDED


@pytest.mark.parametrize("old", range(len(STATUS_NAMES)))
@pytest.mark.parametrize("new", range(len(STATUS_NAMES)))
def test_moves_follow_the_table(old: int, new: int) -> None:
    """The state refuses, by name, every move that the table does not list."""
    bench = EngineBench()
    bench.submit(graph_of({"a": ()}))
    state: State = bench.state
    state.status[0] = old
    if new in ALLOWED[old]:
        state._move(0, new)
        assert state.status[0] == new
    else:
        with pytest.raises(ValueError, match=f"'a' cannot go from {STATUS_NAMES[old]} to {STATUS_NAMES[new]}"):
            state._move(0, new)


def test_a_chain_runs_one_after_the_other() -> None:
    """Ready, granted, running, succeeded; the child follows when its parent has ended."""
    bench = EngineBench(2)
    (grant,) = bench.submit(graph_of(chain("a", "b")))
    assert isinstance(grant, m.Grant)
    assert (grant.phase, grant.task, grant.attempt, grant.node, grant.reason) == (0, 0, 1, "n0", "only_candidate")
    assert (bench.status("a"), bench.status("b")) == ("granted", "pending")
    bench.start("a", 1.0)
    assert bench.status("a") == "running"
    bench.end("a", 3.0)
    assert (bench.status("a"), bench.status("b")) == ("succeeded", "granted")
    bench.end("b")  # an end without its start is taken as both
    assert bench.state.workloads[0].open_tasks == 0
    assert not bench.state.leases


def test_each_phase_holds_only_its_own() -> None:
    """A task's CPU phase leaves the GPU to others; its phases go in order, on one node."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"a": (), "b": ()}, default=(cpu(), gpu(), cpu())))
    node = bench.state.nodes[0]
    assert (node.free_cpu, node.devices) == (0, [1000])
    bench.end("a")
    assert bench.grant_of("a").devices == (0,)
    assert (node.free_cpu, node.devices) == (1000, [0])
    bench.end("b")
    assert bench.status("b") == "ready"
    bench.end("a")
    assert bench.granted() == ["a", "b", "a", "b", "a"]
    for name in ("b", "a", "b"):
        bench.end(name)
    assert (node.free_cpu, node.devices) == (2000, [1000])


def test_failure_takes_the_descendants_along() -> None:
    """A task that failed without retries ends what waits for it, and the workload has failed; the rest goes on."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",), "c": ("b",), "d": ()}))
    bench.end("a", outcome="failed")
    assert [bench.status(n) for n in "abcd"] == ["failed", "aborted", "aborted", "granted"]
    bench.end("d")
    assert (bench.state.workloads[0].failed, bench.state.workloads[0].open_tasks) == (True, 0)


def test_retries_start_the_task_anew() -> None:
    """A failed task with retries left runs again from its first phase, under a new attempt number."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(), cpu())}, {"a": TaskOptions(retries=1)}))
    bench.end("a")
    bench.end("a", outcome="failed")
    assert (bench.grant_of("a").phase, bench.grant_of("a").attempt) == (0, 2)
    bench.end("a", outcome="failed")
    assert bench.status("a") == "failed"
    assert bench.state.status == [OUTCOMES["failed"], OUTCOMES["aborted"]]


def test_only_failed_attempts_count_as_retries() -> None:
    """An attempt that was preempted, or lost with its node, uses up none of the task's retries."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}, options={"a": TaskOptions(retries=1)}))
    bench.end("a", outcome="preempted")
    bench.send(m.NodeLost("n0"))
    bench.send(m.NodeAdded("n0", 1))
    bench.end("a", outcome="failed")
    assert (bench.grant_of("a").attempt, bench.status("a")) == (4, "granted")
    bench.end("a", outcome="failed")
    assert (bench.status("a"), bench.state.failures) == ("failed", {})


def test_preempted_runs_again_without_using_a_retry() -> None:
    """A preempted phase goes back to ready, behind what became ready before."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ()}))
    bench.end("a", outcome="preempted")
    assert bench.granted() == ["a", "b"]
    bench.end("b")
    assert (bench.grant_of("a").attempt, bench.status("a")) == (2, "granted")


def test_aborted_by_itself_ends_the_task() -> None:
    """An `aborted` end that nobody asked for is final."""
    bench = EngineBench(1)
    bench.submit(graph_of(chain("a", "b")))
    bench.end("a", outcome="aborted")
    assert (bench.status("a"), bench.status("b")) == ("aborted", "aborted")


def test_an_unknown_outcome_is_refused() -> None:
    """A wrong word is an error of the driver, and changes nothing."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    with pytest.raises(ValueError, match="unknown outcome 'done'; one of succeeded, failed"):
        bench.end("a", outcome="done")
    assert bench.status("a") == "granted"
    assert bench.engine.take_transitions() == []


def test_finished_early() -> None:
    """A task whose code leaves out its later phases is done; its children go on, its resources are free."""
    bench = EngineBench(1, 1)
    bench.submit(graph_of(chain("a", "b"), {"a": (cpu(), gpu(), cpu())}))
    bench.end("a")
    assert bench.status("a") == "granted"
    bench.send(m.TaskFinished(0, 2))  # of another attempt
    assert bench.status("a") == "granted"
    bench.send(m.TaskFinished(0, 1))
    assert (bench.status("a"), bench.status("b")) == ("succeeded", "granted")
    assert bench.state.nodes[0].devices == [1000]
    bench.send(m.TaskFinished(0, 1))
    bench.send(m.TaskFinished(1, 7))
    bench.send(m.TaskFinished(99, 1))
    assert bench.status("b") == "granted"


def test_skipped_branch_counts_as_done() -> None:
    """What waits only for a skipped task runs; a started task cannot be skipped."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",), "c": ("b",), "d": ("b", "a")}))
    bench.send(m.BranchSkipped(bench.task("b")))
    assert [bench.status(n) for n in "abcd"] == ["granted", "skipped", "ready", "pending"]
    bench.send(m.BranchSkipped(bench.task("a")))
    assert bench.status("a") == "granted"
    bench.end("a")
    assert bench.granted() == ["a", "c"]
    bench.send(m.BranchSkipped(bench.task("d")))
    bench.end("c")
    assert bench.state.workloads[0].open_tasks == 0
    assert not bench.state.workloads[0].failed


def test_late_repeated_and_unknown_events_change_nothing() -> None:
    """Numbers that are outdated, done or never were are ignored, whatever the event."""
    bench = EngineBench(1)
    bench.submit(graph_of(chain("a", "b")))
    bench.start("a")
    bench.end("a")
    bench.end("b", outcome="preempted")
    settled = canonical(bench.state)
    old = [
        m.PhaseStarted(0, 1),
        m.PhaseEnded(0, 1, "failed"),
        m.PhaseEnded(1, 1),  # the attempt before
        m.PhaseStarted(1, 1),
        m.PhaseEnded(99, 1),
        m.PhaseEnded(-1, 1),
        m.DecisionApplied(1),
        m.DecisionRejected(1),
        m.DecisionLost(1),
        m.DecisionLost(999),
        m.PreloadReady(0),
        m.PreloadReady(-5),
        m.PreloadFailed(99),
        m.BranchSkipped(0),
        m.BranchSkipped(-1),
        m.BranchSkipped(99),
        m.TaskFinished(0, 1),
        m.NodeLost("other"),
        m.WorkloadSubmitted("w", "again"),
        m.Estimates(((99, 1.0, 2.0), (-1, 1.0, 2.0), (0, float("nan"), 1.0), (0, -1.0, 1.0), (0, 1.0, float("inf")))),
        m.AbortRequested("task", "99"),
        m.AbortRequested("task", "-1"),
        m.AbortRequested("workload", "other"),
        m.AbortRequested("stage", "other/x"),
        m.Tick(),
    ]
    for event in old:
        assert bench.send(event) == [], event
        assert canonical(bench.state) == settled, event


def test_a_block_that_is_no_graph_is_refused_whole() -> None:
    """An unknown workload, a cycle, a parent that is not there and a task without phases change nothing."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    settled = canonical(bench.state)
    cycle = graph_of({"b": ("c",), "c": ("b",)}, known=["a"])
    missing = graph_of({"b": ()}, known=["a"])
    missing.parents[0] = (7,)
    empty = graph_of({"b": ()}, {"b": ()}, known=["a"])
    empty.phase_offsets[-1] = 0
    for block, problem in ((cycle, "cycle"), (missing, "does not exist"), (empty, "without phases")):
        with pytest.raises(ValueError, match=problem):
            bench.engine.handle(m.TasksAdded("w", block), 0.0)
    with pytest.raises(ValueError, match="unknown workload 'x'"):
        bench.engine.handle(m.TasksAdded("x", graph_of({"b": ()})), 0.0)
    assert canonical(bench.state) == settled
    assert bench.engine.take_transitions() == []


def test_now_never_goes_back() -> None:
    """An event that carries an earlier time is taken at the latest time seen."""
    bench = EngineBench(1)
    bench.submit(graph_of(chain("a", "b")), at=10.0)
    bench.start("a", 5.0)
    assert bench.state.started_at[0] == 10.0
    bench.end("a", 8.0)
    assert (bench.state.now, bench.state.ready_at[1]) == (10.0, 10.0)
