"""Limits of tasks and DAG runs: where they are stated, and which was reached. All pure but for reading the file.

    @egs.task(max_runtime="2h", max_gpu_time="4h")            in mode on `declare` puts it where the agent can read it:
    executor_config={"egs": {"max_runtime": "2h", "on_limit": "requeue"}}       the same by hand, with what is to follow
    [egs] limits = /etc/egs/limits.yaml                       the site's own, of any DAG; the smallest limit holds

    limits:
      - dag: train_*                # with wildcards, as task
        task: fit
        limits: {max_runtime: 2h, max_gpu_time: 4h, on_limit: requeue}
      - dag: train_*
        run: {max_runtime: 12h, max_gpu_time: 40h}            # of all of a DAG run, which then fails

GPU time is slots of GPU pools times seconds. What a limit means, and which is reached when, the core's engine says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from egs_airflow import config
from egs_airflow.agent.declare import KEY, OTHERS
from egs_core.engine.meters import MOST_REQUEUES, Meter, described, reached_at
from egs_core.engine.specs import FAIL, NO_LIMITS, REQUEUE, Limits, strictest
from egs_core.errors import InputError
from egs_core.queues import TaskLimits
from egs_core.yaml_file import FileModel, input_error, read_text, read_yaml

UNKNOWN = "is not known on Airflow: there are no prices and no signs of activity"


class Rule(FileModel):
    """One entry of the file: limits of each of some tasks, or of all of a DAG run."""

    dag: str
    task: str = "*"
    limits: TaskLimits | None = None
    run: TaskLimits | None = None


class Rules(FileModel):
    """The whole file."""

    limits: tuple[Rule, ...] = ()


_FIELDS = ("limits", *Rule.model_fields, *TaskLimits.model_fields)


def load_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises InputError that names file and line."""
    data, lines = read_yaml(read_text(path, "limits"), str(path))
    try:
        rules = Rules.model_validate(data or {}).limits
    except ValidationError as error:
        raise input_error(error, lines, str(path), list(_FIELDS)) from None
    for number, rule in enumerate(rules):
        for stated in (rule.limits, rule.run):
            if stated is not None and (stated.max_cost is not None or stated.idle_timeout is not None):
                raise InputError(f"{path} limits[{number}]", f"max_cost or idle_timeout {UNKNOWN}")
    return rules


def task_limits(rules: Iterable[Rule], dag_id: str, task_id: str, executor_config: str) -> Limits:
    """What holds for a task: its own limits and the site's, the smaller of each kind."""
    found = stated_limits(executor_config, f"{dag_id}.{task_id}")
    for rule in rules:
        if rule.limits is not None and fnmatchcase(dag_id, rule.dag) and fnmatchcase(task_id, rule.task):
            found = strictest(found, rule.limits.to_limits())
    return found


def run_limits(rules: Iterable[Rule], dag_id: str) -> Limits:
    """What holds for all of a DAG run."""
    found = NO_LIMITS
    for rule in rules:
        if rule.run is not None and fnmatchcase(dag_id, rule.dag):
            found = strictest(found, rule.run.to_limits())
    return found


def stated_limits(executor_config: str, place: str) -> Limits:
    """The limits in an `executor_config` as REST shows it; none, with a warning, for what means nothing."""
    if f"'{KEY}'" not in executor_config:
        return NO_LIMITS
    try:
        stated = {name: value for name, value in ast.literal_eval(executor_config)[KEY].items() if name not in OTHERS}
        limits = TaskLimits.model_validate(stated).to_limits()
    except (ValueError, SyntaxError, LookupError, TypeError, AttributeError) as error:  # pydantic's are ValueErrors
        config.warn(f"{place}: executor_config[{KEY!r}] are no limits: {str(error).splitlines()[0]}")
        return NO_LIMITS
    return Limits(limits.max_runtime_s, limits.max_gpu_s, on_limit=limits.on_limit)


def reached(limits: Limits, started_s: float, now_s: float, gpus: float, used_gpu_s: float = 0.0) -> tuple[str, str]:
    """The limit that was reached by now, in words, and what then is to follow; empty words: none.

    used_gpu_s: GPU time before `started_s`; gpus: held since then.
    """
    meter = Meter(at=started_s, used=[0.0, used_gpu_s, 0.0], rates=[1.0, gpus, 0.0], running=1, limits=limits)
    found = reached_at(meter)
    if found is None or found[0] > now_s:
        return "", ""
    return described(limits, found[1]), limits.on_limit or FAIL


def may_requeue(number: int) -> bool:
    """Whether a try may be followed by another one because of a limit: so no task goes on for ever."""
    return number <= MOST_REQUEUES


def counts_all_tries(limits: Limits) -> bool:
    """GPU time adds up over all tries, for that was spent; what a limit requeues begins anew."""
    return limits.max_gpu_s is not None and limits.on_limit != REQUEUE
