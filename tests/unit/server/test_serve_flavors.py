"""A real `egs serve` with emulated GPUs of two flavors, and real `egs run` commands that are faster on one of them.

Nothing computes on a GPU: the command looks which device it has got and sleeps accordingly.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client.requests import GpuRequest
from tests.unit.server.real_site import RealSite, wait_for

TASK = """#!/bin/sh
# emulated speeds: its first run, on device 0, takes 5 s, all others no time, so that no busy machine turns that round
if [ "$CUDA_VISIBLE_DEVICES" = 0 ] && [ ! -e "$1" ]; then sleep 5; fi
echo "$CUDA_VISIBLE_DEVICES" > "$1"
"""
HOLD = 'while [ ! -e "$0" ]; do sleep 0.05; done'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    found = RealSite(tmp_path, "slow=1,fast=1")
    try:
        yield found
    finally:
        found.close()


def test_a_task_starts_where_history_says_that_it_ends_first(site: RealSite, tmp_path: Path) -> None:
    """Once on each flavor; then it says nothing: it is placed on the fast one, which is the second, and on the slow one
    at once while the fast one is held for an hour. So it is after a restart of the server, too."""
    task = tmp_path / "task.sh"
    task.write_text(TASK)
    task.chmod(task.stat().st_mode | stat.S_IXUSR)
    site.start()
    listed = site.told("ps")["devices"]
    assert [(one["label"], one["flavor"]) for one in listed] == [("emulated", "slow"), ("emulated", "fast")]
    out = tmp_path / "device"

    def placed(*more: str) -> str:
        done = site.egs("run", "--gpus", "1", *more, "--", str(task), str(out))
        assert done.returncode == 0, done.stderr
        return out.read_text().strip()

    assert (placed("--flavor", "slow"), placed("--flavor", "fast")) == ("0", "1")
    assert placed() == "1"
    site.kill()
    site.start()
    assert placed() == "1"
    gate = tmp_path / "gate"
    long = site.run("--gpus", "1", "--flavor", "fast", "--expect", "1h", "--", "sh", "-c", HOLD, str(gate))
    wait_for(lambda: site.devices().get("1"), "the fast one is held")

    def listed_ends() -> tuple[list[str], list[str]]:
        head, row = [line.split() for line in site.egs("ps", COLUMNS="200").stdout.splitlines()[:2]]
        return head[-3:], row[-2:]

    wait_for(lambda: listed_ends() == (["devices", "flavor", "queue"], ["1", "fast"]), "it is listed with its flavor")
    assert placed() == "0"
    gate.touch()
    assert long.wait(240) == 0
    ended = [run for run in site.client.runs(with_ended=True).runs if run.name == "task.sh"]
    assert [run.flavor for run in ended] == ["slow", "fast", "fast", "fast", "slow"]
    listed = [line.split() for line in site.egs("ps", "--all", COLUMNS="200").stdout.splitlines()]
    assert [row[-1] for row in listed if "task.sh" in row] == ["slow", "fast", "fast", "fast", "slow"]


LACKS = """#!/bin/sh
echo "step 1" >&2
if [ "$CUDA_VISIBLE_DEVICES" = 0 ]; then
  echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB." >&2
  exit 1
