"""`egs run --suspend` at a real server: what is evicted is put aside, and goes on where it was. Devices are emulated:
no driver has to copy anything; with a real one it is tried in `test_real_gpu.py`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.http import Refused
from egs_core.client.processes import descendants, is_stopped
from egs_core.client.supervise import request_of
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import UNTIL, content, own_site

COUNTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1] + ".pids", "w").write(f"{os.getpid()} {child.pid}")
number = 0
while not os.path.exists(sys.argv[2]):
    number += 1
    open(sys.argv[1] + ".new", "w").write(f"{number} {os.environ['EGS_TRY']}")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.02)
child.kill()
sys.exit(7)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    with own_site(tmp_path, 1) as found:
        yield found


class Low:
    """A run that counts, and has a process of another session below it; it exits with 7 once it may. In its folder is
    what must not be taken for a module of Python's own."""

    def __init__(self, site: RealSite, folder: Path, *where: str) -> None:
        """where: of its options, `--gpus 1` where none is said."""
        project = folder / "project"
        project.mkdir()
        (project / "json.py").write_text("raise SystemExit('this is the user\\'s own json')")
        self.file, self.go, self.site = folder / "low", folder / "low.go", site
        where = where or ("--gpus", "1")
        words = (*where, "--suspend", "--name", "low", "--", sys.executable, "-c", COUNTS)
        self.run = site.run(*words, str(self.file), str(self.go), folder=project)
        wait_for(lambda: self.count or self.run.poll() is not None, "it counts")
        assert self.count, f"it has ended with {self.run.returncode}: {self.run.communicate()[1]}"
        self.pids = [int(pid) for pid in (folder / "low.pids").read_text().split()]

    @property
    def count(self) -> int:
        return int((content(self.file) or "0").split()[0])


def high(site: RealSite, folder: Path) -> Path:
    """A run that goes first and has begun; the file that ends it."""
    go = folder / "high.go"
    words = ("--gpus", "1", "--priority", "5", "--name", "high", "--", sys.executable, "-c", UNTIL)
    site.run(*words, str(folder / "high"), str(go), "0")
    wait_for(lambda: content(folder / "high"), "the other has its GPU")
    return go


@pytest.mark.slow
@pytest.mark.proves("egs run", "preempt")
def test_it_stands_still_and_goes_on_in_the_same_processes(site: RealSite, tmp_path: Path) -> None:
    """Both of its processes are stopped while the other has the GPU, also after somebody has let them go on; then its
    count goes on, in its first try, and its exit code is its own."""
    low = Low(site, tmp_path)
    go = high(site, tmp_path)
    assert [is_stopped(pid) for pid in low.pids] == [True, True]
    stood = low.count
    os.kill(low.pids[0], signal.SIGCONT)  # somebody lets it go on
    wait_for(lambda: is_stopped(low.pids[0]), "it is stopped again")
    go.touch()
    wait_for(lambda: low.count > stood, "it counts on")
    assert content(low.file).split()[1] == "1"
    low.go.touch()
    assert low.run.wait(60) == 7
    said = low.run.communicate()[1]
    assert "it is put aside, and goes on when its turn comes" in said
    assert "goes on where it was" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", ["abort", "SIGTERM", "SIGKILL"])
def test_what_is_aside_ends_with_its_run(site: RealSite, tmp_path: Path, how: str) -> None:
    """By `egs abort`, by a signal to its `egs run`, and where that is killed: no stopped process is left."""
    low = Low(site, tmp_path)
    go = high(site, tmp_path)
    if how == "abort":
        site.egs("abort", site.open()["low"])
    else:
        low.run.send_signal(signal.Signals[how])
    wait_for(lambda: not any(_is_there(pid) for pid in low.pids), "its processes have ended")
    assert low.run.wait(60) in (143, -9)
    go.touch()


@pytest.mark.slow
def test_it_waits_for_its_own_gpu_and_goes_on_there(tmp_path: Path) -> None:
    """The other GPU comes free first, and it leaves that alone, which `egs why` says; then it goes on where it was."""
    with own_site(tmp_path, 2) as two:
        low = Low(two, tmp_path)
        words = (sys.executable, "-c", UNTIL, str(tmp_path / "a"), str(tmp_path / "a.go"), "0")
        two.run("--gpus", "1", "--name", "first", "--", *words)
        wait_for(lambda: content(tmp_path / "a"), "one GPU is held")
        wait_for(lambda: low.count > 300, "it has run for a while: so long it waits for its own GPU")
        go = high(two, tmp_path)
        assert content(tmp_path / "high") != content(tmp_path / "a")
        (tmp_path / "a.go").touch()
        wait_for(lambda: "first" not in two.open(), "the other GPU is free")
        stood = low.count
        view = two.client.view(two.open()["low"])
        assert view.state == "waiting"
        assert f"it was put aside on {content(tmp_path / 'high')}, and goes on there alone" in view.reason
        go.touch()
        wait_for(lambda: low.count > stood, "it counts on")
        low.go.touch()
        assert low.run.wait(60) == 7
        assert content(low.file).endswith(" 1"), "in its first try"


