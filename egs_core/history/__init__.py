"""Durations that outlive a run, behind the `History` protocol; the database is only in `egs_core.history.sql`."""

from egs_core.history.from_runlog import history_from_runlog
from egs_core.history.rows import History, HistoryRow

__all__ = ["History", "HistoryRow", "history_from_runlog"]
