"""The solver's incumbent: what it is given, what is made of its answer, and what is said without it."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest

from benchmarks import single_dags_incumbent as incumbent
from benchmarks.single_dags_incumbent import Row, engine_plan, hinted, measure, replayed, summarise, ticks_of
from benchmarks.single_dags_instances import Instance
from benchmarks.single_dags_peers import Case, plan_of, replay
from egs_core.graph.bounds import makespan_bound
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload

needs_solver = pytest.mark.skipif(importlib.util.find_spec("ortools") is None, reason="OR-tools is not installed")


def instance_of(*tasks: tuple[float, tuple[int, ...]]) -> Instance:
    """One CPU phase a task: seconds and parents."""
    graph = Graph()
    for number, (seconds, parents) in enumerate(tasks):
        graph.add_task(f"t{number}", parents, ((CPU, Shape(), seconds),))
    return Instance("made", LoadedWorkload("made", "made", "", "", 0.0, graph))


def seeded(seed: int, tasks: int = 30) -> Instance:
    rng = random.Random(seed)
    return instance_of(
        *[(rng.uniform(1, 9), tuple(rng.sample(range(n), min(n, rng.randrange(3))))) for n in range(tasks)]
    )


def test_the_engines_plan_replayed_takes_as_long() -> None:
    """Its starts, taken as an order only, give its makespan again on twenty seeded graphs."""
    for seed in range(20):
        instance = seeded(seed)
        makespan_s, starts = engine_plan(instance, 4)
        assert replayed(Case.of(instance.workload.graph), 4, starts) == pytest.approx(makespan_s)


def test_a_hint_is_a_plan_in_whole_ticks() -> None:
    """Children after their parents, never more at once than slots, and no task is shorter than in truth."""
    instance = seeded(1)
    case, length = Case.of(instance.workload.graph), ticks_of(Case.of(instance.workload.graph).seconds)
    hint = hinted(case, 3, engine_plan(instance, 3)[1])
    assert all(ticks >= seconds * incumbent.TICKS for ticks, seconds in zip(length, case.seconds, strict=True))
    for task, parents in enumerate(case.graph.parents):
        assert all(hint[task] >= hint[parent] + length[parent] for parent in parents)
        others = [t for t in range(len(hint)) if hint[t] <= hint[task] < hint[t] + length[t]]
        assert len(others) <= 3


@needs_solver
def test_the_solver_proves_a_small_instance() -> None:
    """3, 3, 2, 2, 2 s on two slots take 6 s, and nothing is left to find."""
    (row,) = measure([instance_of(*[(s, ()) for s in (3.0, 3.0, 2.0, 2.0, 2.0)])], [2], 5.0, 1)
    assert (row.egs_s, row.incumbent_s, row.bound_s, row.proven) == (6.0, 6.0, 6.0, True)


@needs_solver
def test_the_solver_beats_a_plan_that_is_not_the_best() -> None:
    """Seeded with longest path first, 7 s, it finds the 6 s."""
    case = Case.of(instance_of(*[(s, ()) for s in (3.0, 3.0, 2.0, 2.0, 2.0)]).workload.graph)
    worse = [0.0, 0.0, 3.0, 3.0, 5.0]
    assert replayed(case, 2, worse) == 7.0
    found = incumbent.solve(case, 2, hinted(case, 2, worse), 5.0, 1)
    assert found is not None
    assert (replayed(case, 2, found.starts), found.is_proven) == (6.0, True)


@needs_solver
def test_an_incumbent_lies_between_the_bound_and_the_engine() -> None:
    """On seeded graphs, whatever the time limit let it find; rows are summed up by slots."""
    rows = measure([seeded(seed, 12) for seed in range(3)], [2, 3], 1.0, 1)
    assert all(row.bound_s <= row.incumbent_s <= row.egs_s for row in rows)
    assert [line["slots"] for line in summarise(rows)] == [2, 3]


def test_rows_are_summed_up_by_slots() -> None:
    """One instance at its bound, one that the solver improves from 20 to 10 % above it."""
    rows = [Row("a", 4, 9, 10.0, 10.0, 10.0, True), Row("b", 4, 9, 10.0, 12.0, 11.0, False)]
    (line,) = summarise(rows)
    assert (line["at the bound"], line["proven"], line["beaten"], line["where"]) == (1, 1, 1, "b")
    assert line["worst"] == pytest.approx(12 / 11 - 1)
    assert line["egs/bound"] == pytest.approx(1.2**0.5)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    """Of those above their bound."""
    pytest.importorskip("matplotlib")
    incumbent.plot([Row("b", 4, 9, 10.0, 12.0, 11.0, False)], tmp_path / "new" / "gaps.png")
    assert (tmp_path / "new" / "gaps.png").stat().st_size > 1000


def test_without_the_solver_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr names what installs it; what follows can read the JSON."""
    monkeypatch.setattr(incumbent, "find_spec", lambda _: None)
    monkeypatch.setattr("sys.argv", ["incumbent", "--json", "-"])
    assert incumbent.main() == 0
    printed = capsys.readouterr()
    assert "pip install ortools" in printed.err
    assert json.loads(printed.out)["skipped"]


@pytest.mark.parametrize("peer", ["saga-heft", "saga-cpop"])
@pytest.mark.parametrize("bandwidth", [None, 10.0])
def test_a_saga_plan_takes_what_saga_says(peer: str, bandwidth: float | None) -> None:
    """Replayed under its own charges for files it has its own makespan; and it is not below the bound."""
    pytest.importorskip("saga")
    for seed in range(3):
        graph = seeded(seed).workload.graph
        graph.file_ids = [f"f{task}" for task in range(graph.n_tasks)]
        graph.file_sizes = [7 * task % 20 for task in range(graph.n_tasks)]
        graph.outputs = {task: (task,) for task in range(graph.n_tasks)}
        graph.inputs = {task: parents for task, parents in enumerate(graph.parents) if parents}
        case = Case.of(graph)
        plan = plan_of(peer, case, 4, bandwidth)
        assert replay(case, plan.machines, bandwidth, "beside") == pytest.approx(plan.makespan_s)
        assert plan.makespan_s >= makespan_bound(graph, 4, case.seconds) - 1e-9
