"""Preemption on real Ray: a task is stopped, its try ends for good, and its next try goes on from its checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended
from egs_ray import Session
from egs_ray.control import commands as control
from tests.conformance.ray import control_tasks as c
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")

QUEUES = """
queues:
  - {name: owner, cohort: lab, nominal: {gpus: 1}}
  - {name: guest, cohort: lab, nominal: {gpus: 1}}
  - {name: timed, limits: {max_runtime: 3s, on_limit: requeue}}
"""


def preempted(session: Session, made: Any, task: str) -> None:
    """What `egs preempt` asks of a session."""
    request = {"verb": "preempt", "workload": made.id, "stage": "", "task": task, "actor": "ann", "reason": "room"}
    assert session._operations.carry_out(request) == {"tasks": [task]}


def ends(folder: Path, task: str) -> list[tuple[str, str]]:
    """How each try of the task has ended, and why."""
    records = read_run(folder / "run.jsonl").records
    return [(r.outcome, r.reason) for r in records if isinstance(r, Ended) and r.task == task]


@pytest.mark.proves("ray run", "preempt", "checkpoint", "grace")
def test_a_preempted_task_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Steps done are not done again; what waits for the task, submitted early with its old reference, gets the value of
    the new try; Ray tries nothing by itself."""
    folder = str(tmp_path)
    t.signal_to(folder, "last.waits")
    with t.session(tmp_path) as session:
        made = egs_ray.run(c.doubled.bind(folder, "after", c.trained.bind(folder, "fit")), session=session)
        t.until(lambda: len(c.steps(folder, "fit")) >= 5)
        before = c.steps(folder, "fit")
        preempted(session, made, "trained-0")
        t.until(lambda: len(c.starts(folder, "fit")) == 2)
        t.signal_to(folder, "last.end")
        assert made.get(t.LIMIT_S) == 2 * c.STEPS
    done = c.steps(folder, "fit")
    assert sorted(set(done)) == list(range(c.STEPS))
    assert all(done.count(step) == 1 for step in before)
    assert len(c.starts(folder, "fit")) == 2
    assert ends(tmp_path, "trained-0") == [("preempted", "preempted by ann: room"), ("succeeded", "")]
    t.until(t.is_idle)


def test_a_gpu_step_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """The same for a GPU step in a process of its own; once that is over, nobody is asked for what it would save."""
    folder = str(tmp_path)
    t.signal_to(folder, "last.waits")
    with t.session(tmp_path, gpu_process=True) as session:
        made = egs_ray.run(c.stepped.bind(folder, "fit"), session=session)
        t.until(lambda: len(c.steps(folder, "fit")) >= 5)
        before = c.steps(folder, "fit")
        preempted(session, made, "stepped-0")
        t.until(lambda: len(c.starts(folder, "fit")) == 2)
        t.signal_to(folder, "last.end")
        t.until(lambda: c.starts(folder, "fit.last"))
        done = c.steps(folder, "fit")
        assert sorted(set(done)) == list(range(c.STEPS))
        assert all(done.count(step) == 1 for step in before)
        preempted(session, made, "stepped-0")
        t.until(lambda: len(c.starts(folder, "fit.last")) == 2)  # its grace is longer than this waits
        t.signal_to(folder, "fit.end")
        assert made.get(t.LIMIT_S) == c.STEPS
    assert len(c.starts(folder, "fit")) == len(c.starts(folder, "fit.shell")) == 3
    assert not set(c.starts(folder, "fit")) & set(c.starts(folder, "fit.shell"))
    outcomes = [outcome for outcome, _ in ends(tmp_path, "stepped-0")]  # of each phase
    assert [outcome for outcome in outcomes if outcome != "succeeded"] == ["preempted", "preempted"]
    t.until(t.is_idle)


@pytest.mark.proves("ray hinted script", "preempt", "checkpoint", "grace")
@pytest.mark.parametrize(("kind", "name"), [("saving", "trained"), ("saving-ungraced", "ungraced")])
def test_a_scripts_task_goes_on_from_its_checkpoint(ray_address: str, tmp_path: Path, kind: str, name: str) -> None:
    """Under the hook Ray starts it again, and it goes on in another process, under the reference that the script has
    and has handed on; what it had started itself has ended. Also where no hint says how long it may take to save. A
    second time is refused, as Ray would not start it any more."""
    folder = str(tmp_path)
    t.signal_to(folder, "last.waits")
    script = c.start(kind, tmp_path, ray_address)
    try:
        t.until(lambda: len(c.steps(folder, "fit")) == c.STEPS - 1)
        (workload,) = t.until(lambda: [one.workload for one in control.ps() if one.running])
        (task,) = control.preempt(workload, task=name, actor="ann", reason="room").tasks
        t.until(lambda: len(c.starts(folder, "fit")) == 2)
        first, second = c.starts(folder, "fit")
        assert c.is_dead(first)
        assert not c.is_dead(second)
        t.until(lambda: len(c.starts(folder, "fit.started")) == 2)
        assert [c.is_dead(pid) for pid in c.starts(folder, "fit.started")] == [True, False]
        with pytest.raises(InputError, match="nothing of it can be started again"):
            control.preempt(workload, task=name)
        t.signal_to(folder, "last.end")
        assert script.wait(t.LIMIT_S) == 0
        out = (tmp_path / "out.txt").read_text().splitlines()
    finally:
        script.kill()
        script.wait()
        for pid in c.starts(folder, "fit.started"):
            if not c.is_dead(pid):
                os.kill(pid, signal.SIGKILL)
    assert [line for line in out if line[:2] in ("0 ", "1 ")] == [f"0 {c.STEPS}", f"1 [{c.STEPS}]"], out
    assert c.steps(folder, "fit") == list(range(c.STEPS))
    records = read_run(tmp_path / "run.jsonl").records
    ended = [(one.outcome, one.reason) for one in records if isinstance(one, Ended) and one.task[:8] in task]
    assert ended == [("preempted", "preempted by ann: room"), ("succeeded", "")], ended
    t.until(t.is_idle)


