"""Preload several steps ahead: a process that waits for a value gets that value, whatever happens to its producer's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_core.engine import messages as m
from egs_ray import Session
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session of its own; afterwards nothing is held in Ray's books."""
    with t.session(tmp_path) as made:
        yield made
    t.until(t.is_idle, "all resources are free")


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(preload=egs.modules("wave"), expect=0.2)
def count_on(value: Any) -> int:
    """One more than a number, zero for a time."""
    return value + 1 if isinstance(value, int) else 0


def test_a_given_up_process_is_not_a_value(session: Session, tmp_path: Path) -> None:
    """Two tasks wait in their processes, one for the other's value; the first one's process is given up, and the second
    still gets what the first returns."""
    first = t.before.bind(str(tmp_path), "first")
    middle = count_on.bind(first)
    made = egs_ray.run(MultiOutputNode([middle, count_on.bind(middle)]), session=session)
    jobs = t.until(lambda: made._books.jobs)
    t.until(lambda: jobs[1].is_warm and jobs[2].is_warm, "both are warm")

    def give_up() -> None:
        session._submissions.leave_shell(jobs[1])
        session._shared.handle(m.PreloadFailed(jobs[1].number))

    session.site.do(give_up)
    t.until(lambda: jobs[1].ref is None, "it has no process")
    t.signal_to(str(tmp_path), "first.end")
    assert made.get(t.LIMIT_S) == [0, 1]


def test_arguments_are_told_when_the_last_parent_starts(session: Session, tmp_path: Path) -> None:
    """Not only at the task's own turn: so the values that are there already can be fetched meanwhile."""
    first = t.before.bind(str(tmp_path), "first")
    gate = t.before.bind(str(tmp_path), "gate", first)
    task = t.with_folder(t.warmed, tmp_path)
    made = egs_ray.run(task.bind(str(tmp_path), gate), session=session)
    use = t.until(lambda: made._books.jobs)[2]
    t.until(lambda: use.is_warm, "warm two steps ahead")
    assert use.promised
    t.signal_to(str(tmp_path), "first.end")
    t.until((tmp_path / "gate.runs").exists)
    t.until(lambda: not use.promised, "its arguments are told")
    assert use.grant is None
    t.signal_to(str(tmp_path), "gate.end")
    assert made.get(t.LIMIT_S)["pid"] == use.pid
