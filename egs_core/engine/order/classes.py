"""Classes: phases that fit, or do not fit, in the same places. The first of a class stands for all of it.

    class = (shape, node the phase is bound to or ANY, what else decides where it may start, queue)
    plain tasks of one phase              (shape, ANY, ())
    first of several phases               (shape, ANY, shapes of all phases)      one node must offer them all
    with a warm key                       (shape, ANY or its process's node, shapes of all phases + (PROCESS,))
    later phase of a started task         (shape, its node, ())
    phases of a gang, as one entry        (shape of the leader, ANY, (GANG, number of the gang))
    with flavors to choose from           any of the first three, with (CHOOSER - kind) behind the rest

The queue is its number, NO_QUEUE where none is configured.
"""

from __future__ import annotations

from typing import Final

from egs_core.engine.rules.flavors import chooses, relative_speeds
from egs_core.engine.specs import NO_QUEUE
from egs_core.engine.state.state import State

ClassId = tuple[int, int, tuple[int, ...], int]
# places in a class: its shape, the node that it is bound to, what else decides, and its queue
SHAPE: Final = 0
BOUND: Final = 1
OTHERS: Final = 2
QUEUE: Final = 3
GANG_NUMBER = 1  # place in the third part of a gang's class
ANY = -1  # bound to no node
PROCESS = -1  # in a class's third part: its tasks need a warm process
GANG = -2
CHOOSER = -3  # and below: one number for all tasks that want the same of the flavors


class SchedulingClasses:
    """Names the class of each phase. kinds: what a task may have and prefers of the flavors -> its number."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kinds: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
        self._plain: dict[int, ClassId] = {}  # shape -> class of tasks of one phase without wishes, made once
        self._own_rights: dict[ClassId, bool] = {}

    def of(self, phase: int) -> ClassId:
        """The class of a ready phase, as things are."""
        state = self._state
        task, shape, first_phase = state.task_of[phase], state.shape[phase], state.first_phase
        first, end = first_phase[task], first_phase[task + 1]
        is_alone = end - first == 1 and task not in state.options and task not in state.gang_of
        if is_alone and not (state.queues or state.flavors):
            plain = self._plain.get(shape)
            if plain is None:
                plain = self._plain[shape] = (shape, ANY, (), NO_QUEUE)
            return plain
        queue = state.queue_of(task) if state.queues else NO_QUEUE
        if state.gang_of and task in state.gang_of:
            return shape, ANY, (GANG, state.gang_of[task]), queue
        if phase != first:
            return shape, state.home[task], (), queue
        needs_process = task in state.options and state.options[task].warm_key
        if not needs_process:
            rest = () if end - first == 1 else tuple(state.shape[first:end])
            return shape, ANY, (*rest, *self._kind_of(task)) if state.flavors or state.options else rest, queue
        return shape, state.home.get(task, ANY), (*state.shape[first:end], PROCESS, *self._kind_of(task)), queue

    def has_own_rights(self, class_id: ClassId) -> bool:
        """Whether more than free resources counts for it: a gang, or tasks that need a process or choose a flavor."""
        if class_id[OTHERS] == ():
            return False
        known = self._own_rights.get(class_id)
        if known is None:
            known = is_gang(class_id) or needs_process(class_id) or is_chooser(class_id)
            self._own_rights[class_id] = known
        return known

    def _kind_of(self, task: int) -> tuple[int, ...]:
        """What the task wants of the flavors, as a number below CHOOSER; nothing for one to which they are alike."""
        state = self._state
        allowed = state.options_of(task).flavors
        speeds = relative_speeds(state, task) if state.flavors and chooses(state, task) else ()
        if not allowed and not speeds:
            return ()
        return (CHOOSER - self._kinds.setdefault((allowed, speeds), len(self._kinds)),)


def is_gang(class_id: ClassId) -> bool:
    """Whether this is a gang's own class."""
    return class_id[OTHERS][:1] == (GANG,)


def needs_process(class_id: ClassId) -> bool:
    """Whether tasks of the class need a warm process, or make one."""
    return PROCESS in class_id[OTHERS] and not is_gang(class_id)


def is_chooser(class_id: ClassId) -> bool:
    """Whether phases of the class prefer some flavors, or may run on some only."""
    return bool(class_id[OTHERS]) and class_id[OTHERS][-1] <= CHOOSER