fi
echo "ran on $CUDA_VISIBLE_DEVICES"
"""


@pytest.mark.slow
def test_what_lacks_memory_on_one_flavor_is_tried_on_another(site: RealSite, tmp_path: Path) -> None:
    """Once for each that is named: the second run has the fast GPU and its exit code is the command's; what it prints
    passes through, and the line between says why. While that waits, `egs why` says it too. A command that fails for
    another reason, or lacks memory on the last one, is not tried again; nor one that had that flavor already."""
    task = tmp_path / "task.sh"
    task.write_text(LACKS)
    task.chmod(task.stat().st_mode | stat.S_IXUSR)
    site.start()
    line = ("--gpus", "1", "--flavor", "slow", "--or-flavor", "fast")
    done = site.egs("run", *line, "--", str(task))
    assert (done.returncode, done.stdout) == (0, "ran on 1\n"), done.stderr
    lack = "out of GPU memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
    assert f"egs: run 1: {lack}; it is tried again on fast" in done.stderr.splitlines()
    assert done.stderr.count("step 1") == 2
    gate = tmp_path / "gate"
    hold = site.run("--gpus", "1", "--flavor", "fast", "--", "sh", "-c", HOLD, str(gate))
    wait_for(lambda: site.devices().get("1"), "the fast one is held")
    waiting = site.run(*line, "--", str(task))
    wait_for(lambda: any(run.note for run in site.client.queue().runs), "the second waits")
    (second,) = [run for run in site.client.queue().runs if run.note]
    said = site.egs("why", second.id).stdout.splitlines()
    assert said[-1] == f"tried again on fast: run {int(second.id) - 1} was out of GPU memory"
    gate.touch()
    assert (hold.wait(240), waiting.wait(60)) == (0, 0)
    other = site.egs("run", *line, "--", "sh", "-c", "echo no luck >&2; exit 3")
    assert (other.returncode, "tried again" in other.stderr) == (3, False), other.stderr
    last = site.egs("run", "--gpus", "1", "--flavor", "slow", "--or-flavor", "slow", "--", str(task))
    assert (last.returncode, "tried again" in last.stderr) == (1, False), last.stderr
    assert "out of GPU memory" in last.stderr
    assert "--or-flavor names no flavor that it has not had" in last.stderr
    ended = [(run.name, run.flavor, run.outcome) for run in site.client.runs(with_ended=True).runs]
    assert ended[:2] == [("task.sh", "slow", "failed"), ("task.sh", "fast", "succeeded")]
    unknown = site.egs("run", "--gpus", "1", "--or-flavor", "h100", "--", "true")
    told = "error: --or-flavor: there is no GPU of flavor 'h100'"
    assert (unknown.returncode, told in unknown.stderr) == (2, True), unknown.stderr
    detached = site.egs("run", "--gpus", "1", "--or-flavor", "fast", "--detach", "--", "true")
    assert detached.returncode == 2
    assert "--detach: does nothing with --or-flavor: its output and its number are those of one run" in detached.stderr


@pytest.mark.slow
def test_a_gpu_request_has_the_flavor_that_it_names(site: RealSite) -> None:
    """The second device, which is fast; one more waits for it while the slow one is free, also over a restart; of
    several flavors any will do; one that nobody has is refused in one line. Where none is named, nothing is said of it
    to the server, so that an older one takes it."""
    site.start()
    made = site.told("request", "--gpus", "1", "--for", "1h", "--flavor", "fast")
    assert (made["state"], made["devices"], made["flavors"], made["flavor"]) == ("ready", ["1"], ["fast"], "fast")
    again = site.told("request", "--gpus", "1", "--for", "1h", "--flavor", "fast")
    assert (again["state"], again["devices"]) == ("queued", [])
    site.kill()
    site.start()
    assert site.told("request", "show", again["id"])["state"] == "queued"
    either = site.told("request", "--gpus", "1", "--for", "1h", "--flavor", "slow", "--flavor", "fast")
    assert (either["devices"], either["flavor"]) == (["0"], "slow")
    assert site.egs("request", "release", made["id"], "--grace", "1s").returncode == 0
    wait_for(lambda: site.told("request", "show", again["id"])["devices"] == ["1"], "it has the fast one")
    wrong = site.egs("request", "--gpus", "1", "--for", "1h", "--flavor", "h100")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1), wrong.stderr
    assert "--flavor: there is no GPU of flavor 'h100' here; there are: slow, fast" in wrong.stderr
    plain = GpuRequest(key="request-0001", gpus=1, for_s=60.0)
    assert "flavors" not in plain.model_dump_json(exclude_none=True)


@pytest.mark.slow
def test_what_nobody_has_is_refused_with_one_line(site: RealSite, tmp_path: Path) -> None:
    """A flavor that there is not, a wish without GPUs, and a file of prices that is wrong; a right one is taken."""
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors:\n  - {name: fast, gpu_hour: -1}\n")
    wrong = site.egs("serve", "--emulated-gpus", "1", "--data", str(tmp_path / "x"), "--flavors", str(file))
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1), wrong.stderr
    assert "flavors.yaml line 2" in wrong.stderr
    file.write_text("flavors:\n  - {name: fast, gpu_hour: 3.0, speed: 2}\n  - {name: slow, gpu_hour: 1.0}\n")
    site.start("--flavors", str(file))
    for arguments, text in (
        (("--gpus", "1", "--flavor", "h100"), "--flavor: there is no GPU of flavor 'h100' here; there are: slow, fast"),
        (("--flavor", "fast"), "--flavor: does nothing without --gpus or --gpu-memory or --in"),
        (("--gpus", "2", "--flavor", "fast"), "there is 1 GPU of flavor fast here, and 2 are needed"),
    ):
        done = site.egs("run", *arguments, "--", "true")
        assert (done.returncode != 0, text in done.stderr) == (True, True), done.stderr
        assert "Traceback" not in done.stderr
    checked = json.loads(site.egs("run", "--gpus", "1", "--check", "--json", "--", "true").stdout)
    assert checked["lease"]["devices"] == ["1"]
