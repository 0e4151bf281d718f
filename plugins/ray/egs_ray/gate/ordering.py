"""How a submission gets its ticket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol

import msgspec
import ray

from egs_ray import actors, functions
from egs_ray.compat import available
from egs_ray.gate.preferences import preferred_options
from egs_ray.gate.ticketing import (
    Twins,
    WithTicket,
    arrival_of,
    end_of,
    is_bare,
    is_free_to_order,
    needs_of,
    references_in,
    result_of,
    task_of,
    with_ticket,
)
from egs_ray.groups import PLACED, anywhere, failure_of, place_of
from egs_ray.settings import chosen_split
from egs_ray.submission import Arrival, Needs


class AnyGate(Protocol):
    """What a submitting thread needs of a gate; nothing here blocks for long or raises for the user."""

    def admits(self, needs: Needs) -> bool: ...
    def ticket(self, needs: Needs, is_bare: bool) -> tuple[str, Any] | None: ...
    def give_back(self, key: str) -> None: ...
    def waits_for(self, task_ids: list[str]) -> bool: ...
    def add(self, arrival: Arrival, refs: dict[str, Any]) -> None: ...
    def unfinished(self) -> set[str]: ...
    def learned(self) -> None: ...
    def close(self) -> None: ...


class Turn(msgspec.Struct):
    """What a task got from the gate; ref: None where it need not wait; twin: the function that takes it; options: to
    submit it with; described: what its hints say, where the gate is told of those."""

    gate: Any
    needs: Needs
    key: str
    ref: Any
    twin: Any
    options: dict[str, Any]
    described: Any = None
    is_shell: bool = False


class Ordering:
    """Gives tickets to the submissions of this process. One gate for each Ray session, made at its first GPU task.

    on_failure: called with what went wrong here; it is to call `switch_off`, and everything passes from then on.
    make_hinted: makes what knows tasks with hints, at the first of these. with_ticket: makes the twin of a function.
    works_for: the task with a turn for which the submitting code works, by its id; "": none. retries: tasks are to be
    tried on other GPUs when the memory of one was not enough. notes: somebody takes from `described` what each task's
    hints say: nothing else takes it out again.
    """

    def __init__(
        self,
        make_gate: Callable[[], AnyGate],
        estimate: Callable[[Needs], float | None],
        on_failure: Callable[[BaseException], None],
        make_hinted: Callable[[], Any],
        with_ticket: WithTicket = with_ticket,
        works_for: Callable[[], str] = str,
        retries: bool = False,
        *,
        notes: bool = True,
    ) -> None:
        self.gate: AnyGate | None = None
        self.ordered = 0
        self._make_gate, self._estimate, self._on_failure = make_gate, estimate, on_failure
        self._works_for = works_for
        self._lock = threading.Lock()
        self._is_off = False
        self._twins = Twins(with_ticket, splits_all=chosen_split()[0] == "auto")
        self._retries = retries
        self._make_hinted, self._notes = make_hinted, notes
        self.described: dict[str, Any] = {}  # task -> what its hints say, until it is noted

    def submit(self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Make the submission, with a ticket if it is one for the gate. What goes wrong here is told to on_failure, and
        the task goes to Ray as it is; only what Ray itself says of it reaches the user."""
        args, kwargs = args or (), kwargs or {}
        hints, turn, passing, asked = None, None, None, options
        try:
            hints, made = self._twins.hints_of(target), actors.class_behind(target)
            if hints is not None and hints.flavors:
                options = {**options, **preferred_options(hints, options)}
            if not self._is_off and (hints is not None or options.get("num_gpus")):
                turn_of: Callable[..., Turn | None] = self._turn if made is None else self._turn_of_actor
                turn = turn_of(target, args, kwargs, options, hints, asked)
                if turn is None and hints is not None:
                    passing = self._passing_generator(target, options, hints, asked)
                    options = options if passing is None else {**options, **passing.stated_needs(options)}
        except Exception as error:
            self._on_failure(error)
        if turn is not None:
            return self._submit_with(turn, original, target, args, kwargs, options)
        result = self.submit_lined(original, target, args, kwargs, options)
        if self._notes and passing is not None and (task := functions.task_id_of(result)):
            self.described[task] = passing
        if (gate := self.gate) is not None and not self._is_off:
            self._tell_of_ungated(gate, target, args, kwargs, options, result, hints)
        return result

    @cached_property
    def _hinted(self) -> Any:
        return self._make_hinted()

    def switch_off(self) -> bool:
        """Let everything pass until the session ends; whether it did not already. From any thread."""
        was_off, self._is_off = self._is_off, True
        return not was_off

    def end_session(self) -> None:
        """The gate goes with its Ray session."""
        with self._lock:
            gate, self.gate, self._is_off = self.gate, None, False
        self._twins.forget()
        if gate is not None:
            gate.close()

    def gate_for_workers(self) -> AnyGate | None:
        """The gate for what this driver's workers submit; None where everything passes. From any thread."""
        try:
            return None if self._is_off else self._made_gate()
        except Exception as error:
            self._on_failure(error)
            return None

    def submit_lined(
        self,
        original: Callable[..., Any],
        target: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
        place: str = "",
    ) -> Any:
        """Submit what has no turn, by its twin where it has one: what it submits itself may have turns. What is placed
        in a group that was ended fails as that did: Ray would let it wait for ever. place: the bundle in which it is,
        where its options do not say."""
        if (failure := failure_of(options)) is not None and (twin := self._twins.of(target, args, kwargs)) is not None:
            return original(twin, (failure,), {}, **anywhere(options))
        twin = None
        if not self._is_off:
            try:
                twin = self._twins.lined(target, args, kwargs)
            except Exception as error:
                self._on_failure(error)
        if twin is not None:
            place = place_of(options) or place
            ticket = f"{PLACED}{place}" if place else self._works_for()
            try:
                return original(twin, (ticket, *args), kwargs, **options)
            except Exception:  # what is wrong with it is for the user to see, as it was written
                twin = None
        return original(target, args, kwargs, **options)

    def _turn(
        self, target: Any, args: Any, kwargs: Any, options: dict[str, Any], hints: Any, asked: dict[str, Any]
    ) -> Turn | None:
        """How the task goes to Ray, if it is one for the gate. asked: its options as called; where it would rather run
        keeps nothing from being ordered."""
        try:
            found = self._twins.asked_of(target, asked)
            described = None
            if hints is not None and found.is_free:
                described = self._hinted.described(target, hints, options)
            if not (options.get("num_gpus") or described is not None) or not found.is_free:
                if hints is not None:
                    self._hinted.warn_of_lost(target, hints)
                return None
            twin = self._twins.of(target, args, kwargs)
            if twin is None:
                return None
            gate, needs = self._made_gate(), found.needs
            hinting: Any = gate  # one that is told of hints: see `Program`
            if self._retries and hinting.moves:
                described = self._hinted.described_moving(target, hints, options) or described
            if described is not None and (stated := described.stated_needs(options)):
                options = {**options, **stated}
                needs = needs_of(target, options)
            if not gate.admits(needs):
                if described is not None:
                    described.warn_if_too_large(needs, gate)
                return None
            is_shell = described is not None and described.is_shell
            ticket = hinting.shell_ticket(needs) if is_shell else gate.ticket(needs, is_bare(args, kwargs))
            if ticket is None:
                return None
            if is_shell:
                twin, options = self._hinted.shell_of(target, described, options, hinting.room.place(needs))
            key, ref = ticket
            return Turn(gate, needs, key, ref, twin, options, described, is_shell)
        except Exception as error:
            self._on_failure(error)
            return None

    def _passing_generator(self, target: Any, options: dict[str, Any], hints: Any, asked: dict[str, Any]) -> Any:
        """Of a generator that passes, for how its values are taken or where it runs: what it needs by its hints, for
        Ray was not told; None of all else."""
        if functions.generator_behind(target) is None or self._twins.asked_of(target, asked).is_free:
            return None
        return self._hinted.described_nested(target, hints, options)

    def _turn_of_actor(
        self, target: Any, args: Any, kwargs: Any, options: dict[str, Any], hints: Any, asked: dict[str, Any]
    ) -> Turn | None:
        """The same for an actor's creation. One that others may find by its name, or that Ray shall start again (with
        arguments that are there then), never waits; one that may not be this driver's passes as it is."""
        try:
            if not available("actor_handles"):
                return None
            is_own = not options.get("get_if_exists") and options.get("lifetime") != "detached"
            is_own = is_own and not actors.is_of_library(target) and is_free_to_order(asked)
            if not is_own and hints is None:
                return None
            described = self._hinted.described_actor(target, actors.class_behind(target), hints, options)
            if not (described.payload.gpus and is_own):
                if hints is not None:
                    self._hinted.warn_of_lost(target, hints)
                return None
            may_wait = not (options.get("name") or options.get("max_restarts"))
            twin = self._twins.of(target, args, kwargs)
            if twin is None:
                return None
            gate: Any = self._made_gate()
            options = {**options, **described.stated_needs(options)}
            needs = needs_of(target, options)
            if not gate.admits(needs):
                described.warn_if_too_large(needs, gate)
                return None
            ticket = gate.actor_ticket(needs, is_bare(args, kwargs), may_wait)
            if ticket is None:
                return None
            key, ref = ticket
            return Turn(gate, needs, key, ref, twin, options, described)
        except Exception as error:
            self._on_failure(error)
            return None

    def _made_gate(self) -> AnyGate:
        with self._lock:
            if self.gate is None:
                self.gate = self._make_gate()
            return self.gate

    def _submit_with(
        self,
        turn: Turn,
        original: Callable[..., Any],
        target: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        try:
            if turn.is_shell:
                result = original(turn.twin, (turn.ref, [list(args), dict(kwargs)]), {}, **turn.options)
            else:
                result = original(turn.twin, (turn.ref, *args), kwargs, **turn.options)
        except Exception:
            self._give_back(turn)
            return original(target, args, kwargs, **options)  # what is wrong with it is for the user to see
        self.ordered += 1
        try:
            is_actor = turn.described is not None and turn.described.is_actor
            ref = actors.ActorRef(result) if is_actor else end_of(result)
            if is_actor and turn.ref is not None:
                actors.before_handed_on(ref, partial(turn.gate.hand_on, turn.key))
            if ref is None:
                turn.gate.give_back(turn.key)
            else:
                if self._notes and turn.described is not None:
                    self.described[task_of(ref)] = turn.described
                arrival, refs = arrival_of(turn.key, ref, turn.needs, args, kwargs)
                arrival.streams = isinstance(result, ray.ObjectRefGenerator)
                self._add(turn.gate, arrival, refs, turn.described)
        except Exception as error:
            self._give_back(turn)
            self._on_failure(error)
        return result

    def _give_back(self, turn: Turn) -> None:
        try:
            turn.gate.give_back(turn.key)
        except Exception as error:
            self._on_failure(error)

    def _tell_of_ungated(
        self, gate: AnyGate, target: Any, args: Any, kwargs: Any, options: dict[str, Any], result: Any, hints: Any
    ) -> None:
        """What passes without a ticket matters to the gate when it waits for a task there: something may wait for it
        in turn."""
        try:
            if next(references_in([args, kwargs]), None) is None or (ref := result_of(result)) is None:
                return
            arrival, refs = arrival_of("", ref, needs_of(target, options), args, kwargs)
            arrival.seconds = _said(hints)
            if gate.waits_for([*(task for _, task in arrival.direct), *arrival.nested]):
                self._add(gate, arrival, refs)
        except Exception as error:
            self._on_failure(error)

    def _add(self, gate: AnyGate, arrival: Arrival, refs: dict[str, Any], described: Any = None) -> None:
        known = self._estimate(arrival.needs)
        arrival.seconds = arrival.seconds if known is None else known
        hinting: Any = gate
        gate.add(arrival, refs) if described is None else hinting.add(arrival, refs, described)


def _said(hints: Any) -> float | None:
    """What the hints on a function say that it takes, in seconds."""
    return sum(hints.expect_s) if hints is not None and hints.expect_s else None
