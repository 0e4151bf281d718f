"""A framework that starts its tasks by itself: the engine follows what it says of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}


def saw(bench: EngineBench, at: float, since_s: float = 0.0, **tasks: str) -> list[m.Decision]:
    """All of these at once; what runs, on the node n0."""
    sights = [m.Sight(bench.task(name), status, "n0", since_s) for name, status in tasks.items()]
    return bench.send(m.TasksSeen(tuple(sights)), at)


def test_the_framework_starts_another_than_was_granted() -> None:
    """The grant goes back, and what was started has the slot; no grant of it is told. When it is over, the first one
    is granted again."""
    bench = EngineBench(1)
    bench.submit(graph_of({"long": [], "short": []}, {"long": (cpu(9.0),), "short": (cpu(1.0),)}))
    assert bench.granted() == ["long"]
    assert saw(bench, 1.0, short="running") == []
    assert (bench.status("short"), bench.status("long")) == ("running", "ready")
    saw(bench, 3.0, short="over")
    assert (bench.status("short"), bench.granted()) == ("succeeded", ["long", "long"])


def test_what_was_kept_is_open_once_its_owner_is_seen_running(mocker: MockerFixture) -> None:
    """A place is kept for a phase that has waited too long, and the framework starts it by itself: late submissions,
    which are not asked while something is kept that is not theirs, are asked again."""
    bench = EngineBench(4, gpus=2)
    bench.submit(graph_of({"long": [], "short": []}, {"long": (gpu(100.0),), "short": (gpu(50.0),)}))
    wide = graph_of({"wide": []}, {"wide": (gpu(10.0, 2),)}, options={"wide": TaskOptions(max_wait_s=1.0)})
    bench.submit(wide, "v")
    bench.send(m.Tick(), 5.0)
    assert list(bench.state.reservations) == [bench.state.cursor[bench.task("wide")]]
    changed = mocker.spy(bench.engine._queue, "reservations_changed")
    saw(bench, 6.0, long="over", short="over", wide="running")
    assert (bench.status("wide"), dict(bench.state.reservations)) == ("running", {})
    assert changed.call_count == 1


def test_what_is_granted_is_decided_anew() -> None:
    """A grant that the framework has not followed is no claim: seen as ready, it competes with what has come since."""
    bench = EngineBench(1)
    bench.submit(graph_of({"short": []}))
    bench.submit(graph_of({"urgent": []}, options={"urgent": TaskOptions(priority=5)}), "v")
    assert bench.granted() == ["short"]
    saw(bench, 1.0, short="ready")
    assert (bench.status("short"), bench.status("urgent")) == ("ready", "granted")


def test_readiness_is_the_frameworks() -> None:
    """A task is ready, or runs, before what stands before it has ended; one that is to wait is granted nothing; a try
    that was given up waits for its next one, and its dependents with it."""
    bench = EngineBench(4)
    bench.submit(graph_of(CHAIN))
    saw(bench, 0.0, a="waiting")
    assert bench.status("a") == "pending"
    saw(bench, 1.0, a="ready")
    assert bench.status("a") == "granted"
    saw(bench, 2.0, a="running", c="running", b="ready")
    assert [bench.status(name) for name in "abc"] == ["running", "granted", "running"]
    attempt = bench.state.attempt[bench.task("a")]
    saw(bench, 3.0, a="waiting", b="waiting", c="ready")
    assert [bench.status(name) for name in "abc"] == ["pending", "pending", "granted"]
    assert bench.state.attempt[bench.task("a")] > attempt
    saw(bench, 4.0, a="over", b="over", c="over")
    assert bench.state.workloads[0].open_tasks == 0


def test_ranks_follow_what_is_waited_for() -> None:
    """A task that does not wait for another adds nothing to that one's path."""
    bench = EngineBench(1)
    tasks = {"a": [], "after": ["a"], "b": []}
    bench.submit(graph_of(tasks, {"a": (cpu(1.0),), "after": (cpu(50.0),), "b": (cpu(9.0),)}))
    assert bench.granted() == ["a"]
    saw(bench, 0.0, a="ready", after="ready")
    assert bench.granted()[1:] == ["after"]
    bench.send(m.NodeAdded("n0", 2.0))
    assert bench.granted()[2:] == ["b"]


