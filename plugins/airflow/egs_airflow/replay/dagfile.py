"""A workload file as a DAG file: readable Python, a line a task, as its author would have written it for Airflow.

    native   each task is one Airflow task, which holds the slots of its GPUs from start to end
    split    the same, but tasks of CPU and GPU phases are declared with hints, and `egs_airflow.split` cuts them

A task takes the slots of one pool, which is all that Airflow has: those of the GPU pool where it needs GPUs, one slot a
GPU; else those of the default pool, one slot a CPU, shares rounded up. Priorities and limits of the file are left out.
A gang begins phase by phase, with EGS only: the first phases of its tasks, and its tasks that are not split; then the
second ones, and so on.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Iterable
from statistics import median

from egs_airflow.replay.play import phase_name
from egs_airflow.replay.runs import GPU_POOL
from egs_core.adapter import ReplayWorkload
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, KIND_NAMES, Graph
from egs_core.replayed import seconds_of

DEFAULT_POOL = "default_pool"
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


def check_expressible(workload: ReplayWorkload, policy: str) -> None:
    """InputError that names a task which Airflow, with EGS or natively, has no way to run."""
    graph = workload.graph
    for task, task_id in enumerate(graph.ids):
        place = f"{workload.name}: task {task_id!r}"
        if (gang := graph.options_of(task).gang) and policy == "native":
            problem = f"is in gang {gang!r}: natively Airflow starts tasks one by one"
            raise InputError(place, problem, "use --policy egs")
        if any(graph.shapes[graph.phase_shape[phase]].gpu_milli % 1000 for phase in graph.phases_of(task)):
            raise InputError(place, "needs a share of a GPU: a slot of an Airflow pool is a whole one")


def check_gangs(workload: ReplayWorkload, cpus: int, gpus: int) -> None:
    """InputError that names a gang whose members could never hold all of their slots at once, with the numbers."""
    graph = workload.graph
    needs: Counter[tuple[str, int, str]] = Counter()
    for task in range(graph.n_tasks):
        if gang := graph.options_of(task).gang:
            for number, (pool, slots) in enumerate(_slots(graph, task)):
                needs[gang, number, pool] += slots
    for (gang, _, pool), slots in needs.items():
        what, offered = ("GPUs", gpus) if pool == GPU_POOL else ("CPUs", cpus)
        if slots > offered:
            problem = f"needs {slots} {what} at once, there are {offered}"
            raise InputError(f"{workload.name}: gang {gang!r}", problem, f"give more with --{what.lower()}")


def _slots(graph: Graph, task: int) -> list[tuple[str, int]]:
    """Pool and slots of each Airflow task that a task becomes with EGS."""
    gpus, cpus = _most(graph, task)
    if not _is_mixed(graph, task):
        return [(GPU_POOL, gpus) if gpus else (DEFAULT_POOL, max(1, cpus))]
    cpus = _cpus_between(graph, task)
    return [(GPU_POOL, gpus) if kind == "gpu" else (DEFAULT_POOL, cpus) for kind, _ in _numbered(graph, task)]


def dag_file(workload: ReplayWorkload, dag_id: str, time_scale: float, split: bool) -> str:
    """The source of the DAG file: of the text only ids and, quoted, gangs get into it. split: with hints for EGS."""
    graph, ids = workload.graph, airflow_ids(workload.graph.ids)
    names = _variables(ids[task_id] for task_id in graph.ids)
    lines = []
    for task, task_id in enumerate(graph.ids):
        if split and _is_mixed(graph, task):
            made = _split_task(graph, task, ids[task_id], time_scale)
        else:
            made = _whole_task(graph, task, ids[task_id], time_scale, split)
        lines.append(f"    {names[task]} = {made}")
    for task, parents in enumerate(graph.parents):
        if parents:
            above = ", ".join(names[parent] for parent in parents)
            lines.append(f"    {f'[{above}]' if len(parents) > 1 else above} >> {names[task]}")
    imports = "from airflow.sdk import DAG, task\n\nfrom egs_airflow.replay.play import play\n"
    if split:
        imports = imports.replace("import play\n", "import phase, play\nfrom egs_airflow.split import split\n")
        imports = "import egs_core as egs\n" + imports
    return HEAD.format(imports=imports, dag_id=dag_id) + "\n".join(lines) + "\n"


def _whole_task(graph: Graph, task: int, task_id: str, time_scale: float, hinted: bool) -> str:
    gpus, cpus = _most(graph, task)
    pool = f"pool={GPU_POOL!r}, pool_slots={gpus}" if gpus else f"pool_slots={max(1, cpus)}"
    gang = graph.options_of(task).gang if hinted else ""
    stated = f", executor_config={{'egs': {{'gang': {f'{gang}.0'!r}}}}}" if gang else ""
    seconds = seconds_of(graph, task, time_scale)
    phases = [(kind, round(s, 6)) for (kind, _), s in zip(_numbered(graph, task), seconds, strict=True)]
    load_s = _load_s(graph, task, time_scale)
    return f"play_task.override(task_id={task_id!r}, {pool}{stated})({phases}{f', load_s={load_s}' if load_s else ''})"


def _split_task(graph: Graph, task: int, task_id: str, time_scale: float) -> str:
    """The task loads what it needs where it needs it: in its first GPU phase."""
    gpus, _ = _most(graph, task)
    cpus = _cpus_between(graph, task)
    slots = f", cpu={{'pool_slots': {cpus}}}" if cpus > 1 else ""
    load_s, steps = _load_s(graph, task, time_scale), []
    for kind, number in _numbered(graph, task):
        if kind == "gpu" and load_s:
            steps.append(f"egs.on_gpu(phase({kind!r}, {number}, load_s={load_s}))")
            load_s = 0.0
        else:
            steps.append(f"egs.on_gpu(phase({kind!r}, {number}))" if kind == "gpu" else f"phase({kind!r}, {number})")
    seconds = [round(s, 6) for s in seconds_of(graph, task, time_scale)]
    gang = f", gang={graph.options_of(task).gang!r}" if graph.options_of(task).gang else ""
    declared = f"egs.task(gpus={gpus}{gang})(egs.phases({', '.join(steps)}))"
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


def _cpus_between(graph: Graph, task: int) -> int:
    """The most CPUs that a CPU phase of a mixed task holds."""
    found = (graph.phase_shape[phase] for phase in graph.phases_of(task) if graph.phase_kind[phase] == CPU)
    return max(1, *(math.ceil(graph.shapes[shape].cpu_milli / 1000) for shape in found))


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
