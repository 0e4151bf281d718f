"""Gangs start whole, end whole and start again whole; what they wait for is kept for them."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

G = TaskOptions(gang="g")
RETRY = TaskOptions(gang="g", retries=1)


def stopped(bench: EngineBench) -> list[str]:
    return [bench.state.task_ids[d.task] for d in bench.decisions if isinstance(d, m.Stop)]


def statuses(bench: EngineBench, names: str) -> list[str]:
    return [bench.status(name) for name in names]


def test_starts_whole_or_not_at_all() -> None:
    """Three members on two GPUs and one more to come: none starts before there is room for all."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"a": (), "b": (), "c": ()}, default=(gpu(),), options=dict.fromkeys("abc", G)))
    assert bench.granted() == []
    assert bench.reason("a").kind == "infeasible"
    assert "3 phases of its gang g need 3 GPUs at once" in bench.reason("a").text
    bench.send(m.NodeAdded("n1", 8, 1), 3.0)
    assert statuses(bench, "abc") == ["granted"] * 3


def test_waits_for_the_last_member_to_be_ready() -> None:
    """A member whose predecessor still runs holds up the gang, and is named."""
    bench = EngineBench(8, 2)
    options = {"a": G, "b": G}
    bench.submit(graph_of({"first": (), "a": (), "b": ("first",)}, {"a": (gpu(),), "b": (gpu(),)}, options))
    assert bench.status("a") == "ready"
    assert (bench.reason("a").kind, bench.reason("a").waiting_for) == ("gang", ("b",))
    bench.end("first", 1.0)
    assert statuses(bench, "ab") == ["granted", "granted"]


def test_each_phase_starts_together() -> None:
    """The member that is done with its CPU phase holds nothing until the others are."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"a": (), "b": ()}, default=(cpu(), gpu()), options={"a": G, "b": G}))
    bench.end("a", 1.0)
    assert statuses(bench, "ab") == ["ready", "granted"]
    assert bench.state.nodes[0].devices == [1000, 1000]
    bench.end("b", 2.0)
    assert statuses(bench, "ab") == ["granted", "granted"]
    assert bench.state.nodes[0].devices == [0, 0]


def test_a_lost_member_takes_the_others_back() -> None:
    """One is preempted: the other is stopped, and both start again together as new attempts."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(),), options={"a": G, "b": G}))
    bench.start("a")
    bench.start("b")
    bench.end("a", 1.0, "preempted")
    assert (stopped(bench), statuses(bench, "ab")) == (["b"], ["ready", "running"])
    bench.end("b", 1.5, "aborted")
    assert statuses(bench, "ab") == ["granted", "granted"]
    assert [bench.grant_of(n).attempt for n in "ab"] == [2, 2]


@pytest.mark.parametrize("answer", [m.DecisionRejected, m.DecisionLost])
def test_a_refused_grant_takes_the_others_back(answer: type[m.DecisionRejected] | type[m.DecisionLost]) -> None:
    """The driver cannot start one member: the gang does not run without it."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(),), options={"a": G, "b": G}))
    bench.start("b")
    bench.send(answer(bench.grant_of("a").id))
    assert stopped(bench) == ["b"]
    bench.end("b", 1.0, "preempted")
    bench.send(m.Tick(), 60.0)
    assert statuses(bench, "ab") == ["granted", "granted"]


def test_a_member_with_retries_fails_alone_first() -> None:
    """A failure with retries left starts the gang again; without, it ends the gang and what waits for it."""
    bench = EngineBench(8, 2)
    options = {"a": RETRY, "b": RETRY}
    bench.submit(graph_of({"a": (), "b": (), "after": ("b",)}, {"a": (gpu(),), "b": (gpu(),)}, options))
    bench.end("a", 1.0, "failed")
    bench.end("b", 1.0, "preempted")
    assert statuses(bench, "ab") == ["granted", "granted"]
    bench.end("a", 2.0, "failed")
    assert stopped(bench) == ["b", "b"]
    bench.end("b", 2.0, "aborted")
    assert (bench.status("a"), bench.status("after")) == ("failed", "aborted")
    assert bench.state.workloads[0].open_tasks == 0


def test_aborting_a_member_aborts_the_gang() -> None:
    """An operator who ends one member ends them all, also those that have not started."""
    bench = EngineBench(8, 1)
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(),), options={"a": G, "b": G}))
    bench.abort("task", "a")
    assert statuses(bench, "ab") == ["aborted", "aborted"]


def test_a_member_that_never_runs_ends_the_gang() -> None:
    """Its predecessor failed, so it can never start, nor can the gang."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"first": (), "a": (), "b": ("first",)}, options={"a": G, "b": G}))
    bench.end("first", 1.0, "failed")
    assert statuses(bench, "ab") == ["aborted", "aborted"]


