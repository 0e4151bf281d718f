"""Which tasks of a script can be stopped to start again. No Ray runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from egs_ray.payload import Payload
from egs_ray.session.stops import may_start_again
from egs_ray.session.tasks import Job, Way


def job(way: Way = Way.SHELL, *, options: dict[str, Any] | None = None, **state: Any) -> Job:
    """A task that runs and whose code has said `egs.checkpoint`."""
    node = Payload("fit", int, None, (), {}, options or {})
    run = SimpleNamespace(grows=True, converted=SimpleNamespace(nodes=[node]))
    told = {"saver": cast("Any", object()), "leaves": True}
    return Job(cast("Any", run), 0, 0, way, **{**told, **state})


@pytest.mark.parametrize(
    ("task", "may"),
    [
        (job(), True),
        (job(Way.TICKET), False),  # Ray would start it at once, with its GPU
        (job(saver=None), False),
        (job(leaves=False), False),  # a process with an EGS of before
        (job(apart=True), False),  # what saves is not the process that Ray would miss
        (job(stopped="preempted by ann"), False),
        (job(succeeded=True), False),
        (job(options={"max_retries": 0}), False),
        (job(options={"max_retries": -1}, lost_tries=9), True),
        (job(options={"max_retries": 2}, lost_tries=1), True),
        (job(options={"max_retries": 2}, lost_tries=2), False),
        (job(lost_tries=3), False),  # as often as Ray does by default
    ],
)
def test_which_task_of_a_script_may_start_again(task: Job, may: bool) -> None:
    """One whose process ends when it is told to, waits for a turn when Ray has started it again, and goes on from what
    it has kept."""
    assert may_start_again(task) is may
