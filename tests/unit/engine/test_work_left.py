"""The policy `least-work`: the workload that is nearest to its end goes first."""

from __future__ import annotations

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order.work_left import step_of
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, graph_of

LEAST = EngineConfig(policy="least-work")


def two_workloads(policy: str) -> EngineBench:
    """A long one of which a part is done, and then a short one, on one slot that is busy."""
    bench = EngineBench(1, config=EngineConfig(policy=policy, search_placements=0))
    bench.submit(graph_of({"busy": ()}, default=(cpu(1.0),)), "other")
    bench.submit(graph_of({"l0": (), "l1": ("l0",), "l2": ("l1",)}, default=(cpu(10.0),)), "long")
    bench.submit(graph_of({"s0": (), "s1": ("s0",)}, default=(cpu(1.0),)), "short")
    return bench


def test_the_workload_with_less_work_left_goes_first() -> None:
    """The short one is over first, though its path is shorter; with `dependents` the long one has the slot."""
    bench = two_workloads("least-work")
    for name in ("busy", "s0", "s1", "l0"):
        assert bench.granted()[-1] == name
        bench.end(name)
    assert bench.grant_of("s0").reason == "work_left"
    native = two_workloads("dependents")
    native.end("busy")
    assert native.granted()[-1] == "l0"


def test_a_workload_moves_forward_as_its_work_is_done() -> None:
    """One of 4 s waits behind one of 10 s with 8 s done: what is left counts, not what there was."""
    bench = EngineBench(1, config=LEAST)
    bench.submit(graph_of({f"a{i}": (f"a{i - 1}",) if i else () for i in range(5)}, default=(cpu(2.0),)), "a")
    for i in range(3):
        bench.end(f"a{i}")
    bench.submit(graph_of({"b0": (), "b1": ("b0",)}, default=(cpu(3.0),)), "b")
    bench.end("a3")
    assert bench.granted()[-1] == "a4"


def test_within_a_workload_the_longest_path_goes_first() -> None:
    """Rule 2 orders the tasks of one workload as ever."""
    bench = EngineBench(1, config=LEAST)
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"leaf": (), "head": (), "tail": ("head",)}))
    bench.end("busy")
    assert bench.granted()[-1] == "head"
    assert bench.grant_of("head").reason == "remaining_path"


def test_estimates_move_workloads() -> None:
    """A workload that turns out to be longer makes way."""
    bench = EngineBench(1, config=LEAST)
    bench.submit(graph_of({"busy": ()}), "other")
    for name in "ab":
        bench.submit(graph_of({f"{name}0": (), f"{name}1": (f"{name}0",)}, default=(cpu(2.0),)), name)
    bench.send(m.Estimates(((bench.state.first_phase[bench.task("a1")], 50.0, 60.0),)))
    bench.end("busy")
    assert bench.granted()[-1] == "b0"


def test_waiting_too_long_goes_before_the_work_left() -> None:
    """`max_wait` keeps a large workload from waiting behind a stream of small ones."""
    bench = EngineBench(1, config=LEAST)
    bench.submit(graph_of({"busy": ()}), "other")
    large = {"l0": (), "l1": ("l0",)}
    bench.submit(graph_of(large, default=(cpu(90.0),), options={"l0": TaskOptions(max_wait_s=5.0)}), "large")
    bench.submit(graph_of({"s0": (), "s1": ("s0",)}), "small")
    bench.send(m.Tick(), at=6.0)
    bench.end("busy")
    assert bench.granted()[-1] == "l0"
    assert bench.grant_of("l0").reason == "overdue"


def test_a_restored_engine_counts_the_same() -> None:
    """What is left is not in the snapshot: counted again it puts the workloads in the same order."""
    bench = two_workloads("least-work")
    again = Engine.restore(bench.engine.snapshot(), LEAST)
    phase = bench.state.first_phase[bench.task("busy")]
    for engine in (bench.engine, again):
        engine.handle(m.PhaseStarted(phase, 1), 1.0)
    assert again.handle(m.PhaseEnded(phase, 1), 1.0) == bench.engine.handle(m.PhaseEnded(phase, 1), 1.0)


def test_steps_are_half_powers_of_two() -> None:
    """Twice the work is two steps more; nothing left is the first of all."""
    assert step_of(0) == 0
    assert [step_of(1000 * 2**n) - step_of(1000) for n in range(5)] == [0, 2, 4, 6, 8]
    assert step_of(1400) - step_of(1000) == 1
