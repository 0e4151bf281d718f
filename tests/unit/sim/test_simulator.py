"""The simulator: exact virtual times by hand, repeatable to the bit, and every invariant after every event."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import POLICIES, Engine
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.errors import InputError
from egs_core.graph.bounds import lower_bound
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.merging import merge_phases
from egs_core.runlog import records as r
from egs_core.runlog.metrics import summarise
from egs_core.sim import Durations, SimConfig, SimNode, SimResult
from egs_core.sim import simulate as run_simulation
from egs_core.sim.simulator import Simulation
from egs_core.testing.engine_bench import PhaseSpec, cpu, gpu, graph_of

ONE_GPU = SimConfig(nodes=(SimNode("n", 4.0, 1),))


def simulate(
    workloads: list[LoadedWorkload],
    config: SimConfig,
    estimator: Callable[[LoadedWorkload, int], tuple[float, float]] | None = None,
) -> SimResult:
    """With every invariant held after every event."""
    return run_simulation(workloads, config, estimator, Engine.validate_state)


def workload(graph: Graph, name: str = "w", arrival_s: float = 0.0) -> LoadedWorkload:
    return LoadedWorkload(name, name, "", "", arrival_s, graph)


def starts(result: SimResult) -> dict[tuple[str, int], float]:
    return {(x.task, x.phase): x.t for x in result.records if isinstance(x, r.Started)}


def mixed(count: int, *phases: PhaseSpec) -> Graph:
    return graph_of({f"t{i}": () for i in range(count)}, default=phases)


def test_two_mixed_tasks_share_a_gpu_without_holding_it_idle() -> None:
    """a: c gg c · b: c..gg c (one GPU, 1 + 2 + 1 s): 6 s, GPU held 4 s and used 4 s."""
    result = simulate([workload(mixed(2, cpu(1.0), gpu(2.0), cpu(1.0)))], ONE_GPU)
    assert result.makespan_s == 6.0
    assert starts(result)["t1", 1] == 3.0
    metrics = summarise(result.records)
    assert (metrics.gpu_held_s, metrics.gpu_used_s, metrics.wastage_effective) == (4.0, 4.0, 0.0)


def test_without_split_they_hold_it_throughout() -> None:
    """The same tasks as one phase each: 8 s, the GPU held all the time."""
    config = msgspec.structs.replace(ONE_GPU, split=False)
    result = simulate([workload(mixed(2, cpu(1.0), gpu(2.0), cpu(1.0)))], config)
    assert result.makespan_s == 8.0
    assert summarise(result.records).gpu_held_s == 8.0


def test_merged_phases_hold_the_largest_of_each_resource() -> None:
    """Kind GPU if any phase is, seconds added up, an unknown one makes the sum unknown."""
    graph = graph_of({"a": (), "b": ()}, {"a": (cpu(1.0, 4.0), gpu(2.0, 2.0, 1.0)), "b": (cpu(1.0), cpu(None))})
    merged = merge_phases(graph)
    assert merged.phase_offsets == [0, 1, 2]
    assert [merged.shapes[s] for s in merged.phase_shape] == [Shape(4000, 2000), Shape(1000)]
    assert (merged.phase_kind, merged.phase_duration_s) == ([GPU, CPU], [3.0, None])
    assert graph.phase_offsets == [0, 2, 4]


WARM = TaskOptions(warm_key="k", warmup_s=3.0)


@pytest.mark.parametrize(("preload", "makespan_s"), [(True, 12.0), (False, 15.0)])
def test_a_preload_hides_the_cold_start(preload: bool, makespan_s: float) -> None:
    """load 10 s → train on a GPU 2 s, 3 s to warm up: loaded ahead it starts at 10 s, else it is loaded first."""
    graph = graph_of({"load": (), "train": ("load",)}, {"load": (cpu(10.0),), "train": (gpu(2.0),)}, {"train": WARM})
    config = msgspec.structs.replace(ONE_GPU, preload=preload)
    result = simulate([workload(graph)], config)
    assert result.makespan_s == makespan_s
    metrics = summarise(result.records)
    assert metrics.gpu_held_s == (2.0 if preload else 5.0)
    assert metrics.cold_starts == (0 if preload else 1)
    assert (metrics.preload.preloads, metrics.preload.used) == ((1, 1) if preload else (0, 0))


def test_a_gpu_is_not_held_for_the_first_loading() -> None:
    """Nothing could be loaded ahead: the GPU is idle for the warm-up, then held for the work alone."""
    result = simulate([workload(graph_of({"a": ()}, {"a": (gpu(2.0),)}, {"a": WARM}))], ONE_GPU)
    assert (result.makespan_s, summarise(result.records).gpu_held_s) == (5.0, 2.0)


def test_warmup_factor_scales_the_loading() -> None:
    """Twice as long."""
    config = msgspec.structs.replace(ONE_GPU, warmup_factor=2.0)
    assert simulate([workload(graph_of({"a": ()}, {"a": (gpu(2.0),)}, {"a": WARM}))], config).makespan_s == 8.0


def test_a_cpu_first_task_takes_over_what_is_loading() -> None:
    """Its process was started 1.3 s before it began: it waits for the 1.7 s that are left, not for 3 s."""
    options = {"b": WARM}
    graph = graph_of({"a": (), "b": ("a",)}, {"a": (cpu(2.4),), "b": (cpu(5.0),)}, options)
    result = simulate([workload(graph)], ONE_GPU)
    cold = [x for x in result.records if isinstance(x, r.ColdStart)]
    preload = next(x for x in result.records if isinstance(x, r.PreloadStarted))
    assert preload.t == 0.0
    assert [(x.t, x.end_t) for x in cold] == [(2.4, 3.0)]
    assert result.makespan_s == 8.0


def transfers() -> Graph:
    """a writes 100 MB that b reads; both need a whole node's CPUs but run on different nodes for want of memory."""
    graph = graph_of({"a": (), "b": ("a",)}, {"a": (cpu(1.0, 2.0),), "b": (cpu(1.0, 4.0),)})
    graph.file_ids, graph.file_sizes = ["f"], [100_000_000]
    graph.outputs, graph.inputs = {0: (0,)}, {1: (0,)}
    return graph


