"""How the state grows by a block of tasks, and how ranks follow: functions that only the state's own methods call."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from operator import eq, lt

from egs_core.engine.state.columns import Columns
from egs_core.engine.state.lifecycle import COLD, HELD, PENDING, READY
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.engine.state.records import Gang, Reads
from egs_core.graph.analysis import find_gang_cycle
from egs_core.graph.columns import Graph, Shape

PRIOR_S = 1.0  # what a phase is believed to take until an estimate says otherwise


def append_block(state: Columns, number: int, graph: Graph) -> list[int]:
    """Append the block's tasks to workload `number`; returns the earlier tasks whose rank or children changed."""
    workload = state.workloads[number]
    known, start = len(workload.numbers), len(state.task_ids)
    order = block_order(graph, known)
    if find_gang_cycle(graph, known):
        raise ValueError("the block has a gang whose tasks depend on each other")
    numbers = workload.numbers
    numbers += [0] * len(order)
    for offset, local in enumerate(order):
        numbers[known + local] = start + offset
    workload.open_tasks += len(order)
    _append_tasks(state, graph, order, number)
    _append_phases(state, graph, order, start)
    outside = _append_edges(state, graph, order, numbers, start)
    joined: dict[str, list[int]] = {}
    for local, options in graph.options.items():
        if options.gang:
            joined.setdefault(f"{number}/{options.gang}", []).append(numbers[known + local])
    for key, tasks in joined.items():
        _join_gang(state, key, sorted(tasks))
    _rank_new(state, start)
    return refresh_ranks(state, outside)


def block_order(graph: Graph, known: int) -> list[int]:
    """Indices of the block's tasks in an order that puts parents first; parents below `known` are earlier blocks'.

    Raises ValueError for a cycle, a parent that does not exist, or a task without phases.
    """
    parents, n = graph.parents, graph.n_tasks
    last_parent = [max(ps) if ps else -1 for ps in parents]
    if min(map(min, filter(None, parents)), default=0) < 0 or max(last_parent, default=-1) >= known + n:
        raise ValueError("the block names a parent that does not exist")
    if any(map(eq, graph.phase_offsets, islice(graph.phase_offsets, 1, n + 1))):
        raise ValueError("the block has a task without phases")
    if all(map(lt, last_parent, range(known, known + n))):
        return list(range(n))
    children: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for i, ps in enumerate(parents):
        for p in ps:
            if p >= known:
                children[p - known].append(i)
                missing[i] += 1
    order = [i for i in range(n) if not missing[i]]
    for i in order:  # grows while it is walked
        for child in children[i]:
            missing[child] -= 1
            if not missing[child]:
                order.append(child)
    if len(order) != n:
        raise ValueError("the block has a cycle")
    return order


def _append_tasks(state: Columns, graph: Graph, order: Sequence[int], workload: int) -> None:
    start, n = len(state.task_ids), len(order)
    state.task_ids += [graph.ids[i] for i in order]
    state.task_names += [graph.names[i] for i in order]
    state.task_workload += [workload] * n
    state.attempt += [1] * n
    state.warmth += [COLD] * n
    if graph.options:
        state.options.update((start + k, graph.options[i]) for k, i in enumerate(order) if i in graph.options)


def _join_gang(state: Columns, key: str, tasks: Sequence[int]) -> None:
    number = state.gang_numbers.setdefault(key, len(state.gangs))
    if number == len(state.gangs):
        state.gangs.append(Gang(key.partition("/")[2]))
    members = state.gangs[number].members
    if any(_has_started(state, member) for member in members) or _depend_on(state, tasks, set(members)):
        return
    state.gangs[number].members += tasks
    state.gang_of.update((task, number) for task in tasks)


def _depend_on(state: Columns, tasks: Sequence[int], members: set[int]) -> bool:
    """Whether a task waits, directly or not, for one of the members: it could never start together with it."""
    pending, seen = list(tasks) if members else [], set[int]()
    while pending:
        for parent in state.parents[pending.pop()]:
            if parent in members:
                return True
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return False


def _has_started(state: Columns, task: int) -> bool:
    return state.cursor[task] != state.first_phase[task] or state.status[state.cursor[task]] not in (
        PENDING,
        READY,
        HELD,
    )


def _append_phases(state: Columns, graph: Graph, order: Sequence[int], start: int) -> None:
    shape_of = [_shape_number(state, shape) for shape in graph.shapes]
    offsets, end, phases = graph.phase_offsets, state.first_phase[-1], list[int]()
    if graph.n_phases == len(order):  # one each
        phases += order
        state.task_of += range(start, start + len(order))
        state.cursor += range(end, end + len(order))
        state.first_phase += range(end + 1, end + 1 + len(order))
    else:
        for task, i in enumerate(order, start):
            count = offsets[i + 1] - offsets[i]
            phases += range(offsets[i], offsets[i + 1])
            state.task_of += [task] * count
            state.cursor.append(end)
            end += count
            state.first_phase.append(end)
    seconds = [PRIOR_S if (s := graph.phase_duration_s[p]) is None else s for p in phases]
    state.kind += [graph.phase_kind[p] for p in phases]
    state.shape += [shape_of[graph.phase_shape[p]] for p in phases]
    if None in graph.phase_duration_s:
        begin = len(state.kind) - len(phases)
        state.unknown.update(begin + k for k, p in enumerate(phases) if graph.phase_duration_s[p] is None)
    state.estimate_s += seconds
    state.estimate_p95_s += seconds
    state.status += [PENDING] * len(phases)
    state.order += [0] * len(phases)
    state.started_at += [NOT_STARTED] * len(phases)
    for column in (state.rank_s, state.ready_at):
        column.extend([0.0] * len(phases))
    if graph.phase_flavor_s:
        begin = len(state.kind) - len(phases)
        for number, p in enumerate(phases, begin):
            if p in graph.phase_flavor_s:
                state.flavor_estimates[number] = {f: (s, s) for f, s in graph.phase_flavor_s[p].items()}


