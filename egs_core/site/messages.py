"""What a site and a holder tell each other, beside the engine's own events (`egs_core.engine.messages`).

All of it are plain values that JSON can carry. Tasks and phases have the site's numbers, which `Site.grow` tells. The
id of a grant is its fencing token: a later grant of the same phase has a higher one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from egs_core.engine import messages as m
from egs_core.progressed import Progressed, progress_words

# --- told by the site ---


class Grant(m.Grant, frozen=True, gc=False, tag="grant"):
    """Start this phase. index: its place in its task; is_last: of the task's phases; is_gpu: its kind.

    after_s: how long what follows the phase is expected to take at least, by the longest path through it. gang: the ids
    of the grants that start together with this one, itself included; empty for a task in no gang.
    """

    index: int = 0
    is_last: bool = True
    is_gpu: bool = False
    after_s: float = 0.0
    gang: tuple[int, ...] = ()


class Stop(m.Stop, frozen=True, tag="stop"):
    """End this task. at_limit: because it has reached a limit. is_over: the task runs nothing now, so the site has
    already taken the end, or the new start, for granted: no `PhaseEnded` is awaited."""

    at_limit: bool = False
    is_over: bool = False


class Dropped(msgspec.Struct, frozen=True, tag_field="d", tag="dropped"):
    """These tasks will never run: they were aborted while they waited, or what they wait for was."""

    tasks: tuple[int, ...]


class Settled(msgspec.Struct, frozen=True, tag_field="d", tag="settled"):
    """All tasks that the workload has have ended; told again if it grows and they end again."""

    workload: str
    failed: bool = False


AnyTold = Grant | m.Preload | m.DropPreload | Stop | m.ScalingHint | Dropped | Settled
"""A decision, or what follows from one and needs no answer (`Dropped`, `Settled`)."""


class Joining(msgspec.Struct, frozen=True):
    """Who joins a site server. pool: whose devices, the same for all that share them; name: what others see; queue: of
    all its workloads that name none."""

    framework: str
    pool: str
    name: str
    queue: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What an operator wants of all that the holder runs: it carries that out itself. verb: abort, pause, resume."""

    verb: str
    actor: str = ""
    reason: str = ""
    grace_s: float = 0.0


# --- answers ---


class Grown(msgspec.Struct, frozen=True):
    """The numbers of a block's first task and first phase; the others follow in the block's order."""

    task: int
    phase: int


class TaskStatus(msgspec.Struct, frozen=True):
    """status: a name of `STATUS_NAMES`, of the current phase; index: that phase's place in the task. since: when it
    started, where it runs or is about to, else when it became ready, in seconds of the site's clock. waiting_for: of a
    pending task some of those that it depends on and that have not ended."""

    task: int
    status: str
    index: int
    attempt: int
    since: float
    waiting_for: tuple[str, ...] = ()


class WorkloadStatus(msgspec.Struct, frozen=True):
    """open_tasks: those that have not ended; is_paused: as a whole."""

    workload: str
    open_tasks: int
    is_paused: bool = False
    failed: bool = False


class Ranked(msgspec.Struct, frozen=True):
    """A ready phase in the present order. rank_s: seconds of the longest path from its start on."""

    phase: int
    task: int
    attempt: int
    workload: str
    name: str
    index: int = 0
    rank_s: float = 0.0
    ready_at: float = 0.0


class Kept(msgspec.Struct, frozen=True):
    """Room on a node that is kept for a phase from `at` on."""

    phase: int
    task: int
    node: str
    at: float


class Order(msgspec.Struct, frozen=True):
    """The ready phases, first first, members of a gang behind each other; and what is kept for some of them."""

    ready: tuple[Ranked, ...] = ()
    kept: tuple[Kept, ...] = ()


# --- what a holder tells for the run log ---


class Note(msgspec.Struct, frozen=True, tag_field="n", omit_defaults=True):
    """What happened, for the run log only: the engine hears of it by events."""


class Granted(Note, frozen=True, tag="granted"):
    """The grant is being carried out."""

    grant: Grant


class Started(Note, frozen=True, tag="started"):
    """A phase has started, at this time. grant: with the devices that it has really got."""

    grant: Grant
    at: float
    warm: bool | None = None
    framework_id: str = ""
    pid: int = 0


class Ended(Note, frozen=True, tag="ended"):
    """A phase has ended. reason: why, unless it succeeded."""

    phase: int
    attempt: int
    outcome: str = "succeeded"
    reason: str = ""


class PreloadBegun(Note, frozen=True, tag="preload"):
    """A process is being made warm for a task."""

    decision: m.Preload


class PreloadOver(Note, frozen=True, tag="preload_over"):
    """outcome: warm, used, unused, failed."""

    task: int
    outcome: str


AnyNote = Granted | Started | Ended | PreloadBegun | PreloadOver

# --- where tasks are, which no engine hears of ---


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task that runs has told last by `egs.progress`, see `egs_core.progressed.Progressed`. ago_s: how long ago
    that was, in seconds."""

    task: int
    step: Annotated[float, Meta(ge=0)] | None = None
    loss: float | None = None
    is_nan: bool = False
    losses: Annotated[int, Meta(ge=0)] = 0
    total: float = 0.0
    squares: Annotated[float, Meta(ge=0)] = 0.0
    ago_s: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def words(self) -> str:
        """See `progress_words`."""
        return progress_words(self.step, self.loss, self.is_nan)


def where_of(task: int, told: Progressed, ago_s: float) -> Where:
    """The same as a message."""
    return Where(task, told.step, told.loss, told.is_nan, told.losses, told.total, told.squares, ago_s)


class Placed(msgspec.Struct, frozen=True):
    """The devices that a task holds, by their UUIDs; all that it has."""

    task: int
    devices: tuple[Annotated[str, Meta(max_length=200)], ...]
