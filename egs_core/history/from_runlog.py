"""From a run log to history rows: how long each succeeded phase took when its process was warm.

    Started ├── cold start ──┤── code ──┤═══ Used ═══┤── code ──┤ Ended
            └ warmup_s       └────────── seconds ───────────────┘

A task that ran as one GPU phase although its GPU was used only in a part of it (every native run of a mixed task)
also gives the rows of the three phases that a split makes of it: so the first split run is predicted already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from egs_core.graph.columns import GPU, KIND_NAMES, Shape
from egs_core.history.rows import HistoryRow
from egs_core.runlog.records import ColdStart, Ended, Header, Record, Started, TaskAdded, Used, WorkloadSubmitted

_Key = tuple[str, str, int, int]  # workload, task, phase, attempt
_Span = tuple[float, float]
_MIN_PART_S = 1e-3  # a GPU that idled less than this around its use was used from start to end


class _Log:
    """A run log's records by phase attempt; the order of records does not matter, but the header comes first."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.header = Header()
        self.pipelines: dict[str, str] = {}
        self.tasks: dict[tuple[str, str], TaskAdded] = {}
        self.started: dict[_Key, Started] = {}
        self.ended: dict[_Key, Ended] = {}
        self.cold: dict[_Key, list[_Span]] = defaultdict(list)
        self.used: dict[_Key, list[_Span]] = defaultdict(list)
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        match record:
            case Header():
                self.header = record
            case WorkloadSubmitted():
                self.pipelines[record.workload] = record.name or record.workload
            case TaskAdded():
                self.tasks[record.workload, record.task] = record
            case Started():
                self.started[_key(record)] = record
            case Ended():
                self.ended[_key(record)] = record
            case ColdStart():
                self.cold[_key(record)].append((record.t, record.end_t))
            case Used():
                self.used[_key(record)].append((record.t, record.end_t))


def history_from_runlog(records: Iterable[Record]) -> list[HistoryRow]:
    """Rows of all phases that succeeded, in the order in which they ended. `records`: one run's log."""
    log = _Log(records)
    done = [key for key, ended in log.ended.items() if ended.outcome == "succeeded" and key in log.started]
    done.sort(key=lambda key: log.ended[key].t)
    return [row for key in done for row in _rows_of(log, key)]


def _rows_of(log: _Log, key: _Key) -> Iterator[HistoryRow]:
    workload, task, phase, _ = key
    held = (log.started[key].t, log.ended[key].t)
    cold = [clipped for span in log.cold.get(key, ()) if (clipped := _clip(span, held))]
    added = log.tasks.get((workload, task))
    shape, is_gpu, n_phases = _declared(added, log.started[key], phase)
    row = HistoryRow(
        pipeline=log.pipelines.get(workload, workload),
        task=(added.name if added else "") or task,
        phase=phase,
        shape=shape,
        seconds=_warm_s(held, cold),
        input_bytes=added.input_bytes if added is not None else -1,
        warmup_s=_length(cold),
        ended_at=log.header.started_at + held[1],
        framework=log.header.driver,
        flavor=log.started[key].flavor,
    )
    yield row
    if is_gpu and n_phases == 1:
        used = [clipped for span in log.used.get(key, ()) if (clipped := _clip(span, held))]
        yield from _split_rows(row, held, used, cold)


def _split_rows(row: HistoryRow, held: _Span, used: list[_Span], cold: list[_Span]) -> Iterator[HistoryRow]:
    """The CPU, GPU and CPU phases inside a GPU phase that held its GPU all along; none when it used it all along."""
    if not used:
        return
    first, last = min(begin for begin, _ in used), max(end for _, end in used)
    parts = [_warm_s(span, cold) for span in ((held[0], first), (first, last), (last, held[1]))]
    if parts[0] + parts[2] < _MIN_PART_S:
        return
    on_cpu = Shape(row.shape.cpu_milli, 0, row.shape.memory_bytes)
    for phase, (seconds, shape) in enumerate(zip(parts, (on_cpu, row.shape, on_cpu), strict=True)):
        flavor = row.flavor if shape.gpu_milli else ""
        kept = {"flavor": flavor, "ended_at": row.ended_at, "framework": row.framework}
        yield HistoryRow(row.pipeline, row.task, phase, shape, seconds, **kept)  # type: ignore[arg-type]  # of a row


def _declared(added: TaskAdded | None, started: Started, phase: int) -> tuple[Shape, bool, int]:
    """Shape, whether it is a GPU phase, and how many phases the task has: as added, else as started."""
    if added is None or phase >= len(added.phases):
        shape = _shape(started.cpus, started.gpus, started.memory_bytes)
        return shape, started.gpus > 0, max(1, phase + 1)
    kind, cpus, gpus, memory_bytes = added.phases[phase]
    return _shape(cpus, gpus, memory_bytes), kind == KIND_NAMES[GPU], len(added.phases)


def _shape(cpus: float, gpus: float, memory_bytes: int) -> Shape:
    return Shape(round(cpus * 1000), round(gpus * 1000), memory_bytes)


def _key(record: Started | Ended | ColdStart | Used) -> _Key:
    return record.workload, record.task, record.phase, record.attempt


def _clip(span: _Span, limits: _Span) -> _Span | None:
    begin, end = max(span[0], limits[0]), min(span[1], limits[1])
    return (begin, end) if end > begin else None


def _warm_s(span: _Span, cold: list[_Span]) -> float:
    inside = [clipped for part in cold if (clipped := _clip(part, span))]
    return max(0.0, span[1] - span[0] - _length(inside))


def _length(spans: list[_Span]) -> float:
    """Length of the union of spans: import and load may be recorded as parts of one cold start."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
