"""Which gangs can start together on this machine; the tasks of any other start each as it can, and a note says why.

one DAG, or one loop:  shard[0] ─┐        two DAGs:  train.shard, test.shard
                       shard[1] ─┴ whole             nobody knows when both are open
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.errors import counted
from egs_core.graph.analysis import find_gang_cycle
from egs_core.graph.columns import Graph


def gangs_of(graph: Graph) -> tuple[dict[str, str], tuple[str, ...]]:
    """The gang of each task of a pipeline, by the task's path, and what gangs are left out."""
    stated = {graph.ids[task]: options.gang for task, options in graph.options.items() if options.gang}
    places: dict[str, set[str]] = {}
    for task, gang in stated.items():
        places.setdefault(gang, set()).add(task.rpartition(".")[0])
    spread = [gang for gang, found in places.items() if len(found) > 1]
    notes = tuple(f"gang {gang!r} is in several DAGs: its tasks start each as it can" for gang in spread)
    return {task: gang for task, gang in stated.items() if gang not in spread}, notes


def keep_possible(graph: Graph, first: int, cpus: float, gpus: int, note: Callable[[str], None]) -> None:
    """Take the other gangs out of the tasks that the engine is about to get. first: the number of the first of them."""
    problems = dict.fromkeys(find_gang_cycle(graph, first), "its tasks wait for each other")
    for name, (cpu_milli, gpu_milli) in _needs(graph).items():
        if cpu_milli > cpus * 1000 or gpu_milli > gpus * 1000:
            asked = f"{counted(cpu_milli / 1000, 'CPU')} and {counted(gpu_milli / 1000, 'GPU')} at once"
            problems[name] = f"it needs {asked}, and there are {cpus:g} and {gpus}"
    for name, problem in problems.items():
        note(f"gang {name.rpartition('/')[2]!r}: {problem}; its tasks start each as it can")
    for task, options in list(graph.options.items()):
        if options.gang in problems:
            graph.options[task] = msgspec.structs.replace(options, gang="")


def _needs(graph: Graph) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for task, options in graph.options.items():
        if options.gang:
            shape = graph.shapes[graph.phase_shape[graph.phase_offsets[task]]]
            cpu_milli, gpu_milli = found.get(options.gang, (0, 0))
            found[options.gang] = cpu_milli + shape.cpu_milli, gpu_milli + shape.gpu_milli
    return found
