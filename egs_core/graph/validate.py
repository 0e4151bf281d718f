"""Checks of a columnar graph: what no engine, analysis or simulator should ever have to expect.

`validate` raises InputError for the first thing that is wrong, naming the task (and phase). It is linear, uses no
recursion, and looks at numpy columns first, so that a million good tasks cost about a second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from egs_core.errors import InputError
from egs_core.graph.analysis import find_gang_cycle, peel_sinks
from egs_core.graph.columns import CPU, GPU, KIND_NAMES, ON_LIMIT, Graph, Shape
from egs_core.graph.places import join

MAX_CPUS = 1_000_000
MAX_GPUS = 1_000_000
MAX_BYTES = 10**15
MAX_SECONDS = 1e10  # 300 years
_SHOWN_ON_CYCLE = 8


def validate(graph: Graph, place: str = "graph", first: int = 0, earlier_ids: Collection[str] = ()) -> None:
    """Raise InputError when the graph has a cycle, or a task, phase or file that cannot be.

    For a block that grows a workload, `first` is the number that its first task gets (parents below `first` are tasks
    of earlier blocks) and `earlier_ids` are the ids taken so far.
    """
    if not graph.n_tasks:
        raise InputError(place, "the workload is empty", "it needs at least one task")
    _check_columns(graph, place)
    _check_ids(graph, place, earlier_ids)
    _check_parents(graph, place, first)
    _check_durations(graph, place)
    _check_shapes(graph, place)
    _check_options(graph, place)
    _check_files(graph, place)
    _check_cycles(graph, place, first)
    if waiting := find_gang_cycle(graph, first):
        problem = f"gang {waiting[0]!r} waits for itself, through {', '.join(waiting)}"
        raise InputError(place, problem, "tasks of one gang start together: none of them may depend on another")


def task_place(graph: Graph, place: str, task: int, phase: int | None = None) -> str:
    """`file: task 'train' (tasks[3])`, with `phase 1` behind it where one is meant."""
    text = f"task {graph.ids[task]!r} (tasks[{task}])"
    return join(place, text if phase is None else f"{text} phase {phase - graph.phase_offsets[task]}")


def _check_columns(graph: Graph, place: str) -> None:
    """Columns fit each other. Only code can get this wrong, but it would fail far from its cause."""
    tasks, phases = graph.n_tasks, graph.n_phases
    per_task = {"names": len(graph.names), "parents": len(graph.parents), "phase_offsets": len(graph.phase_offsets) - 1}
    per_phase = {"phase_shape": len(graph.phase_shape), "phase_duration_s": len(graph.phase_duration_s)}
    for column, length, wanted in [(c, n, tasks) for c, n in per_task.items()] + [
        (c, n, phases) for c, n in per_phase.items()
    ]:
        if length != wanted:
            raise InputError(join(place, column), f"has {length} entries for {wanted}")
    offsets = np.asarray(graph.phase_offsets)
    if offsets[0] != 0 or offsets[-1] != phases or (np.diff(offsets) < 0).any():
        raise InputError(join(place, "phase_offsets"), "must rise from 0 to the number of phases")
    if empty := np.flatnonzero(np.diff(offsets) == 0).tolist():
        raise InputError(task_place(graph, place, empty[0]), "has no phase")
    if any(kind not in (CPU, GPU) for kind in set(graph.phase_kind)):
        raise InputError(join(place, "phase_kind"), "holds something other than CPU or GPU")
    if any(not 0 <= shape < len(graph.shapes) for shape in set(graph.phase_shape)):
        raise InputError(join(place, "phase_shape"), "points at a shape that does not exist")


def _check_ids(graph: Graph, place: str, earlier_ids: Collection[str]) -> None:
    taken = set(graph.ids)
    if "" in taken:
        raise InputError(join(place, f"tasks[{graph.ids.index('')}]"), "has an empty id")
    if len(taken) < graph.n_tasks:
        seen: dict[str, int] = {}
        for task, task_id in enumerate(graph.ids):
            if seen.setdefault(task_id, task) != task:
                problem = f"duplicate id {task_id!r}, also the id of tasks[{seen[task_id]}]"
                raise InputError(join(place, f"tasks[{task}]"), problem)
    if earlier_ids and not taken.isdisjoint(earlier_ids):
        again = min(taken.intersection(earlier_ids))
        raise InputError(task_place(graph, place, graph.ids.index(again)), f"duplicate id {again!r} in this workload")


def _check_parents(graph: Graph, place: str, first: int) -> None:
    last = first + graph.n_tasks
    for task, parents in enumerate(graph.parents):
        if not parents:
            continue
        if first + task in parents:
            raise InputError(task_place(graph, place, task), "depends on itself")
        if min(parents) < 0 or max(parents) >= last:
            raise InputError(task_place(graph, place, task), f"has a parent number outside 0 to {last - 1}: {parents}")
        if len(set(parents)) < len(parents):
            raise InputError(task_place(graph, place, task), "names a parent twice")


def _check_durations(graph: Graph, place: str) -> None:
    seconds = np.array(graph.phase_duration_s, dtype=np.float64)  # None becomes NaN, so NaN is looked at below
    for phase in np.flatnonzero(~((seconds >= 0) & (seconds <= MAX_SECONDS))).tolist():
        value = graph.phase_duration_s[phase]
        if value is None:
            continue
        problem = "is negative" if value < 0 else "is not finite" if not math.isfinite(value) else "is absurdly long"
        raise InputError(_phase_place(graph, place, phase), f"duration {value} s {problem}")


def _check_shapes(graph: Graph, place: str) -> None:
    pairs = np.asarray(graph.phase_shape, dtype=np.int64) * 2 + np.asarray(graph.phase_kind, dtype=np.int64)
    distinct, where = np.unique(pairs, return_index=True)
    for pair, phase in zip(distinct.tolist(), where.tolist(), strict=True):
        shape, kind = graph.shapes[pair // 2], pair % 2
        if problem := shape_problem(shape, kind):
            raise InputError(_phase_place(graph, place, phase), *problem)


def shape_problem(shape: Shape, kind: int) -> tuple[str, str] | None:
    """What is wrong with a phase of this kind that holds this shape, and a hint; None when nothing is."""
    if min(shape.cpu_milli, shape.gpu_milli, shape.memory_bytes, shape.gpu_memory_bytes) < 0:
        return f"holds less than nothing: {_described(shape)}", ""
    if shape.cpu_milli > MAX_CPUS * 1000 or shape.gpu_milli > MAX_GPUS * 1000:
        return f"absurd resources: {_described(shape)}", f"at most {MAX_CPUS} CPUs and {MAX_GPUS} GPUs"
    if max(shape.memory_bytes, shape.gpu_memory_bytes) > MAX_BYTES:
        return f"absurd memory: {_described(shape)}", "at most 1e15 bytes"
    if kind == GPU and not shape.gpu_milli:
        return "a gpu phase without gpus", "give it gpus, or make it a cpu phase"
    if kind == CPU and shape.gpu_milli:
        return f"a {KIND_NAMES[kind]} phase holds gpus", "make it a gpu phase"
    if not (shape.cpu_milli or shape.gpu_milli or shape.memory_bytes):
        return "a phase that holds nothing", "give it cpus, gpus or memory"
    if shape.gpu_milli > 1000 and shape.gpu_milli % 1000:
        return f"{shape.gpu_milli / 1000} gpus", "a share of one device, or whole devices"
    return None


def _described(shape: Shape) -> str:
    return (
        f"{shape.cpu_milli / 1000:g} cpus, {shape.gpu_milli / 1000:g} gpus, {shape.memory_bytes} bytes of memory, "
        f"{shape.gpu_memory_bytes} bytes of GPU memory"
    )


def _check_options(graph: Graph, place: str) -> None:
    for task, options in graph.options.items():
        seconds = (options.max_wait_s, options.warmup_s, options.deadline_s, *options.stated)
        if any(s is not None and not 0 <= s <= MAX_SECONDS for s in seconds):
            raise InputError(task_place(graph, place, task), "a limit or warm-up time is negative or not finite")
        if options.on_limit not in ON_LIMIT:
            problem = f"unknown on_limit {options.on_limit!r}"
            raise InputError(task_place(graph, place, task), problem, f"one of {', '.join(ON_LIMIT[1:])}")
        if options.retries < 0 or options.warm_cpu_milli < 0 or options.warm_memory_bytes < 0:
            raise InputError(task_place(graph, place, task), "retries and warm-up resources cannot be negative")


def _check_files(graph: Graph, place: str) -> None:
    if len(graph.file_ids) != len(graph.file_sizes):
        raise InputError(join(place, "file_sizes"), f"has {len(graph.file_sizes)} entries for {len(graph.file_ids)}")
    if graph.file_sizes and (min(graph.file_sizes) < 0 or max(graph.file_sizes) > MAX_BYTES):
        bad = next(f for f, size in enumerate(graph.file_sizes) if not 0 <= size <= MAX_BYTES)
        problem = f"file {graph.file_ids[bad]!r} has an impossible size: {graph.file_sizes[bad]} bytes"
        raise InputError(join(place, f"files[{bad}]"), problem)


def _check_cycles(graph: Graph, place: str, first: int) -> None:
    parents: Sequence[tuple[int, ...]] = graph.parents
    if first:
        parents = [tuple(p - first for p in ps if p >= first) for ps in parents]
    if all(not ps or max(ps) < task for task, ps in enumerate(parents)):
        return
    order = peel_sinks(parents)
    if len(order) < len(parents):
        cycle = find_cycle(parents, set(range(len(parents))).difference(order))
        shown = [graph.ids[task] for task in cycle[:_SHOWN_ON_CYCLE]]
        more = f" → … {len(cycle) - len(shown)} more" if len(cycle) > len(shown) else ""
        raise InputError(task_place(graph, place, cycle[0]), f"is on a cycle: {' → '.join(shown)}{more} → {shown[0]}")


def find_cycle(parents: Sequence[Sequence[int]], remaining: set[int]) -> list[int]:
    """Tasks of one cycle in running order, from the lowest number; `remaining` is what `peel_sinks` could not take."""
    # Every remaining task has a remaining child, so walking from child to child must meet a task again.
    child = {p: task for task in sorted(remaining, reverse=True) for p in parents[task] if p in remaining}
    task, seen = min(remaining), dict[int, int]()
    while task not in seen:
        seen[task] = len(seen)
        task = child[task]
    cycle = list(seen)[seen[task] :]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def _phase_place(graph: Graph, place: str, phase: int) -> str:
    task = int(np.searchsorted(np.asarray(graph.phase_offsets), phase, "right")) - 1
    return task_place(graph, place, task, phase)
