"""What a run log teaches: warm durations, cold starts apart, and the phases inside an unsplit GPU task."""

from __future__ import annotations

from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow, history_from_runlog
from egs_core.predict import Predictor
from egs_core.runlog.records import ColdStart, Ended, Header, Record, Started, TaskAdded, Used, WorkloadSubmitted

W = "digits-7"
GPU_TASK = TaskAdded(0.0, W, "train-1", "train", phases=(("gpu", 2.0, 1.0, 512),))
SPLIT_TASK = TaskAdded(
    0.0, W, "train-1", "train", phases=(("cpu", 2.0, 0.0, 0), ("gpu", 2.0, 1.0, 0), ("cpu", 2.0, 0.0, 0))
)


def run_of(*records: Record) -> list[HistoryRow]:
    header = Header(driver="ray", started_at=1000.0)
    return history_from_runlog([header, WorkloadSubmitted(0.0, W, "digits"), *records])


def test_a_phase_is_its_held_time_without_the_cold_start() -> None:
    """Held 10 s, of which 3 s cold (two overlapping records, one reaching back before the start): 7 s warm."""
    rows = run_of(
        SPLIT_TASK,
        Started(20.0, W, "train-1", 1),
        ColdStart(19.0, 22.0, W, "train-1", 1),
        ColdStart(21.0, 23.0, W, "train-1", 1),
        Ended(30.0, W, "train-1", 1),
    )
    expected = HistoryRow("digits", "train", 1, Shape(2000, 1000), 7.0, warmup_s=3.0, ended_at=1030.0, framework="ray")
    assert rows == [expected]


def test_only_succeeded_attempts_teach() -> None:
    """A failed attempt, one without end and one without start give no row; the second attempt does."""
    rows = run_of(
        SPLIT_TASK,
        Started(1.0, W, "train-1", 0, 1),
        Ended(3.0, W, "train-1", 0, 1, outcome="failed"),
        Started(4.0, W, "train-1", 0, 2),
        Ended(9.0, W, "train-1", 0, 2),
        Started(9.0, W, "train-1", 1, 2),
        Ended(12.0, W, "train-1", 2, 2),
    )
    assert [(row.phase, row.seconds) for row in rows] == [(0, 5.0)]


def test_an_unsplit_gpu_task_teaches_its_split() -> None:
    """GPU held 10 to 20, cold 10 to 12, used 13 to 17: as a whole 8 s, and split into 1 s, 4 s and 3 s."""
    rows = run_of(
        GPU_TASK,
        Started(10.0, W, "train-1"),
        ColdStart(10.0, 12.0, W, "train-1"),
        Used(13.0, 14.0, W, "train-1"),
        Used(16.0, 17.0, W, "train-1"),
        Ended(20.0, W, "train-1"),
    )
    on_gpu, on_cpu = Shape(2000, 1000, 512), Shape(2000, 0, 512)
    assert [(row.phase, row.shape, row.seconds, row.warmup_s) for row in rows] == [
        (0, on_gpu, 8.0, 2.0),
        (0, on_cpu, 1.0, 0.0),
        (1, on_gpu, 4.0, 0.0),
        (2, on_cpu, 3.0, 0.0),
    ]
    assert len({row.signature for row in rows}) == 4


def test_a_gpu_used_from_start_to_end_has_no_split() -> None:
    """Without Used records, or with one that covers the warm part, the task teaches one row."""
    held = [GPU_TASK, Started(10.0, W, "train-1"), Ended(20.0, W, "train-1")]
    assert len(run_of(*held)) == 1
    assert len(run_of(*held, ColdStart(10.0, 12.0, W, "train-1"), Used(12.0, 20.0, W, "train-1"))) == 1


def test_without_task_records_the_start_tells_the_shape() -> None:
    """A log that has no TaskAdded still teaches, under the task's id and the workload's."""
    rows = history_from_runlog([Started(1.0, W, "x", cpus=0.5, memory_bytes=7), Ended(2.0, W, "x")])
    assert rows == [HistoryRow(W, "x", 0, Shape(500, 0, 7), 1.0, ended_at=2.0)]


def test_what_a_log_teaches_reaches_the_predictor() -> None:
    """The GPU phase of a split run is predicted from an unsplit run, and the cold start is known apart."""

    class OneRun:
        def load(self, pipeline: str) -> list[HistoryRow]:
            assert pipeline == "digits"
            return rows

    rows = run_of(
        GPU_TASK,
        Started(10.0, W, "train-1"),
        ColdStart(10.0, 12.0, W, "train-1"),
        Used(13.0, 17.0, W, "train-1"),
        Ended(20.0, W, "train-1"),
    )
    predictor = Predictor.from_history(OneRun(), ["digits"])
    assert predictor.estimate(rows[2].signature).p50_s == 4.0
    warmup = predictor.warmup("digits", "train")
    assert warmup is not None
    assert warmup.p50_s == 2.0


def test_the_flavor_of_what_it_ran_on_is_kept() -> None:
    """With the phase that held the GPU, and with no CPU phase that a split would make of it."""
    rows = run_of(
        GPU_TASK,
        Started(10.0, W, "train-1", flavor="a100"),
        Used(13.0, 17.0, W, "train-1"),
        Ended(20.0, W, "train-1"),
    )
    assert [(row.phase, row.flavor) for row in rows] == [(0, "a100"), (0, ""), (1, "a100"), (2, "")]
