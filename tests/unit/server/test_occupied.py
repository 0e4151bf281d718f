"""Devices that others use: shown, and given to nobody. What NVML would say is said by the test; all else is real. On a
real GPU this was not tried."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from egs_core.client import messages as c
from egs_core.client.processes import lease_mark
from egs_core.engine import Engine
from egs_core.errors import InputError
from egs_core.server.book import CONFIG
from egs_core.server.devices import DeviceLocks, strangers
from egs_core.server.logic import SiteLogic, Watch
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, Known, SiteFacts
from tests.unit.server.real_app import RealApp
from tests.unit.server.real_site import wait_for
from tests.unit.server.site_world import OFFER

ANN = Principal("ann")
WATCHED = replace(OFFER, is_watched=True)


def request(number: int, gpus: float) -> c.RunRequest:
    return c.RunRequest(key=f"key-{number:04}", supervisor=c.Process(pid=number, started=1), name="job", gpus=gpus)


def states(site: SiteLogic) -> list[str]:
    return [device.state for device in site.views.listed().devices]


def test_nothing_is_given_out_before_somebody_has_looked() -> None:
    """Also by a server that has gone on from its store."""
    site = SiteLogic(SiteFacts("site", 0.0), Engine(CONFIG))
    site.offer(WATCHED)
    assert (site.submit(ANN, request(1, 1)).state, states(site)) == ("waiting", ["occupied"] * 3)
    site.validate()
    site.occupied({})
    assert (site.view(ANN, "1").state, states(site)) == ("granted", ["held", "free", "free"])
    site.offer(WATCHED)
    assert site.submit(ANN, request(2, 1)).state == "waiting"
    site.validate()


def test_an_occupied_device_is_given_to_nobody() -> None:
    """Others are; a device that is held when a stranger comes is given to nobody once it is given back, until that has
    gone. Whoever waits, or asks whether it would, is told which process it is."""
    site = SiteLogic(SiteFacts("site", 0.0), Engine(CONFIG))
    site.offer(WATCHED)
    site.occupied({0: (4711,)})
    first = site.submit(ANN, request(1, 2))
    assert first.lease is not None
    assert first.lease.devices == ("1", "2")
    checked = site.check(ANN, request(2, 0.5))
    waits = site.submit(ANN, request(2, 0.5))
    assert checked.reason == waits.reason
    assert "occupied by processes that this server did not start: 0 by 4711" in waits.reason
    site.occupied({0: (4711,), 1: (4712,)})
    site.validate()
    site.claim(ANN, "1", c.Claim(token=first.lease.token))
    site.end(ANN, "1", c.End(token=first.lease.token, outcome="succeeded", exit_code=0))
    lease = site.view(ANN, "2").lease
    assert lease is not None
    assert (lease.devices, states(site)) == (("2",), ["occupied", "occupied", "held"])
    whole = site.submit(ANN, request(3, 1))
    assert whole.state == "waiting"
    site.occupied({1: (4712,)})
    assert site.view(ANN, "3").state == "granted"
    site.validate()
    again = SiteLogic(site.facts, Engine.restore(site.snapshot(), CONFIG), site.runs.values())
    again.validate()


def test_a_leases_own_processes_are_no_strangers() -> None:
    """Its supervisor, what that has named, and all below; on another device they are."""
    own = Known(os.getppid(), c_started(os.getppid()))
    watch = Watch("1", 1, own, True, (), lease_mark("1", 1, "site"))
    users = {"0": (os.getpid(), 1), "1": (os.getpid(),), "2": ()}
    assert strangers(users, {"0": [watch], "1": [], "2": [watch]}) == {"0": (1,), "1": (os.getpid(),)}
    assert strangers({"0": (), "1": ()}, {}) == {}


def c_started(pid: int) -> int:
    from egs_core.client.processes import process

    found = process(pid)
    assert found is not None
    return found.started


def test_a_server_looks_again_and_again() -> None:
    """A process comes and goes, and what waits for its device starts. A look that fails changes nothing."""
    users: dict[str, tuple[int, ...]] = {"0": (1,), "1": (1,), "2": ()}
    fails = False

    def look(ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        assert not fails
        assert list(ids) == ["0", "1", "2"]
        return dict(users)

    app = RealApp(offer=WATCHED, users_of=look)
    try:
        wait_for(lambda: told(app) == ["occupied", "occupied", "free"], "it has looked")
        run = app.admin.submit("two-of-them", gpus=2).told["id"]
        fails = True
        users["0"] = ()
        assert app.admin.get(f"/v1/runs/{run}").told["state"] == "waiting"
        fails = False
        wait_for(lambda: app.admin.get(f"/v1/runs/{run}").told["state"] == "granted", "it has its devices")
        assert told(app) == ["held", "occupied", "held"]
        assert app.admin.get("/v1/runs").told["devices"][1]["processes"] == [1]
    finally:
        app.close()


def told(app: RealApp) -> list[str]:
    return [one["state"] for one in app.admin.get("/v1/runs").told["devices"]]


def test_one_server_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is the device's, whatever the data folder; a file that may only be read is locked too, a link is not
    followed."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    device, other, linked = Device("GPU-1"), Device("GPU-2"), Device("GPU-3")
    DeviceLocks().take([device])
    with pytest.raises(InputError, match="another server offers the GPU GPU-1"):
        DeviceLocks().take([device])
    read_only = tmp_path / "egs-GPU-2.lock"
    read_only.touch(0o444)
    with read_only.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="GPU-2"):
            DeviceLocks().take([other])
    (tmp_path / "egs-GPU-3.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="GPU-3"):
        DeviceLocks().take([linked])
    assert not (tmp_path / "victim").exists()


def test_servers_of_one_site_share_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one takes over while the other is stopped and keeps its locks; a server of another site, and one that
    has its database alone, is refused, whichever came first."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    device, other = Device("GPU-1"), Device("GPU-2")
    active, standby, alone = DeviceLocks(), DeviceLocks(), DeviceLocks()
    active.take([device], "site")
    standby.take([device], "site")
    alone.take([other])
    for found, site in ((device, ""), (device, "another"), (other, "site")):
        with pytest.raises(InputError, match=f"another server offers the GPU {found.id}"):
            DeviceLocks().take([found], site)
    for one in (active, standby):
        one.close()
    DeviceLocks().take([device], "another")
