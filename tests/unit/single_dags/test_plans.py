"""Plans of other schedulers, replayed: by hand, against list scheduling, and what is no plan."""

from __future__ import annotations

import random

import pytest

from benchmarks.single_dags_peers import Case, priority_plan, replay
from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import SimConfig, simulate

BANDWIDTH = 10.0  # bytes a second


def graph_of(*tasks: tuple[float, tuple[int, ...]]) -> Graph:
    """One CPU phase a task: seconds and parents."""
    graph = Graph()
    for number, (seconds, parents) in enumerate(tasks):
        graph.add_task(f"t{number}", parents, ((CPU, Shape(), seconds),))
    return graph


def fork() -> Case:
    """1 s, then 2 s and 3 s, which read 20 and 40 bytes of the first."""
    graph = graph_of((1.0, ()), (2.0, (0,)), (3.0, (0,)))
    graph.file_ids, graph.file_sizes = ["a", "b"], [20, 40]
    graph.outputs, graph.inputs = {0: (0, 1)}, {1: (0,), 2: (1,)}
    return Case.of(graph)


def test_each_task_starts_as_early_as_machine_and_parents_allow() -> None:
    """On two machines 1 + 3 s; on one 1 + 2 + 3 s."""
    assert replay(fork(), [[0, 2], [1]], None, "held") == 4.0
    assert replay(fork(), [[0, 1, 2]], None, "held") == 6.0


def test_files_from_another_machine_take_their_time() -> None:
    """20 bytes at 10 a second: 1 + 2 + 2 s elsewhere, and nothing on the machine that wrote them."""
    assert replay(fork(), [[0, 2], [1]], BANDWIDTH, "held") == 5.0
    assert replay(fork(), [[0, 1, 2]], BANDWIDTH, "held") == 6.0


def test_a_reader_holds_its_slot_or_the_file_travels_beside_it() -> None:
    """The last task reads 20 bytes written at 1 s and 20 at 5 s: 4 s in its slot, or 2 s for the later ones."""
    graph = graph_of((1.0, ()), (5.0, ()), (1.0, (0, 1)))
    graph.file_ids, graph.file_sizes = ["a", "b"], [20, 20]
    graph.outputs, graph.inputs = {0: (0,), 1: (1,)}, {2: (0, 1)}
    machines = [[0], [1], [2]]
    assert replay(Case.of(graph), machines, BANDWIDTH, "held") == 5.0 + 4.0 + 1.0
    assert replay(Case.of(graph), machines, BANDWIDTH, "beside") == 5.0 + 2.0 + 1.0


@pytest.mark.parametrize("machines", [[[0, 1]], [[0, 1, 2, 2]], [[1, 0], [2]]])
def test_what_is_no_plan_is_refused(machines: list[list[int]]) -> None:
    """A task left out, one twice, a child before its parent on one machine."""
    with pytest.raises(ValueError, match="plan"):
        replay(fork(), machines, None, "held")


@pytest.mark.parametrize("bandwidth", [None, BANDWIDTH])
def test_a_list_schedule_takes_what_it_says(bandwidth: float | None) -> None:
    """On twenty seeded graphs a plan by priority, replayed, has the makespan that it promised."""
    for seed in range(20):
        rng, graph = random.Random(seed), Graph()
        for number in range(40):
            parents = sorted(rng.sample(range(number), min(number, rng.randrange(3))))
            graph.add_task(f"t{number}", tuple(parents), ((CPU, Shape(), rng.uniform(1, 9)),))
            graph.outputs[number], graph.inputs[number] = (number,), tuple(parents)
        graph.file_ids, graph.file_sizes = [f"f{n}" for n in range(40)], [rng.randrange(50) for _ in range(40)]
        case = Case.of(graph)
        plan = priority_plan(case, [-rank for rank in upward_rank(graph)], 4, bandwidth)
        assert sorted(task for machine in plan.machines for task in machine) == list(range(40))
        assert replay(case, plan.machines, bandwidth, "held") == pytest.approx(plan.makespan_s)


def test_the_engine_by_rank_is_the_b_level_list_schedule() -> None:
    """On seeded graphs without equal ranks the simulated engine and the peer end at the same time."""
    for seed in range(20):
        rng = random.Random(seed)
        tasks = [(rng.uniform(1, 9), tuple(sorted(rng.sample(range(n), min(n, 2))))) for n in range(40)]
        graph = graph_of(*tasks)
        case = Case.of(graph)
        plan = priority_plan(case, [-rank for rank in upward_rank(graph)], 4, None)
        config = SimConfig(slots=4, policy="heft", records=False)
        simulated = simulate([LoadedWorkload("w", "w", "", "", 0.0, graph)], config).makespan_s
        assert simulated == pytest.approx(plan.makespan_s)
