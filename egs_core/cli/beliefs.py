"""What `--history` may name, and the beliefs about durations that follow from it.

A history is a database (URL, or the path of an SQLite file), a run log, or a workload file: an earlier run whose
durations are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from egs_core.cli.simulated import estimate_of, input_bytes
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload, load_workload
from egs_core.history import HistoryRow, history_from_runlog
from egs_core.history.pending import open_learned
from egs_core.predict import Predictor
from egs_core.runlog.io import read_run
from egs_core.runlog.records import FORMAT
from egs_core.sim.simulator import Estimator

SQLITE_START = b"SQLite format 3\0"


def estimator_of(histories: Sequence[str], pipelines: Iterable[str]) -> Estimator:
    """Beliefs from these histories, in their order; what they do not know comes from priors."""
    if not histories:
        hint = "a database URL, or the path of an SQLite file, a run log or a workload file"
        raise InputError("--durations", "predicted needs --history", hint)
    predictor = predictor_of(histories, pipelines)
    return lambda workload, phase: estimate_of(predictor, workload, phase)


def predictor_of(histories: Sequence[str], pipelines: Iterable[str]) -> Predictor:
    """What these histories know, in their order. Raises InputError for one that cannot be read."""
    predictor, names = Predictor(), sorted(set(pipelines))
    for history in histories:
        predictor.learn(_rows_of(history, names))
    return predictor


def own_predictor(pipeline: str) -> Predictor:
    """What the user's own history knows; one that cannot be read gives a warning."""
    store = open_learned()
    predictor = Predictor.from_history(store, [pipeline])
    store.close()
    return predictor


def _rows_of(history: str, pipelines: Sequence[str]) -> list[HistoryRow]:
    path = Path(history)
    if "://" in history:
        return _rows_of_database(history, pipelines)
    start = _start_of(path)
    if start.startswith(SQLITE_START):
        return _rows_of_database(f"sqlite:///{path}", pipelines)
    if FORMAT.encode() in start:
        return history_from_runlog(read_run(path).records)
    return list(_rows_of_workload(load_workload(path)))


def _start_of(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(256)
    except OSError as error:
        raise InputError("--history", f"{path}: cannot be read: {error.strerror}") from None


def _rows_of_database(url: str, pipelines: Sequence[str]) -> list[HistoryRow]:
    store = open_learned(url)
    rows = [row for pipeline in pipelines for row in store.load(pipeline)]
    store.close()
    if store.problem is not None:
        raise InputError("--history", f"cannot be read: {store.problem}")
    return rows


def _rows_of_workload(workload: LoadedWorkload) -> Iterator[HistoryRow]:
    """One row a phase whose duration is known."""
    graph = workload.graph
    for task in range(graph.n_tasks):
        for number, p in enumerate(graph.phases_of(task)):
            seconds = graph.phase_duration_s[p]
            if seconds is not None:
                shape = graph.shapes[graph.phase_shape[p]]
                size = input_bytes(graph, task)
                yield HistoryRow(workload.name, graph.names[task], number, shape, seconds, input_bytes=size)
