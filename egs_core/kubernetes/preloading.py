"""Preload pods made and removed: one look at what will start in five seconds, and what follows of it.

The pods in the cluster say what is under way. What is kept here besides only saves work: which images a node has
although it does not list them. How long they took to be pulled is kept with what else is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from egs_core.kubernetes import preloads
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.foreseen import Start, Wanted, starts
from egs_core.kubernetes.learning import Learning
from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.preloads import LOADED, Preload

LOOK_S = 5.0
REFUSALS = (403, 422)
REFUSED_S = 600.0
"""So long after one was refused none is made in its namespace."""


class Preloading:
    """See the module. pull_s: how long an image takes to be pulled of which it is not known; learning: of which it is;
    note: hears what an administrator should know, by what it is about, and "" when it is no longer so. Times are Unix
    times."""

    def __init__(self, cluster: Cluster, pull_s: float, learning: Learning, note: Callable[[str, str], None]) -> None:
        self._cluster, self._pull_s, self._learning, self._note = cluster, pull_s, learning, note
        self._next = 0.0
        self._refused: dict[str, float] = {}  # by namespace, until when none is made
        # by node and image, until when it is believed that the node has it, or that it cannot pull it
        self._loaded: dict[tuple[str, str], float] = {}
        self._failed: dict[tuple[str, str], float] = {}

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again; asked before what is costly to know."""
        if now < self._next:
            return False
        self._next = now + LOOK_S
        return True

    def look(
        self,
        wanted: Sequence[Wanted],
        there: Iterable[Preload],
        pods: Mapping[str, Pod],
        nodes: Sequence[Node],
        now: float,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """wanted: what will start, the first first; there: preload pods of the controller's; pods: of the cluster, by
        uid. leads: asked before each request."""
        found = list(there)
        for kept in (self._loaded, self._failed):
            for key in [key for key, until in kept.items() if until <= now]:
                del kept[key]
        had = self._had(pods.values(), nodes)
        took_s = self._learning.pulls_s({image for one in wanted for image in one.images})
        lead_s = {one.images: preloads.lead_of(one.images, took_s, self._pull_s) for one in wanted}
        until = preloads.horizon(lead_s.values(), now)
        on_the_way = _with(had, ((one.node, image) for one in found for image in one.images))
        foreseen = starts(wanted, pods.values(), nodes, now, until, on_the_way)
        steps = preloads.select_steps(foreseen, found, _with(had, self._failed), pods.values(), now, lead_s)
        for one in steps.over:
            self._learn(one, now)
        for one in (*steps.over, *steps.withdraw):
            if not leads():
                return
            self._remove(one)
        for start in steps.make:
            if not leads():
                return
            if self._refused.get(start.wanted.namespace, 0.0) <= now:
                self._make(start, now)

    def _had(self, pods: Iterable[Pod], nodes: Iterable[Node]) -> dict[str, set[str]]:
        """By node, the images that it lists, those of what has begun there, and those that were loaded."""
        found = {node.name: set(node.images) for node in nodes}
        for pod in pods:
            if pod.node in found and pod.images and (pod.is_over or pod.phase == "Running"):
                found[pod.node].update(pod.images)
        return _with(found, self._loaded)

    def _learn(self, one: Preload, now: float) -> None:
        is_loaded = one.state == LOADED
        kept, until_s = (self._loaded, preloads.AGAIN_S) if is_loaded else (self._failed, preloads.FAILED_S)
        kept.update(((one.node, image), now + until_s) for image in one.images)
        for image in one.images if is_loaded and one.took_s is not None else ():
            self._learning.pulled(image, (one.took_s or 0.0) / len(one.images), one.uid, now)
        if not is_loaded:
            self._note(f"preload {', '.join(one.images)}", f"was not pulled on node {one.node}")

    def _remove(self, one: Preload) -> None:
        try:
            self._cluster.delete(PODS, one.name, one.namespace, uid=one.uid)
        except ApiError as error:
            if error.status not in (404, 409):
                self._note("preload", f"{one.namespace}/{one.name}: {error}: it stays until it ends")

    def _make(self, start: Start, now: float) -> None:
        """Where one is refused the others would be too."""
        body, where = preloads.made(start), start.wanted.namespace
        try:
            self._cluster.create(PODS, body, where)
        except ApiError as error:
            if error.status in REFUSALS:
                self._refused[where] = now + REFUSED_S
                self._note(f"preload in {where}", f"{error}: none is made there for {REFUSED_S / 60:.0f} minutes")
            elif error.status not in (404, 409):  # its namespace is gone, or it is there
                self._note(f"preload in {where}", str(error))


def _with(had: Mapping[str, Iterable[str]], more: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By node, these images and more."""
    found = {node: set(images) for node, images in had.items()}
    for node, image in more:
        found.setdefault(node, set()).add(image)
    return found
