"""Commands that end while no server is there, for longer than their `egs run` waits: real processes, by a socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client.processes import descendants
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    found = RealSite(tmp_path / "site", gpus=1)
    try:
        found.start()
        yield found
    finally:
        found.close()


def ended_without_a_server(site: RealSite, folder: Path, code: int, lease: str = "") -> subprocess.Popen[str]:
    """An `egs run` that has returned: its command has ended while no server was there, and its user would not wait.
    lease: in which it was started itself."""
    program = (sys.executable, "-c", UNTIL, str(folder / "begun"), str(folder / "go"), str(code))
    environment = {"EGS_LEASE": lease} if lease else {}
    run = site.run("--gpus", "1", "--name", "first", "--", *program, folder=None, **environment)
    wait_for(lambda: content(folder / "begun"), "it runs")
    site.kill()
    (folder / "go").touch()
    wait_for(lambda: not descendants(run.pid), "its command has ended")
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_S) == code
    return run


def tellers(site: RealSite) -> list[int]:
    """Processes of this site's user that tell ends."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            own = f"XDG_DATA_HOME={site.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if own and b"egs_core.client.late_ends" in words:
            found.append(pid)
    return found


def test_an_end_that_no_server_took_is_told_when_one_is_back(site: RealSite, tmp_path: Path) -> None:
    """The server is away when a command ends, and its `egs run` has gone: the run is not lost. A process of its user
    tells the new server how it ended, what waited for its success starts, and nothing of it is left."""
    run = ended_without_a_server(site, tmp_path, 0)
    assert run.stderr is not None
    site.start()
    after = site.run("--gpus", "1", "--after", "1", "--", "true")
    assert after.wait(PATIENCE_S) == 0
    view = site.client.view("1")
    assert (view.outcome, view.exit_code) == ("succeeded", 0)
    assert "could not be told; it is kept, and told as soon as the server answers" in run.stderr.read()
    assert not list((site.folder / "home" / "egs" / "ends").glob("*.json"))
    wait_for(lambda: not tellers(site), "the process that told it ends")


@pytest.mark.slow
def test_a_run_that_counts_as_lost_is_corrected_by_the_next_egs_run(site: RealSite, tmp_path: Path) -> None:
    """A command of another lease leaves no process that tells: its run is lost some seconds after the server is back,
    and its GPU free. The next `egs run` of its user tells what was kept: code and outcome are there; once."""
    ended_without_a_server(site, tmp_path, 7, lease="another-site.9.9")
    assert not tellers(site)
    (kept,) = (site.folder / "home" / "egs" / "ends").glob("*.json")
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    site.start()
    began = time.monotonic()
    wait_for(lambda: site.client.view("1").outcome == "lost", "nobody tells how it ended")
    assert time.monotonic() - began > 5.0, "it was not waited for"
    assert site.devices() == {"0": ""}
    assert site.egs("run", "--gpus", "1", "--", "true").returncode == 0
    wait_for(lambda: site.client.view("1").outcome == "failed", "it is told")
    assert site.client.view("1").exit_code == 7
    entries = site.told("server", "log")["entries"]
    told = [row["text"] for row in entries if (row["verb"], row["subject"]) == ("end", "1")]
    assert told == ["failed, exit code 7, after it was lost"]
    wait_for(lambda: not kept.exists() and not tellers(site), "nothing of it is left")
