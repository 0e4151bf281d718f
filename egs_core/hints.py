"""What pipeline authors may say about a task; nothing where EGS is off. Hints are checked here, in the same way for
every framework; which of them an adapter applies differs (`egs doctor`, and the adapter's page).

    import egs_core as egs

    @egs.task(gpus=1, gpu_memory="20GiB", cpus=4, preload=[egs.modules("torch"), egs.call(load_model)])
    def train(path):
        batch = decode(path)          # CPU: no GPU is held
        with egs.gpu():               # GPU held from here …
            fit(batch)
        write(batch)                  # … to here

or with one function a phase: `train = egs.phases(decode, egs.on_gpu(fit), write, name="train")`.

This module and what it imports run inside workers: standard library only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeVar, overload

from egs_core.checkpoints import CheckpointKeeper, checkpoint, checkpoint_keeper, restored, save_checkpoint
from egs_core.copied_source import begin_at_def
from egs_core.errors import InputError
from egs_core.gpu_phase import GpuProvider, call_on_gpu, gpu, gpu_provider, has_gpu_block, set_gpu_provider
from egs_core.graph.places import did_you_mean
from egs_core.hint_checks import (
    check_bool,
    check_count,
    check_expect,
    check_flavors,
    check_gpus,
    check_int,
    check_limit,
    check_positive,
    check_preload,
    check_text,
)
from egs_core.notices import warn_once
from egs_core.preload import Call, Files, Modules, PreloadItem, call, files, is_warm, loaded, modules, warm, warm_key
from egs_core.progressed import progress
from egs_core.units import parse_bytes, parse_seconds
from egs_core.worked import work

__all__ = [
    "HINTS",
    "HINT_NAMES",
    "Call",
    "CheckpointKeeper",
    "Files",
    "GpuProvider",
    "Hint",
    "Modules",
    "OnGpu",
    "PhaseKind",
    "PreloadItem",
    "TaskHints",
    "call",
    "checkpoint",
    "checkpoint_keeper",
    "files",
    "gpu",
    "gpu_provider",
    "has_gpu_block",
    "hints_of",
    "is_warm",
    "loaded",
    "modules",
    "on_gpu",
    "phase_kinds",
    "phase_steps",
    "phases",
    "progress",
    "restored",
    "save_checkpoint",
    "set_gpu_provider",
    "task",
    "warm",
    "warm_key",
    "work",
]

F = TypeVar("F", bound=Callable[..., Any])
PhaseKind = Literal["cpu", "gpu"]
Size = int | str
Span = float | str
SPLIT: tuple[PhaseKind, ...] = ("cpu", "gpu", "cpu")


class Hint(NamedTuple):
    """One hint: the argument of `task`, the field of TaskHints that keeps it, and what checks it."""

    argument: str
    field: str
    check: Callable[[Any, str], object]
    default: object


def _hint(check: Callable[[Any, str], object], default: object = None, argument: str = "") -> Any:
    """A field of TaskHints. check: takes the value and its place, gives it in plain units. argument: of `task`, where
    it has another name than the field."""
    return field(default=default, metadata={"check": check, "argument": argument})


@dataclass(frozen=True)
class TaskHints:
    """The hints of one task, checked and in plain units; None: not stated, so what the framework says holds.

    The reference, what the engine is told (a field of `TaskOptions` of the same name) and what travels in a compiled
    pipeline are made from these fields.
    """

    gpus: float | None = _hint(check_gpus)
    """GPUs that a GPU phase of the task needs. Not stated: what the framework was told."""
    cpus: float | None = _hint(check_count)
    """CPUs that the task needs."""
    gpu_cpus: float | None = _hint(check_count)
    """CPUs that the task needs during a GPU phase; by default those of `cpus`."""
    memory_bytes: int | None = _hint(parse_bytes, argument="memory")
    """Main memory that the task needs."""
    gpu_memory_bytes: int | None = _hint(parse_bytes, argument="gpu_memory")
    """Memory that the task needs on each of its GPUs."""
    preload: tuple[PreloadItem, ...] = _hint(check_preload, ())
    """What is loaded before the task starts, in its process, without holding a GPU: modules, files, or the value of a
    function that returns a model."""
    max_runtime_s: float | None = _hint(check_limit, argument="max_runtime")
    """The longest that one attempt may run; then it is stopped and has failed."""
    max_gpu_s: float | None = _hint(check_limit, argument="max_gpu_time")
    """The most GPU time that the task may hold, in all its attempts together; then it is stopped and has failed."""
    max_cost: float | None = _hint(check_positive)
    """The most that the task may cost, in all its attempts together, in the currency of the prices that are configured
    for the hardware. Without prices there is nothing to compare it with."""
    idle_timeout_s: float | None = _hint(check_limit, argument="idle_timeout")
    """How long the task may be idle. Accepted, and not applied yet: nothing measures whether a task is idle. Use
    `max_runtime`."""
    deadline_s: float | None = _hint(check_limit, argument="deadline")
    """When the task should have ended, counted from the submission of its workload. It changes the order and stops
    nothing."""
    max_wait_s: float | None = _hint(parse_seconds, argument="max_wait")
    """How long the task may be passed over while it is ready; then it goes to the front."""
    priority: int = _hint(check_int, 0)
    """Higher goes first, before every other rule of order."""
    gang: str = _hint(check_text, "")
    """Name of a gang: tasks of a workload with one name start together or not at all."""
    stage: str = _hint(check_text, "")
    """Name of the stage that the task belongs to, for `egs pause --stage`."""
    name: str = _hint(check_text, "")
    """Name of the task in reports and in the history; by default that of the function."""
    split: bool | None = _hint(check_bool)
    """Whether the task is split into CPU and GPU phases. Not stated: EGS decides from the code."""
    expect_s: tuple[float, ...] = _hint(check_expect, (), "expect")
    """How long the task is expected to take, one a phase; used until there is a history."""
    flavors: tuple[str, ...] = _hint(check_flavors, ())
    """Kinds of hardware on which the task may run; none: all."""
    gang_same: str = _hint(check_text, "")
    """Level of the topology at which all tasks of the gang must be together, for example `node` or `rack`."""
    grace_s: float = _hint(parse_seconds, 0.0, "grace")
    """How long the task's `egs.checkpoint` callback may take before the task is stopped."""


