"""The server's fault simulation with a second host, whose agent is killed, silent, late and heard twice."""

from __future__ import annotations

from typing import Any

import pytest

from egs_core.client import hosts as h
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from tests.unit.server.site_world import GIB, Asked, World

AGENT, FAR_ANN = Principal("far", "agent", host="far"), Principal("ann", host="far")
DEVICES = tuple([h.OfferedDevice(id=f"far-{n}", memory_bytes=80 * GIB) for n in range(2)])
OFFERED = h.HostOffer(host="far", devices=DEVICES, cpus=8, memory_bytes=1 << 40)


class TwoHosts(World):
    """About half of the supervisors are on the second host. is_up: its agent; watches: for whom that is to look."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for one in self.all:
            if self.random.random() < 0.5:
                one.who, one.inside = FAR_ANN, None
        self.is_up, self.session, self.number, self.silences = True, 0, 0, 0
        self.watches: tuple[h.WatchView, ...] = ()
        self.turns.take([self._join])

    def _serve(self, asks: list[Asked]) -> None:
        if self.random.random() < self.faults / 5:
            self.is_up, self.session = not self.is_up, 0  # killed, or started again
        if self.is_up:
            ask = self._report() if self.session else self._join
            asks += [] if self.maybe() else [(None, None, ask)]
            if self.maybe():
                self.delayed.append(ask)
        super()._serve(asks)
        self.silences += self.turns.logic.book.hosts.is_silent("far")

    def _join(self, logic: SiteLogic) -> h.Joined:
        joined = logic.join_host(AGENT, OFFERED)
        self.session, self.watches = joined.session, joined.watches
        return joined

    def _report(self) -> Any:
        """What lives there now of those that it knows of."""
        self.number += 1
        found = []
        for view in self.watches:
            one = self._by_pid[view.supervisor.pid]
            living = (10_000 + view.supervisor.pid,) if one.devices and one.started[-1] == view.token else ()
            found.append(h.Found(run=view.run, token=view.token, supervisor=one.is_alive, living=living))
        report = h.Report(session=self.session, number=self.number, found=tuple(found))

        def ask(logic: SiteLogic) -> h.Watches:
            try:
                answer = logic.report(AGENT, report)
            except Refusal:
                self.session = 0
                raise
            self.watches = answer.watches
            return answer

        return ask

    def check(self) -> None:
        """No device of either host is used by two, but in one request; none without its lease, and none by what was
        started on the other host."""
        parts: dict[str, dict[object, float]] = {}
        for one in self.all:
            self.check_starts(one)
            for device in one.devices:
                parts.setdefault(device, {})[one.inside or one] = one.part
                assert device.startswith("far-") == (one.who.host == "far"), (one.run_id, device)
            if one.devices:
                lease = self.turns.logic.view(Principal("root", "admin"), one.run_id).lease
                assert lease is not None, one.run_id
                assert lease.devices == one.devices
        used = {device: sum(found.values()) for device, found in parts.items()}
        assert max(used.values(), default=0.0) <= 1.0, f"more of a device is used than there is: {used}"

    def settle(self) -> None:
        self.is_up, self.session = True, 0
        super().settle()


def simulate(seed: int) -> TwoHosts:
    world = TwoHosts(seed)
    for _ in range(60):
        world.step()
    world.settle()
    world.turns.logic.validate()
    return world


@pytest.mark.parametrize("first", [5, 10])
def test_no_device_of_either_host_is_given_twice_and_every_run_ends(first: int) -> None:
    """And the faults happen: the host was silent now and then, servers were started again, and commands ran there."""
    worlds = [simulate(seed) for seed in range(first, first + 10)]
    there = [run for world in worlds for run in world.turns.logic.runs.values() if run.host]
    assert {"succeeded", "lost"} <= {run.outcome for run in there if run.started_at is not None}
    assert sum(world.silences for world in worlds) > len(worlds)
    assert sum(world.crashes for world in worlds) >= len(worlds)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 1250])
def test_many_more_seeds(first: int) -> None:
    for seed in range(first, first + 250):
        simulate(seed)
