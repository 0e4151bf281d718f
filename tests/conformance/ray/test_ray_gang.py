"""Gangs on real Ray: all members start together in one placement group, or none; what fails, fails as one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.dag import MultiOutputNode
from ray.util.placement_group import placement_group_table

import egs_ray
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, Started
from egs_ray import Session
from tests.conformance.ray import gang_tasks as g
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for the tests that leave it as they found it."""
    assert ray_address
    with t.session(tmp_path_factory.mktemp("gangs")) as made:
        yield made


def groups() -> list[dict[str, Any]]:
    """Placement groups of gangs that Ray has, removed ones left out."""
    rows = placement_group_table().values()
    return [row for row in rows if row["name"].startswith("egs-") and row["state"] != "REMOVED"]


def when(made: Any, what: type[Granted] | type[Started], kind: str, phase: int = 0, attempt: int = 1) -> list[int]:
    """Where in the run log the tasks of a kind were granted a phase, or started it. Not the times: a grant has that of
    the site, which may be at a server, and its clock is milliseconds away from the one of a start."""
    found = [
        (at, r)
        for at, r in enumerate(read_run(made.runlog).records)
        if isinstance(r, what) and r.workload == made.id and r.task.startswith(f"{kind}-")
    ]
    return [at for at, r in found if (r.phase, r.attempt) == (phase, attempt)]


def both_start_together(made: Any, kind: str, phase: int = 0, attempt: int = 1) -> bool:
    """Neither before the other had its turn, too. A site at a server hears of a start later than the task's code."""

    def logged(what: type[Granted] | type[Started]) -> list[int]:
        return when(made, what, kind, phase, attempt)

    t.until(lambda: len(logged(Granted)) == len(logged(Started)) == 2, "the run log has both grants and starts")
    return max(logged(Granted)) < min(logged(Started))


def test_members_start_together_in_one_placement_group(shared: Session, tmp_path: Path) -> None:
    """Two members on two GPUs: one group with a bundle each, both or none; the group goes with them."""
    folder = str(tmp_path)
    foreign = t.waits.options(num_gpus=1).remote(folder, "foreign")
    t.until((tmp_path / "foreign.runs").exists)
    made = egs_ray.run(MultiOutputNode([g.shard.bind(folder, name) for name in "ab"]), session=shared)
    t.until(lambda: [row["state"] for row in groups()] == ["PENDING"], "a group that waits for both GPUs")
    assert not list(tmp_path.glob("*.started"))  # one GPU is free, and neither of the two takes it
    assert t.free("GPU") == 1
    freed = time.time()
    t.signal_to(folder, "foreign.end")
    t.until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    assert [len(row["bundles"]) for row in groups()] == [2]
    assert all(g.started(tmp_path, name)[0] > freed for name in "ab")
    assert both_start_together(made, "shard")
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    assert set(made.get(t.LIMIT_S)) == {"0", "1"}
    ray.get(foreign)
    t.until(lambda: not groups() and t.is_idle())


