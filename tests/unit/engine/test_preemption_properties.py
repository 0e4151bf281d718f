"""Whatever runs: preemption stops only what it may, makes room for whom it stops it, and comes to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules import quota
from egs_core.engine.rules.victims import AGE, LIMIT, MOST_PREEMPTIONS, PRIORITY, RECLAIM
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.engine.state.state import State
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim.config import SimConfig, SimNode
from egs_core.sim.simulator import Simulation
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

NAMES = ("a", "b", "c")
quick = settings(
    derandomize=True, database=None, deadline=None, max_examples=80, suppress_health_check=list(HealthCheck)
)


def queues_of(draw: random.Random, gpus: int) -> tuple[QueueSpec, ...]:
    """Nominal quotas of one cohort that together are the cluster."""
    cuts = sorted(draw.randint(0, gpus) for _ in NAMES[1:])
    sizes = [high - low for low, high in zip([0, *cuts], [*cuts, gpus], strict=True)]
    return tuple([QueueSpec(n, "lab", (UNLIMITED, 1000 * s, UNLIMITED)) for n, s in zip(NAMES, sizes, strict=True)])


def a_full_cluster(draw: random.Random) -> EngineBench:
    """Three nodes of four GPUs, full of tasks and gangs of all queues that started at different times."""
    bench = EngineBench(config=EngineConfig(preempt=True, default_max_wait_s=draw.choice([None, 50.0])))
    for number in range(3):
        bench.send(m.NodeAdded(f"n{number}", 64.0, 4))
    bench.send(m.QueuesChanged(queues_of(draw, 12)))
    for number in range(draw.randint(4, 14)):
        submit(bench, draw, draw.choice(NAMES), f"t{number}", float(10 * number))
        settle(bench)
    return bench


def settle(bench: EngineBench) -> None:
    """What is being stopped stops, and what was granted starts."""
    state = bench.state
    while state.recalled:
        task = min(state.recalled)
        bench.send(m.PhaseEnded(state.cursor[task], state.attempt[task], "preempted"))
    for phase in sorted(state.leases):
        bench.send(m.PhaseStarted(phase, state.attempt[state.task_of[phase]]))
    if state.recalled:
        settle(bench)


def submit(bench: EngineBench, draw: random.Random, queue: str, name: str, at: float, priority: int = 0) -> None:
    size, members = draw.choice([1, 1, 2, 4]), draw.choice([1, 1, 1, 2])
    tasks = [f"{name}.{i}" for i in range(members)]
    options = TaskOptions(priority=priority or draw.choice([0, 0, 1]), gang=name if members > 1 else "")
    bench.send(m.WorkloadSubmitted(name, queue=queue), at)
    graph = graph_of(dict.fromkeys(tasks, ()), default=(gpu(1000.0, size),), options=dict.fromkeys(tasks, options))
    bench.submit(graph, name, at)


def stops(bench: EngineBench) -> list[m.Stop]:
    return [d for d in bench.decisions if isinstance(d, m.Stop)]


def wants_of(stop: m.Stop) -> str:
    """For whom."""
    return stop.reason.removeprefix("preempted for ").rsplit(": ", 1)[0]


def is_allowed(state: State, stop: m.Stop, borrowed_before: dict[int, int]) -> bool:
    """The rules once more, on what was so when the event came."""
    kind = stop.reason.rsplit(": ", 1)[1]
    wants = state.task_ids.index(wants_of(stop))
    mine, other = state.queue_of(wants), state.queue_of(stop.task)
    lower = state.options_of(stop.task).priority < state.options_of(wants).priority
    equal = state.options_of(stop.task).priority == state.options_of(wants).priority
    reclaims = mine != other and borrowed_before[other] > 0
    allowed = {LIMIT: False, RECLAIM: reclaims, PRIORITY: reclaims or (mine == other and lower)}
    allowed[AGE] = allowed[PRIORITY] or (mine == other and equal and not state.children[stop.task])
    return allowed[kind] and state.attempt[stop.task] <= MOST_PREEMPTIONS


@quick
@given(st.integers(0, 2**32))
def test_only_whom_it_may_and_for_somebody(seed: int) -> None:
    """One more task comes to a full cluster: each stop follows the rules, no queue loses more than it has borrowed and
    one victim's size, and when the victims are gone each task for which they went has its place, or
    one of a higher priority in its queue. What they lose is
    counted to the second."""
    draw = random.Random(seed)
    bench = a_full_cluster(draw)
    state = bench.state
    before = len(stops(bench))
    borrowed = {i: q.used[1] - q.spec.nominal[1] for i, q in enumerate(state.queues)}
    held = {t: state.shapes[state.shape[state.cursor[t]]].gpu_milli for t in range(len(state.task_ids))}
    lost = [w.lost_s for w in state.workloads]
    submit(bench, draw, draw.choice(NAMES), "last", 200.0, priority=draw.choice([0, 0, 1, 2]))
    found = stops(bench)[before:]
    assert all(is_allowed(state, stop, borrowed) for stop in found)
    taken = Counter[int]()
    for stop in found:
        if stop.reason.endswith(RECLAIM):
            taken[state.queue_of(stop.task)] += held[stop.task]
    assert all(amount < borrowed[owner] + 8000 for owner, amount in taken.items())  # the largest gang holds 8 GPUs
    started = {stop.phase: state.started_at[stop.phase] for stop in found}
    told = len(bench.decisions)
    for stop in found:
        bench.send(m.PhaseEnded(stop.phase, stop.attempt, "preempted"), 201.0)
    now_lost = sum(w.lost_s for w in state.workloads[: len(lost)]) - sum(lost)
    assert abs(now_lost - sum(201.0 - at for at in started.values())) < 1e-6
    grants = [d.task for d in bench.decisions[told:] if isinstance(d, m.Grant)]
    for wants in {bench.task(wants_of(stop)) for stop in found} - set(grants):
        ahead = [t for t in grants if state.queue_of(t) == state.queue_of(wants)]
        assert any(state.options_of(t).priority > state.options_of(wants).priority for t in ahead)


def a_stream(draw: random.Random) -> list[LoadedWorkload]:
    """Jobs of one to three tasks of up to 4 GPUs, in three queues, closer together than the cluster can take."""
    out, at = [], 0.0
    for number in range(60):
        at += draw.expovariate(1 / 20.0)
        graph, members = Graph(), draw.choice([1, 1, 1, 2, 3])
        options = TaskOptions(priority=draw.choice([0, 0, 1]), gang="g" if members > 1 else "")
        seconds = draw.lognormvariate(4.0, 1.2)
        for i in range(members):
            graph.add_task(str(i), (), ((GPU, Shape(0, 1000 * draw.choice([1, 2, 4])), seconds),), options=options)
        out.append(LoadedWorkload(f"w{number}", "job", "", draw.choice(NAMES), at, graph))
    return out


@pytest.mark.slow  # many simulations
@settings(quick, max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([None, 100.0]))
def test_no_livelock_in_a_stream(seed: int, max_wait_s: float | None) -> None:
    """Everything ends; no task is stopped more often than is allowed; what is counted as lost is what the stopped
    attempts had worked; no queue's quota is passed."""
    draw = random.Random(seed)
    jobs = a_stream(draw)
    nodes = tuple([SimNode(f"n{i}", 64.0, 4) for i in range(3)])
    config = SimConfig(nodes, queues=queues_of(draw, 12), preempt=True, default_max_wait_s=max_wait_s)
    simulation = Simulation(jobs, config)
    result = simulation.run()
    assert result.failed == []
    began = {(x.workload, x.task, x.attempt): x.t for x in result.records if isinstance(x, r.Started)}
    stopped = [x for x in result.records if isinstance(x, r.Ended) and x.outcome == "preempted"]
    assert max(Counter((x.workload, x.task) for x in stopped).values(), default=0) <= MOST_PREEMPTIONS
    worked = sum(x.t - began[x.workload, x.task, x.attempt] for x in stopped)
    assert abs(sum(w.lost_s for w in simulation.state.workloads) - worked) < 1e-6
    assert all(quota.available(simulation.state.queues, i, 1) >= 0 for i in range(len(NAMES)))
