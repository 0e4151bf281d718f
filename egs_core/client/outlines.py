"""What a server tells of its runs to whoever draws them and adds them up, again and again: what has changed since.

GET /v1/outlines     ─► Outlines    `?epoch=EPOCH&since=NUMBER` of the answer before; without: all that the server keeps

Those of the asker's teams, also ended ones, in the order in which they changed last, some hundred at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Earlier:
    """What a run had from a start until it was evicted. waited_s: for its GPUs, where that is known; why: it was
    evicted, "" where that is not. A dataclass, as outlines are read by msgspec and `messages` by pydantic."""

    started_at: float
    ended_at: float
    gpus: float
    host: str = ""
    flavor: str = ""
    waited_s: float | None = None
    why: str = ""


class Outline(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run without what only its owner needs; see `messages.RunView`. follows: ids of the runs after which it was
    submitted to come, also such as had ended by then; after: of those that it still waits for; when: those of either
    that need not succeed for it, and how they have to end instead, `any` or `failed`; gang: the same for all that start
    together, "" for none; waited_s: how long it waited for its latest lease, once it was its turn to; why: how it came
    to its end, or to a stop; ends_at: of one that has its GPUs, when its time box or the request is over. Runs that the
    asker does not see are left out of `follows`, `after` and `when`."""

    id: str
    name: str
    user: str
    state: str
    gpus: float
    submitted_at: float
    team: str = ""
    queue: str = ""
    host: str = ""
    flavor: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    waited_s: float | None = None
    expected_s: float | None = None
    follows: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    gang: str = ""
    inside: str = ""
    is_request: bool = False
    devices: tuple[str, ...] = ()
    why: str = ""
    evictions: int = 0
    when: dict[str, str] = {}
    earlier: tuple[Earlier, ...] = ()
    ends_at: float | None = None

    @property
    def framework(self) -> str:
        """None: what drivers of frameworks run is not among them."""
        return ""


class Outlines(msgspec.Struct, frozen=True):
    """epoch: another one after a start of the server: then all are told anew. number: to ask from next. more: there are
    more already. now: of the server's clock, seconds since 1970."""

    epoch: str
    number: int
    now: float
    runs: tuple[Outline, ...] = ()
    more: bool = False
