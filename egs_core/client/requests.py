"""GPU requests: GPUs for a while, without a command; commands run in them (`RunRequest.inside`).

    POST /v1/requests              GpuRequest ─► RequestView   repeated with the same key: the same request
    POST /v1/requests/ID/extend    Extend     ─► RequestView   409 before it has begun, and when it is about to end
    POST /v1/requests/ID/release   c.Control  ─► RequestView   its end, before its time: a success
    GET  /v1/requests                         ─► Requests      GET /v1/requests/ID: one of them

    queued ─► ready ─► in use ◄─► idle ─► expiring ─► stopping ─► ended
      └ paused           (a command runs, or none)     └ its commands end, then their processes are gone
      └◄────────────────────────────────────── evicted ┘

A request is a run too, with the same number: `egs ps`, `queue`, `why`, `abort`, `pause` and `update` reach it. One over
several hosts is a run on each, its parts, which start together; each of their numbers means the whole request.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from egs_core.client.messages import Ask, FlavorName, Gpus, Name, Seconds, Told

MOST_HOSTS = 64
State = Literal["queued", "paused", "ready", "in use", "idle", "expiring", "stopping", "ended"]


class GpuRequest(Ask):
    """key: chosen by the client, so that a repeated request is known. gpus: whole ones, or a part of one; for_s: how
    long, from when it has them; idle_timeout_s: it ends when for so long no command was in it, and its GPUs, where
    that can be measured, did no work; flavors: of GPUs that it may have; None: all. hosts: on how many the GPUs are
    to be, as many on each; None: on the one where it is asked for, or as many as `on` names. on: on which hosts.
    requeue: it may be evicted for another, and then waits again; so may commands in it that say so themselves."""

    key: Annotated[str, Field(min_length=8, max_length=64)]
    gpus: Annotated[Gpus, Field(gt=0)]
    for_s: Seconds
    gpu_memory_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    idle_timeout_s: Seconds | None = None
    queue: Name = ""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    name: Name = ""
    flavors: Annotated[tuple[FlavorName, ...], Field(max_length=100)] | None = None
    hosts: Annotated[int, Field(ge=1, le=MOST_HOSTS)] | None = None
    on: Annotated[tuple[Name, ...], Field(max_length=MOST_HOSTS)] | None = None
    requeue: bool = False


class Extend(Ask):
    """more_s: so much longer than it would last."""

    more_s: Seconds


class RequestPart(Told):
    """What a request over several hosts has on one: id: its number as a run; the others as of `RequestView`."""

    id: str
    host: str
    state: State
    devices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    flavor: str = ""


class RequestView(Told):
    """state: see the module; expiring: its end is near, whatever is in it. place: in the queue, 1 for the first;
    starts_in_s: when it should have its GPUs, None where that is not known. devices: their ids, on `host`; commands:
    runs in it that have not ended; idle_s: for how long none has been. ends_at: when its time is over, as it is now.
    stop: why it has to end; notice: what who has just asked for it is to be told. flavors: of GPUs that it may have,
    none named: all; flavor: of those that it has, where they are of one. parts: over several hosts what it has on
    each; gpus and commands are of all together then, host, devices and flavor those of the first part. requeue: it may
    be evicted; evictions: how often it was, each with a time box that began anew."""

    id: str
    site: str = ""
    name: str
    user: str
    team: str = ""
    host: str = ""
    state: State
    gpus: float
    gpu_memory_bytes: int = 0
    queue: str = ""
    priority: int = 0
    for_s: float
    idle_timeout_s: float | None = None
    place: int | None = None
    starts_in_s: float | None = None
    reason: str = ""
    devices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    idle_s: float | None = None
    submitted_at: float
    started_at: float | None = None
    ends_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    stop: str = ""
    notice: str = ""
    flavors: tuple[str, ...] = ()
    flavor: str = ""
    parts: tuple[RequestPart, ...] = ()
    requeue: bool = False
    evictions: int = 0


class Requests(Told):
    """Some requests, oldest first."""

    requests: tuple[RequestView, ...]
