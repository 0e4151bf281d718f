"""What the code of a task submits goes by its driver's order: what stands around that code in a worker, and before its
`.remote()`. Every task of a script in mode `on` imports this, so it imports little.

    twin of the task ─► inside(line) ─► from now on this process's .remote() ─► Ordering ─► the driver (`nested`)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from inspect import isgeneratorfunction
from typing import Any

import ray

from egs_ray import groups, submitting
from egs_ray.compat import available
from egs_ray.functions import CREATION, named_like, running_task
from egs_ray.groups import PLACED
from egs_ray.worker.devices import devices_told
from egs_ray.worker.spec import Address
from egs_ray.worker.working import where_told, work_told, work_told_to_the_end


def with_line(function: Callable[..., Any], line: Address) -> Callable[..., Any]:
    """The function with a ticket before its arguments, as `gate.ticketing.with_ticket` makes it, and what it submits
    goes by the line. Where it has no turn, the ticket's place says for whom it works. It needs nothing of this package
    where it runs."""

    def around(_ticket: str | None) -> Any:
        try:
            from egs_ray.worker.reach import inside
        except Exception:  # an environment without this package, or with a broken one
            return nullcontext()
        return inside(line, _ticket)

    def ticketed(_ticket: str | None, /, *args: Any, **kwargs: Any) -> Any:
        with around(_ticket):
            return function(*args, **kwargs)

    def streamed(_ticket: str | None, /, *args: Any, **kwargs: Any) -> Any:
        with around(_ticket):
            yield from function(*args, **kwargs)

    return named_like(streamed if isgeneratorfunction(function) else ticketed, function)


@contextmanager
def inside(line: Address, works_for: str | None) -> Iterator[None]:
    """The code of a task runs in here. works_for: the task with a turn that has set it off, by its id, or ""; None: it
    has a turn itself, which it lends while it waits in Ray. What is placed in a group has that group's turn, and says
    in whose place it is (`groups.place_of`): what it tells is told of that."""
    reached, task = reach(line), running_task()
    is_placed = works_for is not None and works_for.startswith(PLACED)
    known = task if works_for is None else works_for.removeprefix(PLACED)
    before = reached.works_for, reached.place
    reached.works_for, reached.place = known, known if is_placed else ""
    is_actor = task.startswith(CREATION)

    def say(word: dict[str, Any]) -> None:
        reached.say({**word, "id": known if is_placed else task})

    def say_of_task(word: dict[str, Any]) -> None:
        reached.say({**word, "id": task})  # what it holds is its own, in the run log

    if is_actor:
        work_told_to_the_end(say_of_task)
    try:
        with nullcontext() if is_actor else work_told(say_of_task, say):
            if works_for is not None and not is_placed:
                yield
                return
            from egs_ray.worker.waits import waits_told

            told, has = waits_told(say), devices_told(say)
            if is_actor:  # in its `__init__`: its methods wait on this thread, too, and tell
                reached.told = told, where_told(say), has
                for one in reached.told:
                    one.__enter__()
                yield
                return
            with told, has:
                yield
    finally:
        if not (is_actor and is_placed):  # whose methods run there, too
            reached.works_for, reached.place = before


class Reached:
    """What stands between `.remote()` and Ray in a worker. Its parts are made when something first needs them: most
    tasks submit nothing, and those that do mostly nothing with a turn."""

    def __init__(self, line: Address) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._ordering: Any = None
        self._groups: Any = None
        self._gate: Any = None
        self._is_lost = False
        self.told: Any = None  # an actor's waits, and what it tells of how far it is: to its end
        self.works_for = ""  # see `inside`; of code that runs outside of it, an actor's: the actor, or its place
        self.place = ""  # of what runs in a placement group

    def submit(self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Make a submission. What a placement group captures has its place; actors have no turn."""
        is_captured = groups.is_captured(options)
        if self._is_lost or (is_captured and not self.place):
            return original(target, args, kwargs, **options)
        try:
            ordering = self._made_ordering()
        except Exception as error:  # as where another version of EGS is installed here
            self.lose(error)
            return original(target, args, kwargs, **options)
        if is_captured or isinstance(target, ray.actor.ActorClass):
            place = self.place if is_captured else ""
            return ordering.submit_lined(original, target, args or (), kwargs or {}, options, place)
        return ordering.submit(original, target, args, kwargs, options)

    def create_group(self, native: Callable[[], Any], bundles: list[dict[str, float]], others: dict[str, Any]) -> Any:
        """Make a placement group; what has GPUs waits for its turn."""
        has_gpus = any(bundle.get("GPU") for bundle in bundles)
        if self._is_lost or not has_gpus or ray.util.get_current_placement_group() is not None:
            return native()
        return self._made_groups().create(native, bundles, others)

    def remove_group(self, native: Callable[[], None], group: Any) -> None:
        """Remove one."""
        if self._groups is None:
            native()
        else:
            self._groups.remove(native, group)

    def parent(self) -> str:
        """For whom the code works that submits now."""
        return self.works_for or running_task()

    def say(self, message: dict[str, Any]) -> None:
        """Tell the driver, if it can be reached."""
        if not self._is_lost:
            with suppress(Exception):  # it cannot be reached
                self._made_gate().say(message)

    def lose(self, _error: BaseException) -> None:
        """From any thread: everything passes from here on."""
        self._is_lost = True
        if self._ordering is not None:
            self._ordering.switch_off()

    def _made_groups(self) -> Any:
        with self._lock:
            if self._groups is None:
                from egs_ray.gate.grouping import Groups
                from egs_ray.worker.nested import LineGate

                self._groups = Groups(self._made_gate_or_none, self.lose, LineGate.group_tickets)
            return self._groups

    def _made_gate_or_none(self) -> Any:
        with suppress(Exception):  # it cannot be reached, and `lose` has been told
            return None if self._is_lost else self._made_gate()

    def _made_ordering(self) -> Any:
        with self._lock:
            if self._ordering is None:
                from egs_ray.worker.nested import make_ordering

                self._ordering = make_ordering(
                    self._made_gate, self.lose, partial(with_line, line=self._line), self.parent
                )
            return self._ordering

    def _made_gate(self) -> Any:
        with self._lock:
            if self._gate is None:
                try:
                    from egs_ray.worker.nested import LineGate

                    self._gate = LineGate(self._line, self.lose, self.parent)
                except Exception as error:
                    self.lose(error)
                    raise
            return self._gate


_reached: Reached | None = None
_guard = threading.Lock()


def reach(line: Address) -> Reached:
    """What this process submits goes by this line from now on; a process has one driver, and one line."""
    global _reached
    if _reached is None:
        with _guard:
            if _reached is None:  # its driver, of the same Ray, has made sure that this can be done
                _reached = Reached(line)
                submitting.wrap_submissions(_reached.submit)
                if available("groups"):
                    groups.wrap_groups(_reached.create_group, _reached.remove_group)
    return _reached
