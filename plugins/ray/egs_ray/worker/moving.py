"""A task of a script that is to run on another node than the one where Ray has put it, under the reference that the
script has.

    fit ── out of GPU memory ─► driver: again ─► the error, marked ─► its process ends, Ray starts the task again
                                                                          │
    hello ─► driver: elsewhere ─► the same task once more, there ─► its value is this one's

Ray starts a task again where it likes. So what is started again may be no more than what waits for the task elsewhere,
which holds nothing: no process that has used a device stays behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from egs_ray import submitting
from egs_ray.worker.spec import Spec

MARK = "egs_starts_again"


def mark(error: BaseException) -> None:
    """Let Ray start the task again that ends with this error, which stays what it is."""
    vars(error)[MARK] = True


def marked() -> type[Exception]:
    """What Ray is told to start tasks again for: an error that is marked, and each once. Where Ray does not start the
    task again, whoever asks for its value gets the error as it was raised.

    Made in a function, so that Ray pickles it by value: a worker's environment may lack this package.
    """

    class IsMarked(type):
        def __instancecheck__(cls, error: object) -> bool:
            return bool(getattr(error, "__dict__", {}).pop(MARK, False))

    class Marked(Exception, metaclass=IsMarked):
        pass

    return Marked


def retried(stated: Any) -> Any:
    """`retry_exceptions` of a task, beside what its user has stated."""
    return True if stated is True else [*(stated or ()), marked()]


def run_on(node: str, task: Callable[..., Any], spec: Spec, task_id: str, arguments: list[Any]) -> Any:
    """The value of the task, run on that node; raises what it raises there. task_id: under which it is known."""
    told = {**spec.told(), "task_id": task_id}
    there = ray.remote(
        num_cpus=0,
        num_gpus=0,
        num_returns=spec.returns,
        max_calls=1,
        max_retries=spec.moves,
        retry_exceptions=retried(None),
        enable_task_events=False,  # it is one task to its user
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
    )(task)
    with submitting.directly():
        made = there.remote(told, arguments)
    return ray.get(made)
