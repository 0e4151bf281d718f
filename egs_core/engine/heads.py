"""The first phase of every class, in order: what may be granted next, and what comes after what was granted.

Classes that need the same room share a *room*: (shape, node they are bound to or ANY). A room in which nothing fits is
closed: its classes are passed over together, without a look at each, until something is freed there. Gangs, tasks that
need a process and overdue phases may do more than take free room, so each such class has a room of its own, which is
never closed.

    order        every head of a class, sorted          following(key): the next in order
    open         room -> its heads, sorted              rooms that are not closed and have heads
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from egs_core.engine.classes import ClassId
from egs_core.engine.policy import Key

Room = tuple[int, int]
Head = tuple[Key, int, ClassId]
AFTER_ALL = 1 << 62  # a phase number behind all others


class Heads:
    """See the module. room_of: the room of a class whose first phase has this key; None: one of its own."""

    def __init__(self, room_of: Callable[[ClassId, Key], Room | None]) -> None:
        self._room_of = room_of
        self.of: dict[ClassId, Head] = {}
        self.order: list[Head] = []
        self._rooms: dict[Room | ClassId, list[Head]] = {}
        self.open: dict[Room | ClassId, list[Head]] = {}
        self.closed: set[Room] = set()

    def put(self, class_id: ClassId, key: Key, phase: int) -> None:
        """This phase is now the first of its class."""
        old = self.of.get(class_id)
        if old is not None and old[0] is key:
            return
        head = self.of[class_id] = key, phase, class_id
        room = self._room_of(class_id, key) or class_id
        if old is not None:
            if len(self.order) == 1 and room in self._rooms:  # the only class, in the room where it was
                self.order[0] = self._rooms[room][0] = head
                return
            self._leave(old)
        insort(self.order, head)
        heads = self._rooms.get(room)
        if heads is not None:
            insort(heads, head)
            return
        self._rooms[room] = [head]
        if room not in self.closed:
            self.open[room] = self._rooms[room]

    def drop(self, class_id: ClassId) -> None:
        """The class is empty."""
        old = self.of.pop(class_id, None)
        if old is not None:
            self._leave(old)

    def _leave(self, head: Head) -> None:
        del self.order[bisect_left(self.order, head)]
        room = self._room_of(head[2], head[0]) or head[2]
        heads = self._rooms[room]
        if len(heads) > 1:
            del heads[bisect_left(heads, head)]
        else:
            del self._rooms[room]
            self.open.pop(room, None)

    def clear(self) -> None:
        for container in (self.of, self.order, self._rooms, self.open):
            container.clear()

    def class_headed_by(self, phase: int, key: Key) -> ClassId | None:
        """The class of which the phase, with this very key, is the first; None when it is no first."""
        at = bisect_left(self.order, (key, phase))
        is_head = at < len(self.order) and self.order[at][0] is key
        return self.order[at][2] if is_head else None

    def following(self, key: Key) -> Key | None:
        """The key of the next head after this key."""
        at = bisect_left(self.order, (key, AFTER_ALL))
        return self.order[at][0] if at < len(self.order) else None

    def first(self, full: set[ClassId], passed: set[ClassId]) -> Head | None:
        """The first head in an open room whose class is in neither of these sets."""
        best: Head | None = None
        for heads in self.open.values():
            for head in heads:
                if best is not None and head > best:
                    break
                if head[2] not in full and head[2] not in passed:
                    best = head
                    break
        return best

    # --- rooms ---

    def close(self, room: Room) -> None:
        """Nothing fits there."""
        self.closed.add(room)
        self.open.pop(room, None)

    def reopen(self, room: Room) -> None:
        """Something may fit there again."""
        if room in self.closed:
            self.closed.remove(room)
            if room in self._rooms:
                self.open[room] = self._rooms[room]

    def reopen_all(self) -> None:
        if self.closed:
            self.closed.clear()
            self.open.update(self._rooms)
