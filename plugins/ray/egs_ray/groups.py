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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from egs_ray import submitting, waiting
from egs_ray.compat import GROUP_ROUTE, group_function
from egs_ray.own_values import OwnValues

Handler = Callable[[Callable[[], PlacementGroup], list[dict[str, float]], dict[str, Any]], PlacementGroup]
"""(makes the group as written, its bundles, the other arguments) -> the group."""

PLACED = "in:"
"""Begins what a task or actor in a group is told of whom it works for: the rest is its bundle's id in the order."""
REMOVED = "The placement group has been removed."
NEEDED = {"scheduling_strategy": "DEFAULT", "num_cpus": 0, "num_gpus": 0}
NOTHING = NEEDED | {
    "placement_group": None,
    "placement_group_bundle_index": -1,
    "placement_group_capture_child_tasks": None,
    "memory": None,
    "resources": None,
    "accelerator_type": None,
    "max_retries": 0,
    "retry_exceptions": False,
}
"""What a submission is made with that is only to fail; of what is not needed, only what was stated."""


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
    members: a bundle's index -> the id by which it is known in the order; of those with GPUs. fails_late: whoever asked
    for it takes an error of `wait` for a time-out, and would ask for another one: `wait` says yes of one that has
    failed, and who places something in it gets the error.
    """

    def __init__(
        self,
        create: Callable[[], PlacementGroup],
        bundles: list[dict[str, float]],
        values: OwnValues,
        on_needed: Callable[[], None],
        members: Mapping[int, str] = types.MappingProxyType({}),
        fails_late: bool = False,
    ) -> None:
        self.members, self.fails_late = members, fails_late
        self.bundle_cache = [{name: float(amount) for name, amount in bundle.items()} for bundle in bundles]
        self._create, self._values, self._on_needed = create, values, on_needed
        self._lock = threading.RLock()
        self._is_known = threading.Event()  # it has its resources, or never will
        self._real: PlacementGroup | None = None
        self._error: Exception | None = None
        self._told: Any = None  # what references of `ready` have as value, or error, then
        self._promised: list[Any] = []  # those until then
        self._removed = False

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

    @property
    def has_failed(self) -> bool:
        """Whether Ray has refused it, or it was ended: nothing that is placed in it would ever run."""
        return self._error is not None

    def real(self) -> PlacementGroup:
        """Ray's own; made now where it is not there yet. Raises what Ray raises, or that it was ended."""
        if self._real is None and not self._removed and self._error is None:
            self._on_needed()
        return self.make()

    def make(self) -> PlacementGroup:
        """Have Ray make it, once. Raises as `real` does."""
        with self._lock:
            if self._real is not None:
                return self._real
            if self._error is not None:
                raise self._error
            try:
                made = self._create()
            except Exception as error:
                self._fail_all(error, _of_group("".join(traceback.format_exception(error)), error))
                raise
            real = self._real = PlacementGroup(made.id, bundle_cache=self.bundle_cache)
            is_removed = self._removed
        if is_removed:
            with submitting.directly():
                ray.util.remove_placement_group(real)
        else:
            waiting.on_ready(real.ready(), self._is_there)
        return real

    def end(self, why: str) -> None:
        """An operator's word, or a limit's: Ray removes it, or never hears of it. Whoever waits for it, or asks for it
        later, gets an error with these words."""
        with self._lock:
            if self._error is not None:
                return
            said = _of_removed(f"EGS has removed the placement group: {why}")
            self._fail_all(said.as_instanceof_cause(), said)
            real = self._real
        if real is not None:
            with submitting.directly():
                ray.util.remove_placement_group(real)

    @property
    def is_removed(self) -> bool:
        """Whether its creator has removed it."""
        return self._removed

    def removed(self) -> bool:
        """It is removed; whether Ray has made it before, and has to be told."""
        with self._lock:
            self._removed = True
            if self._real is not None:
                return True
            self._tell_all(_of_removed(REMOVED))
            return False

    def ready(self) -> ray.ObjectRef:
        """As Ray's: a reference that has the group as its value once that has its resources, or what Ray has raised as
        its error, or that it was removed."""
        with self._lock:
            if self._real is not None and self._error is None and self._is_known.is_set():
                return self._real.ready()
            ref = self._values.new()
            if self._told is None:
                self._promised.append(ref)
            else:
                self._values.keep(ref, self._told)
        return ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """As Ray's: whether it has its resources within that time. Raises as `real` does."""
        until_s = time.monotonic() + timeout_seconds
        if not self._is_known.wait(max(0.0, timeout_seconds)):
            return False
        if self._error is not None and self.fails_late:
            return True
        if self._error is not None:
            raise self._error
        return bool(self.real().wait(math.ceil(max(0.0, until_s - time.monotonic()))))  # whole seconds only

    def _is_there(self) -> None:
        """On a thread of Ray's: that has given it its resources, or has removed it."""
        with self._lock:
            if self._told is None:
                self._tell_all(_of_removed(REMOVED) if self._removed else self._real)

    def _fail_all(self, error: Exception, said: ray.exceptions.RayTaskError) -> None:
        self._error = error
        self._tell_all(said)

    def _tell_all(self, value: Any) -> None:
        """All who wait for it. value: the group, or an error."""
        self._told, promised, self._promised = value, self._promised, []
        self._is_known.set()
        with suppress(Exception):  # Ray has gone, and with it whoever waits
            for ref in promised:
                self._values.keep(ref, value)

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


