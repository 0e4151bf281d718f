"""What another engine has begun, and what is held until all of it is told."""

from __future__ import annotations

import random

import msgspec
import pytest

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules import quota
from egs_core.engine.specs import NO_QUEUE, UNLIMITED, QueueSpec
from egs_core.engine.state.lifecycle import RUNNING
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.testing.engine_bench import EngineBench, canonical, cpu, gpu, graph_of

ONE = QueueSpec("one", nominal=(UNLIMITED, 1000, UNLIMITED))


def begun(graph: Graph, /, **said: m.Begun) -> tuple[m.Begun, ...]:
    """With the places of the named tasks in the block."""
    return tuple([msgspec.structs.replace(one, task=graph.ids.index(name)) for name, one in said.items()])


def running(since_s: float = 5.0, **more: object) -> m.Begun:
    return msgspec.structs.replace(m.Begun(0, node="n0", since_s=since_s), **more)


def add(bench: EngineBench, graph: Graph, queue: str = "", /, **said: m.Begun) -> list[m.Decision]:
    """As the workload w, with what is said of its tasks by name."""
    bench.send(m.WorkloadSubmitted("w", queue=queue))
    return bench.send(m.TasksAdded("w", graph, begun(graph, **said)))


def test_what_runs_counts_before_what_waits_of_the_same_block() -> None:
    """One GPU: no grant while the task runs that was begun elsewhere, and of that one none is told. It has run since
    then, in its attempt; its end is the next one's turn."""
    bench = EngineBench(4, 1)
    graph = graph_of({"first": (), "runs": (), "last": ()}, default=(gpu(),))
    assert add(bench, graph, runs=running(attempt=3)) == []
    phase = bench.state.cursor[bench.task("runs")]
    assert (bench.status("runs"), bench.state.started_at[phase], bench.state.attempt[1]) == ("running", -5.0, 3)
    bench.send(m.PhaseEnded(phase, 2))
    assert bench.status("runs") == "running", "an earlier attempt's end was taken for this one's"
    bench.end("runs", 1.0)
    assert bench.granted() == ["first"]


def test_above_a_quota_and_beyond_what_is_free() -> None:
    """Three run where the quota has one GPU and the node two: all of them count, the node has less than nothing, and
    nothing is granted until two have ended and the last one too; then one."""
    bench = EngineBench(16, 2)
    bench.send(m.QueuesChanged((ONE,)))
    names = [f"r{n}" for n in range(3)]
    graph = graph_of(dict.fromkeys([*names, "waits", "later"], ()), default=(gpu(),))
    add(bench, graph, "one", **{name: running(devices=(0,)) for name in names})
    assert (bench.state.queues[0].used[1], sum(bench.state.nodes[0].devices)) == (3000, -1000)
    assert "uses 3 GPUs" in bench.reason("waits").text
    for name in names[:2]:
        assert bench.end(name) == []
    bench.end("r2")
    assert bench.granted() == ["waits"]


def test_devices_are_kept_while_they_are_free() -> None:
    """It has the device that it is said to have; two that say the same one count on both, so that neither is given."""
    bench = EngineBench(16, 3)
    graph = graph_of(dict.fromkeys("abc", ()), default=(gpu(),))
    add(bench, graph, a=running(devices=(2,)), b=running(devices=(2,)))
    assert [bench.state.leases[n].devices for n in range(2)] == [(2,), (0,)]
    assert bench.grant_of("c").devices == (1,)


def test_between_two_phases() -> None:
    """The first phase was done elsewhere: the second one is granted on the task's own node, for its attempt, and its
    end is the task's."""
    bench = EngineBench(4, 1)
    bench.send(m.NodeAdded("n1", 4, 1))
    graph = graph_of({"a": (), "after": ("a",)}, {"a": (cpu(), gpu(), cpu())})
    add(bench, graph, a=m.Begun(0, 2, node="n1", index=1))
    grant = bench.grant_of("a")
    assert (grant.phase, grant.node, grant.attempt) == (1, "n1", 2)
    bench.end("a")
    assert bench.grant_of("a").phase == 2
    bench.end("a")
    assert bench.granted() == ["a", "a", "after"]


