"""Queues: nominal quotas, borrowing and lending, fair share, and what `explain` says of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, Amounts, QueueSpec
from egs_core.engine.state.records import QueueState, smoothed_at
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of


def gpus(number: float | None) -> Amounts:
    """Amounts that limit nothing but GPUs."""
    return UNLIMITED, UNLIMITED if number is None else round(number * 1000), UNLIMITED


def bench_of(devices: int, *queues: QueueSpec) -> EngineBench:
    bench = EngineBench(16, devices)
    bench.send(m.QueuesChanged(queues))
    return bench


def submit(bench: EngineBench, queue: str, names: str, phases: Sequence[PhaseSpec], at: float | None = None) -> None:
    workload = f"{queue}-{len(bench.state.workloads)}"
    bench.send(m.WorkloadSubmitted(workload, queue=queue), at)
    bench.submit(graph_of(dict.fromkeys(names.split(), ()), default=phases), workload, at)


def test_a_cohort_that_uses_more_than_its_quotas_is_found() -> None:
    """Two queues use a GPU each. Granted under quotas of one GPU together, that is an error; when the quotas
    have become smaller since, it is not."""
    small = QueueSpec("a", "lab", gpus(0)), QueueSpec("b", "lab", gpus(1))
    bench = bench_of(4, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))
    submit(bench, "a", "a0", (gpu(),))
    submit(bench, "b", "b0", (gpu(),))
    bench.send(m.QueuesChanged(small))
    bench.engine.validate_state()
    other = bench_of(4, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))
    submit(other, "a", "a0", (gpu(),))
    submit(other, "b", "b0", (gpu(),))
    for queue, spec in zip(other.state.queues, small, strict=True):
        queue.spec = spec
    with pytest.raises(AssertionError, match=r"cohort of \['a', 'b'\]: 2000 gpus used of 1000"):
        other.engine.validate_state()


def test_a_queue_gets_no_more_than_its_quota() -> None:
    """One queue on its own stops at its nominal quota though a GPU is idle, and says whose quota it is."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(2)))
    submit(bench, "a", "a0 a1 a2", (gpu(),))
    assert bench.granted() == ["a0", "a1"]
    assert bench.reason("a2").kind == "quota"
    assert "queue 'a' has no quota for that, its nominal quota is 2 GPUs and it uses 2 GPUs" in bench.reason("a2").text
    bench.end("a0", 1.0)
    assert bench.status("a2") == "granted"


def test_what_is_held_is_the_reason_where_a_quota_is_no_less_than_the_devices() -> None:
    """Alone, and with what a cohort lends: who waits is told what lacks. Where others hold some in other pools, or the
    queue may not borrow as much, it is the quota that has to come free."""
    for queues in (
        (QueueSpec("a", nominal=gpus(2)), QueueSpec("b")),
        (QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1))),
    ):
        bench = bench_of(2, *queues)
        submit(bench, "a", "a0", (gpu(),))
        submit(bench, "b", "b0", (gpu(),))
        submit(bench, "a", "a1 a2", (gpu(),))
        assert bench.reason("a2").kind == "capacity"
        assert "n0 has 0 of 2 GPUs wholly free" in bench.reason("a2").text
        bench.end("b0")
        assert (bench.status("a1"), bench.reason("a2").kind) == ("granted", "capacity")
    bench.send(m.UsedElsewhere((m.Elsewhere("b", (0, 1000, 0)),)))
    assert bench.reason("a2").kind == "quota"
    bench = bench_of(2, QueueSpec("a", "lab", gpus(1), borrowing_limit=gpus(0)), QueueSpec("b", "lab", gpus(1)))
    submit(bench, "a", "a0 a1", (gpu(),))
    submit(bench, "b", "b0", (gpu(),))
    assert bench.reason("a1").kind == "quota"


def test_idle_quota_is_borrowed_within_a_cohort() -> None:
    """What the other queue leaves idle may be used, up to its lending limit; outside of the cohort nothing is lent."""
    lender = QueueSpec("lender", "lab", gpus(3), lending_limit=gpus(2))
    bench = bench_of(8, QueueSpec("a", "lab", gpus(1)), lender, QueueSpec("alone", nominal=gpus(2)))
    submit(bench, "a", "a0 a1 a2 a3", (gpu(),))
    assert bench.granted() == ["a0", "a1", "a2"]
    submit(bench, "lender", "l0 l1", (gpu(),))
    assert (bench.status("l0"), bench.status("l1")) == ("granted", "ready")
    bench.end("a0", 1.0)
    assert (bench.status("l1"), bench.status("a3")) == ("granted", "ready")


