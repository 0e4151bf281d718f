"""What may be given a ticket, and how a function takes one; and what is noted of a submission.

    fit.remote(x)  ─►  [fit].remote(ticket, x)        [fit]: the same function with one more argument, which it drops

Any function of the script goes as such a twin, also one that has no turn to wait for (the ticket's place says for whom
it works): it reaches its driver from where it runs, so that what it submits itself is ordered, too (`worker.nested`).
Gated are plain functions with `num_gpus` whose needs are CPUs, GPUs and memory only. Workers import this, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import ray

from egs_core.hints import TaskHints, hints_of, phase_kinds
from egs_ray import actors, functions
from egs_ray.conflicts import warn_of_disagreement
from egs_ray.submission import Arrival, Needs, Submission, is_driver

_BY_HAND = ("resources", "accelerator_type", "label_selector", "fallback_strategy")  # where a task may run
_ANYWHERE = (None, "DEFAULT", "SPREAD")
_NO_GROUP = (None, "default")
MOST_CALLS = 64  # kinds of calls of one function that are remembered
_CONTAINERS = frozenset({list, tuple, set, frozenset, dict})


WithTicket = Callable[[Callable[..., Any]], Callable[..., Any]]


class Asked(msgspec.Struct, frozen=True):
    """What a task asks Ray for with these options, and whether Ray may place it."""

    options: dict[str, Any]
    is_free: bool
    needs: Needs


class Ticketed(msgspec.Struct, frozen=True):
    """A user's function as Ray gets it, with a ticket before its arguments, and how it may be called. taken: calls that
    it takes, each as the number of its positional arguments and the names of the others."""

    remote: Any
    signature: inspect.Signature
    taken: set[tuple[int | str, ...]]


def with_ticket(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an argument before its own. It needs nothing of this package where it runs."""

    def ticketed(_ticket: None, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def streamed(_ticket: None, /, *args: Any, **kwargs: Any) -> Any:
        yield from function(*args, **kwargs)

    return functions.named_like(streamed if inspect.isgeneratorfunction(function) else ticketed, function)


class Twins:
    """The functions with tickets of this process, each made at the first call that needs it, by with_ticket."""

    def __init__(self, with_ticket: WithTicket = with_ticket, splits_all: bool = False) -> None:
        self._with_ticket, self._splits_all = with_ticket, splits_all
        self._ticketed: WeakKeyDictionary[Any, Ticketed] = WeakKeyDictionary()
        self._hints: WeakKeyDictionary[Any, TaskHints | None] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[Any, Asked] = WeakKeyDictionary()

    def asked_of(self, target: Any, options: dict[str, Any]) -> Asked:
        """What a task asks for: the same as the one before it where it is called with the same options."""
        before = self._asked.get(target)
        if before is not None and before.options == options:
            return before
        is_free = is_free_to_order(options, streams=functions.generator_behind(target) is not None)
        found = Asked(options, is_free, needs_of(target, options))
        if found.is_free:  # else there may be more behind the options than numbers
            self._asked[target] = found
        return found

    def hints_of(self, target: Any) -> TaskHints | None:
        """The hints on a function; one warning when they contradict its own decorator. splits_all: code that says when
        it needs the GPU counts as a hint."""
        try:
            if target in self._hints:
                return self._hints[target]
            function = _code_of(target) or actors.class_behind(target)
            hints = hints_of(function)
            if hints is None and self._splits_all and len(phase_kinds(function)) > 1:
                hints = TaskHints()
            declared = functions.declared_options(target) if hints is not None else {}
        except Exception:  # nothing that carries hints
            return None
        if hints is not None:
            warn_of_disagreement(getattr(function, "__qualname__", "task"), hints, declared)
        self._hints[target] = hints
        return hints

    def of(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The twin with a ticket; None where there is none, or it does not take these arguments: then Ray shall say, at
        once and in its own words, what is wrong with the call."""
        ticketed = self._ticketed.get(target) or self._made(target)
        return ticketed.remote if ticketed is not None and _takes(ticketed, args, kwargs) else None

    def lined(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The twin of what has no turn; None where that is no function or class of the script's, and no actor of a
        library's that runs the script's code, or asks for its groups."""
        made = _code_of(target) or actors.class_behind(target)
        is_librarys = str(getattr(made, "__module__", "")).partition(".")[0] == "ray"
        if made is None or (is_librarys and not (actors.asks_for_groups(made) or actors.runs_scripts_code(made))):
            return None
        return self.of(target, args, kwargs)

    def forget(self) -> None:
        """The line has ended with its Ray session: the next one's twins have another."""
        self._ticketed.clear()

    def _made(self, target: Any) -> Ticketed | None:
        """The twin of a function or of an actor's class."""
        if (function := _code_of(target)) is not None:
            made: Any = self._with_ticket(function)
            signature = inspect.signature(function)
        elif (actor := actors.class_behind(target)) is not None:
            made, signature = actors.with_ticket(actor, self._with_ticket), actors.signature_of(target)
        else:
            return None
        ticketed = self._ticketed[target] = Ticketed(functions.rewrapped(target, made), signature, set())
        return ticketed


def _code_of(target: Any) -> Callable[..., Any] | None:
    """The function, or generator function, of a task of the script's."""
    return functions.function_behind(target) or functions.generator_behind(target)


def _takes(ticketed: Ticketed, args: Any, kwargs: Any) -> bool:
    call = (len(args), *kwargs)
    if call in ticketed.taken:
        return True
    try:
        ticketed.signature.bind(*args, **kwargs)
    except TypeError:
        return False
    if len(ticketed.taken) < MOST_CALLS:
        ticketed.taken.add(call)
    return True


def is_free_to_order(options: dict[str, Any], *, streams: bool = False) -> bool:
    """Whether the task is Ray's to place, gives a reference, and is no part of a group. streams: it is a generator. One
    with back pressure holds its GPU until somebody has taken its values, who may wait for a turn behind it."""
    if is_placed_by_hand(options):
        return False
    returns = options.get("num_returns")
    if not streams:
        return returns not in (0, "dynamic", "streaming")
    return returns in (None, "streaming") and options.get("_generator_backpressure_num_objects") in (None, -1)


def is_placed_by_hand(options: Mapping[str, Any]) -> bool:
    """Whether its user said where the task may run."""
    if any(options.get(option) for option in _BY_HAND):
        return True
    return options.get("scheduling_strategy") not in _ANYWHERE or options.get("placement_group") not in _NO_GROUP


def needs_of(target: Any, options: dict[str, Any]) -> Needs:
    """What the task asks Ray for."""
    cpus, gpus, memory = (options.get(key) for key in ("num_cpus", "num_gpus", "memory"))
    return Needs(functions.name_of(target), 1.0 if cpus is None else float(cpus), float(gpus or 0.0), int(memory or 0))


def is_bare(args: Any, kwargs: Any) -> bool:
    """Whether Ray waits for no task before it."""
    direct = [value for value in (*args, *kwargs.values()) if isinstance(value, ray.ObjectRef)]
    return all(is_driver(task_of(ref)) for ref in direct)


def result_of(returned: Any) -> Any:
    """The reference that tells of a task's end; None when its submission returned none."""
    ref = returned[0] if isinstance(returned, list) and returned else returned
    return ref if isinstance(ref, ray.ObjectRef) else None


def end_of(returned: Any) -> Any:
    """The same, of what has a ticket, which may stream its values: then the reference of its end."""
    return returned.completed() if isinstance(returned, ray.ObjectRefGenerator) else result_of(returned)


def arrival_of(key: str, ref: Any, needs: Needs, args: Any, kwargs: Any) -> tuple[Arrival, dict[str, Any]]:
    """What a gate is told of a submission, and the references whose ends matter to it, by id: the result and what Ray
    waits for."""
    values = [*args, *kwargs.values()]
    direct = [value for value in values if isinstance(value, ray.ObjectRef)]
    inside = [value for value in values if not isinstance(value, ray.ObjectRef)]
    refs = {task_of(ref): ref, **{argument.hex(): argument for argument in direct}}
    nested = [task_of(value) for value in references_in(inside)]
    named = [(argument.hex(), task_of(argument)) for argument in direct]
    return Arrival(key, task_of(ref), needs, named, nested), refs


def note_of(at_s: float, target: Any, args: Any, kwargs: Any, options: dict[str, Any], result: Any) -> Submission:
    """What a run log needs of a submission; holds on to nothing of it."""
    actor_id = functions.actor_id_of(target)
    kind = "method" if actor_id else "actor" if isinstance(result, ray.actor.ActorHandle) else "task"
    cpus, gpus, memory = (options.get(key) for key in ("num_cpus", "num_gpus", "memory"))
    if kind == "method":
        cpus = 0.0
    elif cpus is None:
        # Ray's rule: an actor without any stated need holds no CPU after its creation.
        stated = gpus or options.get("resources") or options.get("accelerator_type")
        cpus = 0.0 if kind == "actor" and not stated else 1.0
    return Submission(
        at_s=at_s,
        task_id=functions.task_id_of(result),
        name=functions.name_of(target),
        kind=kind,
        actor_id=actor_id,
        producers=tuple(dict.fromkeys(task_of(ref) for ref in references_in([args, kwargs]))),
        cpus=float(cpus),
        gpus=float(gpus or 0.0),
        memory_bytes=int(memory or 0),
        label=str(options.get("name") or "") if kind == "task" else "",
    )


def task_of(ref: Any) -> str:
    """The id of the task behind a reference, as Ray writes it."""
    return str(ref.task_id().hex())


def references_in(value: Any) -> Iterator[ray.ObjectRef]:
    """The object references in arguments, also those inside lists, tuples, sets and dicts."""
    for item in value.values() if type(value) is dict else value:
        if isinstance(item, ray.ObjectRef):
            yield item
        elif type(item) in _CONTAINERS and _worth_a_look(item):
            yield from references_in(item)


def _worth_a_look(container: Any) -> bool:
    """A long list of numbers costs one pass in C, not one in Python."""
    kinds = set(map(type, container.values() if type(container) is dict else container))
    return not kinds.isdisjoint(_CONTAINERS) or any(issubclass(kind, ray.ObjectRef) for kind in kinds)