def test_lent_quota_is_taken_back(tmp_path: Path) -> None:
    """A queue gets its nominal GPU though who borrowed it still runs: that stops, and goes on when there is room."""
    folder, queues = str(tmp_path), tmp_path / "queues.yaml"
    queues.write_text(QUEUES)
    t.signal_to(folder, "last.waits")
    with t.session(tmp_path, queues=str(queues), preempt=True, min_gain_s=0.0) as session:
        guests = MultiOutputNode([c.trained.bind(folder, f"guest{i}") for i in range(2)])
        with pytest.raises(InputError, match="there are: guest, owner, timed"):
            egs_ray.run(guests, queue="gest", session=session)
        lent = egs_ray.run(guests, name="lent", queue="guest", session=session)
        t.until(lambda: len(c.steps(folder, "guest0")) >= 5 and len(c.steps(folder, "guest1")) >= 5)
        before = [c.steps(folder, f"guest{i}") for i in range(2)]
        t.signal_to(folder, "own.end")
        own = egs_ray.run(c.fit.bind(folder, "own"), name="own", queue="owner", session=session)
        assert own.get(t.LIMIT_S) == "own"
        assert not lent.done()
        t.signal_to(folder, "last.end")
        assert lent.get(t.LIMIT_S) == [c.STEPS, c.STEPS]
    tries = [len(c.starts(folder, f"guest{i}")) for i in range(2)]
    assert sorted(tries) == [1, 2]
    victim = tries.index(2)
    done = c.steps(folder, f"guest{victim}")
    assert all(done.count(step) == 1 for step in before[victim])
    assert ends(tmp_path, f"trained-{victim}") == [("preempted", "preempted for fit-0: reclaim"), ("succeeded", "")]
    t.until(t.is_idle)


def test_a_limit_that_requeues(tmp_path: Path) -> None:
    """At its queue's limit a task stops and goes on later from its checkpoint, until it is done. Its first try would
    never end by itself; on a slow machine others, too, reach the limit."""
    folder, queues = str(tmp_path), tmp_path / "queues.yaml"
    queues.write_text(QUEUES)
    with t.session(tmp_path, queues=str(queues), preempt=True) as session:
        made = egs_ray.run(c.trained.bind(folder, "fit", "stays"), queue="timed", session=session)
        assert made.get(t.LIMIT_S) == c.STEPS
    outcomes = [outcome for outcome, _ in ends(tmp_path, "trained-0")]
    assert len(outcomes) >= 2
    assert set(outcomes[:-1]) == {"preempted"}
    assert outcomes[-1] == "succeeded"


@pytest.mark.parametrize("mode", ["raises", "hangs"])
def test_a_bad_callback_costs_the_checkpoint_and_no_more(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It raises, or takes longer than the grace: the task is stopped all the same and begins again."""
    folder = str(tmp_path)
    task = c.trained if mode == "raises" else c.hasty
    t.signal_to(folder, "last.waits")
    with t.session(tmp_path) as session:
        made = egs_ray.run(task.bind(folder, "fit", mode), session=session)
        t.until(lambda: len(c.steps(folder, "fit")) >= 5)
        preempted(session, made, f"{'trained' if mode == 'raises' else 'hasty'}-0")
        t.until(lambda: len(c.starts(folder, "fit")) == 2)
        t.signal_to(folder, "last.end")
        assert made.get(t.LIMIT_S) == c.STEPS
    done = c.steps(folder, "fit")
    assert [done.count(step) for step in range(5)] == [2] * 5
    assert ("no checkpoint of trained, its last one counts: OSError: disk full" in capsys.readouterr().err) == (
        mode == "raises"
    )
    t.until(t.is_idle)


def test_without_egs_a_task_begins_anew(tmp_path: Path) -> None:
    """Natively both names do nothing: the default comes back and nobody calls the callback."""
    assert egs.restored(7) == 7
    egs.checkpoint(lambda: pytest.fail("called"))
    assert ray.get(c.trained.remote(str(tmp_path), "fit")) == c.STEPS