@pytest.mark.parametrize(("bandwidth", "makespan_s"), [(None, 2.0), (50e6, 4.0)])
def test_files_between_nodes_take_their_time(bandwidth: float | None, makespan_s: float) -> None:
    """The reader pays for what was written on another node: 100 MB at 50 MB/s are 2 s."""
    nodes = (SimNode("small", 2.0), SimNode("large", 4.0))
    config = SimConfig(nodes=nodes, bandwidth_bytes_per_s=bandwidth)
    result = simulate([workload(transfers())], config)
    assert {x.node for x in result.records if isinstance(x, r.Started)} == {"small", "large"}
    assert result.makespan_s == makespan_s


def test_files_on_the_same_node_are_there() -> None:
    """No transfer where the reader runs on the writer's node."""
    config = SimConfig(nodes=(SimNode("one", 4.0),), bandwidth_bytes_per_s=50e6)
    assert simulate([workload(transfers())], config).makespan_s == 2.0


def test_arrivals_and_completion_times_in_the_order_given() -> None:
    """The later workload is listed first: times are told by workload; the makespan is from the first arrival."""
    late, early = workload(mixed(1, cpu(2.0)), "late", 7.0), workload(mixed(1, cpu(1.0)), "early", 5.0)
    result = simulate([late, early], SimConfig(slots=4))
    assert (result.jct_s, result.makespan_s) == ([2.0, 1.0], 4.0)


def test_workloads_that_share_an_id_are_told_apart() -> None:
    """The same file twice: both run, each under a name of its own."""
    same = workload(mixed(1, cpu(2.0)))
    result = simulate([same, same], SimConfig(slots=1))
    assert result.jct_s == [2.0, 4.0]
    assert [x.workload for x in result.records if isinstance(x, r.WorkloadEnded)] == ["w#0", "w#1"]


