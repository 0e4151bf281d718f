"""Mode `on` on an unmodified script: everything that `observe` does, and GPU tasks go to Ray in the engine's order.

    fit.remote(x)  ─►  [fit].remote(ticket, x)        [fit]: the same function with one more argument, which it drops

The script gets its reference at once. Ray keeps the task pending until the ticket has a value (see `gate`), and treats
it then as it would without EGS. Gated are plain functions with `num_gpus`, submitted by the script itself, whose needs
are CPUs, GPUs and memory only. All else passes as it is: actors, placement groups, generators, labels and custom
resources (their placement is the user's word), what no node can run, and tasks that workers submit.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import ray

from egs_core.graph.columns import Shape
from egs_core.predict import Predictor, signature_of
from egs_ray import compat
from egs_ray.gate import Gate
from egs_ray.install import warn
from egs_ray.observe import Observer, history_of_user, references_in, runlog_path, script_name
from egs_ray.submission import Arrival, Needs, Ordered

_BY_HAND = ("resources", "accelerator_type", "label_selector", "fallback_strategy")  # where a task may run
_ANYWHERE = (None, "DEFAULT", "SPREAD")
_NO_GROUP = (None, "default")


def make_interceptor() -> Orderer:
    """The orderer of this process; its run log goes where an observer's would."""
    return Orderer(runlog_path())


class Ticketed(msgspec.Struct, frozen=True):
    """A user's function as Ray gets it, with a ticket before its arguments, and how it may be called."""

    remote: Any
    signature: inspect.Signature


