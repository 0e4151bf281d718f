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
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, TypeVar, overload

from egs_core.checkpoints import CheckpointKeeper, checkpoint, checkpoint_keeper, restored, save_checkpoint
from egs_core.copied_source import begin_at_def
from egs_core.errors import InputError
from egs_core.gpu_phase import GpuProvider, call_on_gpu, gpu, gpu_provider, has_gpu_block, set_gpu_provider
from egs_core.notices import warn_once
from egs_core.preload import Call, Files, Modules, PreloadItem, call, files, is_warm, loaded, modules, warm, warm_key
from egs_core.units import parse_bytes, parse_seconds

__all__ = [
    "HINT_NAMES",
    "Call",
    "CheckpointKeeper",
    "Files",
    "GpuProvider",
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
    "restored",
    "save_checkpoint",
    "set_gpu_provider",
    "task",
    "warm",
    "warm_key",
]

F = TypeVar("F", bound=Callable[..., Any])
PhaseKind = Literal["cpu", "gpu"]
Size = int | str
Span = float | str
SPLIT: tuple[PhaseKind, ...] = ("cpu", "gpu", "cpu")


@dataclass(frozen=True)
class TaskHints:
    """The hints of one task, checked and in plain units. None: not stated, so what the framework says holds.

    gpu_cpus: CPUs held during a GPU phase. split: None means that EGS decides from the code. expect_s: the expected
    seconds of each phase, empty or one a phase. max_wait_s: how long others may be preferred to this task. deadline_s:
    when it should have ended, after the submission of its workload. flavors: kinds of hardware on which it may run,
    empty for any. gang_same: level of the topology, "node" or "rack", say, at which all of its gang must be together.
    grace_s: how long its `egs.checkpoint` callback may take when it must stop; 0: it is stopped at once.
    """

    gpus: float | None = None
    cpus: float | None = None
    gpu_cpus: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    preload: tuple[PreloadItem, ...] = ()
    max_runtime_s: float | None = None
    max_gpu_s: float | None = None
    max_cost: float | None = None
    deadline_s: float | None = None
    max_wait_s: float | None = None
    priority: int = 0
    gang: str = ""
    stage: str = ""
    name: str = ""
    split: bool | None = None
    expect_s: tuple[float, ...] = ()
    flavors: tuple[str, ...] = ()
    gang_same: str = ""
    grace_s: float = 0.0


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
    """Attach hints to a function, which stays the same object; the hints are its attribute `__egs__`.

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
    name = _check_text(name, "egs.phases: name") or "_".join(getattr(f, "__name__", "phase") for f in plain)

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
    explicit: tuple[PhaseKind, ...] = getattr(function, "__egs_phases__", ())
    if explicit and hints.split is not False:
        return explicit
    shows_gpu = "gpu" in explicit or has_gpu_block(function)
    if hints.split or (hints.split is None and shows_gpu and gpus != 0):
        return SPLIT
    return ("gpu",) if (shows_gpu if gpus is None else gpus > 0) else ("cpu",)


def _attach(function: Any, hints: dict[str, Any]) -> Any:
    if not isinstance(function, FunctionType):
        problem = f"{type(function).__name__} is not a plain function"
        raise InputError("@egs.task", problem, "put @egs.task directly above 'def', below the framework's decorator")
    checked = _checked_hints(f"@egs.task on {function.__qualname__}", hints)
    kinds = _kinds(function, checked, None)
    if checked.expect_s and len(checked.expect_s) != len(kinds):
        problem = f"{len(checked.expect_s)} durations for {len(kinds)} phases ({', '.join(kinds)})"
        raise InputError(f"@egs.task on {function.__qualname__}: expect", problem, "give one a phase")
    function.__dict__["__egs__"] = checked
    begin_at_def(function)
    return function


def _checked_hints(place: str, raw: dict[str, Any]) -> TaskHints:
    unknown = sorted(raw.keys() - _CHECKS.keys())
    if unknown:
        raise InputError(f"{place}: {unknown[0]}", "unknown argument", "known: " + ", ".join(_CHECKS))
    out: dict[str, Any] = {}
    for argument, value in raw.items():
        field, check = _CHECKS[argument]
        if value is not None:
            out[field] = check(value, f"{place}: {argument}")
    if out.pop("idle_timeout_s", None) is not None:
        warn_once("the hint idle_timeout is not applied: nothing measures yet whether a task is idle; use max_runtime")
    out.setdefault("gpu_cpus", out.get("cpus"))
    if out.get("split") and out.get("gpus") == 0:
        raise InputError(f"{place}: split", "there is nothing to split in a task with gpus=0")
    return TaskHints(**out)


def _check_count(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise InputError(place, f"{value!r} is not a number of zero or more")
    return float(value)


def _check_gpus(value: object, place: str) -> float:
    count = _check_count(value, place)
    if count > 1 and not count.is_integer():
        raise InputError(place, f"{value!r} GPUs cannot be given", "a share of one (below 1) or a whole number")
    return count


def _check_positive(value: object, place: str) -> float:
    amount = _check_count(value, place)
    if amount == 0:
        raise InputError(place, "must be more than 0", "leave it out for no limit")
    return amount


def _check_limit(value: object, place: str) -> float:
    """A span that is a limit: nothing can run for no time."""
    seconds = parse_seconds(value, place)
    if seconds == 0:
        raise InputError(place, "must be more than 0 seconds", "leave it out for no limit")
    return seconds


def _check_int(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(place, f"{value!r} is not a whole number")
    return value


def _check_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(place, f"{value!r} is not text")
    return value


def _check_bool(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(place, f"{value!r} is not True, False or None")
    return value


def _check_expect(value: object, place: str) -> tuple[float, ...]:
    spans = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(parse_seconds(span, f"{place}[{i}]") for i, span in enumerate(spans))


def _check_flavors(value: object, place: str) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}[{i}]", f"{name!r} is not the name of a flavor", 'a name as in flavors=["a100"]')
    return names


def _check_preload(value: object, place: str) -> tuple[PreloadItem, ...]:
    items = (value,) if isinstance(value, PreloadItem | str) or not isinstance(value, Iterable) else tuple(value)
    for i, item in enumerate(items):
        if not isinstance(item, PreloadItem):
            hint = "use egs.modules(...), egs.files(...) or egs.call(...)"
            raise InputError(f"{place}[{i}]", f"{item!r} is not a preload item", hint)
    return items


def _check_step(function: object, place: str) -> None:
    if not callable(function):
        raise InputError(place, f"{function!r} is not a function", "pass functions, without calling them")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise InputError(place, f"{name} is async or a generator", "its work would run after its phase has ended")


# Argument of `task` -> field of TaskHints and the check that normalises it.
_CHECKS: dict[str, tuple[str, Callable[[object, str], object]]] = {
    "gpus": ("gpus", _check_gpus),
    "cpus": ("cpus", _check_count),
    "gpu_cpus": ("gpu_cpus", _check_count),
    "memory": ("memory_bytes", parse_bytes),
    "gpu_memory": ("gpu_memory_bytes", parse_bytes),
    "preload": ("preload", _check_preload),
    "max_runtime": ("max_runtime_s", _check_limit),
    "max_gpu_time": ("max_gpu_s", _check_limit),
    "max_cost": ("max_cost", _check_positive),
    "idle_timeout": ("idle_timeout_s", _check_limit),
    "deadline": ("deadline_s", _check_limit),
    "max_wait": ("max_wait_s", parse_seconds),
    "priority": ("priority", _check_int),
    "gang": ("gang", _check_text),
    "stage": ("stage", _check_text),
    "name": ("name", _check_text),
    "split": ("split", _check_bool),
    "expect": ("expect_s", _check_expect),
    "flavors": ("flavors", _check_flavors),
    "gang_same": ("gang_same", _check_text),
    "grace": ("grace_s", parse_seconds),
}
HINT_NAMES = frozenset(_CHECKS)
"""The arguments of `task`."""
