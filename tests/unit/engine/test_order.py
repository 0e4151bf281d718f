"""The policies' order, term by term, and the reason that each grant carries."""

from __future__ import annotations

import pytest

from benchmarks.engine_world import World
from egs_core.engine import POLICIES, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order.policy import EGS, DownstreamWeight, make_policy
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, graph_of

TASKS = {"busy": (), "leaf": (), "short": (), "root": (), "mid": ("root",), "end": ("mid",), "wide": ()} | {
    f"w{i}": ("wide",) for i in range(4)
}
SECONDS = {"leaf": 9.0, "short": 0.5, "root": 2.0, "mid": 4.0, "end": 4.0, "wide": 1.0}


def order_under(policy: str, seed: int = 0) -> list[str]:
    """Names in the order of their starts on one slot, each ending before the next."""
    bench = EngineBench(1, config=EngineConfig(policy, seed=seed))
    bench.submit(graph_of(TASKS, {name: (cpu(s),) for name, s in SECONDS.items()}))
    while bench.state.leases:
        bench.end(bench.granted()[-1], bench.now + 1)
    return bench.granted()


def firsts(policy: str, seed: int = 0) -> list[str]:
    """The order of the tasks that are ready from the start."""
    return [name for name in order_under(policy, seed) if name in ("busy", "leaf", "short", "root", "wide")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("dependents", ["root", "leaf", "wide", "busy", "short"]),
        ("egs", ["root", "leaf", "wide", "busy", "short"]),
        ("heft", ["root", "leaf", "wide", "busy", "short"]),
        ("fifo", ["busy", "leaf", "short", "root", "wide"]),
        ("sjf", ["short", "busy", "wide", "root", "leaf"]),
        ("airflow-downstream", ["wide", "root", "busy", "leaf", "short"]),
    ],
)
def test_each_policy_orders_by_its_own_terms(policy: str, expected: list[str]) -> None:
    """root: path 10 s, 3 tasks · leaf: 9 s · wide: 2 s, 5 tasks · busy: 1 s · short: 0.5 s."""
    assert firsts(policy) == expected


def test_every_policy_runs_everything_once() -> None:
    """Whatever the order, every task is granted once."""
    for policy in POLICIES:
        assert sorted(order_under(policy)) == sorted(TASKS)


def test_random_is_a_function_of_the_seed() -> None:
    """The same seed gives the same order, and ten seeds give more than five."""
    orders = {tuple(order_under("random", seed)) for seed in range(10)}
    assert order_under("random", 3) == order_under("random", 3)
    assert len(orders) > 5


def test_airflow_weights_count_distinct_descendants() -> None:
    """A diamond's top weighs 4, not 5: what two paths reach counts once; growth is counted too."""
    bench = EngineBench(0)
    bench.submit(graph_of({"top": (), "l": ("top",), "r": ("top",), "bottom": ("l", "r")}))
    weight = DownstreamWeight()
    assert [weight(bench.state, p) for p in range(4)] == [-4, -2, -2, -1]
    bench.submit(graph_of({"more": ("bottom",)}, known=["top", "l", "r", "bottom"]))
    assert [weight(bench.state, p) for p in range(5)] == [-5, -3, -3, -2, -1]


def test_airflow_order_follows_growth() -> None:
    """A queued task that gets descendants in a later block moves forward, also when its rank stays."""
    bench = EngineBench(1, config=EngineConfig("airflow-downstream"))
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"a": (), "b": ()}, default=(cpu(0.0),)))
    bench.submit(graph_of({"c": ("b",)}, default=(cpu(0.0),), known=["a", "b"]))
    bench.end("busy")
    assert bench.granted()[-1] == "b"


def test_the_fused_key_is_the_terms() -> None:
    """The function for the hot path gives what the list of terms gives, in all states of a random world."""
    world = World(EngineConfig(), [m.NodeAdded("n", 2.0, 1)], [(i * 7919) % 65521 for i in range(600)])
    world.run()
    state = world.bench.state
    assert len(state.kind) > 30
    for phase in range(len(state.kind)):
        assert EGS.key(state, phase) == (*[term(state, phase) for term in EGS.terms], phase)


def test_reasons_name_the_deciding_term() -> None:
    """Each grant says in which term it was better than the next in order."""
    bench = EngineBench(1)
    options = {"urgent": TaskOptions(priority=5)}
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"urgent": (), "long": (), "a": (), "b": ()}, {"long": (cpu(5.0),)}, options))
    for name in ("busy", "urgent", "long", "a", "b"):
        assert bench.granted()[-1] == name
        bench.end(name)
    assert [bench.grant_of(n).reason for n in ("urgent", "long", "a", "b")] == [
        "priority",
        "remaining_path",
        "ready_order",
        "only_candidate",
    ]