def test_failures_of_before_count() -> None:
    """Of two retries one is left."""
    bench = EngineBench(4)
    graph = graph_of({"a": ()}, options={"a": TaskOptions(retries=2)})
    add(bench, graph, a=running(attempt=2, failures=1))
    bench.end("a", outcome="failed")
    assert bench.status("a") == "granted"
    bench.end("a", outcome="failed")
    assert bench.status("a") == "failed"


def test_time_of_before_counts_for_a_limit() -> None:
    """Eight of ten seconds have passed: it is stopped after two."""
    bench = EngineBench(4)
    graph = graph_of({"a": ()}, options={"a": TaskOptions(max_runtime_s=10.0)})
    add(bench, graph, a=running(8.0))
    assert bench.engine.next_wakeup() == 2.0
    assert [type(one) for one in bench.send(m.Tick(), 2.0)] == [m.Stop]


def test_a_gang_comes_whole_or_begins_anew() -> None:
    """All members run: they are taken over, and their next phases start together. One is missing: none is."""
    gang = {name: TaskOptions(gang="g") for name in "ab"}
    graph = graph_of({"a": (), "b": ()}, options=gang, default=(cpu(), cpu()))
    whole = EngineBench(4)
    assert add(whole, graph, a=running(), b=running()) == []
    whole.end("a")
    assert whole.decisions == []
    whole.end("b")
    assert [(one.task, one.phase) for one in whole.decisions if isinstance(one, m.Grant)] == [(0, 1), (1, 3)]
    part = EngineBench(4)
    add(part, graph, a=running(attempt=2))
    assert (part.granted(), part.grant_of("a").attempt) == (["a", "b"], 2)


def test_what_nobody_can_take_over_begins_anew() -> None:
    """An unknown node, phase or task; what is said of it besides is kept, and nothing fails."""
    bench = EngineBench(4)
    graph = graph_of({"a": (), "b": ()})
    add(bench, graph, a=running(node="gone"), b=running(index=7))
    assert bench.granted() == ["a", "b"]
    bench.send(m.TasksAdded("w", graph_of({"c": ()}, known="ab"), (m.Begun(9, node="n0", since_s=0.0),)))
    assert bench.granted()[2:] == ["c"]


def test_nothing_is_granted_while_grants_are_held() -> None:
    """What comes meanwhile waits, and says so; at the end the first in order goes first, not the first that came. 0
    ends it at once. A restored engine holds as long."""
    bench = EngineBench(1)
    bench.send(m.GrantsHeld(5.0))
    bench.submit(graph_of({"low": ()}))
    bench.submit(graph_of({"high": ()}, options={"high": TaskOptions(priority=9)}), "v")
    assert (bench.granted(), bench.reason("low").kind, bench.engine.next_wakeup()) == ([], "start", 5.0)
    twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
    assert bench.send(m.Tick(), 4.9) == twin.handle(m.Tick(), 4.9) == []
    assert bench.send(m.Tick(), 5.0) == twin.handle(m.Tick(), 5.0)
    assert bench.granted() == ["high"]
    other = EngineBench(1)
    other.send(m.GrantsHeld(5.0))
    other.submit(graph_of({"a": ()}))
    other.send(m.GrantsHeld(0.0))
    assert other.granted() == ["a"]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 200), marks=pytest.mark.slow)], ids=["few", "all"])
def test_whatever_is_taken_over_no_grant_is_above_a_quota(seeds: range) -> None:
    """Blocks with tasks in any state, ends, failures, holds and changed nodes in any order: every invariant holds and
    the transitions fold to the state (the bench's), what is told as running runs at once, each grant was within its
    queue's quota and on free devices when it was given, and a restored engine decides the same."""
    for seed in seeds:
        take_over(seed)


