"""What holds GPUs stands still for longer than anything is waited for, and then goes on: a supervisor, a command, the
agent of a host, all of a host. Real processes, by SIGSTOP and SIGCONT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.http import Refused
from egs_core.client.processes import descendants
from egs_core.client.supervise import request_of
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content
from tests.unit.server.test_joined import FREE, FarHost, joined, states


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    found = RealSite(tmp_path / "site", gpus=3)
    try:
        found.start()
        yield found
    finally:
        found.close()


def words(folder: Path, name: str, code: int = 0) -> tuple[str, ...]:
    """Of a command that writes what it has into FOLDER/NAME, and goes on until FOLDER/NAME.go is there."""
    program = (sys.executable, "-c", UNTIL, str(folder / name), str(folder / f"{name}.go"), str(code))
    return ("--gpus", "1", "--name", name, "--", *program)


def suspend(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def go_on(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def tree(begun: subprocess.Popen[str]) -> list[int]:
    """An `egs run`, and what is below it."""
    return [begun.pid, *(one.pid for one in descendants(begun.pid))]


@pytest.mark.slow
def test_a_supervisor_that_stands_still_keeps_its_devices(site: RealSite, tmp_path: Path) -> None:
    """One alone, whose command ends meanwhile, and one with its command: both are shown as lost, and their GPUs go to
    nobody. What was granted and not claimed by a client that says nothing goes to the next one, and that client's
    claim is refused when it comes after all. Both go on as if nothing had been."""
    alone = site.run(*words(tmp_path, "alone", 3))
    whole = site.run(*words(tmp_path, "whole", 4))
    wait_for(lambda: content(tmp_path / "alone") and content(tmp_path / "whole"), "both run")
    silent = site.client.submit(request_of({"name": "silent", "gpus": 1}))
    assert silent.lease is not None
    stopped = [alone.pid, *tree(whole)]
    suspend(stopped)
    try:
        next_one, last = site.run(*words(tmp_path, "next")), site.run(*words(tmp_path, "last"))
        wait_for(lambda: len(site.queued()) == 2, "two wait")
        (tmp_path / "alone.go").touch()
        runs = [site.open()[name] for name in ("alone", "whole")]
        wait_for(lambda: all(site.client.view(run).lost for run in runs), "both are seen to be silent")
        given = wait_for(
            lambda: content(tmp_path / "next") or content(tmp_path / "last"), "what was not claimed is given"
        )
        assert (given,) == silent.lease.devices
        with pytest.raises(Refused, match="does not hold lease"):
            site.client.claim(silent.id, c.Claim(token=silent.lease.token))
        assert set(site.devices().values()) >= set(runs)
        assert {content(tmp_path / "next"), content(tmp_path / "last")} == {"", given}
    finally:
        go_on(stopped)
    assert alone.wait(PATIENCE_S) == 3, alone.communicate()[1]
    wait_for(lambda: content(tmp_path / "next") and content(tmp_path / "last"), "the next one has what has become free")
    wait_for(lambda: not site.client.view(runs[1]).lost, "the other one is heard of again")
    assert site.client.view(runs[1]).state == "running"
    for name in ("whole", "next", "last"):
        (tmp_path / f"{name}.go").touch()
    assert [one.wait(PATIENCE_S) for one in (whole, next_one, last)] == [4, 0, 0]
    site.client.control(silent.id, "abort", c.Control())


@pytest.fixture
def far(site: RealSite, tmp_path: Path) -> Iterator[FarHost]:
    found = FarHost(site, tmp_path / "far")
    found.start()
    wait_for(lambda: states(found) == FREE, "it has joined")
    yield found
    found.kill()


@pytest.mark.slow
def test_a_host_that_stands_still_keeps_its_devices(far: FarHost, tmp_path: Path) -> None:
    """Its agent, a supervisor and its command, and the supervisor alone of a command that ends meanwhile; one more
    waits there. The host is silent, its runs stay what they are, and nobody gets its GPUs. All goes on with it: the
    agent by itself, without having been started again."""
    whole = far.run(*words(tmp_path, "whole", 4))
    ends = far.run(*words(tmp_path, "ends", 3))
    wait_for(lambda: content(tmp_path / "whole") and content(tmp_path / "ends"), "both run")
    waits = far.run(*words(tmp_path, "waits"))
    wait_for(lambda: "waits" in far.site.queued(), "one waits")
    assert far.agent is not None
    stopped = [far.agent.pid, *tree(whole), ends.pid]
    suspend(stopped)
    try:
        (tmp_path / "ends.go").touch()
        wait_for(lambda: joined(far) == "silent", "the host is suspect")
        assert {run.name: run.state for run in far.site.client.runs().runs} == {
            "whole": "running",
            "ends": "running",
            "waits": "waiting",
        }
        assert not content(tmp_path / "waits")
    finally:
        go_on(stopped)
    assert ends.wait(PATIENCE_S) == 3
    wait_for(lambda: content(tmp_path / "waits"), "what waited has what has become free")
    assert content(tmp_path / "waits") != content(tmp_path / "whole")
    assert far.site.client.view(far.site.open()["whole"]).state == "running"
    for name in ("whole", "waits"):
        (tmp_path / f"{name}.go").touch()
    assert (whole.wait(PATIENCE_S), waits.wait(PATIENCE_S)) == (4, 0)
    wait_for(lambda: states(far) == FREE, "all is given back")