def test_jobs_go_by_expected_time_and_after_what_others_wait_for() -> None:
    """Of workloads of one task the one with the shortest mean goes first, which is not always the one with the shortest
    median; a task that another waits for goes before them; a workload that grows is no such job any more."""
    bench = EngineBench(1, config=EngineConfig(policy="dependents"))
    bench.submit(graph_of({"busy": ()}, {"busy": (cpu(1.0),)}), "other")
    for name, seconds in (("long", 9.0), ("skewed", 4.0), ("short", 5.0), ("grows", 8.0)):
        bench.submit(graph_of({name: ()}, {name: (cpu(seconds),)}), name)
    bench.send(m.Estimates(((bench.state.first_phase[bench.task("skewed")], 4.0, 40.0),)))
    bench.submit(graph_of({"head": (), "tail": ("head",)}), "chain")
    bench.submit(graph_of({"more": ("grows",)}, known=("grows",)), "grows")
    while len(bench.granted()) < 8:
        bench.end(bench.granted()[-1])
    assert bench.granted() == ["busy", "grows", "head", "more", "tail", "short", "long", "skewed"]


def test_a_gang_that_is_a_workload_is_a_job() -> None:
    """The shorter of two gangs goes first, though the longer one came first."""
    bench = EngineBench(2, config=EngineConfig(policy="dependents"))
    bench.submit(graph_of({"x": (), "y": ()}), "first")
    for workload, seconds in (("slow", 9.0), ("quick", 2.0)):
        names = {f"{workload}{i}": () for i in range(2)}
        options = dict.fromkeys(names, TaskOptions(gang="g"))
        bench.submit(graph_of(names, default=(cpu(seconds),), options=options), workload)
    bench.end("x", 1.0)
    bench.end("y", 1.0)
    assert bench.granted()[2:] == ["quick0", "quick1"]


def test_estimates_move_what_is_queued() -> None:
    """A longer estimate for a grandchild moves its waiting ancestor forward, and a shorter one back."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(
        graph_of({"a": (), "b": (), "b2": ("b",), "b3": ("b2",), "c": ()}, {"a": (cpu(8.0),), "c": (cpu(9.0),)})
    )
    last = bench.state.first_phase[bench.task("b3")]
    bench.send(m.Estimates(((last, 100.0, 120.0),)))
    assert bench.state.rank_s[bench.state.first_phase[bench.task("b")]] == 102.0
    assert bench.state.estimate_p95_s[last] == 120.0
    bench.end("busy")
    assert bench.granted()[-1] == "b"
    bench.send(m.Estimates(((bench.state.first_phase[bench.task("c")], 0.5, 0.1),)))
    bench.end("b")
    assert bench.granted()[-1] == "b2"
    bench.end("b2")
    bench.end("b3")
    assert bench.granted()[-2:] == ["b3", "a"]


def test_an_unknown_policy_is_a_key_error() -> None:
    """The engine takes names of `POLICIES` only."""
    with pytest.raises(KeyError):
        make_policy("best")


def test_between_equals_the_warm_one_goes_first() -> None:
    """a and b are equal and ready at once, a first; but b's process is warm, so it starts first, for that reason."""
    options = {
        "a": TaskOptions(warm_key="ka", warmup_s=0.1, warm_cpu_milli=0),
        "b": TaskOptions(warm_key="kb", warmup_s=4.0, warm_cpu_milli=0),
    }
    bench = EngineBench()
    bench.send(m.NodeAdded("n", cpus=1, preload_slots=1, process_slots=4))
    bench.submit(graph_of({"busy": (), "a": ("busy",), "b": ("busy",)}, {"busy": (cpu(5.0),)}, options))
    bench.start("busy")
    bench.send(m.Tick(), at=1.0)
    assert bench.preloaded() == ["b"]
    bench.send(m.PreloadReady(bench.task("b")), at=4.5)
    bench.end("busy", at=5.0)
    assert bench.granted()[-1] == "b"
    assert bench.grant_of("b").reason == "warmth"


@pytest.mark.parametrize("policy", ["egs", "least-work"])
def test_of_two_overdue_tasks_age_is_the_reason(policy: str) -> None:
    """Both have waited longer than they may: the one that has waited longer goes first, and is told so, although the
    other's path is longer."""
    bench = EngineBench(1, config=EngineConfig(policy, default_max_wait_s=1.0))
    bench.submit(graph_of({"busy": (), "old": ()}, {"busy": (cpu(50.0),), "old": (cpu(1.0),)}))
    bench.submit(graph_of({"young": (), "after": ("young",)}, default=(cpu(9.0, 0.5),), known=("busy", "old")), at=0.5)
    bench.end("busy", 5.0)
    assert (bench.granted()[-1], bench.grant_of("old").reason) == ("old", "overdue")
