"""The server's fault simulation with a second host, whose agent is killed, silent, late and heard twice."""

from __future__ import annotations

from typing import Any

import pytest

from egs_core.client import hosts as h
from egs_core.server.gangs import check_together
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


class RequestsOverBoth(TwoHosts):
    """GPU requests over both hosts, some of which may be evicted, and commands in them on either."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for requester in self.requesters:
            more = {"gpus": self.random.choice((2, 4)), "hosts": 2, "requeue": self.random.random() < 0.7}
            requester.ask = requester.ask.model_copy(update=more)
        for one in self.all:
            if self.random.random() < 0.5:
                one.inside = self.random.choice(self.requesters)
                one.request = one.request.model_copy(update={"gang": None})

    def check(self) -> None:
        """Beside: a request has GPUs on both hosts or on none, and a command in it those of its own host's part."""
        super().check()
        logic = self.turns.logic
        for run in logic.open_runs():
            check_together(logic.book.gangs.members(run) if run.gang else ())
        for one in self.all:
            if one.devices and one.inside is not None:
                part = logic.runs[logic.runs[one.run_id].inside]
                assert part.lease is not None, f"request {part.id} holds nothing, and {one.run_id} computes"
                assert (part.whole, part.host) == (one.inside.number, one.who.host)
                of_host = logic.views.devices_of(part.host)
                assert one.devices == tuple([of_host[number].id for number in part.lease.devices])


def simulate(seed: int, kind: type[TwoHosts] = TwoHosts) -> TwoHosts:
    world = kind(seed)
    for _ in range(60):
        world.step()
    world.settle()
    world.turns.logic.validate()
    return world


@pytest.mark.parametrize("first", [5, pytest.param(10, marks=pytest.mark.slow)])
def test_no_device_of_either_host_is_given_twice_and_every_run_ends(first: int) -> None:
    """And the faults happen: the host was silent now and then, servers were started again, and commands ran there."""
    worlds = [simulate(seed) for seed in range(first, first + 10)]
    there = [run for world in worlds for run in world.turns.logic.runs.values() if run.host]
    assert {"succeeded", "lost"} <= {run.outcome for run in there if run.started_at is not None}
    assert sum(world.silences for world in worlds) > len(worlds)
    assert sum(world.crashes for world in worlds) >= len(worlds)


@pytest.mark.parametrize("first", [5, pytest.param(10, marks=pytest.mark.slow)])
def test_requests_over_both_hosts(first: int) -> None:
    """They start together or not at all, are evicted and begin again, end, and their commands with them, whatever of
    both hosts, the server and the network fails."""
    worlds = [simulate(seed, RequestsOverBoth) for seed in range(first, first + 10)]
    runs = [run for world in worlds for run in world.turns.logic.runs.values()]
    begun = [run for run in runs if run.is_request and run.started_at is not None]
    assert begun
    assert all(run.gang is not None and run.gang.size == 2 for run in begun)
    assert {run.host for run in runs if run.inside and run.started_at is not None} == {"", "far"}
    assert any(run.evictions for run in runs if run.is_request)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        pytest.param(TwoHosts, 1000, marks=pytest.mark.slow),
        pytest.param(TwoHosts, 1250, marks=pytest.mark.long),
        pytest.param(RequestsOverBoth, 2000, marks=pytest.mark.slow),
    ],
)
def test_many_more_seeds(kind: type[TwoHosts], first: int) -> None:
    for seed in range(first, first + 250):
        simulate(seed, kind)
