"""The benchmark of GPU jobs: its own list simulation by hand, and that what it feeds the engine is the trace."""

from __future__ import annotations

from benchmarks.gpu_jobs import Job, load_jobs, quotas_of, run_engine, run_strict_fifo, workload_of
from egs_core.sim.config import Durations, SimConfig, SimNode


def test_strict_fifo_by_hand() -> None:
    """The second job needs all GPUs and holds up the third, which would fit."""
    jobs = [Job("0", "a", 0.0, 10.0, 1), Job("1", "a", 1.0, 5.0, 2), Job("2", "a", 2.0, 1.0, 1)]
    found = run_strict_fifo(jobs, 2)
    assert (found.wait_s, found.jct_s, found.makespan_s) == ([0.0, 9.0, 13.0], [10.0, 14.0, 14.0], 16.0)


def test_a_large_job_is_a_gang_of_nodes() -> None:
    """20 GPUs are two tasks of 8 and one of 4, in one gang."""
    graph = workload_of(Job("0", "a", 0.0, 10.0, 20)).graph
    assert [graph.shapes[s].gpu_milli for s in graph.phase_shape] == [8000, 8000, 4000]
    assert {graph.options_of(t).gang for t in range(3)} == {"job"}


def test_every_job_runs_whatever_is_known() -> None:
    """Drawn jobs, with predictions and quotas: none ends sooner than it takes, and all end."""
    jobs = load_jobs(None, 300)
    nodes = tuple(SimNode(f"n{i}", 64.0, 8) for i in range(4))
    queues = quotas_of(jobs, 32, 0)
    assert sum(q.nominal[1] for q in queues) in range(31_990, 32_011)
    found = run_engine(jobs, SimConfig(nodes, durations=Durations.PREDICTED, queues=queues))
    assert len(found.jct_s) == 300
    assert all(jct >= job.seconds - 1e-6 for jct, job in zip(found.jct_s, jobs, strict=True))