def test_borrowing_has_its_limit() -> None:
    """A queue with a fixed quota (nothing borrowed, nothing lent) neither takes nor gives."""
    fixed = QueueSpec("fixed", "lab", gpus(1), gpus(0), gpus(0))
    bench = bench_of(8, fixed, QueueSpec("a", "lab", gpus(2), borrowing_limit=gpus(1)), QueueSpec("b", "lab", gpus(3)))
    submit(bench, "fixed", "f0 f1", (gpu(),))
    submit(bench, "a", "a0 a1 a2 a3", (gpu(),))
    assert (bench.status("f0"), bench.status("f1")) == ("granted", "ready")
    assert [bench.status(f"a{i}") for i in range(4)] == ["granted"] * 3 + ["ready"]


def test_a_cpu_stage_takes_no_gpu_quota() -> None:
    """A team in its CPU stage holds no GPU quota, whatever its priority: the others' GPUs stay theirs."""
    bench = bench_of(2, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))
    submit(bench, "a", "a0 a1", (cpu(5.0), gpu(5.0)))
    submit(bench, "b", "b0 b1", (gpu(1.0),), 1.0)
    assert [bench.status(n) for n in ("a0", "a1", "b0", "b1")] == ["granted"] * 4
    assert bench.state.queues[1].used == [0, 2000, 0]
    bench.end("b0", 2.0)
    bench.end("a0", 5.0)
    assert bench.status("a0") == "granted"


def test_what_no_waiting_brings_is_said() -> None:
    """More than nominal quota and all that may be borrowed: infeasible, with the numbers."""
    bench = bench_of(8, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(2), lending_limit=gpus(1)))
    submit(bench, "a", "big", (gpu(1.0, gpus=4.0),))
    assert bench.reason("big").kind == "infeasible"
    assert "needs 4 GPUs: queue 'a' has no quota for that, its nominal quota is 1 GPU" in bench.reason("big").text


def test_within_quota_goes_before_borrowing() -> None:
    """The GPU that comes free goes to the queue that is within its nominal quota, whatever waited longer."""
    bench = bench_of(2, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))
    submit(bench, "a", "a0 a1 a2", (gpu(9.0),))
    submit(bench, "b", "b0", (gpu(1.0),), 1.0)
    assert bench.status("b0") == "ready"
    bench.end("a0", 2.0)
    assert (bench.status("b0"), bench.grant_of("b0").reason) == ("granted", "nominal_quota")


def test_shares_follow_weights() -> None:
    """Two queues of weights 2 and 1 that always have work share six GPUs four to two."""
    bench = bench_of(6, QueueSpec("a", "lab", gpus(3), weight=2.0), QueueSpec("b", "lab", gpus(3)))
    bench.send(m.NodeLost("n0"))
    submit(bench, "b", " ".join(f"b{i}" for i in range(9)), (gpu(1.0),))
    submit(bench, "a", " ".join(f"a{i}" for i in range(9)), (gpu(1.0),))
    spec = m.NodeAdded("n0", 16, 6)
    bench.send(m.QueuesChanged((QueueSpec("a", "lab", gpus(6), weight=2.0), QueueSpec("b", "lab", gpus(6)))))
    bench.send(spec)
    started = [name[0] for name in bench.granted()]
    assert (started.count("a"), started.count("b")) == (4, 2)


def test_who_has_used_less_lately_goes_first() -> None:
    """After one queue has used all for long, the other goes first until that is forgotten."""
    queues = [QueueSpec(n, "lab", gpus(2), half_life_s=100.0) for n in ("a", "b")]
    bench = bench_of(2, *queues)
    submit(bench, "a", "a0 a1", (gpu(200.0),))
    submit(bench, "a", "a2", (gpu(1.0),), 100.0)
    submit(bench, "b", "b0", (gpu(1.0),), 150.0)
    bench.end("a0", 200.0)
    assert (bench.status("b0"), bench.grant_of("b0").reason) == ("granted", "fair_share")


def test_order_within_a_queue_is_the_policy() -> None:
    """A priority counts among the tasks of one queue, not against another queue's share."""
    bench = bench_of(1, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))
    submit(bench, "a", "running", (gpu(10.0),))
    bench.send(m.WorkloadSubmitted("w", queue="a"))
    urgent = TaskOptions(priority=9)
    bench.submit(graph_of({"low": (), "high": ()}, default=(gpu(1.0),), options={"high": urgent}), "w")
    submit(bench, "b", "other", (gpu(1.0),))
    bench.end("running", 10.0)
    assert bench.granted()[1:] == ["other"]
    bench.end("other", 11.0)
    bench.end("high", 12.0)
    assert bench.granted()[2:] == ["high", "low"]