def test_times_of_before() -> None:
    """What is told says since when: how long it has waited counts, and how long it has run."""
    bench = EngineBench(1)
    options = {"large": TaskOptions(max_wait_s=30.0)}
    bench.submit(graph_of({"held": []}, {"held": (cpu(60.0),)}))
    bench.submit(graph_of({"large": [], "small": []}, {"small": (cpu(90.0),)}, options), "v")
    saw(bench, 5.0, held="running", since_s=40.0)
    assert bench.state.started_at[bench.state.cursor[bench.task("held")]] == -35.0
    saw(bench, 5.0, since_s=31.0, large="ready", small="ready")
    assert bench.state.reservations[bench.state.cursor[bench.task("large")]].at == pytest.approx(25.0)


def test_what_means_nothing() -> None:
    """Unknown tasks, nodes and tasks that have ended change nothing; an unknown status is an error."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": []}))
    saw(bench, 1.0, a="over")
    for sight in (m.Sight(7, "over"), m.Sight(-1, "ready"), m.Sight(0, "running", "n0"), m.Sight(0, "ready")):
        assert bench.send(m.TasksSeen((sight,))) == []
    bench.submit(graph_of({"b": []}), "v")
    assert bench.send(m.TasksSeen((m.Sight(bench.task("b"), "running", "none"),))) == []
    with pytest.raises(ValueError, match="unknown status 'lost'"):
        bench.send(m.TasksSeen((m.Sight(bench.task("b"), "lost"),)))


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(st.integers(0, 2**32), st.booleans())
def test_the_state_is_what_was_seen(seed: int, is_gpu: bool) -> None:
    """Whatever is said in whatever order, beside grants that the engine gives out: the invariants hold, and what was
    seen as running or over is that; a batch that is repeated changes none of it."""
    rng = random.Random(seed)
    bench = EngineBench(0 if is_gpu else 3, 3, config=EngineConfig(default_max_wait_s=rng.choice([None, 2.0])))
    names, phase = [f"t{n}" for n in range(8)], gpu if is_gpu else cpu
    edges = {name: [p for p in names[:n] if rng.random() < 0.3] for n, name in enumerate(names)}
    options = {name: TaskOptions(warm_key=rng.choice("xy"), warmup_s=1.0, warm_cpu_milli=0) for name in names[::3]}
    phases = {name: (phase(rng.choice([1.0, 5.0, 30.0])),) for name in names}
    bench.submit(graph_of(edges, phases, options))
    now_s, over, running = 0.0, set[str](), set[str]()
    for _ in range(40):
        now_s += rng.choice([0.0, 0.5, 3.0])
        said: dict[str, str] = {}
        for name in rng.sample(names, rng.randint(1, 4)):
            status = rng.choice(m.SIGHTS)
            will_run = running - said.keys() | {n for n in said if said[n] == "running"}
            if status != "running" or name in running or len(will_run) < 3:
                said[name] = status
        for _ in range(2):
            saw(bench, now_s, rng.choice([0.0, 1.0, 7.0]), **said)
        for name in said.keys() - over:
            running.discard(name)
            if said[name] == "running":
                running.add(name)
            elif said[name] == "over":
                over.add(name)
        assert {name for name in names if bench.status(name) == "running"} == running
        assert {name for name in names if bench.status(name) in ("succeeded", "skipped")} == over
        for preload in [d for d in bench.decisions if isinstance(d, m.Preload)][-2:]:
            bench.send(m.PreloadReady(preload.task, preload.id))