def take_over(seed: int) -> None:
    rng = random.Random(seed)
    config = EngineConfig(default_max_wait_s=rng.choice([None, 3.0]), preempt=rng.random() < 0.3)
    bench = EngineBench(rng.choice([0, 8]), 3, config=config)
    quotas = [
        QueueSpec(name, rng.choice(["", "lab"]), (UNLIMITED, 1000 * rng.randint(0, 2), UNLIMITED)) for name in "xy"
    ]
    bench.send(m.QueuesChanged(tuple(quotas)))
    bench.send(m.NodeAdded("n1", 4, 1))
    for step in range(25):
        at = bench.now + rng.choice([0.0, 0.5, 4.0])
        open_phases = list(bench.state.leases)
        kind = rng.random()
        if kind < 0.4:
            event: m.Event = some_block(rng, bench, step)
        elif kind < 0.8 and open_phases:
            phase = rng.choice(open_phases)
            attempt = bench.state.attempt[bench.state.task_of[phase]]
            event = m.PhaseEnded(phase, attempt, rng.choice(["succeeded", "succeeded", "failed", "preempted"]))
        elif kind < 0.9:
            event = m.GrantsHeld(rng.choice([0.0, 1.0, 3.0]))
        else:
            event = rng.choice([m.Tick(), m.NodeAdded("n1", 4, rng.randint(0, 3)), m.NodeLost("n1")])
        send_with_twin(bench, event, at)


def some_block(rng: random.Random, bench: EngineBench, step: int) -> m.TasksAdded:
    workload = f"{rng.choice('xy')}{step}"
    bench.send(m.WorkloadSubmitted(workload, queue=workload[0]))
    names = [f"{workload}-{n}" for n in range(rng.randint(1, 4))]
    edges = {name: [p for p in names[:n] if n % 2 and rng.random() < 0.2] for n, name in enumerate(names)}
    phases = {
        name: rng.choice([(gpu(),), (cpu(1.0, 0.5), gpu()), (gpu(1.0, 2.0),), (gpu(1.0, 0.5),)]) for name in names
    }
    options = {n: rng.choice([TaskOptions(gang="g"), TaskOptions(retries=1, max_runtime_s=9.0)]) for n in names[::2]}
    said = [
        m.Begun(
            n,
            rng.randint(1, 3),
            rng.randint(0, 2),
            rng.choice(["", "n0", "n0", "n1"]),
            rng.randint(0, 1),
            rng.choice([None, 0.0, 1.0, 20.0]),
            rng.choice([(), (0,), (1, 2), (7,)]),
        )
        for n in range(len(names))
        if rng.random() < 0.6
    ]
    return m.TasksAdded(workload, graph_of(edges, phases, options), tuple(said))


def send_with_twin(bench: EngineBench, event: m.Event, at: float) -> None:
    """Hand it over, and hold what the property says of the decisions."""
    twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
    before, state = len(bench.state.task_ids), bench.state
    decisions = bench.send(event, at)
    assert twin.handle(event, at) == decisions
    assert canonical(twin.state) == canonical(state)
    grants = [one for one in decisions if isinstance(one, m.Grant)]
    if isinstance(event, m.TasksAdded):
        for one in event.begun:
            task = before + one.task
            if one.node == "n0" and one.since_s is not None and task not in state.gang_of and not state.over_limit:
                is_phase = one.index < len(state.phases_of(task))
                assert not is_phase or state.status[state.first_phase[task] + one.index] == RUNNING
    for grant in grants:
        lease, number, shape = state.leases.get(grant.phase), state.queue_of(grant.task), state.shape_of(grant.phase)
        assert lease is None or all(state.nodes[lease.node].devices[d] >= 0 for d in lease.devices), "no free device"
        if lease is not None and shape.gpu_milli and number != NO_QUEUE:
            above = quota.blocked_by(state.queues, number, (0, 1, 0))
            assert above is None or above.available >= 0, f"a grant above the quota: {above}"
