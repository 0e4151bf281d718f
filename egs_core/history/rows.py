"""What a history keeps: a row for every succeeded phase. Nothing here needs a database."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from egs_core.graph.columns import Shape
from egs_core.predict.estimate import Signature, signature_of


class HistoryRow(msgspec.Struct, frozen=True):
    """One phase that ran. seconds: warm duration; the cold start before it is apart, in warmup_s.

    pipeline and task are names, the same in every run. input_bytes: -1 unknown. ended_at: Unix time.
    """

    pipeline: str
    task: str
    phase: int
    shape: Shape
    seconds: float
    flavor: str = ""
    input_bytes: int = -1
    warmup_s: float = 0.0
    outcome: str = "succeeded"
    ended_at: float = 0.0
    framework: str = ""

    @property
    def signature(self) -> Signature:
        return signature_of(self.pipeline, self.task, self.phase, self.shape, self.flavor, self.input_bytes)


class History(Protocol):
    """Durations that outlive a run. No method raises because of the store: without one, a history is empty."""

    def record(self, rows: Iterable[HistoryRow]) -> int:
        """Keep rows and return how many were kept; all of one call or none."""

    def load(self, pipeline: str) -> list[HistoryRow]:
        """The newest rows of a pipeline, oldest first."""

    def pipelines(self) -> list[str]:
        """Names of all pipelines that have rows, sorted."""

    def signatures(self, pipeline: str) -> list[Signature]:
        """The different signatures of a pipeline's rows, in order of first appearance."""


def is_storable(row: HistoryRow) -> bool:
    """False for a row that would teach nonsense: negative or non-finite times."""
    times = (row.seconds, row.warmup_s, row.ended_at)
    return all(math.isfinite(t) and t >= 0 for t in times) and row.phase >= 0
