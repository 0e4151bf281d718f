"""What a run writes down and learns from: its run log, the history, and how long its tasks are expected to take.

None of it may hurt a run: a full disk or a broken store costs one warning, and the run goes on without.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

from egs_core.graph.columns import Graph
from egs_core.history import history_from_runlog
from egs_core.history.sql import SqlHistory
from egs_core.notices import warn
from egs_core.places import data_folder
from egs_core.predict import Predictor
from egs_core.runlog import records as r
from egs_core.runlog.io import FailOpenWriter


class Learning:
    """Of one run; used on its driver's thread, but for `believe` before and `close` after. is_whole: nothing of the run
    log was lost.

    What a run on emulated GPUs took says little of one on real ones: it is kept only in a history that the caller
    names.
    """

    def __init__(self, pipeline: str, header: r.Header, path: str | None, history: str | None) -> None:
        self._pipeline, self._header = pipeline, header
        self.is_whole = True
        self._records: list[r.Record] = []
        self.path = Path(path or os.environ.get("EGS_RUNLOG") or data_folder() / "runs" / f"{header.run_id}.jsonl")
        self._writer = FailOpenWriter(self.path, header, self._lost)
        self._is_kept = not header.emulated_gpus or history is not None
        self._history = SqlHistory.of_user(history)

    def _lost(self, problem: str) -> None:
        self.is_whole = False
        warn(problem)

    def record(self, record: r.Record) -> None:
        self._records.append(record)
        self._writer.write(record)

    def believe(self, graph: Graph) -> Graph:
        """The graph with durations as the history has them, else as hinted; unknown stays unknown."""
        try:
            predictor = Predictor.from_history(self._history, [self._pipeline])
        except Exception as error:
            warn(f"no history: {error}")
            return graph
        believed_s = predictor.believed_s(graph, self._pipeline, graph.ids)
        return msgspec.structs.replace(graph, phase_duration_s=believed_s)

    def close(self) -> None:
        """Keep what the tasks took for the next run."""
        self._writer.close()
        try:
            if self._is_kept:
                self._history.record(history_from_runlog([self._header, *self._records]))
        except Exception as error:
            warn(f"nothing learned from this run: {error}")
        self._history.close()


def run_id(pipeline: str) -> str:
    """A name for a run that no other has, which begins with the pipeline's: of its run log and its folder."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", pipeline)
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06d}"
