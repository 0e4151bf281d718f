"""The protocol between a site and a holder of work (an adapter's session, an agent, `egs run`).

    holder ── submit, grow, report, note, control ──►  site   never wait, but for `grow`; may be repeated
           ── progressed, has_devices ─────────────►         of a task that runs: the latest counts, and may be lost
           ── why, tasks, workload, order ──────────►         questions: wait for their answer
           ◄── perform, record, site_lost ───────────         on the holder's own thread, one after the other

The holder's thread runs the actions given to `do` and what the site tells, in turn: never two at once, and none inside
another. So a decision that follows from a report is carried out after the action that reported, never during it, and
a holder cannot tell a site in its own process from one behind a wire. A decision may come late: its task may have ended
meanwhile, or its attempt be an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_core.site.messages import AnyTold, Asked, Grown, Note, Order, TaskStatus, Where, WorkloadStatus

T = TypeVar("T")
Control = m.AbortRequested | m.PauseRequested | m.ResumeRequested


class Holder(Protocol):
    """What a site calls, on the holder's thread. None of it may block for long."""

    def perform(self, decision: AnyTold, now: float) -> None:
        """Carry a decision out. Each is told once to a holder, in the order of their ids."""
        ...

    def record(self, record: r.Record) -> None:
        """A line of the run log."""
        ...

    def asked(self, request: Asked) -> None:
        """An operator asks, through the site."""
        ...

    def site_lost(self, error: BaseException) -> None:
        """Nothing more is decided: the work goes on without. Called once; `do` and `call` still work."""
        ...


class Site(Protocol):
    """See the module. All methods may be called from any thread; `grow` from the holder's only."""

    def start(self) -> None:
        """From now on the holder is called."""
        ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_shared(self) -> bool:
        """Whether others' work may be ordered with the holder's: then nothing may start without a grant."""
        ...

    def now(self) -> float:
        """Seconds on the site's clock, which is the run log's."""
        ...

    # --- the holder's thread ---

    def do(self, action: Callable[[], None]) -> None:
        """Run it on the holder's thread, in turn; never blocks."""
        ...

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        """The value of an action run on the holder's thread. Raises what the action raises, and TimeoutError when it
        does not get its turn in time."""
        ...

    # --- work ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        """A workload is there; its tasks follow. Repeating it changes nothing."""
        ...

    def grow(self, workload: str, at: int, graph: Graph) -> Grown:
        """Tasks join a workload; the answer has their numbers. at: how many it had before, so that a repeated call is
        known: it is answered again and adds nothing. Raises ConnectionError when the site is lost, ValueError for an
        unknown workload or an `at` past its end."""
        ...

    def report(self, *events: m.Event) -> None:
        """What has happened, in order, with answers to decisions (`DecisionApplied` and so on) among it. An event that
        is repeated or late changes nothing. Nothing happens when the site is lost."""
        ...

    def note(self, *notes: Note | r.Record) -> None:
        """For the run log: a note, which the site makes a record of with what it knows, or a record as it stands."""
        ...

    def control(self, *requests: Control) -> None:
        """What an operator wants; scopes as in the requests."""
        ...

    def has_devices(self, task: int, devices: tuple[str, ...]) -> None:
        """Which devices a task holds, by their UUIDs, until it ends: for a server that measures them; as below."""
        ...

    def progressed(self, where: Where) -> None:
        """What the code of a task tells of how far it is, for people and rules at a server; other sites drop it."""
        ...

    # --- questions; each raises TimeoutError when no answer comes ---

    def why(self, task: int) -> m.Reason:
        """Why a task is where it is."""
        ...

    def tasks(self, numbers: Sequence[int]) -> tuple[TaskStatus, ...]:
        """How far these tasks are."""
        ...

    def workload(self, workload: str) -> WorkloadStatus:
        """How far a workload is. Raises KeyError for an unknown one."""
        ...

    def order(self) -> Order:
        """The present order of all ready phases, and what is kept for them."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Handle what was given before, then call the holder no more."""
        ...
