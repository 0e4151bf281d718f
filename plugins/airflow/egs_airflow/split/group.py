"""`split`: a function with phases as a task group with one Airflow task a phase. Made by `egs.phases`, or one with a
`with egs.gpu():` block (see `block`), as `@split` above `@egs.task(gpus=1)`.

    train = split(egs.task(gpus=1)(egs.phases(decode, egs.on_gpu(fit), write, name="train")), retries=2)

    with DAG("images"):                       decode ──► fit ──► write        in the task group "train"
        start >> train("s3://in") >> end      CPU        GPU     CPU

The declaration is the one that every framework splits; Airflow needs `split` where it else has `@task`, because a DAG
file says which tasks there are. It says so in every mode of EGS, and on every worker: what the mode changes is the pool
of the GPU phase only. What a phase returns is handed to the next through XCom, so it must be what XCom can carry, and
no larger than its store likes; of large data hand over the place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from airflow.sdk import task, task_group

from egs_airflow.split.block import VALUES, Part, parts_of
from egs_airflow.split.output import output_of_split
from egs_core.errors import InputError
from egs_core.hints import SPLIT, OnGpu, PhaseKind, TaskHints, has_gpu_block, hints_of, phase_kinds, phase_steps

FIRST: dict[str, Any] = {"trigger_rule": "all_success"}
"""Arguments that are about how a task begins: they are for the first phase, and this is what the others have."""

LAST: dict[str, Any] = {"do_xcom_push": True, "multiple_outputs": False}
"""Arguments that are about what a task gives: they are for the last phase, and this is what the others have."""

ENDING = ("outlets", "on_success_callback")
"""Arguments that only the last phase has: what they tell of is done then."""


@dataclass(frozen=True)
class Phase:
    """One phase: its task id in the group, what it holds, and its function with hints that are its own. part: what it
    takes, where it was cut out of a function; else it takes the value of the phase before."""

    name: str
    kind: PhaseKind
    function: Callable[..., Any]
    part: Part | None = None


def split(
    function: Callable[..., Any],
    /,
    *,
    group_id: str = "",
    cpu: Mapping[str, Any] | None = None,
    gpu: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """What to call in a DAG, in place of a `@task` function: makes the group and gives the value of the last phase.

    function: made by `egs.phases`, or with one `with egs.gpu():` at its top level; with or without hints of `egs.task`.
    group_id: by default its name. arguments: of
    each phase's task, as `@task` takes them (`retries=2`); cpu, gpu: more of them, for phases of one kind
    (`gpu={"pool": "a100"}`). A trigger rule is for the first phase; `outlets`, `multiple_outputs`, `do_xcom_push` and
    `on_success_callback` are for the last. The result is what `@task_group` gives, with its `expand`, `partial` and
    `override`. Raises InputError.
    """
    name = group_id or str(getattr(function, "__name__", "split"))
    place = f"split of {name}"
    phases = _phases_of(function, place)
    of_kind = {"cpu": dict(cpu or {}), "gpu": dict(gpu or {})}
    if any("task_id" in stated for stated in (arguments, *of_kind.values())):
        raise InputError(f"{place}: task_id", "a phase has the name of its function", "name the group: group_id=")

    def build(*args: Any, **kwargs: Any) -> Any:
        first = value = None
        for number, phase in enumerate(phases):
            stated = _placed(arguments, number == 0, number == len(phases) - 1) | of_kind[phase.kind]
            make = task(task_id=phase.name, **stated)(phase.function)
            if phase.part is not None:
                value = _call(make, phase.part, inspect.signature(function).bind_partial(*args, **kwargs), value)
            else:
                value = make(value) if number else make(*args, **kwargs)
            first = first or value
        return output_of_split(first, value)

    build.__doc__ = function.__doc__  # shown as the group's
    build.__dict__["__signature__"] = inspect.signature(function)
    return task_group(group_id=name)(build)


def _placed(arguments: Mapping[str, Any], is_first: bool, is_last: bool) -> dict[str, Any]:
    """The arguments for all phases, without those that are not for this one."""
    placed = {**arguments} if is_first else {**arguments, **FIRST}
    return placed if is_last else {name: value for name, value in {**placed, **LAST}.items() if name not in ENDING}


def _call(make: Any, part: Part, bound: inspect.BoundArguments, before: Any) -> Any:
    """The task of a part of a function, behind the one before."""
    given = {name: bound.arguments[name] for name in part.inputs if name in bound.arguments}
    value = make(**given, **({VALUES: before} if part.takes_values else {}))
    if before is not None and not part.takes_values:
        before >> value
    return value


def _phases_of(function: Any, place: str) -> list[Phase]:
    steps = phase_steps(function)
    is_block = not steps and has_gpu_block(function)
    if not steps and not is_block:
        hint = "write `with egs.gpu():` in it, or make it with egs.phases(decode, egs.on_gpu(fit), write)"
        raise InputError(place, "has no phases", hint)
    hints = hints_of(function) or TaskHints()
    kinds = phase_kinds(function)
    if len(kinds) != (len(SPLIT) if is_block else len(steps)):
        problem = "says gpus=0" if hints.gpus == 0 else f"says split={hints.split}"
        raise InputError(f"{place}: @egs.task", problem, "take it out, or use @task")
    if is_block:
        parts, cpus = parts_of(function)
        return [_of_part(part, hints, kinds[part.number], cpus) for part in parts]
    return [_phase(step, number, hints, kinds[number], place) for number, step in enumerate(steps)]


def _of_part(part: Part, hints: TaskHints, kind: PhaseKind, cpus: float | None) -> Phase:
    step = OnGpu(part.function, cpus) if kind == "gpu" else part.function
    part.function.__dict__["__egs__"] = _hints_of_phase(hints, part.number, kind, part.name, step)
    return Phase(part.name, kind, part.function, part)


def _phase(step: Callable[..., Any], number: int, hints: TaskHints, kind: PhaseKind, place: str) -> Phase:
    plain = step.function if isinstance(step, OnGpu) else step
    name = str(getattr(plain, "__name__", ""))
    name = name if name.isidentifier() else f"phase{number}"  # a lambda, a partial
    if hasattr(plain, "expand"):
        raise InputError(f"{place}: {name}", "is a task of Airflow already", "take @task off: it becomes one here")
    if kind == "cpu" and has_gpu_block(plain):
        raise InputError(f"{place}: {name}", "has a GPU block, but is no GPU phase", "mark it with egs.on_gpu")

    @wraps(plain, updated=())  # hints and phases that the function has of its own are not this task's
    def run(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    run.__dict__["__egs__"] = _hints_of_phase(hints, number, kind, name, step)
    return Phase(name, kind, run)


def _hints_of_phase(hints: TaskHints, number: int, kind: PhaseKind, name: str, step: object) -> TaskHints:
    """The task's hints as they hold for one of its phases. Limits are the whole task's: no phase may pass them.

    A gang starts together phase by phase, so each phase has a gang of its own.
    """
    own = replace(
        hints,
        split=None,
        expect_s=hints.expect_s[number : number + 1],
        name=f"{hints.name}.{name}" if hints.name else "",
        gang=f"{hints.gang}.{number}" if hints.gang else "",
    )
    if kind == "cpu":
        return replace(own, gpus=0.0, gpu_cpus=None, gpu_memory_bytes=None, max_gpu_s=None)
    stated = step.cpus if isinstance(step, OnGpu) else None
    cpus = hints.gpu_cpus if stated is None else stated
    return replace(own, gpus=hints.gpus or 1.0, cpus=cpus, gpu_cpus=cpus)  # a GPU phase without a number means one
