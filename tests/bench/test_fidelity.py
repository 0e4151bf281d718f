"""The comparison of replays with simulations: what is changed for it, and what is not. Without a real Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import fidelity
from benchmarks.fidelity import (
    CHAIN,
    CHAIN_S,
    REHEARSAL_SEED,
    Costs,
    believed_of,
    chains,
    lengths_of,
    scaled_by,
    simulated_s,
    start_of,
    with_costs,
)
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r

ROOT = Path(__file__).resolve().parents[2]


def workload() -> LoadedWorkload:
    """Two equal codes of three phases with different lengths, then a CPU task."""
    graph = Graph()
    for number, seconds in enumerate((2.0, 4.0)):
        phases = ((CPU, Shape(1000), seconds), (GPU, Shape(1000, 1000), 2 * seconds), (CPU, Shape(1000), 0.1))
        graph.add_task(f"fit{number}", (), phases, "fit", TaskOptions(warm_key="fit", warmup_s=1.0))
    graph.add_task("end", (0, 1), ((CPU, Shape(1000), 3.0),), "end")
    return LoadedWorkload("w", "w", "", "", 5.0, graph)


def test_costs_are_added_where_they_arise() -> None:
    """To every phase, by how its task is run, and to warm-ups; the order of things stays."""
    with_them = with_costs(workload(), Costs(plain_phase_s=0.01, phase_s=0.02, warmup_s=0.5)).graph
    assert with_them.phase_duration_s == pytest.approx([2.02, 4.02, 0.12, 4.02, 8.02, 0.12, 3.01])
    assert with_them.options_of(0).warmup_s == 1.5
    assert with_them.parents == workload().graph.parents


def test_scaling_keeps_all_but_times() -> None:
    """Durations, warm-ups and the arrival by one factor, the shortest phases at their least."""
    half = scaled_by(workload(), 0.5)
    assert half.graph.phase_duration_s == [1.0, 2.0, 0.3, 2.0, 4.0, 0.3, 1.5]
    assert (half.graph.options_of(1).warmup_s, half.arrival_s) == (0.5, 2.5)


def test_both_believe_the_same() -> None:
    """The simulated engine is told the median of each code, phase by phase, as a replay's hints say it."""
    assert believed_of(workload().graph) == [3.0, 6.0, 0.1, 3.0, 6.0, 0.1, 3.0]


def test_a_chain_takes_its_costs() -> None:
    """What calibration takes from a chain is what the simulation adds to one."""
    plain = chains("plain", 2, (CPU, Shape(1000), CHAIN_S), 0.0)
    bare_s = simulated_s([plain], Costs())
    assert bare_s == pytest.approx(CHAIN * CHAIN_S)
    costs = Costs(plain_phase_s=0.05, single_start_s=1.0, stream_start_s=9.0)
    assert simulated_s([plain], costs) == pytest.approx(bare_s + 1.0 + CHAIN * 0.05)


def test_lengths_are_by_workload() -> None:
    """From each one's own first start to its own last end."""
    records = [
        *(r.Started(t, name, "t", 0) for t, name in ((0.5, "a"), (2.25, "b"), (1.0, "a"))),
        *(r.Ended(t, name, "t", 0) for t, name in ((1.0, "a"), (5.0, "b"), (3.0, "a"))),
    ]
    assert lengths_of(records) == {"a": 2.5, "b": 2.75}


def test_phases_and_warm_ups_are_calibrated_on_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their costs are what three workloads of chains took more than these say."""
    given: list[str] = []

    def run(workloads: list[LoadedWorkload]) -> list[r.Record]:
        given.extend(workload.id for workload in workloads)
        took = {"plain": 0.12, "gpu": 0.24, "warm": 0.0}
        records: list[r.Record] = [r.PreloadStarted(1.0, "warm", "1"), r.PreloadEnded(1.7, "warm", "1")]
        for workload in workloads:
            at, name = workload.arrival_s, workload.id
            end = at + 0.1 + CHAIN * CHAIN_S + took[name]
            records += [r.WorkloadSubmitted(at, name), r.Started(at + 0.1, name, "0", 0), r.Ended(end, name, "0", 0)]
        return records

    monkeypatch.setattr(fidelity, "real_run", run)
    costs = fidelity.calibrate_phases()
    assert given == ["plain", "gpu", "warm"]
    assert msgspec.structs.astuple(costs) == pytest.approx((0.12 / CHAIN, 0.24 / CHAIN, 0.7, 0.0, 0.0))


def test_a_start_is_what_a_rehearsal_took_beyond_its_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of the rehearsals, never less than nothing."""
    case = ("chain", [chains("plain", 2, (CPU, Shape(1000), CHAIN_S), 0.0)])
    for beyond_s, start_s in ((1.5, 1.5), (-0.5, 0.0)):
        end_s = CHAIN * CHAIN_S + beyond_s
        took = [r.WorkloadSubmitted(0.0, "plain"), r.Started(0.1, "plain", "0", 0), r.Ended(end_s, "plain", "0", 0)]
        monkeypatch.setattr(fidelity, "real_run", lambda _, took=took: took)
        assert start_of([case, case], Costs()) == pytest.approx(start_s)


def test_rehearsals_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rehearsals' seed a stream arrives at other times, and a single workflow has other durations."""
    monkeypatch.delenv("EGS_DATA", raising=False)
    compared, rehearsed = (
        {given[1].arrival_s for _, given in fidelity.gpu_streams(2, seed)} for seed in (0, REHEARSAL_SEED)
    )
    assert len(compared | rehearsed) == 4
    graph = workload().graph
    assert fidelity.varied(graph, 0).phase_duration_s == graph.phase_duration_s
    lengths = [fidelity.varied(graph, seed).phase_duration_s for seed in (0, 1, REHEARSAL_SEED, REHEARSAL_SEED + 1)]
    assert all(one != other for number, one in enumerate(lengths) for other in lengths[:number])


def test_gpu_paths_say_why_they_measure_nothing() -> None:
    """Without a device the command says so in one line and its exit code is 0; with one this test has no question."""
    code = "from benchmarks.cuda_memory import why_no_gpu; print(why_no_gpu())"
    why = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not why.strip():
        pytest.skip("there is a GPU here: the tests marked gpu measure it")
    command = [sys.executable, "-m", "benchmarks.gpu_paths"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"nothing measured: {why.strip()}")
