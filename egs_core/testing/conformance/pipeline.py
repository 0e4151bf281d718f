"""Pipelines as data: small graphs of tasks whose bodies leave marks and wait for signals.

A task's value is text made of its name and the values of its parents, so that whoever loses or swaps an argument gives
another value: `c(a(),b())`.
"""

from __future__ import annotations

import msgspec

HOLDS = 0.3  # seconds; long enough that no gate takes the task for one that is not worth ordering


class Phase(msgspec.Struct, frozen=True):
    """gpus: 0 for a CPU phase. until: signals (see `body.signal`) for which it waits before its `seconds` begin."""

    gpus: float = 0.0
    seconds: float = 0.0
    until: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """after: names of tasks whose values it takes. loads: it has a load function to be called before it. expect_s: what
    each phase is said to take; empty: nothing is said. fails: its body raises ValueError in the end. retries: how often
    the framework tries again after its process has died."""

    name: str
    after: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = (Phase(),)
    expect_s: tuple[float, ...] = ()
    cpus: float = 0.1
    loads: bool = False
    gang: str = ""
    max_runtime_s: float | None = None
    fails: bool = False
    retries: int = 2

    @property
    def gpus(self) -> float:
        """What its largest phase holds: what a user states where a framework knows no phases."""
        return max(phase.gpus for phase in self.phases)


class Pipeline(msgspec.Struct, frozen=True):
    """Tasks in the order in which a script submits them; parents come before children."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def leaves(self) -> tuple[str, ...]:
        """Tasks that no other waits for: their values are the pipeline's."""
        needed = {parent for task in self.tasks for parent in task.after}
        return tuple(task.name for task in self.tasks if task.name not in needed)

    @property
    def parents(self) -> dict[str, tuple[str, ...]]:
        return {task.name: task.after for task in self.tasks}

    def value_of(self, name: str) -> str:
        """What a task gives when everything goes well."""
        return f"{name}({','.join(self.value_of(parent) for parent in self.parents[name])})"

    @property
    def values(self) -> dict[str, str]:
        """What the user gets when everything goes well."""
        return {name: self.value_of(name) for name in self.leaves}


def gpu_task(name: str, *after: str, gpus: float = 1.0, seconds: float = HOLDS, until: tuple[str, ...] = ()) -> Task:
    """A task of one GPU phase, whose duration is stated."""
    return Task(name, after, (Phase(gpus, seconds, until),), (seconds,))


def cpu_task(name: str, *after: str, seconds: float = 0.0, until: tuple[str, ...] = ()) -> Task:
    """A task of one CPU phase."""
    return Task(name, after, (Phase(0.0, seconds, until),))