def test_a_mixed_gang_starts_each_phase_together(shared: Session, tmp_path: Path) -> None:
    """A member whose CPU phase has ended holds no GPU until the other's has ended too."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([g.mixed_shard.bind(folder, name) for name in "ab"]), session=shared)
    t.signal_to(folder, "a.decoded")
    t.until(lambda: made.why("mixed_shard-0").kind == "gang", "the first waits for the second")
    assert t.free("GPU") == 2
    t.signal_to(folder, "b.decoded")
    t.until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    assert both_start_together(made, "mixed_shard", phase=1)
    assert set(made.get(t.LIMIT_S)) == {"0", "1"}
    t.until(lambda: not groups() and t.is_idle())


def test_two_gangs_do_not_deadlock(shared: Session, tmp_path: Path) -> None:
    """Two gangs of two on two GPUs, submitted member by member in turn: one after the other, each whole."""
    folder = str(tmp_path)
    nodes = [task.bind(folder, f"{task_name}{i}") for i in range(2) for task_name, task in GANGS.items()]
    for name in ("x0", "x1", "y0", "y1"):
        t.signal_to(folder, f"{name}.end")
    made = egs_ray.run(MultiOutputNode(nodes), session=shared)
    assert made.get(t.LIMIT_S)
    turns = [when(made, Granted, kind) + when(made, Started, kind) for kind in ("shard", "other_shard")]
    assert all(both_start_together(made, kind) for kind in ("shard", "other_shard"))
    assert max(turns[0]) < min(turns[1]) or max(turns[1]) < min(turns[0])
    t.until(lambda: not groups() and t.is_idle())


GANGS = {"x": g.shard, "y": g.other_shard}
STREAM = 30


def test_a_gang_does_not_starve(shared: Session, tmp_path: Path) -> None:
    """Behind a stream of tasks of one GPU each, a gang of two gets its turn long before the stream ends."""
    folder = str(tmp_path)
    t.signal_to(folder, "a.end")
    t.signal_to(folder, "b.end")
    stream = [g.single.bind(folder, f"s{i}", 0.05 + 0.03 * (i % 3)) for i in range(STREAM)]
    made = egs_ray.run(MultiOutputNode([*stream, *(g.shard.bind(folder, n) for n in "ab")]), session=shared)
    made.get(t.LIMIT_S)
    begun = sorted(float((tmp_path / f"s{i}").read_text()) for i in range(STREAM))
    gang = g.started(tmp_path, "a")[0]
    after = sum(at > gang for at in begun)
    print(f"{after} of {STREAM} tasks started after the gang")
    assert after >= STREAM // 3


def test_a_failing_member_ends_its_gang(shared: Session, tmp_path: Path) -> None:
    """What one raises is what the run raises; the other is ended, and nothing stays held."""
    folder = str(tmp_path)
    node = MultiOutputNode([g.shard.bind(folder, "a"), g.failing_shard.bind(folder, "b")])
    made = egs_ray.run(node, session=shared)
    t.until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    process = psutil.Process(g.started(tmp_path, "a")[2])
    t.signal_to(folder, "fail")
    with pytest.raises(ValueError, match="b is broken"):
        made.get(t.LIMIT_S)
    t.until(lambda: t.is_gone(process))
    t.until(lambda: not groups() and t.is_idle())


def test_a_killed_member_restarts_its_gang(shared: Session, tmp_path: Path) -> None:
    """Ray tries the killed one again: its partner is ended and starts again with it, together."""
    folder = str(tmp_path)
    node = MultiOutputNode([g.dying_shard.bind(folder, "a", True), g.dying_shard.bind(folder, "b", False)])
    made = egs_ray.run(node, session=shared)
    t.until(lambda: len(list(tmp_path.glob("*0.started"))) == 2)
    first = psutil.Process(g.started(tmp_path, "b0")[2])
    t.signal_to(folder, "kill")
    assert made.get(t.LIMIT_S) == ["second", "second"]
    assert t.is_gone(first)
    assert both_start_together(made, "dying_shard", attempt=2)
    t.until(lambda: not groups() and t.is_idle())


def test_a_member_between_its_phases_starts_again(shared: Session, tmp_path: Path) -> None:
    """One waits for the other before the GPU phase, and the other is killed: both start again from the beginning."""
    folder, again = str(tmp_path), g.mixed_shard.options(max_retries=1)
    made = egs_ray.run(MultiOutputNode([again.bind(folder, name) for name in "ab"]), session=shared)
    t.until(lambda: len(list(tmp_path.glob("*.decoding"))) == 2)
    first = [int((tmp_path / f"{name}.decoding").read_text()) for name in "ab"]
    t.signal_to(folder, "a.decoded")
    t.until(lambda: made.why("mixed_shard-0").kind == "gang", "the first waits for the second")
    os.kill(first[1], signal.SIGKILL)
    t.signal_to(folder, "b.decoded")
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    assert set(made.get(t.LIMIT_S)) == {"0", "1"}
    assert {int((tmp_path / f"{name}.decoding").read_text()) for name in "ab"}.isdisjoint(first)
    assert both_start_together(made, "mixed_shard", phase=1, attempt=2)
    t.until(lambda: not groups() and t.is_idle())


def test_a_killed_holder_is_replaced(shared: Session, tmp_path: Path) -> None:
    """Who holds a member's bundle dies: another takes it, the gang goes on, and nothing stays held."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([g.shard.bind(folder, name) for name in "ab"]), session=shared)
    t.until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    holders = {lease.peer for lease, _ in list(shared._leases._open.values()) if lease.peer is not None}
    assert len(holders) == 2
    victim = next(p for p in psutil.process_iter(["name"]) if p.info["name"] == "ray::egs-lease")
    os.kill(victim.pid, signal.SIGKILL)
    t.until(lambda: {lease.peer for lease, _ in list(shared._leases._open.values())} - {None, *holders})
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    assert set(made.get(t.LIMIT_S)) == {"0", "1"}
    t.until(lambda: not groups() and t.is_idle())


