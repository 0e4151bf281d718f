"""`egs run` where it may make a control group for its command: real groups of this kernel, real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import groups
from egs_core.client.processes import LEASE_VARIABLE, UNGIVEN, Snapshot
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import HOLDS, content, shared_site

site = pytest.fixture(scope="module")(shared_site)


@pytest.fixture
def group() -> Iterator[groups.LeaseGroup]:
    made = groups.make_group(f"test{uuid.uuid4().hex}.1.1")
    if made is None:
        pytest.skip("no cgroup v2 is mounted here, or this user may not make a group in it")
    yield made
    made.kill()
    wait_for(lambda: "populated 0" in (made.path / "cgroup.events").read_text(), "the group is empty")
    made.close()
    assert not made.path.exists()


def sleeper() -> subprocess.Popen[bytes]:
    """With an environment that says nothing."""
    return subprocess.Popen(["sleep", "3600"], env={})


def test_what_is_started_inside_is_known_and_ends_at_once(group: groups.LeaseGroup) -> None:
    """By its group alone: it carries no mark. This process is where it was before; what it starts later is not in."""
    before = groups.own_group()
    with group.entered():
        inside = sleeper()
    outside = sleeper()
    try:
        assert groups.own_group() == before
        mark = group.path.name.removeprefix(groups.PREFIX)
        assert [one.pid for one in Snapshot().living((), mark)] == [inside.pid]
        group.close()
        assert group.path.exists(), "a group with processes stays"
        group.kill()
        assert inside.wait(PATIENCE_S) == -signal.SIGKILL
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait(PATIENCE_S)


FORKS = "import os, sys, time; child = os.fork(); child and print(child, flush=True); time.sleep(3600)"


def test_what_was_forked_before_a_mark_was_written_is_known_by_its_group(group: groups.LeaseGroup) -> None:
    """A process shows that it is to get a mark, and so does what is forked from it, where none is ever written over
    that: once both are in the group they are found, also by a look that remembers and though they have done nothing."""
    begun = subprocess.Popen([sys.executable, "-c", FORKS], env={LEASE_VARIABLE: UNGIVEN}, stdout=subprocess.PIPE)
    try:
        assert begun.stdout is not None
        pids = [begun.pid, int(begun.stdout.readline())]
        mark = group.path.name.removeprefix(groups.PREFIX)
        before = Snapshot()
        assert before.living((), mark) == []
        assert {one.pid for one in before.living((), UNGIVEN)} == set(pids)
        for pid in pids:
            group.take(pid)
        assert {one.pid for one in Snapshot(before).living((), mark)} == set(pids)
    finally:
        group.kill()
        begun.kill()
        begun.communicate(timeout=PATIENCE_S)


def test_what_a_killed_one_left_is_taken_away(group: groups.LeaseGroup) -> None:
    """The next group of the same place takes old empty ones away, and no others."""
    left = group.path.with_name(f"{groups.PREFIX}left{uuid.uuid4().hex}.1.1")
    new = group.path.with_name(f"{groups.PREFIX}new{uuid.uuid4().hex}.1.1")
    left.mkdir()
    os.utime(left, (0, 0))
    new.mkdir()
    os.utime(group.path, (0, 0))
    with group.entered():
        inside = sleeper()
    other = groups.make_group(f"other{uuid.uuid4().hex}.1.1")
    assert other is not None
    other.close()
    assert (left.exists(), new.exists(), group.path.exists()) == (False, True, True)
    new.rmdir()
    inside.kill()
    inside.wait(PATIENCE_S)


LEAVES = """
import os, sys, time
pid_file, go = sys.argv[1:]
def say(name): open(pid_file + '.part', 'w').write(name); os.rename(pid_file + '.part', pid_file)
say(str(os.getpid()))
while not os.path.exists(go): time.sleep(0.05)
if os.fork(): os._exit(0)
say(f'child {os.getpid()}')
time.sleep(3600)
"""


@pytest.mark.slow
def test_a_process_without_a_mark_whose_supervisor_is_dead_keeps_its_devices(
    site: RealSite, tmp_path: Path, group: groups.LeaseGroup
) -> None:
    """It has cleared its environment, its supervisor is killed, and then it leaves a child of which nobody has been
    told: its group alone says whose it is. When it is gone the next one starts."""
    assert group.path.exists(), "this user may make groups"
    pid_file, go, next_has = tmp_path / "pid", tmp_path / "go", tmp_path / "next"
    clears = ("env", "-i", sys.executable, "-c", LEAVES, str(pid_file), str(go))
    begun = site.run("--gpus", "2", "--name", "clears", "--", *clears)
    wait_for(lambda: content(pid_file), "it runs")
    begun.kill()
    begun.wait(PATIENCE_S)
    run = site.open()["clears"]
    wait_for(lambda: site.client.view(run).lost, "it is seen to be lost")
    go.touch()
    pid = int(wait_for(lambda: (text := content(pid_file)).startswith("child") and text, "its child").split()[1])
    try:
        waits = site.run("--gpus", "1", "--", sys.executable, "-c", HOLDS, str(next_has))
        wait_for(lambda: f"end these processes: {pid}" in site.egs("why", run).stdout, "the child is named")
        assert not next_has.exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert waits.wait(PATIENCE_S) == 0
    assert site.client.view(run).outcome == "lost"


def test_whose_groups_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that one may not write to is not; under systemd root's are systemd's, unless it has delegated one."""
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(groups, "SYSTEMD", tmp_path / "none")
    assert groups.may_change(tmp_path)
    assert not groups.may_change(tmp_path / "gone")
    monkeypatch.setattr(groups, "SYSTEMD", tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert not groups.may_change(tmp_path)


MOUNTS = "25 1 0:22 / /proc rw - proc proc rw\n41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("root", "own", "below"),
    [("/", "/a/b", "a/b"), ("/", "/", ""), ("/a", "/a/b", "b"), ("/a", "/ab", None), ("/", "/../up", None)],
)
def test_where_the_own_group_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, own: str, below: str | None
) -> None:
    """Below the mount, by the part of the tree that is mounted; a group outside of it is none."""
    point = tmp_path / "mount"
    for name in ("a/b", "b", "ab"):
        (point / name).mkdir(parents=True)
    self = tmp_path / "self"
    self.mkdir()
    (self / "cgroup").write_text(f"3:cpu:/elsewhere\n0::{own}\n")
    (self / "mountinfo").write_text(MOUNTS.format(root=root, point=point))
    monkeypatch.setattr(groups, "SELF", self)
    assert groups.own_group() == (None if below is None else point / below)
