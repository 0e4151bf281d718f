"""What the cluster's gate and its clients say to each other: bytes, so that Ray and another version can carry them.

A client tells; the answer brings what has happened since. Everything may be told twice: only the first time counts.
"""

from __future__ import annotations

import msgspec

from egs_ray.submission import Arrival, Ordered, Submission

NAME = "egs-gate"
NAMESPACE = "egs"
VERSION = 1
"""Of this module's messages and of the actor's methods. A client uses no gate of another version."""


class Arrived(msgspec.Struct, tag="arrived"):
    """A submission. is_open: its ticket has a value already; a gate that has forgotten it takes that for granted."""

    arrival: Arrival
    is_open: bool = False


class Ended(msgspec.Struct, tag="ended"):
    """A task has ended, or another reference that a submission named has a value."""

    id: str


class GaveBack(msgspec.Struct, tag="gave_back"):
    """This ticket was not used."""

    key: str


class Believed(msgspec.Struct, tag="believed"):
    """What tasks are believed to take now, by id."""

    seconds: dict[str, float]


class Noted(msgspec.Struct, tag="noted"):
    """A submission of a worker, for its driver's run log."""

    submission: Submission


class Attached(msgspec.Struct, tag="attached"):
    """The client is there, new or again, and this is all that it has open. The gate gives up the rest of what it knew
    of it. workload: its Ray job; outside: references whose values it waits for."""

    workload: str
    is_driver: bool
    open: list[Arrived]
    outside: list[str]


Message = Arrived | Ended | GaveBack | Believed | Noted | Attached


class Node(msgspec.Struct):
    """What a node could give to one task if nothing else ran."""

    cpus: float
    gpus: float
    memory_bytes: int


class Answer(msgspec.Struct):
    """is_known: else the client has to attach. off: why this gate orders nothing any more. granted: what has been let
    go of this client; nested: what workers of this driver's job have submitted."""

    is_known: bool
    off: str = ""
    nodes: list[Node] = []
    granted: list[Ordered] = []
    nested: list[Submission] = []


pack = msgspec.msgpack.encode
_messages = msgspec.msgpack.Decoder(list[Message])
_answer = msgspec.msgpack.Decoder(Answer)


def messages(data: bytes) -> list[Message]:
    """What a client tells."""
    return _messages.decode(data)


def answer(data: bytes) -> Answer:
    """What the gate answers."""
    return _answer.decode(data)
