"""The Ray tasks that stand for the tasks of a workload file: what a user would have written for them.

Tasks that differ in their durations only share one function, as runs of the same code do. It waits for each phase's
seconds, under `with egs.gpu():` where the phase is a GPU's, and loads what its `warm_key` stands for before the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec

import egs_core as egs
from egs_core.graph.columns import CPU, GPU, Graph
from egs_core.hints import is_warm
from egs_ray.replay.marks import marking

Function = Callable[..., Any]
Parts = tuple[float, float, float]  # seconds before the first GPU phase, from there to the end of the last, after it


class Code(msgspec.Struct, frozen=True):
    """What tasks of one function have in common. cpus: of CPU phases; whole_cpus: the most that any phase holds."""

    name: str
    kinds: tuple[int, ...]
    cpus: float
    gpu_cpus: float
    whole_cpus: float
    gpus: float
    warm_key: str
    warmup_s: float
    stage: str
    priority: int
    max_wait_s: float | None

    @property
    def is_mixed(self) -> bool:
        return len(set(self.kinds)) > 1


def codes_of(graph: Graph, time_scale: float) -> list[Code]:
    """The code of each task; equal for tasks that differ in their durations only."""
    return [_code_of(graph, task, time_scale) for task in range(graph.n_tasks)]


def _code_of(graph: Graph, task: int, time_scale: float) -> Code:
    options, most = graph.options_of(task), {CPU: (0, 0), GPU: (0, 0)}  # kind -> (CPUs, GPUs), in thousandths
    kinds = tuple(graph.phase_kind[phase] for phase in graph.phases_of(task))
    for phase, kind in zip(graph.phases_of(task), kinds, strict=True):
        shape = graph.shapes[graph.phase_shape[phase]]
        most[kind] = max(most[kind][0], shape.cpu_milli), max(most[kind][1], shape.gpu_milli)
    return Code(
        name=graph.names[task],
        kinds=kinds,
        cpus=most[CPU][0] / 1000,
        gpu_cpus=most[GPU][0] / 1000,
        whole_cpus=max(most[CPU][0], most[GPU][0]) / 1000,
        gpus=most[GPU][1] / 1000,
        warm_key=options.warm_key,
        warmup_s=options.warmup_s * time_scale if options.warm_key else 0.0,
        stage=options.stage,
        priority=options.priority,
        max_wait_s=None if options.max_wait_s is None else options.max_wait_s * time_scale,
    )


def expected(code: Code, seconds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """What a user would expect of this code: its tasks' median duration, of each phase that EGS tells apart."""
    if not code.is_mixed:
        return (median(sum(task) for task in seconds),)
    parts = [_parts(code.kinds, task) for task in seconds]
    return tuple(median(column) for column in zip(*parts, strict=True))


def _parts(kinds: Sequence[int], seconds: Sequence[float]) -> Parts:
    first, last = kinds.index(GPU), len(kinds) - 1 - list(reversed(kinds)).index(GPU)
    return sum(seconds[:first]), sum(seconds[first : last + 1]), sum(seconds[last + 1 :])


def make_function(code: Code, expect: tuple[float, ...]) -> Function:
    """The function of a code, with its hints; decorate it with `ray.remote` and run it with or without EGS."""
    kinds, load = code.kinds, make_load(code.warm_key, code.warmup_s) if code.warm_key else None

    def play(folder: str, workload: str, task: str, seconds: list[float], *_parents: object) -> None:
        with marking(folder, workload, task) as mark:
            if load is not None and not is_warm((egs.call(load),)):
                with mark.cold():
                    egs.loaded(load)
            for kind, length in zip(kinds, seconds, strict=True):
                if kind == GPU:
                    with egs.gpu(), mark.held(), mark.gpu(length):
                        pass
                else:
                    with mark.cpu(length):
                        pass

    play.__name__ = play.__qualname__ = code.name.encode("ascii", "replace").decode() or "task"
    return egs.task(
        name=code.name,
        gpus=code.gpus,
        gpu_cpus=code.gpu_cpus,
        split=code.is_mixed,
        expect=expect,
        preload=() if load is None else (egs.call(load),),
        stage=code.stage,
        priority=code.priority,
        max_wait=code.max_wait_s,
    )(play)


def make_load(warm_key: str, warmup_s: float) -> Callable[[], str]:
    """What a process does to be warm for this key: one function a key, so that EGS tells the keys apart."""

    def load() -> str:
        time.sleep(warmup_s)
        return warm_key

    return load