@pytest.mark.slow
def test_in_a_request_it_is_put_aside_with_the_request(tmp_path: Path) -> None:
    """A request with --requeue gives way as a whole and gets its own GPU again, on which the command goes on."""
    with own_site(tmp_path, 2) as two:
        two.egs("request", "--gpus", "1", "--for", "1h", "--requeue", "--name", "mine")
        words = (sys.executable, "-c", UNTIL, str(tmp_path / "a"), str(tmp_path / "a.go"), "0")
        two.run("--gpus", "1", "--name", "first", "--", *words)
        wait_for(lambda: content(tmp_path / "a"), "the other GPU is held")
        low = Low(two, tmp_path, "--in", "mine")
        go = high(two, tmp_path)
        assert content(tmp_path / "high") != content(tmp_path / "a")
        stood = low.count
        go.touch()
        wait_for(lambda: low.count > stood, "it counts on")
        low.go.touch()
        (tmp_path / "a.go").touch()
        assert low.run.wait(60) == 7
        assert content(low.file).endswith(" 1"), "in its first try"


@pytest.mark.slow
def test_on_another_gpu_it_is_started_again(tmp_path: Path) -> None:
    """It waits for its own no longer than it had run. What it would start later has the GPU that its parent was told,
    which is somebody else's by then."""
    with own_site(tmp_path, 2) as two:
        words = (sys.executable, "-c", UNTIL, str(tmp_path / "a"), str(tmp_path / "a.go"), "0")
        first = two.run("--gpus", "1", "--", *words)
        wait_for(lambda: content(tmp_path / "a"), "one GPU is held")
        low = Low(two, tmp_path)
        go = high(two, tmp_path)
        assert content(tmp_path / "high") != content(tmp_path / "a")
        (tmp_path / "a.go").touch()
        assert first.wait(60) == 0
        wait_for(lambda: content(low.file).endswith(" 2"), "it is started again")
        assert not any(_is_there(pid) for pid in low.pids)
        low.go.touch()
        go.touch()
        assert low.run.wait(60) == 7
        assert "its turn has come on another GPU" in low.run.communicate()[1]


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_put_aside_is_refused(site: RealSite) -> None:
    """With a terminal, with `--split` and in a gang it does nothing: one line that names both options."""
    for other in (("--pty",), ("--split",), ("--gang", "a:2")):
        done = site.egs("run", "--gpus", "1", "--suspend", *other, "--", "true")
        assert (done.returncode, other[0] in done.stderr, "--suspend" in done.stderr) == (2, True, True)


def test_an_end_is_not_taken_while_what_is_aside_runs(site: RealSite, tmp_path: Path) -> None:
    """Whoever says that processes are stopped which run is refused: the lease is given to nobody before they are."""
    low = Low(site, tmp_path)
    os.kill(low.run.pid, signal.SIGSTOP)  # what its supervisor would do is done here
    there = tuple(descendants(low.run.pid))
    try:
        site.client.submit(request_of({"name": "high", "gpus": 1, "priority": 5}))
        view = site.client.view(site.open()["low"])
        assert view.lease is not None
        end = c.End(token=view.lease.token, outcome="evicted", exit_code=0, aside=there)
        with pytest.raises(Refused, match="still run"):
            site.client.end(view.id, end)
        for one in there:
            os.kill(one.pid, signal.SIGSTOP)
        wait_for(lambda: all(is_stopped(one.pid) for one in there), "they are stopped")
        assert site.client.end(view.id, end).state == "waiting"
    finally:
        for one in there:
            os.kill(one.pid, signal.SIGKILL)
        os.kill(low.run.pid, signal.SIGCONT)


def test_what_is_ended_while_it_waits_says_so(site: RealSite, tmp_path: Path) -> None:
    """With --idle-timeout, too, which has nothing to look at before the command has begun."""
    go = high(site, tmp_path)
    waits = site.run("--gpus", "1", "--idle-timeout", "1h", "--name", "waits", "--", "true")
    number = wait_for(lambda: site.queued().get("waits"), "it waits")
    site.egs("abort", number)
    assert waits.wait(60) == 143
    said = waits.communicate()[1]
    assert f"run {number} has ended before it started" in said
    assert "Traceback" not in said
    go.touch()
