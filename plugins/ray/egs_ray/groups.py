"""Placement groups that wait for a turn before Ray makes them. Part of `compat` (feature groups): private Ray API.

    placement_group(…) ─► handler ─► WaitingGroup ── its turn comes, or somebody needs its id ─► Ray makes it
                                        ready(), wait(): as of a group for which Ray has no room yet

Modules take Ray's function by name before anybody can replace it, so it keeps its identity and gets other code.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from egs_ray import submitting, waiting
from egs_ray.compat import GROUP_ROUTE, group_function
from egs_ray.own_values import OwnValues

Handler = Callable[[Callable[[], PlacementGroup], list[dict[str, float]], dict[str, Any]], PlacementGroup]
"""(makes the group as written, its bundles, the other arguments) -> the group."""


def wrap_groups(create: Handler, remove: Callable[[Callable[[], None], Any], None]) -> None:
    """Let these make and remove the placement groups of this process from now on, but for those of EGS's own threads.
    remove(removes it as Ray does, the group)."""
    make_it, remove_it = group_function("placement_group"), group_function("remove_placement_group")
    signature = inspect.signature(make_it)

    def made(native: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            asked = signature.bind(*args, **kwargs)
            asked.apply_defaults()
            others = dict(asked.arguments)
            _validate(others)
        except Exception:  # it is Ray's to say what is wrong with it
            return native(*args, **kwargs)
        return create(lambda: native(*args, **kwargs), others.pop("bundles"), others)

    _reroute(make_it, made)
    _reroute(remove_it, lambda native, args, kwargs: remove(lambda: native(*args, **kwargs), *args, *kwargs.values()))


def _validate(asked: dict[str, Any]) -> None:
    """Raises what Ray raises at once, where that is more than the arguments' number."""
    validate = sys.modules["ray.util.placement_group"].validate_placement_group
    names = inspect.signature(validate).parameters
    validate(**{name: value for name, value in asked.items() if name in names})


def _reroute(function: Any, handler: Callable[..., Any]) -> None:
    name = GROUP_ROUTE.format(function.__name__)
    if name not in function.__globals__:
        signature = inspect.signature(function)
        native = types.FunctionType(function.__code__, function.__globals__, function.__name__)
        native.__defaults__, native.__kwdefaults__ = function.__defaults__, function.__kwdefaults__

        def rerouted(*args, **kwargs):  # type: ignore[no-untyped-def]  # code only, for another function
            return globals()["ROUTE"](*args, **kwargs)

        code = rerouted.__code__
        constants = tuple(name if constant == "ROUTE" else constant for constant in code.co_consts)
        function.__defaults__ = function.__kwdefaults__ = None
        function.__signature__ = signature  # libraries bind their arguments by it
        function.__globals__[f"{name}_native"] = native
        function.__globals__[name] = None
        function.__code__ = code.replace(co_consts=constants)
    native = function.__globals__[f"{name}_native"]

    def route(*args: Any, **kwargs: Any) -> Any:
        return native(*args, **kwargs) if submitting.is_direct() else handler(native, args, kwargs)

    function.__globals__[name] = route


class WaitingGroup(PlacementGroup):  # type: ignore[misc]  # of a library without types
    """A group that Ray does not know yet: the same to whoever waits for it. Who asks for its id has it made at once, as
    whatever is placed in it, and whoever else gets it, does. From any thread.

    create: makes it, as it was asked for. values: of this process. on_needed: called before it is made at once.
    """

    def __init__(
        self,
        create: Callable[[], PlacementGroup],
        bundles: list[dict[str, float]],
        values: OwnValues,
        on_needed: Callable[[], None],
    ) -> None:
        self.bundle_cache = [{name: float(amount) for name, amount in bundle.items()} for bundle in bundles]
        self._create, self._values, self._on_needed = create, values, on_needed
        self._lock = threading.RLock()
        self._made = threading.Event()
        self._real: PlacementGroup | None = None
        self._error: Exception | None = None
        self._promised: list[Any] = []
        self._removed = self._is_ended = False

    @property
    def id(self) -> Any:
        """Ray's id of it."""
        return self.real().id

    @property
    def is_empty(self) -> bool:
        """It has bundles."""
        return False

    @property
    def is_made(self) -> bool:
        """Whether Ray knows it."""
        return self._real is not None

    def real(self) -> PlacementGroup:
        """Ray's own; made now where it is not there yet. Raises what Ray raises."""
        if self._real is None and not self._removed:
            self._on_needed()
        return self.make()

    def make(self, *, is_ended: bool = False) -> PlacementGroup:
        """Have Ray make it, once. is_ended: and remove it then, as an operator's word: who waits for it goes on."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._real is None:
                try:
                    real = self._create()
                except Exception as error:
                    self._error, promised, self._promised = error, self._promised, []
                    self._made.set()
                    for ref in promised:
                        self._fail(ref, error)
                    raise
                self._real = PlacementGroup(real.id, bundle_cache=self.bundle_cache)
                is_ended = is_ended or self._removed
            real, promised = self._real, self._promised
            if not self._removed:
                self._promised = []
            self._is_ended = self._is_ended or (is_ended and not self._removed)
        if is_ended:
            with submitting.directly():
                ray.util.remove_placement_group(real)
        self._made.set()
        for ref in promised if not self._removed else ():
            self._keep(ref, real)
        return real

    @property
    def is_removed(self) -> bool:
        """Whether its creator has removed it."""
        return self._removed

    def removed(self) -> bool:
        """It is removed; whether Ray has made it before, and has to be told."""
        with self._lock:
            self._removed = True
            return self._real is not None

    def ready(self) -> ray.ObjectRef:
        """As Ray's: a reference that has the group as its value once that has its resources, or what Ray has raised as
        its error."""
        with self._lock:
            if self._real is None:
                ref = self._values.new()
                if self._error is None:
                    self._promised.append(ref)
                else:
                    self._fail(ref, self._error)
                return ref
        return self._real.ready()

    def wait(self, timeout_seconds: float = 30) -> bool:
        """As Ray's: whether it has its resources within that time."""
        until_s = time.monotonic() + timeout_seconds
        if not self._made.wait(max(0.0, timeout_seconds)):
            return False
        return self._is_ended or bool(
            self.real().wait(math.ceil(max(0.0, until_s - time.monotonic())))
        )  # whole seconds only

    def _keep(self, ref: Any, real: PlacementGroup) -> None:
        if self._is_ended:
            self._values.keep(ref, real)
        else:
            waiting.on_ready(real.ready(), lambda: self._values.keep(ref, real))

    def _fail(self, ref: Any, error: Exception) -> None:
        lines = "".join(traceback.format_exception(error))
        with suppress(Exception):  # Ray has gone, and with it whoever waits
            self._values.keep(ref, ray.exceptions.RayTaskError("placement_group", lines, error))

    def __reduce__(self) -> Any:
        return PlacementGroup, (self.id, self.bundle_cache)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if not isinstance(other, PlacementGroup) or not self.is_made:
            return False
        return bool(self._real == (other._real if isinstance(other, WaitingGroup) else other))

    def __hash__(self) -> int:
        # Not that of Ray's, which is that of the id: libraries keep groups in sets before these are ready.
        return object.__hash__(self)


def is_gone(group: WaitingGroup) -> bool:
    """Whether Ray has removed it, whoever asked for that."""
    state = ray._private.state.state
    return bool(state.placement_group_table(group.make().id).get("state") == "REMOVED")
