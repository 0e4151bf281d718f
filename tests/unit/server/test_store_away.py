"""The database of real servers goes away under load: the disk is full, PostgreSQL is restarted, or cut off. What is
left is looked at as after kills: nothing was told that is not durable."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from egs_core.client.http import Unreachable
from tests.postgres import Postgres
from tests.unit.server.databases import server
from tests.unit.server.havoc import Havoc, Servers
from tests.unit.server.proxy import Proxy
from tests.unit.server.real_site import PATIENCE_S, wait_for

__all__ = ["server"]

pytestmark = pytest.mark.timeout(1200)  # as of kills: a busy machine takes its time
WORK = 12  # lines of users: what is under way is about half of it
SMALL = 3 << 20


def refusal(havoc: Havoc) -> str:
    """What a change is answered with, that would change nothing: "" where it is taken."""
    try:
        havoc.site.client.drain("0", drained=False)
    except Unreachable as error:
        return str(error)
    return ""


@contextmanager
def small_disk(folder: Path, size: str = f"size={SMALL}") -> Iterator[Path]:
    """Skips where nobody may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "egs-test", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no file system of a size of its own may be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(folder).f_bavail == 0
    return ballast


@pytest.mark.slow
def test_the_disk_is_full(tmp_path: Path) -> None:
    """Under load: changes are refused with what is wrong, which the log has once, and the server goes on by itself when
    there is room. One that is killed then and started again on the full disk ends with one line that says why; started
    once more with room it goes on. Nothing of it was half-written: all that anybody was told is there."""
    with small_disk(tmp_path / "disk") as disk:
        havoc = Havoc(tmp_path, 1, Servers(tmp_path / "site", data=disk))
        try:
            havoc.wait_for_work(WORK)
            ballast = fill_up(disk)
            told = havoc.until(lambda: refusal(havoc), "a change is refused")
            assert "503: the site's database cannot be used" in told
            assert "disk is full" in told
            havoc.until(havoc.is_still, "what had GPUs has ended")
            ballast.unlink()
            havoc.until(lambda: not refusal(havoc), "it goes on")
            havoc.wait_for_work(WORK)

            ballast = fill_up(disk)
            havoc.until(lambda: refusal(havoc), "a change is refused")
            said = havoc.site.kill_one("one").splitlines()
            assert [line for line in said if "cannot be used" in line] == said[0::2]
            assert [line for line in said if "the server goes on: its database takes changes" in line] == said[1::2]
            havoc.site.begin_one("one")
            failed = havoc.site.processes["one"]
            errors = havoc.site.finished(failed)
            assert (failed.returncode, len(errors.splitlines())) == (2, 1), errors
            assert str(disk / "site.db") in errors
            ballast.unlink()
            havoc.site.begin_one("one")
            havoc.site.wait_until_ready("one")
            havoc.wait_for_work(WORK)
            havoc.end()
        finally:
            havoc.site.close()


@pytest.mark.slow
def test_its_files_may_not_grow(tmp_path: Path) -> None:
    """The same of a quota on the size of a file, which SQLite hears of as another error."""
    havoc = Havoc(tmp_path, 2, Servers(tmp_path / "site"))
    try:
        for _ in range(2):
            havoc.wait_for_work(WORK)
            pid = havoc.site.processes["one"].pid
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
            told = havoc.until(lambda: refusal(havoc), "a change is refused")
            assert "503: the site's database cannot be used" in told
            havoc.until(havoc.is_still, "what had GPUs has ended")
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            havoc.until(lambda: not refusal(havoc), "it goes on")
        havoc.wait_for_work(WORK)
        havoc.end()
    finally:
        havoc.site.close()


@pytest.mark.slow
def test_postgresql_is_restarted(server: Postgres, tmp_path: Path) -> None:
    """Three times under load, as after a crash (`pg_ctl restart -m immediate`): one of the two servers goes on."""
    havoc = Havoc(tmp_path, 3, Servers(tmp_path / "site", server.new_database()))
    try:
        for _ in range(3):
            havoc.wait_for_work(WORK)
            server.stop(signal.SIGQUIT)
            told = havoc.until(lambda: refusal(havoc), "a change is refused")
            assert "503: " in told
            server.start()
            havoc.until(lambda: not refusal(havoc), "a server goes on")
        havoc.wait_for_work(WORK)
        havoc.end()
    finally:
        havoc.site.close()


def through(proxy: Proxy, server: Postgres, database: str) -> str:
    return database.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.close()


@pytest.mark.slow
def test_the_only_server_is_cut_off_from_its_database(server: Postgres, proxy: Proxy, tmp_path: Path) -> None:
    """It refuses changes while no byte passes, whatever it had begun, and goes on by itself."""
    database = server.new_database()
    ways = {"one": through(proxy, server, database)}
    havoc = Havoc(tmp_path, 4, Servers(tmp_path / "site", database, ways))
    try:
        for _ in range(2):
            havoc.wait_for_work(WORK)
            proxy.cut()
            havoc.until(lambda: "503: " in refusal(havoc), "a change is refused")  # what it had begun has no answer
            havoc.until(havoc.is_still, "what had GPUs has ended")
            proxy.mend()
            havoc.until(lambda: not refusal(havoc), "it goes on")
        havoc.wait_for_work(WORK)
        havoc.end()
    finally:
        proxy.mend()
        havoc.site.close()


@pytest.mark.slow
def test_the_active_server_is_cut_off_and_another_one_takes_over(
    server: Postgres, proxy: Proxy, tmp_path: Path
) -> None:
    """It tells nothing from then on, also what it had begun; when it hears of its database again it ends with code 2,
    and stands by once it is started again."""
    database = server.new_database()
    ways = {"one": through(proxy, server, database), "two": database}
    havoc = Havoc(tmp_path, 5, Servers(tmp_path / "site", database, ways))
    try:
        wait_for(lambda: havoc.site.answers("one"), "the first is active")
        havoc.wait_for_work(WORK)
        proxy.cut()
        havoc.until(lambda: havoc.site.answers("two"), "the other one has taken over")
        assert not havoc.site.answers("one")
        havoc.wait_for_work(WORK)
        proxy.mend()
        ended = havoc.site.processes["one"]
        assert ended.wait(PATIENCE_S) == 2
        assert "has become active: start this one again as a standby" in havoc.site.finished(ended)
        havoc.site.begin_one("one")
        havoc.site.wait_until_ready("one")
        havoc.wait_for_work(WORK)
        havoc.end()
    finally:
        proxy.mend()
        havoc.site.close()
