"""What the cluster's gate and its clients say to each other: bytes, so that Ray and another version can carry them.

A client tells; the answer brings what has happened since. Everything may be told twice: only the first time counts.
"""

from __future__ import annotations

import msgspec

from egs_ray.submission import Arrival, Ordered, Submission

NAME = "egs-gate"
NAMESPACE = "egs"
VERSION = 2
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
    of it. workload: its Ray job; outside: references whose values it waits for; is_aborted: the whole workload is, so
    what comes of it is cancelled."""

    workload: str
    is_driver: bool
    open: list[Arrived]
    outside: list[str]
    is_aborted: bool = False


class Asked(msgspec.Struct):
    """What an operator wants of a workload, or of these of its tasks. verb: abort, pause or resume."""

    verb: str
    workload: str
    task_ids: list[str] = []
    actor: str = ""
    reason: str = ""


class GateTask(msgspec.Struct):
    """A GPU task from its submission to its end, as the gate has it: what `egs ps` shows. state: of GATE_STATES; since:
    Unix time, of its ticket or of its arguments; is_nested: a worker has submitted it."""

    workload: str
    task_id: str
    name: str
    gpus: float
    state: str
    since: float
    is_nested: bool = False


PASSED, READY, PAUSED, EARLY = "passed the gate", "waits at the gate", "paused at the gate", "waits for others"
GATE_STATES = (PASSED, READY, PAUSED, EARLY)

Message = Arrived | Ended | GaveBack | Believed | Noted | Attached


class Node(msgspec.Struct):
    """What a node could give to one task if nothing else ran."""

    cpus: float
    gpus: float
    memory_bytes: int


class Answer(msgspec.Struct):
    """is_known: else the client has to attach. off: why this gate orders nothing any more. granted: what has been let
    go of this client; nested: what workers of this driver's job have submitted; cancelled: ids of tasks that this
    client has submitted and is to cancel."""

    is_known: bool
    off: str = ""
    nodes: list[Node] = []
    granted: list[Ordered] = []
    nested: list[Submission] = []
    cancelled: list[str] = []


pack = msgspec.msgpack.encode
_messages = msgspec.msgpack.Decoder(list[Message])
_answer = msgspec.msgpack.Decoder(Answer)
_asked = msgspec.msgpack.Decoder(Asked)
_tasks = msgspec.msgpack.Decoder(list[GateTask])


def messages(data: bytes) -> list[Message]:
    """What a client tells."""
    return _messages.decode(data)


def answer(data: bytes) -> Answer:
    """What the gate answers."""
    return _answer.decode(data)


def asked(data: bytes) -> Asked:
    """What an operator asks."""
    return _asked.decode(data)


def gate_tasks(data: bytes) -> list[GateTask]:
    """What the gate says is there."""
    return _tasks.decode(data)
