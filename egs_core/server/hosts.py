"""Hosts that have joined a site: what each has, and whether its agent is heard of. It knows no runs and no engine.

join ─► silent ─ report ─► heard ─ no report in SILENT_S ─► silent      what is silent gets nothing new
                                                              └─ an operator says that it is gone ─► forgotten
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from egs_core.server.runs import Device, most_memory

SILENT_S = 15.0  # after so long its devices are suspect
OWN = ""  # the server's own host, as runs name it


class JoinedHost(msgspec.Struct, frozen=True):
    """As the store keeps it. session: one higher with each agent that joins for it: reports of those before do not
    count. is_watched: see `Offer`. is_gone: an operator has said that it is."""

    name: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    is_watched: bool
    session: int
    is_gone: bool = False

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The most that a device has; None where it is not known of one."""
        return most_memory(self.devices)


class Hosts:
    """All that have joined. heard: when its agent's last report came, of those that are not silent; numbers: of that
    report; occupied: devices, by their place, that processes use which hold no lease of theirs; is_dirty: whether they
    are to be written; back: since when processes there are seen again, also of the server's own.

    After a start all are silent until they report, which takes a second where they are well."""

    def __init__(self, kept: Iterable[JoinedHost] = ()) -> None:
        self.all = {host.name: host for host in kept}
        self.heard: dict[str, float] = {}
        self.numbers: dict[str, int] = {}
        self.occupied: dict[str, dict[int, tuple[int, ...]]] = {}
        self.is_dirty = False
        self.back: dict[str, float] = {}

    def copy(self) -> Hosts:
        found = Hosts(self.all.values())
        found.heard, found.occupied = dict(self.heard), dict(self.occupied)
        return found

    def joined(self) -> list[JoinedHost]:
        """Those that are not forgotten, in the order in which they came."""
        return [host for host in self.all.values() if not host.is_gone]

    def find(self, name: str) -> JoinedHost | None:
        host = self.all.get(name)
        return None if host is None or host.is_gone else host

    def put(self, host: JoinedHost) -> None:
        """A new agent of it, or none any more: it is silent until a report comes."""
        self.all[host.name], self.is_dirty = host, True
        self.numbers.pop(host.name, None)
        self.occupied.pop(host.name, None)
        self.heard.pop(host.name, None)

    def is_silent(self, name: str) -> bool:
        """Never of the server's own."""
        return name != OWN and name not in self.heard

    def closed(self, host: JoinedHost) -> tuple[int, ...]:
        """Devices that nothing new gets now."""
        if self.is_silent(host.name):
            return tuple(range(len(host.devices)))
        return tuple(sorted(self.occupied.get(host.name, {})))

    def fell_silent(self, now: float) -> list[str]:
        """Those from which nothing has come for too long; from now on they are silent."""
        found = [name for name, at in self.heard.items() if now - at > SILENT_S]
        for name in found:
            del self.heard[name]
        return found

    def next_silence(self) -> float | None:
        """When the first of them is silent, if it says nothing before; None: never."""
        return min((at + SILENT_S for at in self.heard.values()), default=None)
