"""The benchmark of unlike GPUs: its jobs, its table, and its baselines, on cases whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks.heterogeneous import NAMES, Job, draw_jobs, figures_of, load_speeds, run_engine
from benchmarks.heterogeneous_peers import ROUND_S, max_min, run_rounds, srpt


def job(number: int, v100: float, k80: float, arrival_s: float = 0.0, gpus: int = 1) -> Job:
    return Job(str(number), "t", arrival_s, {"v100": v100, "k80": k80}, gpus, 1e9)


def test_without_data_the_table_is_drawn_and_the_same_each_time() -> None:
    """Every type has a speed on every flavor; the same seed gives the same jobs."""
    speeds = load_speeds(None)
    assert all(set(rates) == set(NAMES) for rates in speeds.values())
    jobs = draw_jobs(speeds, 50, 4.0, 1, sizes=True)
    assert jobs == draw_jobs(load_speeds(None), 50, 4.0, 1, sizes=True)
    assert {found.gpus for found in jobs} == {1, 2, 4}
    assert all(1800 <= found.seconds["v100"] <= 600_000 for found in jobs)


def test_a_job_alone_takes_what_the_fastest_flavor_takes() -> None:
    """In the engine and in both baselines; and it costs that long of it."""
    jobs = [Job("0", "t", 0.0, {"v100": 3600.0, "p100": 7200.0, "k80": 9000.0}, 1, 4000.0)]
    engine = run_engine(jobs, "egs", "finish")
    assert engine.jct_s == [3600.0]
    assert engine.held_s == [{"v100": 3600.0}]
    assert figures_of(jobs, engine)["cost"] == pytest.approx(2.48)
    for ends, held in (run_rounds(jobs, {"v100": 1, "p100": 1, "k80": 1}, srpt, True),):
        assert ends == pytest.approx([3600.0])
        assert held == [{"v100": pytest.approx(3600.0)}]


def test_srpt_gives_the_fast_device_to_the_shorter_one() -> None:
    """The longer job runs on the slow device until the fast one is free, and then moves."""
    jobs = [job(0, 10 * ROUND_S, 20 * ROUND_S), job(1, 4 * ROUND_S, 40 * ROUND_S)]
    ends, held = run_rounds(jobs, {"v100": 1, "k80": 1}, srpt, True)
    assert ends[1] == pytest.approx(4 * ROUND_S)
    assert held[0]["k80"] == pytest.approx(4 * ROUND_S)
    assert ends[0] == pytest.approx(12 * ROUND_S)  # four rounds at half speed, eight at full


def test_max_min_gives_each_the_device_on_which_it_gains_most() -> None:
    """One job that is ten times as fast on the V100, one that is alike on both: no time is shared."""
    pytest.importorskip("scipy")
    jobs = [job(0, 1000.0, 10_000.0), job(1, 1000.0, 1000.0)]
    shares = max_min([0, 1], jobs, {0: 1.0, 1: 1.0}, {"v100": 1, "k80": 1})
    assert shares[0, "v100"] == pytest.approx(1.0)
    assert shares[1, "k80"] == pytest.approx(1.0)


def test_max_min_shares_one_device_equally() -> None:
    """Two equal jobs and a single device: half of the time each, so both end at about the same time."""
    pytest.importorskip("scipy")
    jobs = [job(0, 10 * ROUND_S, 10 * ROUND_S), job(1, 10 * ROUND_S, 10 * ROUND_S)]
    ends, _ = run_rounds(jobs, {"v100": 1, "k80": 0}, max_min, False)
    assert sorted(ends) == pytest.approx([19 * ROUND_S, 20 * ROUND_S])


def test_no_flavor_is_over_its_capacity() -> None:
    """In no order of rounds are more devices in use than there are: the work of all jobs takes at least so long."""
    jobs = [job(i, 5 * ROUND_S, 5 * ROUND_S, gpus=2) for i in range(6)]
    ends, _ = run_rounds(jobs, {"v100": 3, "k80": 2}, srpt, True)
    assert max(ends) == pytest.approx(3 * 5 * ROUND_S)  # two at a time
