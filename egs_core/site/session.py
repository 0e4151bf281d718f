"""What the sessions of all adapters share: a site, a run log that is learned from, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.runlog import records as r
from egs_core.site.connecting import connect
from egs_core.site.learning import Learning
from egs_core.site.messages import AnyTold, Asked, Joining
from egs_core.site.protocol import Holder, Site


class HolderSession(ABC):
    """A holder with a run log. A subclass says what decisions mean, and what becomes of its work without a site.

    The site is made last and is not started: the subclass does that when it can carry decisions out.
    """

    def __init__(
        self,
        config: EngineConfig,
        learning: Learning,
        *,
        logs_waits: bool = True,
        joining: Joining | None = None,
        elsewhere: Callable[[Holder], Site] | None = None,
    ) -> None:
        self.learning = learning
        self.site = connect(config, self, logs_waits=logs_waits, joining=joining, elsewhere=elsewhere)

    @abstractmethod
    def perform(self, decision: AnyTold, now: float) -> None:
        """See `Holder`."""

    @abstractmethod
    def site_lost(self, error: BaseException) -> None:
        """See `Holder`."""

    def asked(self, request: Asked) -> None:
        """See `Holder`; only one that joins a server is."""
        raise NotImplementedError(f"{type(self).__name__} joins no server, and was asked to {request.verb}")

    def record(self, record: r.Record) -> None:
        """A line of the run log; the last one of a workload ends it, so that all before it is learned from."""
        self.learning.record(record)
        if beliefs := self.learning.revised(record):
            self.site.do(lambda: self.site.report(m.Estimates(tuple(beliefs))))
        if isinstance(record, r.WorkloadEnded):
            self.run_over(record.workload)

    @abstractmethod
    def run_over(self, workload: str) -> None:
        """The run log has all of the workload."""

    def note_end(self, workload: str, outcome: str) -> None:
        """A workload has ended: once, on the holder's thread."""
        self.site.note(r.WorkloadEnded(self.site.now(), workload, outcome))

    def end(self, timeout_s: float = 5.0) -> None:
        """Nothing is asked of the site any more."""
        self.site.close(timeout_s)
        self.learning.close()
