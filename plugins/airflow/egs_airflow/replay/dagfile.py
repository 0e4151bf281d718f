"""A workload file as a DAG file: readable Python, a line a task, as its author would have written it for Airflow.

    native   each task is one Airflow task, which holds the slots of its GPUs from start to end
    split    the same, but tasks of CPU and GPU phases are declared with hints, and `egs_airflow.split` cuts them

A task takes the slots of one pool, which is all that Airflow has: those of the GPU pool where it needs GPUs, one slot a
GPU; else those of the default pool, one slot a CPU, shares rounded up. Priorities and limits of the file are left out.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable
from statistics import median

from egs_airflow.replay.play import phase_name
from egs_airflow.replay.runs import GPU_POOL
from egs_core.adapter import ReplayWorkload
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, KIND_NAMES, Graph
from egs_core.replayed import seconds_of

LONGEST_ID = 200  # Airflow's column has 250; a split task's id has the name of its phase after it
HEAD = '''"""Workload {dag_id}, a line a task: made by `egs replay`."""

{imports}
play_task = task(play)

with DAG({dag_id!r}, schedule=None):
'''


def airflow_ids(names: Iterable[str]) -> dict[str, str]:
    """Ids that Airflow takes, all different: other characters than letters, digits, `-` and `_` become `_`."""
    names = list(names)
    plain = (re.sub(r"[^A-Za-z0-9_-]", "_", name)[:LONGEST_ID] or "_" for name in names)
    return dict(zip(names, _all_different(plain), strict=True))


def _all_different(wanted: Iterable[str]) -> list[str]:
    """Each name as it is, or where it is taken with the first number after it that makes it another."""
    taken: dict[str, None] = {}
    for plain in wanted:
        name, number = plain, 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        taken[name] = None
    return list(taken)


def check_expressible(workload: ReplayWorkload) -> None:
    """InputError that names a task which Airflow has no way to run."""
    graph = workload.graph
    for task, task_id in enumerate(graph.ids):
        place = f"{workload.name}: task {task_id!r}"
        if gang := graph.options_of(task).gang:
            raise InputError(place, f"is in gang {gang!r}: Airflow starts tasks one by one", "use --on ray or --on sim")
        if any(graph.shapes[graph.phase_shape[phase]].gpu_milli % 1000 for phase in graph.phases_of(task)):
            raise InputError(place, "needs a share of a GPU: a slot of an Airflow pool is a whole one")


def dag_file(workload: ReplayWorkload, dag_id: str, time_scale: float, split: bool) -> str:
    """The source of the DAG file: of the file's text only ids get into it. split: with hints for EGS."""
    graph, ids = workload.graph, airflow_ids(workload.graph.ids)
    names = _variables(ids[task_id] for task_id in graph.ids)
    lines = []
    for task, task_id in enumerate(graph.ids):
        make = _split_task if split and _is_mixed(graph, task) else _whole_task
        lines.append(f"    {names[task]} = {make(graph, task, ids[task_id], time_scale)}")
    for task, parents in enumerate(graph.parents):
        if parents:
            above = ", ".join(names[parent] for parent in parents)
            lines.append(f"    {f'[{above}]' if len(parents) > 1 else above} >> {names[task]}")
    imports = "from airflow.sdk import DAG, task\n\nfrom egs_airflow.replay.play import play\n"
    if split:
        imports = imports.replace("import play\n", "import phase, play\nfrom egs_airflow.split import split\n")
        imports = "import egs_core as egs\n" + imports
    return HEAD.format(imports=imports, dag_id=dag_id) + "\n".join(lines) + "\n"


def _whole_task(graph: Graph, task: int, task_id: str, time_scale: float) -> str:
    gpus, cpus = _most(graph, task)
    pool = f"pool={GPU_POOL!r}, pool_slots={gpus}" if gpus else f"pool_slots={max(1, cpus)}"
    seconds = seconds_of(graph, task, time_scale)
    phases = [(kind, round(s, 6)) for (kind, _), s in zip(_numbered(graph, task), seconds, strict=True)]
    load_s = _load_s(graph, task, time_scale)
    return f"play_task.override(task_id={task_id!r}, {pool})({phases}{f', load_s={load_s}' if load_s else ''})"


