"""`egs profile` at a real `egs serve` with emulated GPUs of two flavors, on which a command takes unlike times.

Nothing computes on a GPU: the command looks which device it has got and sleeps accordingly.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from egs_core.history.opened import open_history
from egs_core.profiling.tiers import Measured
from tests.unit.server.real_site import RealSite

TASK = """#!/bin/sh
# emulated speeds: on device 1 it takes less time than on device 0. A run may be slowed by 1.5 s more than the other
# before a busy machine turns that round, or makes one take twice as long
[ "$1" = 64 ] && exit 9
if [ "$CUDA_VISIBLE_DEVICES" = 1 ]; then sleep 3; else sleep 4.5; fi
echo "printed by the command"
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    found = RealSite(tmp_path, "old=1,new=1")
    try:
        yield found
    finally:
        found.close()


@pytest.mark.slow
def test_each_flavor_is_tried_and_the_advice_is_the_same_from_runs_before(site: RealSite, tmp_path: Path) -> None:
    """One run on each with each size, in its turn and by its flavor; the cheaper one, as it takes less than twice as
    long, and what that saves; a size with which it fails is named. Then by its name, from the history and from the
    server's own runs, which have their times, too."""
    task, prices = tmp_path / "task.sh", tmp_path / "flavors.yaml"
    task.write_text(TASK)
    task.chmod(task.stat().st_mode | stat.S_IXUSR)
    prices.write_text("flavors: [{name: old, gpu_hour: 1.0}, {name: new, gpu_hour: 4.0}]")
    site.start()
    line = ("profile", "--flavors", str(prices), "--json")
    done = site.egs(*line, "--batch", "8,64", "--", str(task), "{batch}")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "printed by the command" in done.stderr
    assert [(one["flavor"], one["batch"], one["is_emulated"]) for one in told["measured"]] == [
        ("old", 8, True),
        ("new", 8, True),
    ]
    assert [(one["flavor"], one["batch"]) for one in told["failed"]] == [("old", 64), ("new", 64)]
    slow, fast = (one["seconds"] for one in told["measured"])
    assert 3.0 <= fast < slow < 2 * fast
    advice = told["advice"]
    assert (advice["flavor"], advice["instead"]) == ("old", "new")
    assert advice["saving"] == pytest.approx(1 - slow / (4 * fast))
    assert any("no GPU was there" in risk for risk in advice["risks"])
    ran = [(run.flavor, run.flavors, run.outcome) for run in site.client.runs(with_ended=True).runs]
    assert ran[0] == ("old", ("old",), "succeeded")
    again = json.loads(site.egs(*line, "task.sh").stdout)
    assert again["advice"]["flavor"] == "old"
    assert len(again["measured"]) == 2  # each run is in the history, and at the server: it counts once
    gone = json.loads(site.egs(*line, "task.sh", EGS_HISTORY=f"sqlite:///{tmp_path}/none.db").stdout)
    assert [one["flavor"] for one in gone["measured"]] == ["old", "new"]
    every = json.loads(site.egs("advise", "--flavors", str(prices), "--json").stdout)["tasks"]
    assert [(one["task"], one["flavor"], one["runs"]) for one in every] == [("task.sh", "old", 2)]
    bare = json.loads(site.egs("advise", "--json", EGS_HISTORY=f"sqlite:///{tmp_path}/none.db").stdout)["tasks"]
    assert [(one["task"], one["advice"]["saving"], one["runs"]) for one in bare] == [("task.sh", None, 2)]
    few = site.egs("profile", "--gpus", "2", "--", "true")
    assert (few.returncode, "there is 1 GPU of flavor new here, and 2 are needed" in few.stderr) == (2, True), few
    wrong = site.egs("profile", "--flavor", "h100", "--", "true")
    assert (wrong.returncode, "there are: old, new" in wrong.stderr) == (2, True), wrong.stderr


def test_its_runs_are_in_a_queue(site: RealSite, tmp_path: Path) -> None:
    """The one that is named, else an admin's, which is the first; its errors name options that the command has."""
    queues = tmp_path / "site.yaml"
    queues.write_text("queues: [{name: lab}, {name: rest}]")
    site.start("--queues", str(queues))
    unnamed = site.egs("profile", "--", "true")
    assert unnamed.returncode == 0, unnamed.stderr
    for option, value, problem in (
        ("--queue", "none", "queue: there is no queue"),
        ("--name", "a\nb", "--name: has characters"),
        ("--name", "x" * 201, "--name: must have at most 200"),
    ):
        refused = site.egs("profile", "--queue", "rest", option, value, "--", "true")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert problem in refused.stderr, refused.stderr
    done = site.egs("profile", "--queue", "rest", "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    assert [one["flavor"] for one in json.loads(done.stdout)["measured"]] == ["old", "new"]
    assert [(run.queue, run.name) for run in site.client.runs(with_ended=True).runs] == [
        *[("lab", "true")] * 2,
        *[("rest", "true")] * 2,
    ]


def test_advice_names_only_flavors_of_the_site(site: RealSite, tmp_path: Path) -> None:
    """A command that was measured on a flavor which is gone, and with a batch: it says what the runs here say."""
    prices = tmp_path / "flavors.yaml"
    prices.write_text("flavors: [{name: old, gpu_hour: 1.0}, {name: new, gpu_hour: 40.0}]")
    site.start()
    assert site.egs("profile", "--flavors", str(prices), "--", "true").returncode == 0
    before = [Measured("emulated", 16.2, batch=16, ended_at=1.0), Measured("gone", 0.001, ended_at=2.0)]
    history = f"sqlite:///{tmp_path}/before.db"
    store = open_history(history)
    store.record_profile("true", [(one.ended_at, msgspec.json.encode(one).decode()) for one in before])
    store.close()
    (told,) = json.loads(site.egs("advise", "--flavors", str(prices), "--json", EGS_HISTORY=history).stdout)["tasks"]
    assert told["flavor"] in ("old", "new"), told
    assert {one["flavor"] for one in told["advice"]["choices"]} == {"old", "new"}
    assert any("gone, which it does not have (1 run)" in one for one in told["unknown"])
