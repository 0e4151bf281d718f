"""Classes: phases that fit, or do not fit, in the same places. The first of a class stands for all of it.

    class = (shape, node the phase is bound to or ANY, what else decides where it may start, queue)
    plain tasks of one phase              (shape, ANY, ())
    first of several phases               (shape, ANY, shapes of all phases)      one node must offer them all
    with a warm key                       (shape, ANY or its process's node, shapes of all phases + (PROCESS,))
    later phase of a started task         (shape, its node, ())
    phases of a gang, as one entry        (shape of the leader, ANY, (GANG, number of the gang))
    with flavors to choose from           any of the first three, with (CHOOSER - kind) behind the rest

The queue is its number, NO_QUEUE where none is configured. A class is made once, so it is compared, and looked up, as
itself.
"""

from __future__ import annotations

from egs_core.engine.rules.flavors import chooses, relative_speeds
from egs_core.engine.specs import NO_QUEUE
from egs_core.engine.state.state import State

Others = tuple[int, ...]  # what else decides where a phase of a class may start
ResourceKey = tuple[int, int] | tuple[int, int, int]
"""Shape, node or ANY, and the memory of a process, where one is kept."""
ANY = -1  # bound to no node
PROCESS = -1  # in `others`: its tasks need a warm process
GANG = -2
CHOOSER = -3  # and below: one number for all tasks that want the same of the flavors


class PhaseClass:
    """See the module. node: to which it is bound, or ANY. resources: what its phases need to start, if free resources
    are all that counts.

    is_gang: this is a gang's own class, and `gang` its number. needs_process: its tasks need a warm process, or make
    one. is_chooser: its phases prefer some flavors, or may run on some only. has_own_rights: any of these, so that more
    than free resources counts for it."""

    __slots__ = (
        "gang",
        "has_own_rights",
        "is_chooser",
        "is_gang",
        "needs_process",
        "node",
        "others",
        "queue",
        "resources",
        "shape",
    )

    def __init__(
        self, shape: int, node: int, others: Others = (), queue: int = NO_QUEUE, memory: int | None = None
    ) -> None:
        """memory: of the process that its tasks keep between phases, in bytes."""
        self.shape = shape
        self.node = node
        self.others = others
        self.queue = queue
        self.resources: ResourceKey = (shape, node) if memory is None else (shape, node, memory)
        self.is_gang = others[:1] == (GANG,)
        self.gang = others[1] if self.is_gang else -1
        self.needs_process = PROCESS in others and not self.is_gang
        self.is_chooser = bool(others) and others[-1] <= CHOOSER
        self.has_own_rights = self.is_gang or self.needs_process or self.is_chooser


class SchedulingClasses:
    """Names the class of each phase. kinds: what a task may have and prefers of the flavors -> its number."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kinds: dict[tuple[tuple[str, ...], tuple[int, ...], tuple[str, tuple[int, ...]] | None], int] = {}
        self._known: dict[tuple[int, int, Others, int], PhaseClass] = {}
        self._plain: dict[int, PhaseClass] = {}  # shape -> class of tasks of one phase without wishes

    def of(self, phase: int) -> PhaseClass:
        """The class of a ready phase, as things are."""
        state = self._state
        task, shape, first_phase = state.task_of[phase], state.shape[phase], state.first_phase
        first, end = first_phase[task], first_phase[task + 1]
        if end - first == 1 and not (state.queues or state.flavors or task in state.options or task in state.gang_of):
            return self._plain.get(shape) or self._plain.setdefault(shape, self._of(task, shape, ANY, (), NO_QUEUE))
        queue = state.queue_of(task) if state.queues else NO_QUEUE
        if state.gang_of and task in state.gang_of:
            return self._of(task, shape, ANY, (GANG, state.gang_of[task]), queue)
        if phase != first:
            return self._of(task, shape, state.home[task], (), queue)
        needs_process = task in state.options and state.options[task].warm_key
        if not needs_process:
            rest = () if end - first == 1 else tuple(state.shape[first:end])
            others = (*rest, *self._kind_of(task)) if state.flavors or state.options else rest
            return self._of(task, shape, ANY, others, queue)
        others = (*state.shape[first:end], PROCESS, *self._kind_of(task))
        return self._of(task, shape, state.home.get(task, ANY), others, queue)

    def _of(self, task: int, shape: int, node: int, others: Others, queue: int) -> PhaseClass:
        """The class of these, of which a phase of the task is one."""
        found = self._known.get((shape, node, others, queue))
        if found is None:
            state = self._state
            memory = state.memory_of(task) if others and state.needs_slot(task) else None
            found = self._known[shape, node, others, queue] = PhaseClass(shape, node, others, queue, memory)
        return found

    def _kind_of(self, task: int) -> tuple[int, ...]:
        """What the task wants of the flavors, and of devices, as a number below CHOOSER; nothing for one to which all
        are alike."""
        state = self._state
        options = state.options_of(task)
        allowed, only_on = options.flavors, options.only_on
        speeds = relative_speeds(state, task) if state.flavors and chooses(state, task) else ()
        if not allowed and not speeds and only_on is None:
            return ()
        return (CHOOSER - self._kinds.setdefault((allowed, speeds, only_on), len(self._kinds)),)
