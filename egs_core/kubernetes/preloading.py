"""Preload pods made and removed: one look at what will start in five seconds, and what follows of it.

The pods in the cluster say what is under way. What is kept here besides only saves work: how long files took to be
read, and what a node has although it does not list it. How long images took to be pulled is kept with what else is
learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from egs_core.kubernetes import preloads, readers
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.foreseen import Start, Wanted, starts
from egs_core.kubernetes.learning import Learning
from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.preloads import LOADED, Preload
from egs_core.kubernetes.readings import NO_READS, Reading, ReadRules, readable
from egs_core.kubernetes.volumes import Volumes

LOOK_S = 5.0
REFUSALS = (400, 403, 422)
REFUSED_S = 600.0
"""So long after one was refused none of its kind is made in its namespace."""
MOST_READ = 1000
"""Of so many different things that were read it is known how long that took, of those that were read last."""


class Preloading:
    """See the module. pull_s: how long an image takes to be pulled of which it is not known; learning: of which it is;
    note: hears what an administrator should know, by what it is about, and "" when it is no longer so; reads: what may
    be read ahead. Times are Unix times."""

    def __init__(
        self,
        cluster: Cluster,
        pull_s: float,
        learning: Learning,
        note: Callable[[str, str], None],
        reads: ReadRules = NO_READS,
    ) -> None:
        self._cluster, self._pull_s, self._learning, self._note = cluster, pull_s, learning, note
        self._reads = reads
        self._volumes = Volumes(cluster, reads.volumes, note)
        self._next = 0.0
        self._refused: dict[tuple[str, bool], float] = {}  # by namespace, images or files: until when none is made
        self._read_s: dict[str, float] = {}  # by what was read, how long that took, the last behind
        # by node and what is loaded, until when it is believed that the node has it, or that it cannot
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
        found, all_pods, wanted = list(there), *self._with_readable(pods.values(), wanted, now)
        for kept in (self._loaded, self._failed):
            for key in [key for key, until in kept.items() if until <= now]:
                del kept[key]
        had = self._had(all_pods, nodes, now)
        took_s = self._learning.pulls_s({image for one in wanted for image in one.images})
        lead_s = {one.loads: self._lead_of(one, took_s) for one in wanted}
        until = preloads.horizon(lead_s.values(), now)
        on_the_way = _with(had, ((one.node, load) for one in found for load in one.loads))
        foreseen = starts(wanted, all_pods, nodes, now, until, on_the_way)
        refused = self._refused = {kind: until for kind, until in self._refused.items() if until > now}
        steps = preloads.select_steps(foreseen, found, _with(had, self._failed), all_pods, now, lead_s, refused)
        for one in steps.over:
            self._learn(one, now)
        for one in (*steps.over, *steps.withdraw):
            if not leads():
                return
            self._remove(one)
        memory = {node.name: node.memory_bytes for node in nodes}
        for start in steps.make:
            if not leads():
                return
            if preloads.kind_of(start.wanted) not in self._refused:
                self._make(start, memory.get(start.node, 0), now)

    def _with_readable(
        self, pods: Iterable[Pod], wanted: Iterable[Wanted], now: float
    ) -> tuple[list[Pod], list[Wanted]]:
        """The same, with what may be read in the place of what is to be read."""
        known: dict[Reading | None, Reading | None] = {None: None}

        def of(one: Reading | None) -> Reading | None:
            if one is not None and one not in known:
                known[one] = self._readable(one, now)
            return known[one]

        replace = msgspec.structs.replace
        return (
            [pod if pod.reading is None else replace(pod, reading=of(pod.reading)) for pod in pods],
            [one if one.reading is None else replace(one, reading=of(one.reading)) for one in wanted],
        )

    def _readable(self, one: Reading, now: float) -> Reading | None:
        if not self._reads.most_bytes:
            return None
        return readable(one, lambda claim: self._volumes.may_be_read(one.namespace, claim, now))

    def _lead_of(self, one: Wanted, took_s: Mapping[str, float]) -> float:
        read_s = 0.0 if one.reading is None else self._read_s.get(one.reading.key, readers.READ_S)
        return preloads.lead_of(one.images, took_s, self._pull_s, read_s)

    def _had(self, pods: Iterable[Pod], nodes: Iterable[Node], now: float) -> dict[str, set[str]]:
        """By node, the images that it lists, those of what has begun there, what that has read lately, and what was
        loaded."""
        found = {node.name: set(node.images) for node in nodes}
        for pod in pods:
            if pod.node in found and pod.images and (pod.is_over or pod.phase == "Running"):
                is_fresh = max(pod.started, pod.ended) > now - preloads.READ_AGAIN_S
                found[pod.node].update(preloads.loads_of(pod) if is_fresh else pod.images)
        return _with(found, self._loaded)

    def _learn(self, one: Preload, now: float) -> None:
        is_loaded = one.state == LOADED
        again_s = preloads.READ_AGAIN_S if one.is_reader else preloads.AGAIN_S
        kept, until_s = (self._loaded, again_s) if is_loaded else (self._failed, preloads.FAILED_S)
        kept.update(((one.node, load), now + until_s) for load in one.loads)
        for load in one.loads if is_loaded and one.took_s is not None else ():
            took_s = (one.took_s or 0.0) / len(one.loads)
            if one.is_reader:
                self._keep_read(load, took_s)
            else:
                self._learning.pulled(load, took_s, one.uid, now)
        if not is_loaded:
            act, why = ("read", f": {one.said}" if one.said else "") if one.is_reader else ("pulled", "")
            self._note(f"preload {', '.join(one.loads)}", f"was not {act} on node {one.node}{why}")

    def _keep_read(self, load: str, took_s: float) -> None:
        self._read_s.pop(load, None)
        self._read_s[load] = took_s
        if len(self._read_s) > MOST_READ:
            del self._read_s[next(iter(self._read_s))]

    def _remove(self, one: Preload) -> None:
        try:
            self._cluster.delete(PODS, one.name, one.namespace, uid=one.uid)
        except ApiError as error:
            if error.status not in (404, 409):
                self._note("preload", f"{one.namespace}/{one.name}: {error}: it stays until it ends")

    def _make(self, start: Start, node_bytes: int, now: float) -> None:
        """Where one is refused the others would be too. node_bytes: of the node's memory."""
        most_bytes = min(self._reads.most_bytes, node_bytes // readers.SHARE)
        body, where = preloads.made(start, most_bytes), start.wanted.namespace
        try:
            self._cluster.create(PODS, body, where)
        except ApiError as error:
            if error.status in REFUSALS:
                self._refused[preloads.kind_of(start.wanted)] = now + REFUSED_S
                self._note(f"preload in {where}", f"{error}: none is made there for {REFUSED_S / 60:.0f} minutes")
            elif error.status not in (404, 409):  # its namespace is gone, or it is there
                self._note(f"preload in {where}", str(error))


def _with(had: Mapping[str, Iterable[str]], more: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By node, these images and more."""
    found = {node: set(images) for node, images in had.items()}
    for node, image in more:
        found.setdefault(node, set()).add(image)
    return found
