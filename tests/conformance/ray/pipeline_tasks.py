"""The conformance suite's tasks as Ray tasks. Drivers import this module, workers do not: they get closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

import egs_core as egs
from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Pipeline, Task


def remote_functions(pipeline: Pipeline, folder: str, *, hinted: bool) -> dict[str, Any]:
    """Task name -> remote function. hinted: with all that EGS can be told; else as in a script that knows no EGS."""
    if not hinted:  # nor do its workers need EGS
        ray.cloudpickle.register_pickle_by_value(body)
    return {task.name: _remote(task, folder, hinted) for task in pipeline.tasks}


def _remote(task: Task, folder: str, hinted: bool) -> Any:
    function = _with_hints(task, folder) if hinted else _plain(task, folder)
    if not task.gpus:
        return ray.remote(num_cpus=task.cpus, max_retries=task.retries)(function)
    return ray.remote(num_cpus=task.cpus, num_gpus=task.gpus, max_calls=0, max_retries=task.retries)(function)


def _plain(task: Task, folder: str) -> Callable[..., str]:
    """All phases in one function."""
    steps = [_step(task, number, folder) for number in range(len(task.phases))]

    def run(*values: str) -> str:
        out = steps[0](*values)
        for step in steps[1:]:
            out = step(out)
        return str(out)

    run.__name__ = run.__qualname__ = task.name
    return run


def _with_hints(task: Task, folder: str) -> Callable[..., Any]:
    if len(task.phases) == 1:
        function = _plain(task, folder)
    else:
        steps = [_step(task, number, folder) for number in range(len(task.phases))]
        marked = [egs.on_gpu(s) if p.gpus else s for s, p in zip(steps, task.phases, strict=True)]
        function = egs.phases(*marked, name=task.name)
    hints: dict[str, Any] = {"gang": task.gang, "max_runtime": task.max_runtime_s}
    if task.expect_s:
        hints["expect"] = task.expect_s
    if task.loads:
        hints["preload"] = [egs.call(_load_function(task.name, folder))]
    return egs.task(**hints)(function)


def _step(task: Task, number: int, folder: str) -> Callable[..., str]:
    """One phase; the first takes the parents' values, each other one what its predecessor returned."""
    name, phase, fails = task.name, task.phases[number], task.fails and number == len(task.phases) - 1
    seconds, until, run_phase, value = phase.seconds, phase.until, body.do_phase, body.value

    def step(*values: str) -> str:
        run_phase(folder, name, number, seconds, until)
        if fails:
            raise ValueError(f"{name} fails")
        return values[0] if number else value(name, values)

    return step


def _load_function(name: str, folder: str) -> Callable[[], str]:
    mark = body.mark

    def load() -> str:
        mark(folder, name, "load")
        return name

    return load


def describe(error: BaseException) -> str:
    """What the user gets: the type of the task's own exception and what it says."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}"
