"""The commit barrier: what an engine decides may be told or performed only after what led to it is durable.

    handle(event) ─► engine ─► decisions ─► whoever asked keeps them, with the answers that follow from them
                       │                                          ▲
                       └─► entries ─► take() ─► one commit ───────┘  then they are told

`handle` never waits: many events share one commit, and one fsync (group commit). If the commit fails the engine is
ahead of what is durable: it is thrown away, and recovery folds what is (`journal.folded`). Nothing was told.
"""

from __future__ import annotations

from egs_core.driver.journal import encode_entry
from egs_core.engine import Engine
from egs_core.engine import messages as m


class CommitBarrier:
    """An engine and the journal entries that are not durable yet. The engine must record."""

    def __init__(self, engine: Engine) -> None:
        if not engine.config.record:
            raise ValueError("a commit barrier needs an engine that records: EngineConfig(record=True)")
        self.engine = engine
        self._entries: list[bytes] = []

    def handle(self, event: m.Event, now: float) -> list[m.Decision]:
        """What the engine decides, to be told after the commit of `take()`. Raises what `Engine.handle` raises."""
        decisions = self.engine.handle(event, now)
        self._entries.append(encode_entry(event, max(now, self.engine.state.now), self.engine.take_transitions()))
        return decisions

    @property
    def has_entries(self) -> bool:
        """Whether there are entries to take."""
        return bool(self._entries)

    def take(self) -> list[bytes]:
        """The entries since the last call, in order, for one commit."""
        taken, self._entries = self._entries, []
        return taken
