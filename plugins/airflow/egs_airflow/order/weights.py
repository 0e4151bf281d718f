"""Priority weights from the longest path that still has to run after a task has been started.

        a 60 s ── b 600 s          path:    a 660, b 600, c 610, d 10
        c 600 s ── d 10 s          weight:  a  95, b  93, c  94, d 35

A weight grows with the logarithm of the path: paths that differ by 7 % differ by one, a second is 11, an hour 119, a
week 193. So the weights of a chosen DAG stay in the range that Airflow's own rule gives to a DAG of some hundred tasks,
and a priority of 300 set by hand goes before all of them. Of two equal paths the one that others wait for weighs one
more.

A hinted priority counts a thousand for each step, more than any path. A hinted duration stands until one is learned.

The weights of a DAG are computed when its task instances are made, and nothing of them is stored with the DAG: no DAG
version comes of what was learned, and without EGS Airflow reads the DAG as it was written.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from egs_airflow import config
from egs_airflow.order.durations import Durations, current_durations

STEPS = 10.0
"""Weights for each doubling of a path."""

PRIORITY = 1000
"""Weights for each step of a hinted priority."""

HIGHEST = 2**31 - 1
"""The largest number that PostgreSQL and MySQL keep in the column."""

UNKNOWN_S = 1.0
"""What a task counts for while nothing is known of any task at all: a path is then the number of its tasks."""

USUAL_PRIORITY = 1
KEPT = 8
_kept: OrderedDict[int, tuple[Any, Durations, dict[str, int]]] = OrderedDict()


def remaining_path_s(downstream: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest path from each task to an end, the task included: the core's upward rank, by task id.

    Raises InputError for a cycle, which Airflow refuses.
    """
    from egs_core.graph.analysis import upward_rank  # not in every process of Airflow
    from egs_core.graph.columns import Graph

    numbers = {task: number for number, task in enumerate(downstream)}
    parents: list[set[int]] = [set() for _ in numbers]
    for task, after in downstream.items():
        for child in after:
            parents[numbers[child]].add(numbers[task])
    graph = Graph(ids=list(numbers), parents=[tuple(above) for above in parents])
    return dict(zip(numbers, upward_rank(graph, [seconds[task] for task in numbers]), strict=True))


def weight(path_s: float, has_dependents: bool) -> int:
    """The priority weight of a task with that remaining path."""
    steps = STEPS * math.log2(1.0 + max(0.0, path_s))
    return min(HIGHEST, 1 + round(min(steps, HIGHEST)) + has_dependents)


def weights(
    downstream: Mapping[str, Iterable[str]], known_s: Mapping[str, float], usual_s: float = UNKNOWN_S
) -> dict[str, int]:
    """The weight of each task of a DAG. known_s: learned durations; other tasks count as the median of those.

    usual_s: what they count as where none of the DAG is known: the median of other DAGs' tasks, so that a DAG in its
    first run goes neither before nor after all that are known.
    """
    guess = guess_s(downstream, known_s, usual_s)
    path = remaining_path_s(downstream, {task: known_s.get(task, guess) for task in downstream})
    return {task: weight(path_s, any(True for _ in downstream[task])) for task, path_s in path.items()}


def guess_s(tasks: Iterable[str], known_s: Mapping[str, float], usual_s: float) -> float:
    """What a task of a DAG counts as whose duration is not known."""
    return _median((known_s[task] for task in tasks if task in known_s), usual_s)


def _median(values: Iterable[float], otherwise: float) -> float:
    from statistics import median  # 10 ms, which not every process of Airflow is to spend

    known = list(values)
    return median(known) if known else otherwise


def weight_of(task: Any) -> int | None:
    """EGS's weight of a task of a scheduler's DAG; None where Airflow's own holds.

    That is in every mode but on, and in a DAG with a priority or a weight rule set by hand: both numbers are compared
    with each other, so ordering the rest of such a DAG by seconds would undo what the user has set.
    """
    dag = task.get_dag()
    return None if dag is None else _weights_of(dag).get(task.task_id)


def _weights_of(dag: Any) -> Mapping[str, int]:
    """Of all tasks of a DAG at once: its task instances are made one after the other."""
    if config.settings().mode != "on":
        return {}
    durations = current_durations()
    kept = _kept.get(id(dag))
    if kept is None or kept[0] is not dag or kept[1] is not durations:
        kept = _kept[id(dag)] = (dag, durations, _compute(dag, durations))
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return kept[2]


def _compute(dag: Any, durations: Durations) -> dict[str, int]:
    tasks = dag.task_dict
    if config.mode_of(dag.dag_id, dag.tags) != "on" or any(is_set_by_hand(task) for task in tasks.values()):
        return {}
    from egs_airflow.agent.declare import ordering_of

    stated = {name: ordering_of(task) for name, task in tasks.items()}
    known = {name: said.expect_s for name, said in stated.items() if said.expect_s is not None}
    known |= durations.get(dag.dag_id, {})
    by_path = weights({name: task.downstream_task_ids for name, task in tasks.items()}, known, usual_s(durations))
    return {name: raised(weight, stated[name].priority) for name, weight in by_path.items()}


def raised(weight: int, priority: int) -> int:
    """A weight with a hinted priority, which goes before every path, or behind."""
    return max(-HIGHEST, min(HIGHEST, weight + PRIORITY * priority))


def usual_s(durations: Durations) -> float:
    """The median duration of all tasks that are known."""
    return _median((seconds for tasks in durations.values() for seconds in tasks.values()), UNKNOWN_S)


def is_set_by_hand(task: Any) -> bool:
    """Whether the user gave the task a priority, or a weight rule other than the site's default and EGS's."""
    rule = task.weight_rule
    name = f"{type(rule).__module__}.{type(rule).__qualname__}"
    return task.priority_weight != USUAL_PRIORITY or (name not in _usual_rules() and str(rule) not in _usual_rules())


@cache
def _usual_rules() -> frozenset[str]:
    from airflow.configuration import conf
    from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy

    default = conf.get("core", "default_task_weight_rule", fallback="downstream")
    loaded = type(validate_and_load_priority_weight_strategy(default))
    return frozenset({default, f"{loaded.__module__}.{loaded.__qualname__}", OWN_RULE})


OWN_RULE = "egs_airflow.order.strategy.EgsPriorityWeightStrategy"