def _of_removed(words: str) -> ray.exceptions.RayTaskError:
    return _of_group(words, ray.exceptions.TaskPlacementGroupRemoved())


def _of_group(words: str, cause: Exception) -> ray.exceptions.RayTaskError:
    """What a reference has as its error: who gets it catches the cause, and reads the words."""
    return ray.exceptions.RayTaskError("placement_group", words, cause)


def failure_of(options: Mapping[str, Any]) -> Any:
    """Of a submission with these options: a reference with the error of the group in which it is placed, where that has
    failed; else None. Raises that error where the group says so."""
    group, _ = _placed(options)
    if group is None or not group.has_failed:
        return None
    if group.fails_late:
        group.make()
    return group.ready()


def place_of(options: Mapping[str, Any]) -> str:
    """Of the same: the id by which the bundle is known in the order in which it is placed, or the first one, where that
    is not said, or has no GPUs; "" where it is in no group that has a turn."""
    group, bundle = _placed(options)
    if group is None:
        return ""
    return group.members.get(bundle) or next(iter(group.members.values()), "")


def _placed(options: Mapping[str, Any]) -> tuple[WaitingGroup | None, int]:
    """A group that has, or waits for, a turn, and the number of the bundle; -1: any."""
    strategy = options.get("scheduling_strategy")
    group, bundle = options.get("placement_group"), options.get("placement_group_bundle_index", -1)
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        group, bundle = strategy.placement_group, strategy.placement_group_bundle_index
    return (group, bundle) if isinstance(group, WaitingGroup) else (None, -1)


def is_captured(options: Mapping[str, Any]) -> bool:
    """Whether what this worker submits with these options goes into the group in which it runs itself."""
    group = options.get("placement_group", "default")
    is_free = options.get("scheduling_strategy") is None and isinstance(group, str)  # None: in no group
    if not is_free or ray.util.get_current_placement_group() is None:
        return False
    if (told := options.get("placement_group_capture_child_tasks")) is not None:
        return bool(told)
    return bool(getattr(ray._private.worker.global_worker, "should_capture_child_tasks_in_placement_group", True))


def anywhere(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a submission that is only to fail: it needs nothing, and waits for nothing."""
    return {**options, **{name: value for name, value in NOTHING.items() if name in options or name in NEEDED}}


def is_gone(group: WaitingGroup) -> bool:
    """Whether Ray has removed it, whoever asked for that."""
    state = ray._private.state.state
    return bool(state.placement_group_table(group.make().id).get("state") == "REMOVED")