_HINTS = [(one.metadata["argument"] or one.name, one) for one in fields(TaskHints)]
HINTS = {name: Hint(name, one.name, one.metadata["check"], one.default) for name, one in _HINTS}
HINT_NAMES = frozenset(HINTS)
"""The arguments of `task`."""


@overload
def task(function: F, /) -> F: ...


@overload
def task(
    *,
    gpus: float | None = None,
    cpus: float | None = None,
    gpu_cpus: float | None = None,
    memory: Size | None = None,
    gpu_memory: Size | None = None,
    preload: PreloadItem | Iterable[PreloadItem] = (),
    max_runtime: Span | None = None,
    max_gpu_time: Span | None = None,
    max_cost: float | None = None,
    idle_timeout: Span | None = None,
    deadline: Span | None = None,
    max_wait: Span | None = None,
    priority: int = 0,
    gang: str = "",
    stage: str = "",
    name: str = "",
    split: bool | None = None,
    expect: Span | Sequence[Span] = (),
    flavors: str | Sequence[str] = (),
    gang_same: str = "",
    grace: Span = 0.0,
) -> Callable[[F], F]: ...


def task(function: object = None, /, **hints: Any) -> Any:
    """Attach hints to a function, which stays the same object; the hints are its attribute `__egs__`. A class, for a
    framework whose classes become processes, is one phase from its start to its end.

    Works below the framework's own decorator, also one that copies the function's source. gpus, cpus, gpu_cpus:
    numbers, a GPU share below 1 allowed. memory, gpu_memory: bytes or "20GiB". max_runtime, max_gpu_time, deadline,
    max_wait, grace, expect: seconds or "2h"; expect has one entry a phase. A task past max_runtime, max_gpu_time or
    max_cost is stopped and has failed; a deadline only orders. idle_timeout is accepted, and not applied: nothing
    measures yet whether a task is idle. Raises InputError that names the function and the argument.
    """
    if function is not None:
        return _attach(function, {})
    return lambda decorated: _attach(decorated, hints)


def hints_of(function: object) -> TaskHints | None:
    """The hints that `task` attached, or None."""
    found = getattr(function, "__egs__", None)
    return found if isinstance(found, TaskHints) else None


@dataclass(frozen=True)
class OnGpu:
    """A phase function that runs inside `with egs.gpu():`; made by `on_gpu`."""

    function: Callable[..., Any]
    cpus: float | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_on_gpu(self.cpus, self.function, args, kwargs)


def on_gpu(function: Callable[..., Any], *, cpus: float | None = None) -> OnGpu:
    """Mark a function for `phases` as one that needs the GPU; called by itself it runs inside `with egs.gpu():`.

    On real devices it may run in a process of its own, whose end leaves a clean device: what it hands on is its value.
    """
    _check_step(function, "egs.on_gpu")
    return OnGpu(function, cpus)