def test_failures_are_seeded() -> None:
    """The same seed fails the same phases at the same moments; what waited for them is aborted."""
    graph = graph_of({f"a{i}": () for i in range(30)} | {f"b{i}": (f"a{i}",) for i in range(30)})
    config = SimConfig(slots=4, failure_rate=0.3, seed=5)
    first, again = (simulate([workload(graph)], config) for _ in range(2))
    assert first.records == again.records
    outcomes = summarise(first.records).outcomes
    assert outcomes["failed"] > 3
    assert first.failed == ["w"]
    assert first.phases < 60


def test_retries_go_on_after_failures() -> None:
    """With retries enough the workload succeeds."""
    options = {f"t{i}": TaskOptions(retries=50) for i in range(10)}
    graph = graph_of(dict.fromkeys(options, ()), options=options)
    result = simulate([workload(graph)], SimConfig(slots=2, failure_rate=0.5))
    assert (result.failed, summarise(result.records).outcomes["succeeded"]) == ([], 10)


def long_and_short() -> Graph:
    """On two slots: longest first ends at 8 s, in the order of the list at 10 s."""
    graph = graph_of({"s1": (), "s2": (), "s3": (), "s4": (), "long": (), "end": ()})
    graph.phase_duration_s = [2.0, 2.0, 2.0, 2.0, 6.0, 2.0]
    return graph


@pytest.mark.parametrize(
    ("durations", "makespan_s"), [(Durations.EXACT, 8.0), (Durations.BLIND, 10.0), (Durations.PREDICTED, 8.0)]
)
def test_the_engine_sees_only_what_it_is_told(durations: Durations, makespan_s: float) -> None:
    """Phases take what the trace says; only an engine that knows or is told the lengths takes the long one first."""
    graph = long_and_short()
    config = SimConfig(slots=2, durations=durations)
    believed = (lambda w, p: (w.graph.phase_duration_s[p] or 0.0, 9.0)) if durations is Durations.PREDICTED else None
    assert simulate([workload(graph)], config, believed).makespan_s == makespan_s


def test_predictions_reach_the_records() -> None:
    """Each grant carries the estimate of that moment, p95 included."""
    graph = mixed(2, cpu(4.0))
    config = SimConfig(slots=1, durations=Durations.PREDICTED)
    result = simulate([workload(graph)], config, lambda _w, p: (2.0 + p, 5.0 + p))
    granted = {x.task: (x.estimate_p50_s, x.estimate_p95_s) for x in result.records if isinstance(x, r.Granted)}
    assert granted == {"t0": (2.0, 5.0), "t1": (3.0, 6.0)}


def test_predicted_needs_an_estimator() -> None:
    """Not silently exact."""
    with pytest.raises(ValueError, match="estimator"):
        simulate([workload(mixed(1, cpu(1.0)))], SimConfig(slots=1, durations=Durations.PREDICTED))


def test_unknown_durations_and_impossible_tasks_are_input_errors() -> None:
    """Both name the workload and the task."""
    with pytest.raises(InputError, match="w: task 't1': its duration is unknown"):
        simulate([workload(graph_of({"t0": (), "t1": ()}, {"t1": (cpu(None),)}))], SimConfig(slots=1))
    with pytest.raises(InputError, match="w: task 'big': can never run here: needs 8 CPUs; no node has more than 4"):
        simulate([workload(graph_of({"t0": (), "big": ("t0",)}, {"big": (cpu(1.0, 8.0),)}))], ONE_GPU)


def test_a_simulation_can_be_stopped_and_asked() -> None:
    """At 2 s the second task waits for the GPU, and says so; then the run goes on to the same end."""
    simulation = Simulation([workload(mixed(2, cpu(1.0), gpu(2.0), cpu(1.0)))], ONE_GPU)
    assert simulation.advance(2.0)
    assert simulation.engine.explain(1).kind == "capacity"
    assert simulation.run().makespan_s == 6.0
    assert not simulation.step()


