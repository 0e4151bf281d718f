"""What a session writes down and learns from: the run log, the history, and the estimates for the next run.

None of it may hurt a run: a full disk or a broken store costs one warning, and the run goes on without.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from egs_core.graph.columns import Graph
from egs_core.history import history_from_runlog
from egs_core.history.opened import open_history
from egs_core.notices import warn
from egs_core.predict import Predictor
from egs_core.runlog import records as r
from egs_core.runlog.io import FailOpenWriter
from egs_ray.convert import Converted
from egs_ray.observe import runlog_path

_used_paths: set[Path] = set()


def _unused(path: Path) -> Path:
    """Sessions of one process that follow each other have run logs of their own."""
    number, chosen = 1, path
    while chosen in _used_paths:
        number += 1
        chosen = path.with_stem(f"{path.stem}-{number}")
    _used_paths.add(chosen)
    return chosen


class Learning:
    """Owned by a session; used on its driver's thread, but for `close`."""

    def __init__(self, runlog: str | None, history: str | None, policy: str) -> None:
        self.path = _unused(Path(runlog) if runlog else runlog_path())
        self._records: dict[str, list[r.Record]] = {}  # by workload, of runs under way
        self._header = r.Header(
            run_id=self.path.stem,
            driver="ray",
            policy=policy,
            mode="on",
            started_at=time.time(),
            label=f"EGS ({policy})",
        )
        self._writer = FailOpenWriter(self.path, self._header, warn)
        self._history = open_history(history)
        self._predictors: dict[str, Predictor] = {}

    def record(self, record: r.Record) -> None:
        workload = getattr(record, "workload", "")
        if workload:
            self._records.setdefault(workload, []).append(record)
        self._writer.write(record)

    def believe(self, pipeline: str, graph: Graph) -> Graph:
        """The graph with durations and warm-up times as history has them, else as hinted; unknown stays unknown."""
        predictor = self._predictor(pipeline)
        options = dict(graph.options)
        for task, name in enumerate(graph.names):
            known = predictor.warmup(pipeline, name)
            if task in options and known is not None and options[task].warm_key:
                options[task] = msgspec.structs.replace(options[task], warmup_s=known.p50_s)
        believed_s = predictor.believed_s(graph, pipeline, graph.names)
        return msgspec.structs.replace(graph, phase_duration_s=believed_s, options=options)

    def warmed_up(self, converted: Converted, index: int, seconds: float) -> None:
        """A process got warm for a task, from cold, in this time."""
        self._predictor(converted.name).observe_warmup(converted.name, converted.graph.names[index], seconds)

    def run_over(self, workload: str, pipeline: str) -> None:
        """A run has ended: keep what it took for the next one."""
        records = self._records.pop(workload, [])
        try:
            rows = history_from_runlog([self._header, *records])
            self._history.record(rows)
            self._predictor(pipeline).learn(rows)
        except Exception as error:
            warn(f"nothing learned from this run: {error}")

    def close(self) -> None:
        self._writer.close()
        self._history.close()

    def _predictor(self, pipeline: str) -> Predictor:
        if pipeline not in self._predictors:
            try:
                self._predictors[pipeline] = Predictor.from_history(self._history, [pipeline])
            except Exception as error:
                warn(f"no history: {error}")
                self._predictors[pipeline] = Predictor()
        return self._predictors[pipeline]
