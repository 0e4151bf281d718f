"""What a task says that it needs, wherever it says so: hints, arguments of its operator, its pod. Nothing is guessed.

    @egs.task(gpus=1)                                    of the function of a Python task
    resources={"gpus": 1, "cpus": 4, "ram": 2048}        of any operator; what equals Airflow's default was not stated
    container_resources=V1ResourceRequirements(…)        of KubernetesPodOperator; also in full_pod_spec
    executor_config={"pod_override": V1Pod(…)}           of tasks that KubernetesExecutor runs

Objects of the Kubernetes client are read by the names of their attributes, so that the client is not needed. A slice of
a GPU, and a replica of one that is shared, counts as one GPU, as in clusters. Two places that state different amounts
of the same are an InputError that names both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from egs_core.errors import InputError
from egs_core.flavor_names import is_gpu_resource
from egs_core.hints import TaskHints, hints_of
from egs_core.units import parse_quantity


@dataclass(frozen=True)
class Needs:
    """Amounts that were stated; None: not stated, or known at run time only. `where` each was read, for messages."""

    where: str
    gpus: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None


def callable_of(task: Any) -> Any:
    """The user's function of a Python task, mapped or not; None for others, and for stored tasks."""
    return argument_of(task, "python_callable")


def argument_of(task: Any, name: str) -> Any:
    """An argument of an operator; of a mapped one what was given to `partial`. None where there is none."""
    partial = task.partial_kwargs if task.is_mapped else {}
    return partial[name] if name in partial else getattr(task, name, None)


def needs_of(task: Any, place: str) -> Needs:
    """Everything that a task states, as one; InputError where two places differ, or a quantity cannot be read."""
    stated = list(_stated(task, place))
    return Needs(
        ", ".join(needs.where for needs in stated),
        gpus=_agreed("gpus", stated, place),
        cpus=_agreed("cpus", stated, place),
        memory_bytes=_agreed("memory_bytes", stated, place),
    )


def _stated(task: Any, place: str) -> Iterator[Needs]:
    hints = hints_of(callable_of(task)) or TaskHints()
    yield Needs("@egs.task", hints.gpus, hints.cpus, hints.memory_bytes)
    yield _of_resources(argument_of(task, "resources"))
    yield _of_containers("container_resources", [argument_of(task, "container_resources")], place)
    yield _of_pod("full_pod_spec", argument_of(task, "full_pod_spec"), place)
    config = argument_of(task, "executor_config")
    yield _of_pod("executor_config", part(config, "pod_override"), place)


def _agreed(amount: str, stated: Iterable[Needs], place: str) -> Any:
    first: Needs | None = None
    for needs in stated:
        if (value := getattr(needs, amount)) is None:
            continue
        if first is not None and getattr(first, amount) != value:
            problem = f"{first.where} says {amount}={getattr(first, amount):g}, {needs.where} {amount}={value:g}"
            raise InputError(place, problem, "state it once")
        first = first or needs
    return None if first is None else getattr(first, amount)


# --- resources= of any operator ---------------------------------------------------------------------------------------


def _of_resources(resources: Any) -> Needs:
    """Airflow fills in its configured defaults for what was not given: such an amount was not stated."""
    gpus, cpus, ram_mb = (_resource(resources, name) for name in ("gpus", "cpus", "ram"))
    return Needs("resources", gpus, cpus, None if ram_mb is None else round(ram_mb * 1e6))


def _resource(resources: Any, name: str) -> float | None:
    quantity = part(part(resources, name), "qty")
    if not isinstance(quantity, int | float) or quantity == default_resource(name):
        return None
    return float(quantity)


@cache
def default_resource(name: str) -> float:
    """What Airflow fills in for `resources` that do not name this one."""
    from airflow.configuration import conf

    fallback = {"gpus": 0, "cpus": 1, "ram": 512}[name]
    return float(conf.getint("operators", f"default_{name}", fallback=fallback))


# --- pods -------------------------------------------------------------------------------------------------------------


def part(thing: Any, name: str) -> Any:
    """An attribute of an object of the Kubernetes client, or an entry of the same thing as a dictionary; else None."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _of_pod(where: str, pod: Any, place: str) -> Needs:
    containers = part(part(pod, "spec"), "containers")
    found = containers if isinstance(containers, list | tuple) else []
    return _of_containers(where, [part(container, "resources") for container in found], place)


def _of_containers(where: str, containers: Iterable[Any], place: str) -> Needs:
    """What containers of one pod hold together. A request is what is held; without one it is the limit."""
    totals: dict[str, float] = {}
    for resources in containers:
        held = {**_quantities(part(resources, "limits")), **_quantities(part(resources, "requests"))}
        for name, quantity in held.items():
            if (amount := _amount(name, quantity, f"{place}: {where}")) is not None:
                kind = "gpus" if is_gpu_resource(name) else name
                totals[kind] = totals.get(kind, 0.0) + amount
    memory = totals.get("memory")
    return Needs(where, totals.get("gpus"), totals.get("cpu"), None if memory is None else round(memory))


def _quantities(found: Any) -> dict[str, Any]:
    return {str(name): quantity for name, quantity in found.items()} if isinstance(found, Mapping) else {}


def _amount(name: str, quantity: Any, place: str) -> float | None:
    """A quantity in whole units. One of a GPU must be known: there is no graph of an unknown number of them."""
    is_gpu = is_gpu_resource(name)
    if not (is_gpu or name in ("cpu", "memory")):
        return None
    try:
        return parse_quantity(str(quantity))
    except InputError:  # a template
        if not is_gpu:
            return None
    raise InputError(f"{place}: {name}", f"{quantity!r} is known at run time only", "write a number of GPUs")