def test_a_gang_that_is_too_large_is_refused(shared: Session, tmp_path: Path) -> None:
    """At submission, with the numbers, and the run log has nothing of it; tasks that wait for each other too."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([g.shard.bind(folder, name) for name in "abc"]), session=shared)
    with pytest.raises(InputError, match=r"gang 'shards' of 3 tasks needs 3 GPUs and 1.5 CPUs.*2 GPUs and 4 CPUs"):
        made.get(t.LIMIT_S)
    with pytest.raises(InputError, match=r"gang 'shards' wait for each other"):
        egs_ray.run(g.shard.bind(folder, "b", g.shard.bind(folder, "a")), session=shared)


def test_abort_ends_the_whole_gang(shared: Session, tmp_path: Path) -> None:
    """Aborting one member ends the other as well."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([g.shard.bind(folder, name) for name in "ab"]), session=shared)
    t.until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    made.abort("shard-0", actor="test")
    with pytest.raises(ray.exceptions.TaskCancelledError):
        made.get(t.LIMIT_S)
    t.until(lambda: not groups() and t.is_idle())


def test_others_go_on_while_ray_has_no_room(
    shared: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A foreign task keeps a GPU: the gang is put off with one line, others use what is free, and it starts later."""
    monkeypatch.setattr("egs_ray.session.gangs.PATIENCE_S", 0.5)
    folder = str(tmp_path)
    foreign = t.waits.options(num_gpus=1).remote(folder, "foreign")
    t.until((tmp_path / "foreign.runs").exists)
    made = egs_ray.run(MultiOutputNode([g.other_shard.bind(folder, name) for name in "ab"]), session=shared)
    t.until(lambda: [row["state"] for row in groups()] == ["PENDING"])
    alone = egs_ray.run(g.single.bind(folder, "alone", 0.1), session=shared)
    assert alone.get(t.LIMIT_S)
    assert not list(tmp_path.glob("*.started"))
    t.signal_to(folder, "foreign.end")
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    assert set(made.get(t.LIMIT_S)) == {"0", "1"}
    ray.get(foreign)
    assert capfd.readouterr().err.count("gang others waits: Ray has no room for its 2 tasks at once") == 1
    t.until(lambda: not groups() and t.is_idle())


def test_a_gang_that_only_ray_can_place_runs_as_written(
    shared: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A member with a custom resource is Ray's to place, so its gang is none: said once, and its tasks run."""
    folder = str(tmp_path)
    for name in "ab":
        t.signal_to(folder, f"{name}.end")
    here = f"node:{ray.util.get_node_ip_address()}"
    nodes = [g.shard.options(resources={here: 0.001}).bind(folder, "a"), g.shard.bind(folder, "b")]
    assert len(egs_ray.run(MultiOutputNode(nodes), session=shared).get(t.LIMIT_S)) == 2
    assert "gang 'shards' are not started together: only Ray can place shard-0" in capfd.readouterr().err
