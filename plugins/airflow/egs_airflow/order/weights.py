"""Priority weights from the longest path that still has to run after a task has been started.

        a 60 s ── b 600 s          path:    a 660, b 600, c 610, d 10
        c 600 s ── d 10 s          weight:  a  95, b  93, c  94, d 35

A weight grows with the logarithm of the path: paths that differ by 7 % differ by one, a second is 11, an hour 119, a
week 193. So the weights of a chosen DAG stay in the range that Airflow's own rule gives to a DAG of some hundred tasks,
and a priority of 300 set by hand goes before all of them. Of two equal paths the one that others wait for weighs one
more.

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
from egs_airflow.order.durations import durations_path, load_durations

STEPS = 10.0
"""Weights for each doubling of a path."""

HIGHEST = 2**31 - 1
"""The largest number that PostgreSQL and MySQL keep in the column."""

UNKNOWN_S = 60.0
"""What a task counts for while nothing is known of any task of its DAG: the same for all."""

USUAL_PRIORITY = 1
KEPT = 8
_kept: OrderedDict[int, tuple[Any, Mapping[str, float] | None, dict[str, int]]] = OrderedDict()


def remaining_path_s(downstream: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest path from each task to an end, the task included: egs_core's upward rank, by task id.

    A task on a cycle, which Airflow refuses, is missing.
    """
    waiting = {task: len(set(after)) for task, after in downstream.items()}
    before: dict[str, list[str]] = {task: [] for task in downstream}
    for task, after in downstream.items():
        for child in set(after):
            before[child].append(task)
    path: dict[str, float] = {}
    tail = dict.fromkeys(downstream, 0.0)
    ready = [task for task, count in waiting.items() if not count]
    for task in ready:  # grows while it is walked
        path[task] = seconds[task] + tail[task]
        for parent in before[task]:
            tail[parent] = max(tail[parent], path[task])
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return path


def weight(path_s: float, has_dependents: bool) -> int:
    """The priority weight of a task with that remaining path."""
    return min(HIGHEST, 1 + round(STEPS * math.log2(1.0 + max(0.0, path_s))) + has_dependents)


def weights(downstream: Mapping[str, Iterable[str]], known_s: Mapping[str, float]) -> dict[str, int]:
    """The weight of each task of a DAG. known_s: learned durations; other tasks count as the median of those."""
    from statistics import median  # 10 ms, which not every process of Airflow is to spend

    known = [known_s[task] for task in downstream if task in known_s]
    guess = median(known) if known else UNKNOWN_S
    path = remaining_path_s(downstream, {task: known_s.get(task, guess) for task in downstream})
    return {task: weight(path_s, any(True for _ in downstream[task])) for task, path_s in path.items()}


def weight_of(task: Any) -> int | None:
    """EGS's weight of a task of a scheduler's DAG; None where Airflow's own holds.

    That is in every mode but on, and in a DAG with a priority or a weight rule set by hand: both numbers are compared
    with each other, so ordering the rest of such a DAG by seconds would undo what the user has set.
    """
    dag = task.get_dag()
    if dag is None or config.mode_of(dag.dag_id, dag.tags) != "on":
        return None
    return _weights_of(dag).get(task.task_id)


def _weights_of(dag: Any) -> dict[str, int]:
    learned = load_durations(durations_path()).get(dag.dag_id)
    kept = _kept.get(id(dag))
    if kept is None or kept[0] is not dag or kept[1] is not learned:
        kept = _kept[id(dag)] = (dag, learned, _compute(dag, learned or {}))
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return kept[2]


def _compute(dag: Any, learned: Mapping[str, float]) -> dict[str, int]:
    tasks = dag.task_dict
    if any(is_set_by_hand(task) for task in tasks.values()):
        return {}
    return weights({name: task.downstream_task_ids for name, task in tasks.items()}, learned)


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