def phases(*functions: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """One function that runs `functions` in order, each given the result of the one before; the first gets the call's.

    Those marked with `on_gpu` hold the GPU, the others do not. The result is an ordinary function: decorate it with
    `egs.task(...)` and the framework's own decorator. name: its `__name__`, by default the functions' names joined.
    """
    if not functions:
        raise InputError("egs.phases", "needs at least one function")
    for step in functions:
        if not isinstance(step, OnGpu):
            _check_step(step, "egs.phases")
    plain = [step.function if isinstance(step, OnGpu) else step for step in functions]
    name = check_text(name, "egs.phases: name") or "_".join(getattr(f, "__name__", "phase") for f in plain)

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_steps(functions, args, kwargs)

    run.__name__ = run.__qualname__ = name
    run.__module__ = getattr(plain[0], "__module__", run.__module__)
    run.__doc__ = getattr(plain[0], "__doc__", None)
    attributes: dict[str, object] = {
        "__egs_phases__": tuple("gpu" if isinstance(step, OnGpu) else "cpu" for step in functions),
        "__egs_steps__": functions,
        "__signature__": inspect.signature(plain[0]),
    }
    run.__dict__.update(attributes)
    return run


def run_steps(steps: tuple[Callable[..., Any], ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run phase functions in order. At module level, so that a pickled `phases` function carries only a reference."""
    result = steps[0](*args, **kwargs)
    for step in steps[1:]:
        result = step(result)
    return result


def phase_steps(function: object) -> tuple[Callable[..., Any], ...]:
    """The phase functions that `phases` was given, or () for another function."""
    return tuple(getattr(function, "__egs_steps__", ()))


def phase_kinds(function: object, gpus: float | None = None) -> tuple[PhaseKind, ...]:
    """The kinds of the task's phases, in order. gpus: what the framework was told, where it was; the hint counts next.

    Made by `phases`: exactly those. With `with egs.gpu()` in its own code: CPU, GPU, CPU (however often the block is
    entered: the lease follows the block). Otherwise, and whenever that is not certain, one phase: GPU when it has GPUs.
    The hint `split` overrides what the code shows.
    """
    return _kinds(function, hints_of(function) or TaskHints(), gpus)


def _kinds(function: object, hints: TaskHints, gpus: float | None) -> tuple[PhaseKind, ...]:
    gpus = hints.gpus if gpus is None else gpus
    if isinstance(function, type):
        return ("gpu",) if gpus else ("cpu",)
    explicit: tuple[PhaseKind, ...] = getattr(function, "__egs_phases__", ())
    if explicit and hints.split is not False:
        return explicit
    shows_gpu = "gpu" in explicit or has_gpu_block(function)
    if hints.split or (hints.split is None and shows_gpu and gpus != 0):
        return SPLIT
    return ("gpu",) if (shows_gpu if gpus is None else gpus > 0) else ("cpu",)


def _attach(function: Any, hints: dict[str, Any]) -> Any:
    if not isinstance(function, FunctionType | type):
        problem = f"{type(function).__name__} is not a plain function or class"
        raise InputError("@egs.task", problem, "put @egs.task directly above 'def', below the framework's decorator")
    checked = _checked_hints(f"@egs.task on {function.__qualname__}", hints)
    kinds = _kinds(function, checked, None)
    if checked.expect_s and len(checked.expect_s) != len(kinds):
        times = ", ".join(f'"{1 + i % 2}s"' for i in range(len(kinds)))
        form = times if len(kinds) == 1 else f"({times})"
        problem = f"{len(checked.expect_s)} durations for {len(kinds)} phases ({', '.join(kinds)})"
        raise InputError(f"@egs.task on {function.__qualname__}: expect", problem, f"one a phase: expect={form}")
    function.__egs__ = checked  # type: ignore[union-attr]  # functions and classes may have attributes
    if isinstance(function, FunctionType):
        begin_at_def(function)
    return function


def _checked_hints(place: str, raw: dict[str, Any]) -> TaskHints:
    unknown = sorted(raw.keys() - HINTS.keys())
    if unknown:
        near = did_you_mean(unknown[0], HINTS)
        raise InputError(f"{place}: {unknown[0]}", "unknown argument", f"{near} known: {', '.join(HINTS)}".lstrip())
    out: dict[str, Any] = {}
    for argument, value in raw.items():
        if value is not None:
            out[HINTS[argument].field] = HINTS[argument].check(value, f"{place}: {argument}")
    if out.pop("idle_timeout_s", None) is not None:
        warn_once("the hint idle_timeout is not applied: nothing measures yet whether a task is idle; use max_runtime")
    out.setdefault("gpu_cpus", out.get("cpus"))
    if out.get("split") and out.get("gpus") == 0:
        raise InputError(f"{place}: split", "there is nothing to split in a task with gpus=0")
    return TaskHints(**out)


def _check_step(function: object, place: str) -> None:
    if not callable(function):
        raise InputError(place, f"{function!r} is not a function", "pass functions, without calling them")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise InputError(place, f"{name} is async or a generator", "its work would run after its phase has ended")
