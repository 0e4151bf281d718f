"""A queue of a running server that learns its order: over HTTP, with roll-outs in a real process beside it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from egs_core.server.ordering import Ordering
from egs_core.server.runs import Device, Offer
from egs_core.server.store import SqlStore
from egs_core.sim.advisor import Bounds
from tests.unit.server.real_app import RealApp
from tests.unit.server.real_site import RealSite, wait_for

FILE = "queues: [{name: q, order: learned}]\n"
ONE = Offer("host", (Device("0"),), cpus=8.0, memory_bytes=1 << 40)
SOON = Bounds(ended=4, least_s=0.0)
RUNS = 40


@pytest.fixture
def app() -> Iterator[RealApp]:
    """One device; a review as soon as a quarter of what is open has ended."""
    found = RealApp(FILE, ONE, ordering=Ordering(["q"], SOON, look_s=0.1))
    try:
        yield found
    finally:
        found.close()


def submit(app: RealApp, number: int, expected_s: float) -> None:
    assert app.admin.submit(f"key-{number:04}", gpus=1, queue="q", expected_s=expected_s).status == 200


def runs(app: RealApp, path: str = "/v1/runs") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = app.admin.get(path).told["runs"]
    return found


def end_one(app: RealApp) -> dict[str, Any]:
    """Claim the lease that is granted, and give it back; returns its run."""
    run = next(run for run in runs(app) if run["lease"])
    token = {"token": run["lease"]["token"]}
    assert app.admin.post(f"/v1/runs/{run['id']}/claim", token).status == 200
    ended = {**token, "outcome": "succeeded", "exit_code": 0}
    assert app.admin.post(f"/v1/runs/{run['id']}/end", ended).status == 200
    return run


def test_a_server_learns_the_order_of_a_queue_says_so_and_keeps_it(app: RealApp) -> None:
    """Runs of 31 s and of 59 s by turns: one class of work, in which those that came first went first. After ten ends
    the roll-outs say that the short ones should: the next lease is a short run's, whoever waits is told why, and the
    journal has it."""
    for number in range(RUNS):
        submit(app, number, 31.0 if number % 2 else 59.0)
    assert [end_one(app)["expected_s"] for _ in range(10)] == [59.0, 31.0] * 5
    why = "queue 'q' learns its order, which is dependents since"
    told = wait_for(lambda: next((r["reason"] for r in runs(app, "/v1/queue") if why in r["reason"]), ""), "it is told")
    assert "roll-outs of what waits and comes, workloads took" in told
    end_one(app)  # it had its lease before
    assert {end_one(app)["expected_s"] for _ in range(5)} == {31.0}
    store = SqlStore(app.folder, time.time())
    try:
        recovered = store.load().logic("a copy")
    finally:
        store.close()
    assert recovered.book.engine.state.queues[0].order == "dependents"
    recovered.validate()


def test_where_roll_outs_fail_the_order_stays_and_the_server_goes_on(
    app: RealApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The process ends with an error: one line in the log, no traceback, and runs go on by the default."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    for number in range(RUNS):
        submit(app, number, 31.0 if number % 2 else 59.0)
    for _ in range(10):
        end_one(app)
    wait_for(lambda: "a roll-out failed: exit code 3: no memory" in caplog.text, "it is said")
    assert [end_one(app)["expected_s"] for _ in range(2)] == [59.0, 31.0]
    assert caplog.text.count("a roll-out failed") == 1
    assert app.site.ordering is not None
    assert not app.site.ordering.problem


def test_a_roll_out_ends_with_its_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that would take minutes is killed when the server ends."""
    slow, began = tmp_path / "python", tmp_path / "pid"
    slow.write_text(
        f"#!{sys.executable}\nimport os, time\nopen('{began}', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    app = RealApp(FILE, ONE, ordering=Ordering(["q"], SOON, look_s=0.1))
    try:
        for number in range(12):
            submit(app, number, 60.0)
        for _ in range(5):
            end_one(app)
        wait_for(lambda: began.exists() and began.read_text(), "it has begun")
    finally:
        app.close()
    wait_for(lambda: not psutil.pid_exists(int(began.read_text())), "it has ended")


def test_serve_takes_the_file_and_why_says_the_order(tmp_path: Path) -> None:
    """`egs serve --queues` with `order: learned`: until there is a review, whoever waits is told the default."""
    (tmp_path / "queues.yaml").write_text(FILE)
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        site.start("--queues", str(tmp_path / "queues.yaml"))
        site.detached("--gpus", "1", "--", "sleep", "600")
        wait_for(lambda: any(site.devices().values()), "it runs")
        second = site.detached("--gpus", "1", "--", "true")
        done = site.egs("why", second["id"])
        assert "queue 'q' learns its order, which is remaining_work" in done.stdout, done.stderr
    finally:
        site.close()
