"""What a script's `.remote()` of a function with hints becomes: its phases and options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from egs_core.errors import counted
from egs_core.graph.columns import GIB, GPU, Shape, TaskOptions
from egs_core.hints import HINTS, TaskHints, phase_kinds
from egs_core.notices import warn_once
from egs_ray import functions
from egs_ray.payload import Payload, phases_of, task_options
from egs_ray.submission import Needs

NOT_OF_ACTORS = ("preload", "gang", "grace", "split")
NOT_OF_GENERATORS = ("preload", "grace", "split", "gpu_cpus", "max_runtime", "max_gpu_time", "max_cost")
ON_ORDER = ("priority", "max_wait", "deadline", "max_runtime", "max_gpu_time", "max_cost", "gang", "preload")
OF_GENERATORS = ("expect", "stage", "grace", "split", "gpu_cpus")
"""The hints on order and limits, that of a task which passes are not kept; and the others of a generator."""
NOTHING = (None, "", 0, (), False)
Phases = tuple[tuple[int, Shape, float | None], ...]


class Described(msgspec.Struct, frozen=True):
    """A task with hints: its function and what it asks Ray for, its phases, and what the site is told of it."""

    payload: Payload
    phases: Phases
    options: TaskOptions
    is_actor: bool = False
    is_group: bool = False  # of a bundle of a placement group
    moves: bool = False  # it may be tried on another flavor of GPUs

    @property
    def is_shell(self) -> bool:
        """Whether it runs phase by phase, in a process that may be started before its turn. A limit counts from when
        its code begins, which only such a process tells, or Ray of an actor; and only such a process can be
        started where the GPUs are others."""
        if self.is_actor or self.is_group:
            return False
        return self.moves or len(self.phases) > 1 or bool(self.options.warm_key) or not self.options.is_none

    def stated_needs(self, options: dict[str, Any]) -> dict[str, float]:
        """What it needs, as options for Ray, where Ray was not told."""
        needs = {"num_cpus": self.payload.cpus, "num_gpus": self.payload.gpus, "memory": self.payload.memory_bytes}
        return {name: needed for name, needed in needs.items() if needed and options.get(name) is None}

    def warn_if_too_large(self, needs: Needs, gate: Any) -> None:
        """Once, where no node has what it needs: it goes to Ray as written, and what only its hints say is not kept."""
        if not gate.room.fits(needs.cpus, needs.gpus, needs.memory_bytes):
            warn_once(
                f"{needs.name}: no node has {counted(needs.gpus, 'GPU')}, {counted(needs.cpus, 'CPU')} and "
                f"{needs.memory_bytes / GIB:g} GiB of memory, so Ray alone decides about it and its hints are not kept"
            )

    @property
    def expected_s(self) -> float | None:
        """What its hints say that it takes, all phases; None: they do not."""
        seconds = [seconds for _, _, seconds in self.phases if seconds is not None]
        return sum(seconds) if len(seconds) == len(self.phases) else None


class Hinted:
    """The functions with hints of this process."""

    def __init__(self) -> None:
        self._described: WeakKeyDictionary[Any, dict[Any, Described | None]] = WeakKeyDictionary()

    def described(self, target: Any, hints: TaskHints, options: dict[str, Any]) -> Described | None:
        """What the site is told of a task; None for one that Ray alone decides about, as it needs no GPU, loads nothing
        and has no limit."""
        key = tuple(options.get(name) for name in ("num_cpus", "num_gpus", "memory", "num_returns", "max_retries"))
        known = self._described.setdefault(target, {})
        if key not in known:
            name = functions.name_of(target)
            if functions.generator_behind(target) is None:
                known[key] = self._describe(target, hints, options)
            else:
                _warn_of(name, "a generator", hints, NOT_OF_GENERATORS)
                known[key] = self.described_nested(target, hints, options)
                is_split = hints.split is None and len(phase_kinds(functions.generator_behind(target))) > 1
                if known[key] is not None and is_split:
                    warn_once(f"{name}: a generator holds its GPUs to its end, outside of `with egs.gpu():`, too")
            if hints.gang:
                warn_once(
                    f"{name}: the hint gang is kept by egs_ray.run only: here nobody knows how many tasks there will be"
                )
        return known[key]

    def described_moving(self, target: Any, hints: TaskHints | None, options: dict[str, Any]) -> Described | None:
        """The same of a task that starts again elsewhere when a GPU's memory is not enough for it; None of one that
        cannot: a generator, as its first values may have been taken, and what Ray never starts again."""
        if functions.generator_behind(target) is not None or options.get("max_retries") == 0:
            return None
        found = self.described(target, hints or TaskHints(), options)
        return None if found is None or not found.payload.gpus else msgspec.structs.replace(found, moves=True)

    def _describe(self, target: Any, hints: TaskHints, options: dict[str, Any]) -> Described | None:
        function = functions.function_behind(target) or functions.generator_behind(target)
        if function is None:
            return None
        payload = Payload("", function, target, (), {}, options)
        payload.cpus = _first(options.get("num_cpus"), hints.cpus, 1.0)
        payload.gpus = _first(options.get("num_gpus"), hints.gpus, 0.0)
        payload.memory_bytes = int(_first(options.get("memory"), hints.memory_bytes, 0))
        phases = phases_of(payload, hints)
        told = msgspec.structs.replace(task_options(hints), gang="", gang_same="", flavors=(), on_limit="")
        found = Described(payload, phases, told)
        has_gpu = any(kind == GPU for kind, _, _ in phases)
        if has_gpu:
            payload.gpus = max(shape.gpu_milli for _, shape, _ in phases) / 1000
        return found if has_gpu or found.is_shell else None

    def described_nested(self, target: Any, hints: TaskHints, options: dict[str, Any]) -> Described | None:
        """The same for a task that a worker submits, and for a generator: its place in the order, as one piece. None
        where it has no GPU."""
        found = self._describe(target, hints, options)
        if found is None or not found.payload.gpus:
            return None
        phases: Phases = ((GPU, Shape(0, max(1, round(found.payload.gpus * 1000))), found.expected_s),)
        kept = {name: getattr(found.options, name) for name in ("stage", "priority", "max_wait_s", "deadline_s")}
        return Described(found.payload, phases, TaskOptions(**kept))

    def described_actor(self, target: Any, made: type, hints: TaskHints | None, options: dict[str, Any]) -> Described:
        """What the site is told of an actor, from its creation to its death. Nobody knows how long it lives: without
        the hint `expect` it counts as nothing, so it goes behind all that was submitted before it and is ready."""
        stated = hints or TaskHints()
        payload = Payload("", made, target, (), {}, options)
        payload.cpus = _first(options.get("num_cpus"), stated.cpus, 1.0)
        payload.gpus = _first(options.get("num_gpus"), stated.gpus, 0.0)
        payload.memory_bytes = int(_first(options.get("memory"), stated.memory_bytes, 0))
        _warn_of(functions.name_of(target), "an actor", stated, NOT_OF_ACTORS)
        seconds = stated.expect_s[0] if stated.expect_s else 0.0
        phases: Phases = ((GPU, Shape(0, max(1, round(payload.gpus * 1000))), seconds),)
        plain = {"gang": "", "gang_same": "", "flavors": (), "on_limit": "", "warm_key": "", "warmup_s": 0.0}
        return Described(payload, phases, msgspec.structs.replace(task_options(stated), **plain), is_actor=True)

    def warn_of_lost(self, target: Any, hints: TaskHints) -> None:
        """Of a task that passes as it is: none of its hints is kept, but for a generator's needs."""
        is_generator = functions.generator_behind(target) is not None
        lost = sorted(_stated(hints, (*ON_ORDER, *OF_GENERATORS) if is_generator else ON_ORDER))
        why = "it has no GPU, preload or limit, gives no result, or says itself where it runs"
        if is_generator:
            why = "it has no GPU, back pressure or another num_returns, or says itself where it runs"
        if lost:
            warn_once(
                f"{functions.name_of(target)}: its hints {', '.join(lost)} are not kept: {why}, so Ray alone decides "
                "about it"
            )


def member(needs: Needs, options: TaskOptions) -> Described:
    """A bundle of a placement group, until that is removed. As of an actor nobody knows how long that is."""
    payload = Payload("", member, None, (), {}, {})
    payload.cpus, payload.gpus, payload.memory_bytes = needs.cpus, needs.gpus, needs.memory_bytes
    phases: Phases = ((GPU, Shape(0, max(1, round(needs.gpus * 1000))), 0.0),)
    return Described(payload, phases, options, is_group=True)


def _warn_of(name: str, what: str, hints: TaskHints, names: Iterable[str]) -> None:
    """Once, where it states some of these."""
    if lost := [hint for hint in names if getattr(hints, HINTS[hint].field) not in NOTHING]:
        warn_once(f"{name}: of {what} the hints {', '.join(lost)} are not kept")


def _stated(hints: TaskHints, names: Iterable[str]) -> list[str]:
    """Those of the named hints that a task states."""
    default = TaskHints()
    fields = {name: HINTS[name].field for name in names}
    return [name for name, field in fields.items() if getattr(hints, field) != getattr(default, field)]


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
