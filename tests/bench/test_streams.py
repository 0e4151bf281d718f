"""The arithmetic of the streams benchmark: arrivals, beliefs, peers and means."""

from __future__ import annotations

import argparse
import random
from itertools import pairwise
from statistics import fmean

import msgspec
import pytest

from benchmarks.single_dags_instances import Instance
from benchmarks.streams import (
    Options,
    Run,
    arrive,
    drawn_workloads,
    jct_of_engine,
    learned,
    measure,
    options_of,
    shuffled,
    summarise,
)
from benchmarks.streams_peers import RULES, Arrival, run_peer
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload


def random_instance(tasks: int, seed: int) -> Instance:
    draw, graph = random.Random(seed), Graph()
    for t in range(tasks):
        parents = tuple(sorted({draw.randrange(t) for _ in range(draw.randrange(3)) if t}))
        graph.add_task(f"t{t}", parents, ((CPU, Shape(), draw.uniform(1.0, 9.0)),), name=f"kind{seed}-{t % 3}")
    return Instance(f"i{seed}", LoadedWorkload(f"i{seed}", f"i{seed}", "", "", 0.0, graph))


INSTANCES = [random_instance(tasks, tasks) for tasks in (4, 12, 30)]


def test_the_load_is_the_work_that_arrives_in_a_second() -> None:
    """Work divided by the time in which it came and by the slots is the load, on many arrivals."""
    drawn = drawn_workloads(INSTANCES, 2000, 1)
    stream = arrive(drawn, 0.8, 16, 1)
    work_s = sum(s or 0.0 for w in drawn for s in w.graph.phase_duration_s)
    assert work_s / stream[-1].arrival_s / 16 == pytest.approx(0.8, rel=0.08)
    assert all(a.arrival_s < b.arrival_s for a, b in pairwise(stream))


def test_a_workload_is_predicted_from_those_before_it_only() -> None:
    """The first is believed to take what nothing is known of; changing a later one moves no earlier belief."""
    drawn = drawn_workloads(INSTANCES, 12, 2)
    changed = [*drawn[:-1], drawn_workloads([random_instance(9, 77)], 1, 3)[0]]
    assert learned(changed)[:-1] == learned(drawn)[:-1]
    assert len({p50 for p50, _ in learned(drawn)[0]}) == 1


def test_the_list_simulation_is_the_engine_where_both_do_the_same() -> None:
    """Ready order on equal slots: the peers' loop and the engine's `fifo` end every workload at the same time."""
    drawn = drawn_workloads(INSTANCES, 25, 4)
    stream = arrive(drawn, 1.0, 5, 4)
    arrivals = []
    for workload in stream:
        seconds = [s or 0.0 for s in workload.graph.phase_duration_s]
        arrivals.append(Arrival(workload.arrival_s, workload.graph, seconds, seconds))
    found = jct_of_engine("fifo", stream, "exact", learned(drawn), Options(slots=5))
    assert run_peer("ready-order", arrivals, 5) == pytest.approx(found)


@pytest.mark.parametrize("peer", sorted(set(RULES) - {"dask-order"}))
def test_every_rule_ends_every_workload(peer: str) -> None:
    """No workload ends before its own work could be done."""
    stream = arrive(drawn_workloads(INSTANCES, 20, 5), 1.2, 4, 5)
    arrivals = [Arrival(w.arrival_s, w.graph, s := [x or 0.0 for x in w.graph.phase_duration_s], s) for w in stream]
    jct = run_peer(peer, arrivals, 4)
    assert all(done >= max(sum(a.seconds) / 4, max(a.seconds)) for done, a in zip(jct, arrivals, strict=True))


def test_the_workload_with_the_least_left_goes_first() -> None:
    """`least-work-left` on one slot: of 5 s and 2 s that come together while it is busy the 2 s end first."""
    first, long, short = (Graph() for _ in range(3))
    for graph, seconds in ((first, 1.0), (long, 5.0), (short, 2.0)):
        graph.add_task("t", (), ((CPU, Shape(), seconds),))
    given = [Arrival(0.0, first, [1.0], [1.0]), Arrival(0.1, long, [5.0], [5.0]), Arrival(0.2, short, [2.0], [2.0])]
    assert run_peer("least-work-left", given, 1) == pytest.approx([1.0, 7.9, 2.8])
    assert run_peer("workload-fair", given, 1) == pytest.approx([1.0, 5.9, 7.8])


@pytest.mark.parametrize("durations", ["exact", "predicted", "blind"])
def test_the_default_order_is_better_than_arrival_order(durations: str) -> None:
    """On streams and on everything at once the default's mean is below that of the order of arrival, and about as good
    as that of the least work left; the rule within one workload, applied across them, is worse than both."""
    options = Options(loads=(1.0,), seeds=3, slots=4, length=25, durations=(durations,))
    for at_once in (False, True):
        given = msgspec.structs.replace(options, at_once=at_once, sides=("egs", "fifo", "least-work"))
        large = [random_instance(n, n) for n in (4, 9, 20, 40, 80, 160)] if at_once else INSTANCES
        runs = measure(large, given)
        mean = {side: fmean(run.mean_s for run in runs if run.side == side) for side in given.sides}
        assert mean["egs"] < 0.95 * mean["fifo"], mean
        assert mean["egs"] < 1.05 * mean["least-work"], mean


def test_all_at_once_is_every_instance_as_it_is() -> None:
    """Nothing is drawn or changed but the order."""
    for seed in (0, 1):
        found = shuffled(INSTANCES, seed)
        assert sorted(w.graph.n_tasks for w in found) == [4, 12, 30]
        assert {w.arrival_s for w in found} == {0.0}


def test_ratios_are_taken_stream_by_stream() -> None:
    """over_egs is the mean of the ratios, over_best a ratio of means."""
    runs = [Run(0.7, seed, "exact", "egs", mean, mean, mean) for seed, mean in enumerate((10.0, 100.0))]
    runs += [Run(0.7, seed, "exact", "fifo", mean, mean, mean) for seed, mean in enumerate((5.0, 100.0))]
    egs, fifo = summarise(runs)
    assert (egs["mean_s"], fifo["mean_s"]) == (55.0, 52.5)
    assert (fifo["over_egs"], fifo["over_egs_deviation"], fifo["over_best"]) == (0.75, 0.25, 1.0)
    assert egs["over_best"] == pytest.approx(55.0 / 52.5)


@pytest.mark.parametrize(
    "wrong",
    [{"loads": "0.7,x"}, {"loads": "0"}, {"seeds": 0}, {"slots": -1}, {"durations": "guessed"}, {"sides": "best"}],
)
def test_wrong_options_are_input_errors(wrong: dict[str, object]) -> None:
    """One line that names the option."""
    given: dict[str, object] = {"loads": "0.7", "seeds": 1, "slots": 2, "length": 3, "placements": 0}
    given |= {"durations": "exact", "sides": "", "at_once": False} | wrong
    with pytest.raises(InputError, match="--" + next(iter(wrong))):
        options_of(argparse.Namespace(**given))