def test_a_changed_configuration_keeps_what_is_used() -> None:
    """Quotas may be taken away under running work: it goes on, and nothing new starts until it fits again."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(3)))
    submit(bench, "a", "a0 a1 a2 a3", (gpu(),))
    bench.send(m.QueuesChanged((QueueSpec("a", nominal=gpus(1)),)))
    bench.end("a0", 1.0)
    bench.end("a1", 1.0)
    assert bench.status("a3") == "ready"
    bench.end("a2", 2.0)
    assert bench.status("a3") == "granted"
    bench.send(m.QueuesChanged(()))
    submit(bench, "a", "free0 free1 free2", (gpu(),))
    assert bench.status("free2") == "granted"


def test_a_gang_counts_as_a_whole() -> None:
    """Three members against a quota of two never start; explain says so with the sum."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(2)))
    bench.send(m.WorkloadSubmitted("w", queue="a"))
    options = dict.fromkeys("xyz", TaskOptions(gang="g"))
    bench.submit(graph_of(dict.fromkeys("xyz", ()), default=(gpu(),), options=options), "w")
    assert bench.granted() == []
    assert bench.reason("y").kind == "infeasible"
    assert "needs 3 GPUs: queue 'a' has no quota" in bench.reason("y").text


@pytest.mark.parametrize("half_life_s", [0.0, 1e-9, 1e12])
def test_smoothing_bears_odd_half_lives(half_life_s: float) -> None:
    """No overflow, and never more than what was used."""
    queue = QueueState(QueueSpec("q", half_life_s=half_life_s))
    queue.use((1000, 0, 0), 1, 5.0)
    assert 0 <= smoothed_at(queue, 1e9)[0] <= 1000


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=60), st.data())
@settings(max_examples=60, deadline=None)
def test_quotas_are_kept(moves: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """Whatever comes and goes: a cohort never uses more than its nominal quotas, a queue never more than its own and
    its borrowing limit, and what a queue does not lend is there for it."""
    amounts = st.integers(0, 4)
    specs = [
        QueueSpec(f"q{i}", "lab", gpus(data.draw(amounts)), gpus(data.draw(amounts)), gpus(data.draw(amounts)))
        for i in range(3)
    ]
    bench = bench_of(6, *specs)
    for number, (queue, size, ends) in enumerate(moves):
        if ends and bench.state.leases:
            phase = min(bench.state.leases)
            attempt = bench.state.attempt[bench.state.task_of[phase]]
            bench.send(m.PhaseEnded(phase, attempt), float(number))
        else:
            submit(
                bench,
                f"q{queue}",
                f"t{number}",
                (gpu(1.0, gpus=1.0 if size > 1 else 0.25 * (size + 1)),),
                float(number),
            )
        used = [q.used[1] for q in bench.state.queues]
        assert sum(used) <= sum(spec.nominal[1] for spec in specs)
        for spec, amount in zip(specs, used, strict=True):
            assert amount <= spec.nominal[1] + spec.borrowing_limit[1]
        lent = [max(0, u - s.nominal[1]) for u, s in zip(used, specs, strict=True)]
        assert sum(lent) <= sum(min(s.lending_limit[1], s.nominal[1]) for s in specs)


@pytest.mark.parametrize(
    "queues", [(), (QueueSpec("a"),), (QueueSpec("a", "lab", gpus(2)), QueueSpec("b", "lab", gpus(0)))]
)
def test_in_a_queue_priority_goes_before_what_takes_less_of_its_share(queues: tuple[QueueSpec, ...]) -> None:
    """Two GPUs come free together: the task with the higher priority gets both, though one that needs a single GPU
    waits in the same queue. So it is without queues, and where the other queue has work of its own, too."""
    bench = bench_of(2, *queues)
    submit(bench, "a", "running", (gpu(gpus=2),))
    for name, number, priority in (("low", 1, 0), ("high", 2, 10)):
        bench.send(m.WorkloadSubmitted(name, queue="a"))
        options = {name: TaskOptions(priority=priority)}
        bench.submit(graph_of({name: ()}, default=(gpu(gpus=number),), options=options), name)
    if len(queues) > 1:  # no quota is left for it
        submit(bench, "b", "other", (gpu(),))
    ours = [bench.task("high"), bench.task("low")]
    assert [task for p in bench.engine.ready_order() if (task := bench.state.task_of[p]) in ours] == ours
    bench.end("running", 1.0)
    assert bench.granted()[-1] == "high"
