"""Reservations as a user meets them: a real server with a file of queues, real commands."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from egs_core.cli.serve import reservations_for
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content

FILE = """
queues: [{name: class}, {name: other}]
reservations:
  - queue: class
    gpus: 1
    days: [mon, tue, wed, thu, fri, sat, sun]
    begin: "00:00"
    end: "24:00"
    zone: UTC
"""


@pytest.mark.slow
def test_gpus_are_kept_for_a_queue(tmp_path: Path) -> None:
    """One of two is kept at all times: another queue has one at most, is told so, and `--check` says the same; the
    queue has it at once. Without the reservation what has waited starts. A file with a mistake is one error."""
    file, go = tmp_path / "queues.yaml", tmp_path / "go"
    file.write_text(FILE)
    site = RealSite(tmp_path / "site")
    try:
        site.start("--queues", str(file))
        names = ("one", "two", "ours")
        begun = []
        for name in names:
            queue = "class" if name == "ours" else "other"
            words = (sys.executable, "-c", UNTIL, str(tmp_path / name), str(go), "0")
            begun.append(site.run("--gpus", "1", "--queue", queue, "--name", name, "--", *words))
            if name == "two":
                wait_for(site.queued, "it waits")
                check = site.egs("run", "--check", "--gpus", "1", "--queue", "other", "--", "true")
                assert "1 GPU is kept for another queue: " in check.stdout
            else:
                wait_for(partial(content, tmp_path / name), "it runs")
        told = site.told("why", site.queued()["two"])
        assert (told["kind"], told["reason"].startswith("1 GPU is kept for another queue: ")) == ("reservation", True)
        site.kill()
        file.write_text("queues: [{name: class}, {name: other}]\n")
        site.start("--queues", str(file))
        go.touch()
        assert [one.wait(PATIENCE_S) for one in begun] == [0, 0, 0]
        file.write_text(FILE.replace("gpus: 1", "gpus: 3"))
        wrong = site.egs("serve", "--emulated-gpus", "2", "--data", str(tmp_path / "x"), "--queues", str(file))
        assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
        assert "a reservation of 3 GPUs for queue 'class', and the host offers 2" in wrong.stderr
    finally:
        site.close()


def test_a_reservation_that_is_over_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An old file stays good: what is over is named once, and nothing is kept."""
    file = tmp_path / "queues.yaml"
    file.write_text(FILE.replace("days: [mon, tue, wed, thu, fri, sat, sun]", "date: 2020-01-31"))
    (found,) = reservations_for(file, 2)
    assert found.date == "2020-01-31"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"egs: {file}: these reservations are over: 2020-01-31 (class); take them out"
    file.write_text(FILE)
    assert len(reservations_for(file, 2)) == 1
    assert capsys.readouterr().err == ""
