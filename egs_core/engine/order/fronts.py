"""The first phase of every class, in order: what may be granted next, and what comes after what was granted.

Classes that need the same resources share a *resource key*: (shape, node they are bound to or ANY). A key for which
nothing fits is closed: its classes are passed over together, without a look at each, until something is freed there.
Gangs, tasks that need a process and phases that may reserve can do more than take free resources, so each such class
is its own key, which is never closed.

    order        every front of a class, sorted          following(key): the next in order
    open         resource key -> its fronts, sorted      keys that are not closed and have fronts
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from egs_core.engine.order.classes import ClassId
from egs_core.engine.order.policy import FullKey

ResourceKey = tuple[int, int]
Front = tuple[FullKey, int, ClassId]
AFTER_ALL = 1 << 62  # a phase number behind all others


class ClassFronts:
    """See the module. resource_key_of: of a front; None: the class itself."""

    def __init__(self, resource_key_of: Callable[[FullKey, int, ClassId], ResourceKey | None]) -> None:
        self._resource_key_of = resource_key_of
        self.of: dict[ClassId, Front] = {}
        self.order: list[Front] = []
        self._by_resources: dict[ResourceKey | ClassId, list[Front]] = {}
        self.open: dict[ResourceKey | ClassId, list[Front]] = {}
        self.closed: set[ResourceKey] = set()
        self._key_of: dict[ClassId, ResourceKey | ClassId] = {}  # under which the front of a class is now

    def put(self, class_id: ClassId, key: FullKey, phase: int) -> None:
        """This phase is now the first of its class."""
        old = self.of.get(class_id)
        if old is not None and old[0] is key:
            return
        front = self.of[class_id] = key, phase, class_id
        resources = self._resource_key_of(key, phase, class_id) or class_id
        if old is not None:
            if len(self.order) == 1 and resources == self._key_of[class_id]:  # the only class, as before
                self.order[0] = self._by_resources[resources][0] = front
                return
            self._leave(old)
        insort(self.order, front)
        self._file(front, resources)

    def _file(self, front: Front, resources: ResourceKey | ClassId) -> None:
        self._key_of[front[2]] = resources
        fronts = self._by_resources.get(resources)
        if fronts is not None:
            insort(fronts, front)
            return
        self._by_resources[resources] = [front]
        if resources not in self.closed:
            self.open[resources] = self._by_resources[resources]

    def refile(self, fronts: Iterable[Front]) -> None:
        """The resource keys of these may have changed, their places in the order have not."""
        for front in fronts:
            resources = self._resource_key_of(*front) or front[2]
            if resources != self._key_of[front[2]]:
                self._take_out(front)
                self._file(front, resources)

    def drop(self, class_id: ClassId) -> None:
        """The class is empty."""
        old = self.of.pop(class_id, None)
        if old is not None:
            self._leave(old)

    def _leave(self, front: Front) -> None:
        del self.order[bisect_left(self.order, front)]
        self._take_out(front)

    def _take_out(self, front: Front) -> None:
        resources = self._key_of.pop(front[2])
        fronts = self._by_resources[resources]
        if len(fronts) > 1:
            del fronts[bisect_left(fronts, front)]
        else:
            del self._by_resources[resources]
            self.open.pop(resources, None)

    def clear(self) -> None:
        for container in (self.of, self.order, self._by_resources, self.open, self._key_of):
            container.clear()

    def following(self, key: FullKey) -> FullKey | None:
        """The key of the next head after this key."""
        order = self.order
        if len(order) == 1:
            return order[0][0] if order[0][0] > key else None
        at = bisect_left(order, (key, AFTER_ALL))
        return order[at][0] if at < len(order) else None

    def first(self, unplaceable: set[ClassId], passed: set[ClassId]) -> Front | None:
        """The first front of an open key whose class is in neither of these sets."""
        best: Front | None = None
        for fronts in self.open.values():
            for front in fronts:
                if best is not None and front > best:
                    break
                if front[2] not in unplaceable and front[2] not in passed:
                    best = front
                    break
        return best

    # --- what fits ---

    def close(self, resources: ResourceKey) -> None:
        """Nothing fits there."""
        self.closed.add(resources)
        self.open.pop(resources, None)

    def reopen(self, resources: ResourceKey) -> None:
        """Something may fit there again."""
        if resources in self.closed:
            self.closed.remove(resources)
            if resources in self._by_resources:
                self.open[resources] = self._by_resources[resources]

    def reopen_all(self) -> None:
        if self.closed:
            self.closed.clear()
            self.open.update(self._by_resources)
