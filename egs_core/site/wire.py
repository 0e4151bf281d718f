"""What a holder and a site server tell each other beyond joining: JSON of plain values, which the server never runs.

    holder ── Batch: what it reports, notes, grows by and asks, in order ──► server ── Answers, for those that have one
    holder ◄── Messages: what it is told, its run log, what operators want, numbered from 1 ── server

A batch has a number, so that a repeated one is answered as before; messages are told again until they are acknowledged.
What a batch causes for its own holder is told with its answers: a grant that an end frees comes a question sooner.
"""

from __future__ import annotations

import msgspec

from egs_core.described import describe
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_core.site import messages as s


class Joined(msgspec.Struct, frozen=True):
    """A holder has joined. epoch: of the site, until it ends; now: second of the site's clock; queue: in which its work
    is; wants_progress: it takes `Told`, and takes_flavors: `FlavorsAllowed`, which sites of before do not know."""

    id: str
    epoch: str
    now: float
    queue: str = ""
    wants_progress: bool = False
    takes_flavors: bool = False


class Item(msgspec.Struct, frozen=True, tag_field="i"):
    """One of what a batch has."""


class Reported(Item, frozen=True, tag="report"):
    event: m.AnyEvent


class Noted(Item, frozen=True, tag="note"):
    note: s.AnyNote


class Mark(Item, frozen=True, tag="mark"):
    """Is told back in order: a line of the run log that the holder has itself comes behind what it has sent before."""

    number: int


class Told(Item, frozen=True, tag="told"):
    """How far tasks are that have told since the last of these, and which devices tasks have."""

    tasks: tuple[s.Where, ...] = ()
    placed: tuple[s.Placed, ...] = ()


class Growing(Item, frozen=True, tag="grow"):
    """Answered with `Grown`; so is each one below, with what its question in `Site` has."""

    workload: str
    at: int
    graph: Graph
    begun: tuple[m.Begun, ...] = ()


class Here(Item, frozen=True, tag="here"):
    """A driver that has come back has told all that it has."""


class Why(Item, frozen=True, tag="why"):
    task: int


class Tasks(Item, frozen=True, tag="tasks"):
    numbers: tuple[int, ...]


class Workload(Item, frozen=True, tag="workload"):
    workload: str


class Order(Item, frozen=True, tag="order"):
    pass


AnyItem = Reported | Noted | Mark | Here | Told | Growing | Why | Tasks | Workload | Order
LONG = (Why, Tasks, Order)
"""Items of few bytes that may be long work: of all that waits, or of many tasks."""
Asking = Growing | Why | Tasks | Workload | Order


class Batch(msgspec.Struct, frozen=True):
    """seq: from 1 on, one more each time. epoch: of the server, as joining has told. ack: number of the last message
    that the holder has got, if it takes those behind it with the answers."""

    epoch: str
    seq: int
    items: tuple[AnyItem, ...]
    ack: int | None = None


class Encoded(msgspec.Struct, frozen=True):
    """A `Batch` of items that are JSON already."""

    epoch: str
    seq: int
    items: list[msgspec.Raw]
    ack: int | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """problem: why there is no value; is_unknown: because there is no such workload."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    problem: str = ""
    is_unknown: bool = False


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of these four. now: of the site's clock, with what is told."""

    number: int
    now: float = 0.0
    told: s.AnyTold | None = None
    record: r.AnyRecord | None = None
    mark: int = 0
    asked: s.Asked | None = None


class Answers(msgspec.Struct, frozen=True):
    """One for each item of the batch that is a question, in order. messages: those behind its `ack`."""

    answers: tuple[Answer, ...] = ()
    messages: tuple[Message, ...] = ()


class Messages(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...] = ()


TOLD = (Batch, Answers, Messages, m.Reason, s.Grown, tuple[s.TaskStatus, ...], s.WorkloadStatus, s.Order)
describe(Joined, *TOLD)