def _split_task(graph: Graph, task: int, task_id: str, time_scale: float) -> str:
    """The task loads what it needs where it needs it: in its first GPU phase."""
    gpus, _ = _most(graph, task)
    cpus = max(math.ceil(graph.shapes[graph.phase_shape[p]].cpu_milli / 1000) for p in _cpu_phases(graph, task))
    slots = f", cpu={{'pool_slots': {cpus}}}" if cpus > 1 else ""
    load_s, steps = _load_s(graph, task, time_scale), []
    for kind, number in _numbered(graph, task):
        if kind == "gpu" and load_s:
            steps.append(f"egs.on_gpu(phase({kind!r}, {number}, load_s={load_s}))")
            load_s = 0.0
        else:
            steps.append(f"egs.on_gpu(phase({kind!r}, {number}))" if kind == "gpu" else f"phase({kind!r}, {number})")
    seconds = [round(s, 6) for s in seconds_of(graph, task, time_scale)]
    declared = f"egs.task(gpus={gpus})(egs.phases({', '.join(steps)}))"
    return f"split({declared}, group_id={task_id!r}{slots})({seconds})"


def usual_seconds(workload: ReplayWorkload, time_scale: float) -> dict[str, float]:
    """What each Airflow task of a file with hints is expected to take, as if learned before: the median of its name."""
    graph, ids = workload.graph, airflow_ids(workload.graph.ids)
    found: dict[tuple[str, str], list[float]] = {}
    places: dict[str, tuple[str, str]] = {}
    for task, task_id in enumerate(graph.ids):
        seconds = seconds_of(graph, task, time_scale)
        parts = {"": sum(seconds)}
        if _is_mixed(graph, task):
            names = (phase_name(kind, number) for kind, number in _numbered(graph, task))
            parts = {f".{name}": s for name, s in zip(names, seconds, strict=True)}
        for end, length in parts.items():
            places[f"{ids[task_id]}{end}"] = (graph.names[task], end)
            found.setdefault((graph.names[task], end), []).append(length)
    return {airflow_id: median(found[place]) for airflow_id, place in places.items()}


def _numbered(graph: Graph, task: int) -> list[tuple[str, int]]:
    """The kind of each phase of a task, and its number within the task."""
    return [(KIND_NAMES[graph.phase_kind[phase]], number) for number, phase in enumerate(graph.phases_of(task))]


def _cpu_phases(graph: Graph, task: int) -> list[int]:
    return [phase for phase in graph.phases_of(task) if graph.phase_kind[phase] == CPU]


def _load_s(graph: Graph, task: int, time_scale: float) -> float:
    options = graph.options_of(task)
    return round(options.warmup_s * time_scale, 6) if options.warm_key else 0.0


def _is_mixed(graph: Graph, task: int) -> bool:
    return {graph.phase_kind[phase] for phase in graph.phases_of(task)} == {CPU, GPU}


def _most(graph: Graph, task: int) -> tuple[int, int]:
    """The most GPUs and the most CPUs that any phase of a task holds."""
    shapes = [graph.shapes[graph.phase_shape[phase]] for phase in graph.phases_of(task)]
    gpus, cpus = max(shape.gpu_milli for shape in shapes), max(shape.cpu_milli for shape in shapes)
    return math.ceil(gpus / 1000), math.ceil(cpus / 1000)


def _variables(ids: Iterable[str]) -> list[str]:
    """A name in Python for each id, all different."""
    reserved = {"DAG", "egs", "phase", "play", "play_task", "split", "task"}
    plain = [re.sub(r"\W", "_", one) for one in ids]
    bad = (name[0].isdigit() or keyword.iskeyword(name) or name in reserved for name in plain)
    return _all_different(f"t_{name}" if is_bad else name for name, is_bad in zip(plain, bad, strict=True))