@pytest.mark.slow  # each policy twice
@pytest.mark.parametrize("policy", POLICIES)
def test_runs_are_repeatable_to_the_bit(policy: str) -> None:
    """The same inputs give the same records, under every policy."""
    graph = graph_of(
        {f"t{i}": [f"t{j}" for j in range(max(0, i - 7), i, 3)] for i in range(60)},
        {f"t{i}": (cpu(1.0 + i % 5), gpu(0.5 + i % 3), cpu(0.1)) for i in range(0, 60, 2)},
        {f"t{i}": TaskOptions(warm_key=f"k{i % 3}", warmup_s=1.0, max_wait_s=20.0) for i in range(0, 60, 4)},
    )
    config = SimConfig(nodes=(SimNode("a", 3.0, 1), SimNode("b", 2.0, 2)), policy=policy, seed=3, failure_rate=0.02)
    first, again = (simulate([workload(graph), workload(graph, "v", 4.0)], config) for _ in range(2))
    assert first.records == again.records
    assert first.makespan_s == again.makespan_s


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 10), st.sets(st.integers(0, 30), max_size=3)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from(list(POLICIES)),
)
def test_no_run_beats_the_bound_and_none_wastes_slots(
    tasks: list[tuple[float, set[int]]], slots: int, policy: str
) -> None:
    """LB2 <= makespan, and a greedy order is within work / slots + critical path (Graham's bound)."""
    graph = Graph()
    for number, (seconds, parents) in enumerate(tasks):
        graph.add_task(f"t{number}", tuple(sorted(p for p in parents if p < number)), ((CPU, Shape(), seconds),))
    result = simulate([workload(graph)], SimConfig(slots=slots, policy=policy))
    work = sum(seconds for seconds, _ in tasks)
    assert lower_bound(graph, slots) <= result.makespan_s * (1 + 1e-9) + 1e-9
    assert result.makespan_s <= work / slots + lower_bound(graph, len(tasks)) + 1e-6
    assert result.phases == len(tasks)


def test_without_records_the_run_is_the_same() -> None:
    """Records are only written down: times and counts do not change."""
    graph = mixed(5, cpu(1.0), gpu(2.0))
    with_records = simulate([workload(graph)], ONE_GPU)
    without = simulate([workload(graph)], msgspec.structs.replace(ONE_GPU, records=False))
    assert (without.makespan_s, without.jct_s, without.phases) == (
        with_records.makespan_s,
        with_records.jct_s,
        with_records.phases,
    )
    assert without.records == []
    assert without.phases_per_s > 0


def test_lent_quota_is_taken_back_and_checkpoints_save_work() -> None:
    """The borrower is stopped at 50 s with 40 s of its work saved, and goes on when the lender has ended: by hand."""
    only_b = tuple(QueueSpec(name, "lab", (UNLIMITED, 1000 * owns, UNLIMITED)) for name, owns in (("a", 0), ("b", 1)))
    config = msgspec.structs.replace(ONE_GPU, queues=only_b, preempt=True, checkpoint_s=20.0, restart_s=5.0)
    borrower, lender = workload(mixed(1, gpu(100.0))), workload(mixed(1, gpu(10.0)), arrival_s=50.0)
    borrower.queue, lender.queue = "a", "b"
    result = simulate([borrower, lender], config)
    assert result.jct_s == [50.0 + 10.0 + 5.0 + 60.0, 10.0]
    patient = simulate([borrower, lender], msgspec.structs.replace(config, preempt=False))
    assert patient.jct_s == [100.0, 60.0]
    forgetful = simulate([borrower, lender], msgspec.structs.replace(config, checkpoint_s=0.0))
    assert forgetful.jct_s == [50.0 + 10.0 + 5.0 + 100.0, 10.0]
