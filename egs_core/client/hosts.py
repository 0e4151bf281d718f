"""What the agent of a joined host and the server tell each other. All but the list needs the host's own token.

POST /v1/hosts/join           HostOffer ─► Joined     what the host has; a later agent of the host takes its place
POST /v1/hosts/report         Report    ─► Watches    what was found on the host, again and again: its sign of life
POST /v1/hosts/NAME/forget              ─► Hosts      an operator: nothing of EGS runs there any more
GET  /v1/hosts                          ─► Hosts

What users of the host ask goes to the server with their user id and name in `EGS-Peer`, which only an agent may say.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from egs_core.client.messages import MOST_PROCESSES, PLAIN, Ask, Process, Told
from egs_core.client.watching import DeviceHealth

PEER_HEADER = "EGS-Peer"
MOST_DEVICES = 1024
HostName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Field(max_length=200, pattern=PLAIN)]


class OfferedDevice(Ask):
    """id: as `CUDA_VISIBLE_DEVICES` has it; memory_bytes: 0 where it is not known; flavor: where that does not follow
    from the label."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]
    label: Text = ""
    memory_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    flavor: Annotated[str, Field(max_length=100, pattern=PLAIN)] = ""


class HostOffer(Ask):
    """What a host has for processes that are started on it. watched: others may use its devices, so none is given out
    before a report has said which they use."""

    host: HostName
    devices: Annotated[tuple[OfferedDevice, ...], Field(max_length=MOST_DEVICES)] = ()
    cpus: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    memory_bytes: Annotated[int, Field(ge=0, le=2**62)] = 0
    watched: bool = False


class Found(Ask):
    """What was found for a watch. living: numbers of the lease's processes beside its supervisor."""

    run: Annotated[str, Field(max_length=32)]
    token: Annotated[int, Field(ge=0, le=2**62)]
    supervisor: bool
    living: Annotated[tuple[int, ...], Field(max_length=MOST_PROCESSES)] = ()


class Occupied(Ask):
    """Processes on a device that hold no lease of it."""

    device: Annotated[str, Field(max_length=200)]
    processes: Annotated[tuple[int, ...], Field(max_length=MOST_PROCESSES)]


class Report(Ask):
    """session: that the agent has joined with; number: higher in each of its reports, so that none counts twice.
    health: of its devices, where `Watches.wants_health`."""

    session: Annotated[int, Field(ge=0, le=2**62)]
    number: Annotated[int, Field(ge=0, le=2**62)]
    found: Annotated[tuple[Found, ...], Field(max_length=20_000)] = ()
    occupied: Annotated[tuple[Occupied, ...], Field(max_length=MOST_DEVICES)] = ()
    health: Annotated[tuple[DeviceHealth, ...], Field(max_length=MOST_DEVICES)] = ()


class WatchView(Told):
    """Processes to look for, of one run of the host. token: of its lease, 0 for none; mark: see `Lease`."""

    run: str
    token: int
    supervisor: Process
    claimed: bool
    named: tuple[Process, ...] = ()
    mark: str = ""
    devices: tuple[str, ...] = ()


class Watches(Told):
    """site: of the server; report_s: in so long it wants the next report; wants_health: and in it what is measured of
    the devices."""

    watches: tuple[WatchView, ...]
    wants_health: bool = False
    report_s: float = 1.0


class Joined(Watches):
    """ttl_s: silent for longer, the host's devices are given to nobody new."""

    session: int
    ttl_s: float


class HostView(Told):
    """state: own, joined, silent or forgotten. devices: their ids; runs: those that have not ended there and the asker
    sees."""

    name: str
    state: str
    devices: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


class Hosts(Told):
    """The server's own first."""

    hosts: tuple[HostView, ...]