class Orderer(Observer):
    """The `Interceptor` of mode on. One gate for each Ray session, made at its first GPU task."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, policy="egs", mode="on")
        self.ordered = 0
        self._gate: Gate | None = None
        self._gate_lock = threading.Lock()
        self._is_off = False  # for the rest of the Ray session
        self._ticketed: WeakKeyDictionary[Any, Ticketed] = WeakKeyDictionary()
        self._told: deque[Ordered] = deque()
        self._predictor = Predictor()
        self._is_learning = False

    def submit(
        self,
        original: Callable[..., Any],
        remote_function: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        """The submission, ordered where it can be, and noted as the user wrote it."""

        def pass_on(target: Any, args: Any, kwargs: Any, **options: Any) -> Any:
            return self._pass_on(original, target, args, kwargs, options)

        return super().submit(pass_on, remote_function, args, kwargs, options)

    def session_ends(self) -> None:
        """As for the observer; the gate goes with its session."""
        super().session_ends()
        if os.getpid() != self._process:
            return
        with self._gate_lock:
            gate, self._gate, self._is_off = self._gate, None, False
        if gate is not None:
            gate.close()

    # --- submissions ---

    def _pass_on(
        self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]
    ) -> Any:
        args, kwargs = args or (), kwargs or {}
        gate = self._gate_for(target, args, kwargs, options) if options.get("num_gpus") else None
        ticket = gate.ticket() if gate is not None else None
        if gate is not None and ticket is not None:
            return self._submit_with(gate, ticket, original, target, args, kwargs, options)
        result = original(target, args, kwargs, **options)
        if (gate := self._gate) is not None and not self._is_off:
            self._tell(gate, "", target, args, kwargs, options, result)
        return result

    def _gate_for(self, target: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Gate | None:
        """The gate, if this is a task for it."""
        if self._is_off or not _is_free_to_order(options):
            return None
        try:
            if not self._is_ticketed(target, args, kwargs):
                return None
            with self._gate_lock:
                if self._gate is None:
                    self._gate = Gate(self._estimate, self._told.append, self._switch_off)
                    self._learn_from_history()
            return self._gate if self._gate.admits(_needs(target, options)) else None
        except Exception as error:
            self._switch_off(error)
            return None

    def _is_ticketed(self, target: Any, args: Any, kwargs: Any) -> bool:
        """Whether the function has its twin with a ticket, and takes these arguments; else Ray shall say, at once and
        in its own words, what is wrong with the call."""
        ticketed = self._ticketed.get(target)
        if ticketed is None:
            function = compat.function_behind(target)
            if function is None:
                return False
            remote = compat.rewrapped(target, with_ticket(function))
            ticketed = self._ticketed[target] = Ticketed(remote, inspect.signature(function))
        try:
            ticketed.signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def _submit_with(
        self,
        gate: Gate,
        ticket: tuple[str, Any],
        original: Callable[..., Any],
        target: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        key, ref = ticket
        try:
            result = original(self._ticketed[target].remote, (ref, *args), kwargs, **options)
        except Exception:
            gate.give_back(key)
            return original(target, args, kwargs, **options)  # what is wrong with it is for the user to see
        self.ordered += 1
        self._tell(gate, key, target, args, kwargs, options, result)
        return result

    def _tell(
        self, gate: Gate, key: str, target: Any, args: Any, kwargs: Any, options: dict[str, Any], result: Any
    ) -> None:
        """What passes without a ticket matters to the gate when it waits for a task there: something may wait for it
        in turn."""
        try:
            ref = result[0] if isinstance(result, list) and result else result
            if not isinstance(ref, ray.ObjectRef):
                return
            direct, nested = _references(args, kwargs)
            if key or gate.waits_for([*(ref.task_id().hex() for ref in direct), *nested]):
                gate.add(Arrival(key, ref, ref.task_id().hex(), _needs(target, options), direct, nested))
        except Exception as error:
            if key:
                gate.give_back(key)
            self._switch_off(error)

    def _switch_off(self, error: BaseException) -> None:
        """From any thread: from here on everything passes, until the next Ray session."""
        if not self._is_off:
            self._is_off = True
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            warn(f"no longer ordering, tasks go to Ray as they are submitted: {reason}")

    # --- what is known about durations ---

    def _estimate(self, needs: Needs) -> float | None:
        shape = Shape(round(needs.cpus * 1000), round(needs.gpus * 1000), needs.memory_bytes)
        estimate = self._predictor.estimate(signature_of(script_name(), needs.name, 0, shape))
        return estimate.p50_s if estimate.source == "history" else None

    def _learn_from_history(self) -> None:
        """On a thread of its own: the database stack takes its time to import."""
        if not self._is_learning:
            self._is_learning = True
            threading.Thread(target=self._learn, name="egs-history", daemon=True).start()

    def _learn(self) -> None:
        try:
            history = history_of_user()
            rows = history.load(script_name())
            history.close()
            if rows:
                known = Predictor()
                known.learn(rows)
                self._predictor = known
                if (gate := self._gate) is not None:
                    gate.learned()
        except Exception as error:  # without history every task counts the same
            warn(f"no history: {type(error).__name__}: {error}".splitlines()[0])

    # --- the run log ---

    def _write_noted(self) -> None:
        super()._write_noted()
        while self._told:
            self.log.ordered(self._told.popleft())

    def _what_was_done(self) -> str:
        return f"ordered {self.ordered} GPU tasks"


def with_ticket(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an argument before its own. It needs nothing of this package where it runs."""

    def ticketed(_ticket: None, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Ray names a task after its function. No `__wrapped__`: Ray would check calls against the inner signature.
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(ticketed, attribute, getattr(function, attribute, getattr(ticketed, attribute)))
    return ticketed


def _is_free_to_order(options: dict[str, Any]) -> bool:
    """Whether the task is Ray's to place, gives a reference, and is no part of a group."""
    if any(options.get(option) for option in _BY_HAND) or options.get("num_returns") in (0, "dynamic", "streaming"):
        return False
    return options.get("scheduling_strategy") in _ANYWHERE and options.get("placement_group") in _NO_GROUP


def _needs(target: Any, options: dict[str, Any]) -> Needs:
    cpus, gpus, memory = (options.get(key) for key in ("num_cpus", "num_gpus", "memory"))
    return Needs(compat.name_of(target), 1.0 if cpus is None else float(cpus), float(gpus or 0.0), int(memory or 0))


def _references(args: Any, kwargs: Any) -> tuple[list[Any], list[str]]:
    """References that are arguments, for which Ray waits, and the ids of the tasks behind those inside of arguments."""
    values = [*args, *kwargs.values()]
    direct = [value for value in values if isinstance(value, ray.ObjectRef)]
    inside = [value for value in values if not isinstance(value, ray.ObjectRef)]
    return direct, [ref.task_id().hex() for ref in references_in(inside)]
