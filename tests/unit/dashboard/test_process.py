"""The dashboard's process beside a real `egs serve`: what its death touches, and that it never outlives the server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from egs_core.server import dashboard as d
from tests.unit.dashboard.browser import Visitor, rows
from tests.unit.server.real_app import RealApp
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    found = RealSite(tmp_path / "s", gpus=1)
    found.start()
    yield found
    found.close()


def port_of(site: RealSite) -> int:
    return int(site.ready["url"].rpartition(":")[2])


def logged_in(site: RealSite) -> Visitor:
    visitor = Visitor(port_of(site))
    assert visitor.log_in(Path(site.ready["token"]).read_text().strip()).status == 200
    return visitor


def process_of(site: RealSite) -> psutil.Process:
    assert site.server is not None
    found = [one for one in psutil.Process(site.server.pid).children() if "egs_core.dashboard" in one.cmdline()]
    assert len(found) == 1
    return found[0]


def until(file: Path) -> str:
    """For a shell: waits for the file."""
    return f"while [ ! -e {file} ]; do sleep 0.1; done; exit 7"


def ends(process: psutil.Process) -> None:
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the dashboard ends")


@pytest.mark.slow
def test_its_death_touches_no_lease_and_it_comes_back(site: RealSite) -> None:
    """`kill -9` while a command runs and another waits: the stream ends, both are as they were, what waits still gets
    the GPU when that is free, and the page is there again, for whoever logs in again."""
    first = site.run("--gpus", "1", "--name", "first", "--", "sh", "-c", until(site.folder / "first"))
    wait_for(lambda: site.devices()["0"], "the first one has the GPU")
    second = site.run("--gpus", "1", "--name", "second", "--", "sh", "-c", until(site.folder / "second"))
    wait_for(lambda: "second" in site.queued(), "the second one waits")
    visitor = logged_in(site)
    stream = visitor.stream()
    told = stream.until(lambda kind, data: kind == "change" and rows(data, "waiting"), "a snapshot")
    assert [row[0] for row in rows(told, "waiting").values()] == [f"{site.queued()['second']} second"]
    before = site.client.runs()

    process = process_of(site)
    process.send_signal(signal.SIGKILL)
    assert wait_for(lambda: stream.next() == ("", None), "the stream ends")
    stream.close()
    after = site.client.runs()
    states = [[(run.id, run.state, run.lease) for run in found.runs] for found in (before, after)]
    assert states[0] == states[1]
    answer = wait_for(lambda: (found := Visitor(port_of(site)).get()).status == 200 and found, "it is there again")
    assert b'name="token"' in answer.body
    assert process_of(site).pid != process.pid
    assert visitor.get("/dashboard/events").status == 401
    logged_in(site).stream().close()

    (site.folder / "first").touch()
    assert first.wait(PATIENCE_S) == 7
    wait_for(lambda: site.devices()["0"] == site.open().get("second"), "the second one has the GPU")
    (site.folder / "second").touch()
    assert second.wait(PATIENCE_S) == 7


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_server(site: RealSite, how: signal.Signals) -> None:
    """However that ends, also while somebody looks on; its socket is gone where the server could remove it."""
    stream = logged_in(site).stream()
    stream.until(lambda kind, _: kind == "change", "a snapshot")
    process = process_of(site)
    assert site.server is not None
    site.server.send_signal(how)
    site.server.wait(PATIENCE_S)
    ends(process)
    stream.close()
    left = list((site.folder / "data").glob("dashboard-*"))
    assert left == [] or how == signal.SIGKILL
    site.start()
    assert Visitor(port_of(site)).get().status == 200


def test_no_process_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And while its pause lasts, after it has ended again and again, a page says so; other requests are answered."""
    monkeypatch.setattr(d, "PAUSES_S", (0.0, 3600.0))
    app = RealApp()
    try:
        assert app.admin.get("/v1/runs").status == 200
        assert not app.dashboard.is_there
        visitor = Visitor(app.port)
        for _ in range(2):
            assert visitor.get().status == 200
            assert app.dashboard._process is not None
            os.kill(app.dashboard._process.pid, signal.SIGKILL)
            app.dashboard._process.wait(PATIENCE_S)
        answer = visitor.get()
        assert (answer.status, b"The dashboard is away" in answer.body) == (503, True)
        assert int(answer.headers["retry-after"]) > 3000
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert app.admin.get("/v1/runs").status == 200
    finally:
        app.close()
    assert not app.dashboard.is_there


def test_a_process_that_cannot_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its answer, and the server has what it needs to answer all else."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    app = RealApp()
    try:
        answer = Visitor(app.port).get()
        assert (answer.status, b"cannot be started" in answer.body) == (503, True)
        assert app.admin.get("/healthz").status == 200
    finally:
        app.close()


def test_a_socket_that_cannot_be_made_is_said_without_its_place(tmp_path: Path) -> None:
    """Strangers read that page: why, as the system says it, and no path."""
    app = RealApp()
    try:
        app.dashboard._folder = tmp_path / "Data" / "EGS"
        answer = Visitor(app.port).get()
        assert (answer.status, b"No socket can be made for it: No such file or directory." in answer.body) == (
            503,
            True,
        )
        assert not any(word in answer.body.lower() for word in (b"/egs", b"/data", str(tmp_path).lower().encode()))
    finally:
        app.close()