def _append_edges(state: Columns, graph: Graph, order: Sequence[int], numbers: Sequence[int], start: int) -> set[int]:
    """Parents and children of the new tasks; returns the parents that are earlier blocks' tasks."""
    outside: set[int] = set()
    children, number_of = state.children, numbers.__getitem__
    children += [[] for _ in order]
    for task, i in enumerate(order, start):
        parents = tuple(map(number_of, graph.parents[i]))
        state.parents.append(parents)
        waiting = len(parents)
        for parent in parents:
            children[parent].append(task)
            if parent < start:
                outside.add(parent)
                waiting -= state.is_done(parent)
        state.waiting.append(waiting)
    return outside


def _shape_number(state: Columns, shape: Shape) -> int:
    if shape in state.shapes:
        return state.shapes.index(shape)
    state.shapes.append(shape)
    return len(state.shapes) - 1


def detach(state: Columns, tasks: Sequence[int]) -> list[int]:
    """Take away their parents, and from the parents' ranks what they added; returns the tasks whose ranks were
    computed."""
    gone, before = set(tasks), {parent for task in tasks for parent in state.parents[task]}
    for task in tasks:
        state.parents[task], state.waiting[task] = (), 0
        state.reads.pop(task, None)
    for parent in before:
        state.children[parent] = [child for child in state.children[parent] if child not in gone]
    return refresh_ranks(state, before)


def refresh_ranks(state: Columns, tasks: Iterable[int]) -> list[int]:
    """Recompute the ranks of these tasks and of every ancestor they change; returns the tasks computed.

    Highest number first: a parent's number is below its children's, so each task is computed once.
    """
    pending = [-task for task in tasks]
    heapq.heapify(pending)
    computed: list[int] = []
    while pending:
        task = -heapq.heappop(pending)
        if computed and computed[-1] == task:
            continue
        computed.append(task)
        if _rank_task(state, task):
            for parent in state.parents[task]:
                heapq.heappush(pending, -parent)
    return computed


def _rank_new(state: Columns, start: int) -> None:
    """The ranks of all tasks from this number on, none of which has a child that is not among them."""
    rank_s, first_phase, estimate_s, children = state.rank_s, state.first_phase, state.estimate_s, state.children
    end = first_phase[-1]
    for task in range(len(state.task_ids) - 1, start - 1, -1):
        first, rank = first_phase[task], 0.0
        for child in children[task]:
            if rank_s[first_phase[child]] > rank:
                rank = rank_s[first_phase[child]]
        for p in range(end - 1, first - 1, -1):
            rank += estimate_s[p]
            rank_s[p] = rank
        end = first


def _rank_task(state: Columns, task: int) -> bool:
    """Compute the ranks of a task's phases from its children's; whether the first one's changed."""
    rank_s, first_phase = state.rank_s, state.first_phase
    first = first_phase[task]
    before, rank = rank_s[first], 0.0
    for child in state.children[task]:
        rank = max(rank, rank_s[first_phase[child]])
    for p in range(first_phase[task + 1] - 1, first - 1, -1):
        rank += state.estimate_s[p]
        rank_s[p] = rank
    return rank != before


def pass_up(state: Columns, tasks: Iterable[int]) -> list[int]:
    """Deadlines that these new tasks state, as the latest end of each task before them, by the estimates as they are;
    returns the tasks whose latest end has changed. Highest number first, so that each task passes on its final one."""
    pending: list[int] = []
    for task in tasks:
        if (own_s := state.options_of(task).deadline_s) is not None:
            _end_by(state, task, own_s, pending)
    changed: list[int] = []
    while pending:
        task = -heapq.heappop(pending)
        if changed and changed[-1] == task:
            continue
        changed.append(task)
        start_s = state.latest_end_s[task] - sum(state.estimate_s[p] for p in state.phases_of(task))
        for parent in state.parents[task]:
            _end_by(state, parent, start_s, pending)
    return changed


def _end_by(state: Columns, task: int, end_s: float, pending: list[int]) -> None:
    if end_s < state.latest_end_s.get(task, inf):
        state.latest_end_s[task] = end_s
        heapq.heappush(pending, -task)


def reads_of(graph: Graph, numbers: Sequence[int], known: int) -> dict[int, Reads]:
    """What each task of a block reads of the block's other tasks. numbers: the workload's tasks, `known` before it."""
    found: dict[int, Reads] = {}
    for local in graph.inputs:
        parents = [parent for parent in graph.parents[local] if parent >= known]
        sizes = [(numbers[parent], graph.edge_bytes(parent - known, local)) for parent in parents]
        if reads := tuple([(parent, size) for parent, size in sizes if size]):
            found[numbers[known + local]] = reads
    return found
