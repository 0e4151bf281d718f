"""What controllers of clusters tell a server of their queues, and ask it: in which cluster a workload should end first.

POST /v1/outlooks          Outlook     of one cluster: the latest counts, for STALE_S
POST /v1/outlooks/named    Question    ─► Named    by the outlooks of clusters that the asker sees

Amounts are of resources, by their names in the cluster, each in its own unit. Times are seconds from now, so that no
clock is compared with another.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from egs_core.described import describe

STALE_S = 30.0
"""For so long what was told of a cluster is believed."""
MOST_WORK = 200
"""So many pieces of work of a queue are told, and as many that wait: of one with more no start is foretold."""
MOST_ASKED = 32
"""So many workloads are asked for at once."""
MOST_S, MOST_AMOUNT = 1e9, 1e18

Name = Annotated[str, Meta(max_length=320)]
Amount = Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]
Amounts = dict[Name, Amount]
Seconds = Annotated[float, Meta(ge=0, le=MOST_S)]


class Holding(msgspec.Struct, frozen=True):
    """Work that has quota. name: NAMESPACE/NAME; takes: amounts by flavor; left_s: so long it will have it, None:
    nobody knows."""

    name: Name
    takes: dict[Name, Amounts]
    left_s: Seconds | None = None


class Work(msgspec.Struct, frozen=True):
    """Work that waits for quota. asks: of each of its sets of pods, which all start together; takes_s: how long it will
    take, None: nobody knows; priority: what is higher goes first."""

    name: Name
    asks: Annotated[tuple[Amounts, ...], Meta(max_length=64)]
    takes_s: Seconds | None = None
    priority: int = 0


class Queue(msgspec.Struct, frozen=True):
    """One queue of a cluster. doors: by which work comes into it, each NAMESPACE/NAME. groups: of resources that a set
    of pods gets of one flavor: quotas by flavor, in the order in which these are tried. waiting: the first first;
    is_strict: what does not fit holds up what is behind it; may_borrow: quota of others, so that work may start sooner;
    is_known: False: it has more work than is told here, or is stopped, and nothing can be foretold of it."""

    doors: tuple[Name, ...]
    groups: Annotated[tuple[dict[Name, Amounts], ...], Meta(max_length=64)]
    holding: Annotated[tuple[Holding, ...], Meta(max_length=MOST_WORK)] = ()
    waiting: Annotated[tuple[Work, ...], Meta(max_length=MOST_WORK)] = ()
    is_strict: bool = False
    may_borrow: bool = False
    is_known: bool = True


class Outlook(msgspec.Struct, frozen=True):
    """cluster: as other controllers name it."""

    cluster: Name
    queues: tuple[Queue, ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """A workload that may run in one of these clusters. door: NAMESPACE/NAME, the same in each of them; present: where
    it waits now; waited_s: how long it has been waiting for one. settled: where it runs, for one that has only just
    come there: nothing is asked of it, but that it is not forgotten."""

    work: Work
    door: Name
    clusters: Annotated[tuple[Name, ...], Meta(max_length=20)]
    present: Annotated[tuple[Name, ...], Meta(max_length=20)] = ()
    waited_s: Seconds = 0.0
    settled: Name = ""


class Question(msgspec.Struct, frozen=True):
    """candidates: those that go first, first."""

    candidates: Annotated[tuple[Candidate, ...], Meta(max_length=MOST_ASKED)]


class Naming(msgspec.Struct, frozen=True):
    """Where a workload should wait: one cluster, or several where it is not known which is best. starts: in seconds
    from now where it is known, by cluster; a cluster that could never run it has none."""

    name: str
    clusters: tuple[str, ...]
    starts: dict[str, float] = {}


class Named(msgspec.Struct, frozen=True):
    """One for each that was asked for, in the same order."""

    namings: tuple[Naming, ...]


describe(Outlook, Question, Named)
