"""A budget as a user meets it: a real server with a file of queues, real commands."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content

FILE = "queues: [{name: images, budget: {gpu_hours: HOURS, warn_at: 0.001}}]\n"


@pytest.mark.slow
def test_a_budget_that_is_used_up(tmp_path: Path) -> None:
    """3.6 seconds of two GPUs: the first command goes on when they are used up, the second is told how much is used
    and waits for the next month, also at a server that was killed and comes back; with more hours it starts. A file
    with a mistake is one error that names the line."""
    file, go = tmp_path / "queues.yaml", tmp_path / "go"
    file.write_text(FILE.replace("HOURS", "0.001"))
    site = RealSite(tmp_path / "site")

    def words(name: str) -> tuple[str, ...]:
        return ("--name", name, "--", sys.executable, "-c", UNTIL, str(tmp_path / name), str(go), "0")

    def state() -> str:
        (budget,) = site.client.queue().budgets
        return budget.state

    try:
        site.start("--queues", str(file))
        first = site.run("--gpus", "1", *words("first"))
        wait_for(partial(content, tmp_path / "first"), "it runs")
        wait_for(lambda: state() != "ok", "some of it is used")
        check = site.egs("run", "--check", "--gpus", "1", "--", "true")
        assert check.returncode == 0
        wait_for(lambda: state() == "used up", "it is used up")
        second = site.run("--gpus", "1", *words("second"))
        assert second.stderr is not None
        assert "waits: queue 'images' has used up its 0.001 GPU hours of " in second.stderr.readline()
        site.kill()
        site.start("--queues", str(file))
        told = site.told("why", site.queued()["second"])
        assert (told["kind"], "nothing new of it gets a GPU before " in told["reason"]) == ("budget", True)
        listed = site.egs("queue").stdout
        assert re.search(r"^queue images: 0\.00\d+ of 0\.001 GPU hours of ", listed, re.MULTILINE), listed
        assert ", used up: nothing new of it gets a GPU; until " in listed
        assert "budget used up" in site.egs("top", "--once").stdout
        (told,) = site.told("queue")["budgets"]
        assert (told["queue"], told["state"], told["used"] > 0.001) == ("images", "used up", True)
        assert first.poll() is None
        site.kill()
        file.write_text(FILE.replace("HOURS", "1"))
        site.start("--queues", str(file))
        wait_for(partial(content, tmp_path / "second"), "it starts")
        go.touch()
        assert [one.wait(PATIENCE_S) for one in (first, second)] == [0, 0]
        third = site.egs("run", "--gpus", "1", "--", "true")
        assert third.stderr.startswith("egs: queue 'images' has used 0")  # 0.00 to 0.01
        assert "; when they are used up, nothing new of it gets a GPU before " in third.stderr
        file.write_text(FILE.replace("HOURS", "many"))
        wrong = site.egs("serve", "--emulated-gpus", "2", "--data", str(tmp_path / "x"), "--queues", str(file))
        assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
        assert f"{file} line 1" in wrong.stderr
    finally:
        site.close()
