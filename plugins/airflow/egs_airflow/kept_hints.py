"""Which hints hold on Airflow, by executor: the table of docs/airflow.md, and the warning where one does not.

A hint that nothing there can keep is named once by each process that reads DAG files for Airflow, in mode on: once a
DAG file, and in no task's log. What needs an agent (`airflow egs agent`) is counted as kept: whether one runs is not
known where DAG files are read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from egs_airflow import config
from egs_airflow.convert.needs import callable_of
from egs_core.hints import HINTS, Files, TaskHints, hints_of
from egs_core.surfaces import HINT_ROWS

EXECUTORS = (
    "EgsLocalExecutor",
    "EgsCeleryExecutor, EgsEdgeExecutor",
    "LocalExecutor, CeleryExecutor, EdgeExecutor",
    "KubernetesExecutor",
)
"""The columns."""

NO = "no: "
POOLS = "the GPU pool's slots"
LIVE, MADE = "live, by an agent that hosts the engine", "by weights, when task instances are made"
BY_AGENT = "by the agent of the task's host"
STAGED = "files, by the agent of the task's host"
ALONE = "no: the order is that of creation"
AGENTLESS = "no: no agent runs in pods"
SLOTS = "no: pools count slots"
GANGS = "all or nothing in one pass of the scheduler"
NO_EXECUTOR = "no: needs an executor of EGS"

HOLDS: dict[str, tuple[str, str, str, str]] = {
    "gpus": (POOLS,) * 4,
    "priority": (LIVE, LIVE, MADE, MADE),
    "max_wait": (LIVE, LIVE, ALONE, ALONE),
    "deadline": (LIVE, LIVE, ALONE, ALONE),
    "expect": (LIVE, LIVE, MADE, MADE),
    "max_runtime": (BY_AGENT, BY_AGENT, BY_AGENT, "a deadline of the pod, from its node on"),
    "max_gpu_time": (BY_AGENT, BY_AGENT, BY_AGENT, AGENTLESS),
    "gang": (GANGS, f"{GANGS}; never tried", NO_EXECUTOR, NO_EXECUTOR),
    "preload": (STAGED, STAGED, STAGED, AGENTLESS),
    "split": ("`split(…)` in the DAG file",) * 4,
    "name": ("in `egs graph`, `plan` and `why`",) * 4,
    "stage": ("in `egs graph`, `plan` and `why`",) * 4,
    "cpus": (SLOTS,) * 4,
    "gpu_cpus": (SLOTS,) * 4,
    "memory": (SLOTS,) * 4,
    "gpu_memory": (SLOTS,) * 4,
    "flavors": ("no: name the pool",) * 4,
    "gang_same": ("no: slots are in no place",) * 4,
    "max_cost": ("no: there are no prices",) * 4,
    "idle_timeout": ("no: nothing measures it",) * 4,
    "grace": ("no: a task that is ended has half a second",) * 4,
}
"""Hint -> how it is kept, by executor; `no: …` where it is not."""

PRELOADS = "no: only files are read ahead; for modules there is [egs] preload_modules"


def hints_at(executor: int, *, has_agent: bool = True, tried: Collection[str] = ()) -> dict[str, str]:
    """What a surface answers about hints. executor: a column; has_agent: one runs on each host. tried: of the hints
    that hold there those that were tried, where not all were."""
    found = {}
    for name in HINT_ROWS:
        how = HOLDS["grace" if name == "checkpoint" else name][executor]
        if not has_agent and how in (LIVE, BY_AGENT):
            how = MADE if name in ("priority", "expect") else "no: needs the agent"
        if tried and name not in tried and not how.startswith(NO):
            how = "no: never tried with it"
        found[name] = how if how.startswith(NO) else f"yes: {how}"
    return found


def kept_table() -> str:
    """The table as the documentation has it; hints that are alike are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, how in HOLDS.items():
        rows.setdefault(how, []).append(f"`{name}`")
    lines = [("hint", *(f"`{one}`" if "," not in one else one for one in EXECUTORS)), ("---",) * 5]
    lines += [(", ".join(names), *how) for how, names in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def warn_of_unkept(task: Any) -> None:
    """One line for each hint of a task that does not hold with its executor; none about an executor of the site's."""
    hints = hints_of(callable_of(task))
    if hints is not None:
        for name, why in unkept(hints, executor := executor_of(task)):
            config.warn(f"hint {name} is not kept on Airflow with {executor}: {why}")


def unkept(hints: TaskHints, executor: str) -> list[tuple[str, str]]:
    """Hints that were stated and do not hold with that executor, each with the reason."""
    columns = [number for number, known in enumerate(EXECUTORS) if executor in known.split(", ")]
    stated = {hint.argument: value for hint in HINTS.values() if (value := getattr(hints, hint.field)) != hint.default}
    found = []
    for name, value in stated.items() if columns else ():
        how = HOLDS[name][columns[0]]
        if name == "preload" and not all(isinstance(item, Files) for item in value):
            how = how if how.startswith(NO) else PRELOADS
        if how.startswith(NO):
            found.append((name, how.removeprefix(NO)))
    return found


def executor_of(task: Any) -> str:
    """The name of the class that runs a task: its own executor, or the first that is configured."""
    from airflow.configuration import conf

    stated = getattr(task, "executor", None) or conf.get("core", "executor", fallback="")
    return str(stated).split(",")[0].strip().rpartition(":")[2].rpartition(".")[2]