def test_a_skipped_member_holds_up_nobody() -> None:
    """A branch not taken leaves the gang, which is then whole without it."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"first": (), "a": (), "b": ("first",)}, options={"a": G, "b": G}))
    bench.send(m.BranchSkipped(bench.task("b")))
    assert bench.status("a") == "granted"


def test_no_deadlock_between_gangs() -> None:
    """Two gangs of three on four GPUs: one runs, then the other; neither holds a part of what it needs."""
    bench = EngineBench(8, 4)
    names = ("a0", "a1", "a2", "b0", "b1", "b2")
    options = {name: TaskOptions(gang=name[0]) for name in names}
    bench.submit(graph_of(dict.fromkeys(names, ()), default=(gpu(),), options=options))
    assert bench.granted() == ["a0", "a1", "a2"]
    for name in names[:3]:
        bench.end(name, 1.0)
    assert bench.granted()[3:] == ["b0", "b1", "b2"]


def test_small_tasks_pass_only_when_they_end_in_time() -> None:
    """A gang that has waited long for its size: its GPUs are kept from the moment the running task ends by its P95; a
    short task may pass, a long one not."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"runs": ()}, {"runs": (gpu(10.0),)}), "r")
    bench.start("runs")
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(0.2),), options={"a": G, "b": G}), "gang", 0.5)
    bench.submit(graph_of({"early": ()}, {"early": (gpu(1.0),)}), "e", 1.0)
    assert (bench.status("early"), bench.state.reservations) == ("granted", {})
    bench.end("early", 1.9)
    assert [kept.at for kept in bench.state.reservations.values()] == [10.0]
    bench.submit(graph_of({"short": ()}, {"short": (gpu(8.0),)}), "s", 1.9)
    bench.submit(graph_of({"long": ()}, {"long": (gpu(20.0),)}), "l", 1.9)
    assert statuses(bench, "a") == ["ready"]
    assert (bench.status("short"), bench.status("long")) == ("granted", "ready")
    bench.end("short", 9.0)
    assert bench.status("long") == "ready"
    assert bench.reason("long").kind == "reservation"
    assert "kept for gang g on n0 from 10.000 s on" in bench.reason("long").text
    bench.end("runs", 10.0)
    assert statuses(bench, "ab") == ["granted", "granted"]


def test_a_stream_of_small_tasks_does_not_starve_a_gang() -> None:
    """However wrong their estimates are, from the reserved moment on no new small task takes what the gang needs."""
    bench = EngineBench(8, 4, config=EngineConfig())
    options = dict.fromkeys("abcd", G)
    bench.submit(graph_of({f"s{i}": () for i in range(4)}, default=(gpu(2.0),)), "s")
    bench.submit(graph_of(dict.fromkeys("abcd", ()), default=(gpu(5.0),), options=options), "g")
    for step in range(1, 200):
        bench.submit(graph_of({f"t{step}": ()}, {f"t{step}": (gpu(0.5), gpu(90.0))}), f"w{step}", step * 0.5)
        running = [state_name for state_name in bench.granted() if bench.status(state_name) in ("granted", "running")]
        if bench.status("a") == "granted":
            break
        if step % 2 == 0 and running:
            bench.end(running[0], step * 0.5)
    assert bench.status("a") == "granted"


def test_a_late_member_runs_on_its_own() -> None:
    """A task that joins a gang which has started holds up nobody."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"a": (), "b": ()}, default=(cpu(), gpu()), options={"a": G, "b": G}))
    bench.submit(graph_of({"late": ()}, {"late": (cpu(),)}, {"late": G}, known=("a", "b")))
    assert bench.status("late") == "granted"
    bench.end("a", 1.0)
    bench.end("b", 1.0)
    assert statuses(bench, "ab") == ["granted", "granted"]


def test_members_that_depend_on_each_other_are_refused() -> None:
    """They could never start together: the block is refused, also when other gangs are in between."""
    bench = EngineBench(8, 2)
    bench.send(m.WorkloadSubmitted("w"))
    options = {"a": G, "b": G}
    with pytest.raises(ValueError, match="gang"):
        bench.submit(graph_of({"a": (), "x": ("a",), "b": ("x",)}, options=options))
    other = {"a": G, "b": G, "c": TaskOptions(gang="h"), "d": TaskOptions(gang="h")}
    with pytest.raises(ValueError, match="gang"):
        bench.submit(graph_of({"a": (), "d": (), "c": ("a",), "b": ("d",)}, options=other))
    assert bench.state.task_ids == []


def test_a_gang_starts_where_its_later_phases_fit_together() -> None:
    """A task stays on the node on which it starts: two members whose GPU phases need a device each do not both start on
    the node with one, though their first phases would fit there."""
    bench = EngineBench()
    bench.send(m.NodeAdded("small", 2.0, 1))
    bench.send(m.NodeAdded("large", 8.0, 2))
    bench.submit(graph_of({"a": (), "b": ()}, default=(cpu(), gpu()), options={"a": G, "b": G}))
    nodes = [bench.grant_of(n).node for n in "ab"]
    assert sorted(nodes) != ["small", "small"]
    bench.end("a", 1.0)
    bench.end("b", 1.0)
    assert statuses(bench, "ab") == ["granted", "granted"]
