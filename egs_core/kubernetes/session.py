"""A site that is told of a cluster's pods and nodes, and what it has granted of them.

The cluster's books are the authority (`TasksSeen`): a pod that runs has its place, whatever was granted. Nothing is
kept here that a list does not say again, so the site may be made anew at any time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.kubernetes import places
from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.room import room_of
from egs_core.kubernetes.seen import (
    OVER,
    READY,
    RUNNING,
    WAITING,
    Changes,
    Known,
    block_of,
    changes,
    has_moved,
    rest_s,
    rests_of,
    status_of,
    with_listed_nodes,
)
from egs_core.runlog import records as r
from egs_core.site import AnyTold, Asked, Dropped, Grant, Grown, Site, Stop
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.protocol import Holder

MOST_TASKS = 200_000
"""When the site has so many it is made anew: an engine keeps what has ended."""
MOST_KEYS = 256
"""With more, nodes are told apart by those alone that pods name now: a namespace may make up names without end."""
NOWHERE = ("nowhere",)
"""A kind that no node is of: what no node can take is granted none."""
HELD_S = 120.0
"""Nothing is granted while news are told, and for no longer than this."""
Connect = Callable[[Holder], Site]


def own_site(holder: Holder) -> Site:
    """A site in this process."""
    return EmbeddedSite(EngineConfig(preload=False), holder, logs_waits=False)


def preempting_site(holder: Holder) -> Site:
    """One that also says who is to stop for others."""
    return EmbeddedSite(EngineConfig(preload=False, preempt=True), holder, logs_waits=False)


class ClusterSession:
    """See the module. `tell` and the questions belong to one thread. may_restart: asked once of each pod, as it is when
    it is told. asked: hears what an operator of the site wants; queues: a run is in the queue of its namespace's name,
    where the site has one."""

    def __init__(
        self,
        connect: Connect = own_site,
        woken: Callable[[], None] = lambda: None,
        may_restart: Callable[[Pod], bool] = lambda pod: pod.may_restart,
        asked: Callable[[Asked], None] = lambda _: None,
        *,
        queues: bool = False,
    ) -> None:
        self._connect, self._woken, self._may_restart = connect, woken, may_restart
        self._asked, self._queues = asked, queues
        self._lock = threading.Lock()
        self._is_lost = False
        self._begin()

    def _begin(self) -> None:
        self._known: dict[str, Known] = {}
        self._uids: dict[int, str] = {}
        self._granted: dict[int, Grant] = {}  # by task, in the order in which they were granted
        self._stops: list[int] = []
        self._may_have_lost = False  # some of what was granted: told of what is placed elsewhere, or of other nodes
        self._nodes: dict[str, m.NodeAdded] = {}
        self._keys: frozenset[places.Key] = frozenset()
        self._kinds: dict[str, tuple[Node, str]] = {}  # by node's name, as it was last seen
        self._told: dict[str, tuple[str, ...]] = {}  # kinds of nodes by what pods say of these; none: any
        self._wheres: frozenset[str] = frozenset()  # what pods of ours say of them
        self._compared: object = None  # what was there when it was last looked whether that still holds
        self._sizes: dict[str, int] = {}  # tasks by run
        self._before: Counter[int] = Counter()  # pods that have not ended before a task that stands for a rest
        self._measured: dict[str, Pod] = {}  # by uid, as they were when it was last looked at how long they take
        self._rests: dict[int, int] = {}  # phases of those tasks
        self.site = self._connect(self)
        self.site.start()

    @property
    def is_alive(self) -> bool:
        return self.site.is_alive and not self._is_lost

    @property
    def is_shared(self) -> bool:
        """Its site is at a server."""
        return self.site.is_shared

    @property
    def has_told(self) -> bool:
        """Its site knows of something."""
        return bool(self._nodes or self._known)

    def close(self) -> None:
        self.site.close()

    def outgrown(self, pods: Mapping[str, Pod], nodes: Iterable[Node] = ()) -> frozenset[places.Key] | None:
        """Where a new site is needed for these pods and nodes, the keys that it is to tell kinds of nodes by."""
        ours = [pod for pod in pods.values() if pod.run]
        wheres = frozenset(pod.where for pod in ours)
        there = {node.name: node for node in nodes}
        keys = places.keys_of(wheres)
        if not keys <= self._keys:
            keys = places.telling(keys, there.values())
        if not keys <= self._keys or len(self._uids) > MOST_TASKS:
            return every if len(every := keys | self._keys) <= MOST_KEYS else keys
        if any(self._told.values()) and any(self._is_elsewhere(pod, there) for pod in ours if pod.node):
            return self._keys
        waiting = {pod.where for pod in ours if not (pod.node or pod.is_over)}
        return self._keys if self._has_other_kinds(wheres, waiting & self._told.keys(), there.values()) else None

    def _is_elsewhere(self, pod: Pod, nodes: Mapping[str, Node]) -> bool:
        """Whether a pod has just got a node of a kind that was not told of it, so that it would find no place there."""
        known, told = self._known.get(pod.uid), self._told.get(pod.where, ())
        is_news = known is not None and known.status not in (RUNNING, OVER) and not pod.is_over
        if not is_news or not told or pod.node not in nodes:
            return False
        return self._kind(nodes[pod.node]) not in {places.kind_of(name) for name in told}

    def _has_other_kinds(self, wheres: frozenset[str], waiting: set[str], nodes: Iterable[Node]) -> bool:
        """Whether kinds of nodes have come on which some of what waits may run, or may not, unlike what was told."""
        kinds = self._kinds_of(nodes)
        there = kinds.keys(), wheres, waiting
        if there == self._compared:
            return False
        self._compared = there
        usable = places.usable(kinds, wheres | self._told.keys())
        return any(places.means_another(self._told[where], where, kinds, usable) for where in waiting)

    def renew(self) -> None:
        """A site that knows nothing."""
        self.site.close()
        self._begin()

    # --- what the site is told ---

    def tell(self, pods: Mapping[str, Pod], nodes: Iterable[Node] = ()) -> Changes:
        """Tell what has changed since the last time; returns it. pods: by uid, all of them, also those of others."""
        found = list(nodes)
        if (keys := self.outgrown(pods, found)) is not None:
            self.renew_with(keys)
        pods = with_listed_nodes(pods, self._known, {node.name for node in found}) if found else pods
        self._wheres = frozenset(pod.where for pod in pods.values() if pod.run)
        self._tell_nodes(found, pods.values())
        news = changes(pods, self._known)
        if not news.are_none:  # else what is told first would be granted before what should go first is told
            self._report([m.GrantsHeld(HELD_S)])
        try:
            for run, new in news.new.items():
                self._grow(run, new, found)
            self._tell_statuses(pods, news)
            self._tell_lengths(pods)
        finally:
            self._report([] if news.are_none else [m.GrantsHeld(0.0)])
        return news

    def renew_with(self, keys: frozenset[places.Key]) -> None:
        """Nodes are told apart by these: each kind has another name then."""
        if self.has_told:
            self.renew()
        self._keys, self._kinds = keys, {}

    def _tell_nodes(self, nodes: list[Node], pods: Iterable[Pod]) -> None:
        ours: dict[str, list[Pod]] = {}
        others: dict[str, list[Pod]] = {}
        found = list(pods)
        for pod in found:
            if pod.node and not pod.is_over:
                (ours if pod.run else others).setdefault(pod.node, []).append(pod)
        closed = self._closed_kinds(nodes)
        own = {pod.uid for pod in found if pod.is_ours} if any(node.devices for node in nodes) else ()
        told = {}
        for node in nodes:
            kind, there = self._kind(node), (ours.get(node.name, ()), others.get(node.name, ()))
            told[node.name] = room_of(node, kind, *there, own, is_open=node.is_open and kind not in closed)
        self._kinds = {name: kept for name, kept in self._kinds.items() if name in told}
        events: list[m.Event] = [m.NodeLost(name) for name in self._nodes.keys() - told.keys()]
        events += [event for name, event in told.items() if self._nodes.get(name) != event]
        self._nodes = told
        self._may_have_lost = self._may_have_lost or bool(events)
        self._report(events)

    def _closed_kinds(self, nodes: list[Node]) -> set[str]:
        """Of nodes that have taints which none of ours tolerates: they take nothing."""
        kinds = self._kinds_of(node for node in nodes if node.taints)
        return {*kinds} - places.usable(kinds, self._wheres | self._told.keys())

    def _grow(self, run: str, new: tuple[Pod, ...], nodes: list[Node]) -> None:
        if run not in self._sizes:
            self._sizes[run] = 0
            namespace, name = run.split("/")[:2]
            queue = namespace if self._queues else ""
            self.site.submit(m.WorkloadSubmitted(run, name=name, tenant=namespace, queue=queue))
        flavors = {where: self._flavors(where, nodes) for where in {pod.where for pod in new if not pod.node}}
        self._told.update(flavors)
        there = {node.name: node for node in nodes}
        flavors |= {pod.uid: self._devices_of(pod, there[pod.node]) for pod in new if pod.node in there}
        new = tuple(msgspec.structs.replace(pod, may_restart=self._may_restart(pod)) for pod in new)
        graph, rests = block_of(new, flavors, self._sizes[run])
        at, grown = self._sizes[run], self._add(run, graph, len(new))
        for number, (pod, behind) in enumerate(zip(new, rests, strict=True)):
            task, is_gang = grown.task + number, bool(graph.options_of(number).gang)
            numbers = tuple(grown.task + one for one in behind)
            self._before.update(numbers)
            told = at + number, pod.predicted_s, rest_s(pod)
            self._known[pod.uid] = Known(task, grown.phase + number, run, READY, "", is_gang, numbers, *told)
            self._uids[task] = pod.uid

    def _add(self, run: str, graph: Graph, pods: int = 0) -> Grown:
        """Tell a block of a run. pods: so many of its tasks, the first ones, are no rests."""
        grown = self.site.call(lambda: self.site.grow(run, self._sizes[run], graph), 60.0)
        self._sizes[run] += graph.n_tasks
        self._rests.update((grown.task + n, grown.phase + n) for n in range(pods, graph.n_tasks))
        return grown

    def _flavors(self, where: str, nodes: list[Node]) -> tuple[str, ...]:
        """The kinds of nodes on which such a pod may run; none named: all that take any pod of ours."""
        kinds = self._kinds_of(nodes)
        usable = places.usable(kinds, self._wheres | self._told.keys())
        fitting = tuple(sorted(name for kind in usable for name in places.names_for(where, kind, kinds[kind])))
        return () if frozenset(fitting) == usable else fitting or NOWHERE

    def _devices_of(self, pod: Pod, node: Node) -> tuple[str, ...]:
        """Of what a pod has on its node; none named where that is any."""
        may = places.flavors_of(pod.where, node)
        return tuple(places.device_name(self._kind(node), flavor) for flavor in may)

    def _kinds_of(self, nodes: Iterable[Node]) -> dict[str, Node]:
        """The kinds of nodes that take pods, each with one of them."""
        return {self._kind(node): node for node in nodes if node.is_open}

    def _kind(self, node: Node) -> str:
        """Kept, as it costs more than all else that is looked at of a node that has not changed."""
        kept = self._kinds.get(node.name)
        if kept is None or kept[0] is not node:
            kept = self._kinds[node.name] = node, places.flavor_of(node, self._keys)
        return kept[1]

    def _tell_statuses(self, pods: Mapping[str, Pod], news: Changes) -> None:
        begun = [(uid, RUNNING) for new in news.new.values() for uid in (p.uid for p in new if status_of(p) == RUNNING)]
        sights: list[m.Sight] = []
        for uid, status in sorted([*news.statuses, *begun], key=lambda one: one[1] != OVER):
            known, node = self._known[uid], pods[uid].node if uid in pods else ""
            self._known[uid] = msgspec.structs.replace(known, status=status, node=node)
            if known.is_gang:
                self._tell_member(known, status)
            else:
                sights.append(m.Sight(known.task, status, node))
            self._may_have_lost = self._may_have_lost or (status == RUNNING and not self._is_as_granted(known, node))
            if status == OVER:
                sights += [m.Sight(rest, OVER) for rest in self._rests_done(known)]
            if status in (OVER, WAITING) and not (known.is_gang and status == WAITING):
                self._ungrant([known.task])
        if sights:
            closed = [self._nodes[name] for name in sorted({one.node for one in sights} & self._nodes.keys())]
            closed = [one for one in closed if one.gpus and len(one.closed) == one.gpus]
            # what runs on a closed node has its devices there; nothing is granted meanwhile
            self._report([msgspec.structs.replace(one, closed=()) for one in closed])
            self._report([m.TasksSeen(tuple(sights)), *closed])

    def _tell_lengths(self, pods: Mapping[str, Pod]) -> None:
        """Of pods that do not take as long as was told, or whose runs do not go on as long; of a run with a graph also
        when pods have come: then all that there are stand in one chain again."""
        lives = {uid: one for uid, one in self._known.items() if one.status != OVER and uid in pods}
        touched = {one.run for uid, one in lives.items() if self._measured.get(uid) is not pods[uid]}
        if not touched:
            return
        lives = {uid: one for uid, one in lives.items() if one.run in touched}
        self._measured.update((uid, pods[uid]) for uid in lives)
        estimates: list[tuple[int, float, float]] = []
        stale: dict[str, set[tuple[int, ...]]] = {}
        moved: set[str] = set()
        for uid, one in lives.items():
            pod, after_s = pods[uid], rest_s(pods[uid])
            if pod.predicted_s is not None and has_moved(one.predicted_s or 0.0, pod.predicted_s):
                estimates.append((one.phase, pod.predicted_s, pod.predicted_s))
                self._known[uid] = msgspec.structs.replace(one, predicted_s=pod.predicted_s)
            if has_moved(one.rest_s, after_s):
                moved.add(one.run)
            elif pod.is_traced and one.rests:
                stale.setdefault(one.run, set()).add(one.rests[-1:])
        self._report([m.Estimates(tuple(estimates))] if estimates else [])
        again: dict[str, dict[str, Pod]] = {run: {} for run in moved}
        again |= {run: {} for run, chains in stale.items() if len(chains) > 1}
        if again:
            for uid, one in lives.items():
                if one.run in again:
                    again[one.run][uid] = pods[uid]
        for run, found in again.items():
            self._chain_again(run, found)

    def _chain_again(self, run: str, pods: Mapping[str, Pod]) -> None:
        """What is behind the pods of a run, anew: what was behind them is over, and took no time."""
        known = {uid: self._known[uid] for uid in pods}
        old = sorted({rest for one in known.values() for rest in one.rests})
        graph, rests = rests_of(list(pods.values()), [one.place for one in known.values()], self._sizes[run])
        first = self._add(run, graph).task if graph.n_tasks else 0
        for (uid, one), behind in zip(known.items(), rests, strict=True):
            numbers = tuple(first + number for number in behind)
            self._before.subtract(one.rests)
            self._before.update(numbers)
            self._known[uid] = msgspec.structs.replace(one, rests=numbers, rest_s=rest_s(pods[uid]))
        if over := [rest for rest in old if not self._before[rest]]:
            nothing = m.Estimates(tuple((self._rests[rest], 0.0, 0.0) for rest in over))
            for rest in over:
                del self._before[rest], self._rests[rest]
            self._report([nothing, m.TasksSeen(tuple(m.Sight(rest, OVER) for rest in over))])

    def _rests_done(self, known: Known) -> list[int]:
        """Of what is behind a pod that has ended, that before which nothing is left."""
        self._before.subtract(known.rests)
        done = [rest for rest in known.rests if not self._before[rest]]
        for rest in done:
            del self._before[rest], self._rests[rest]
        return done

    def _tell_member(self, known: Known, status: str) -> None:
        """Of gangs the engine hears by events of its own. One that runs ungranted was opened by somebody else; one that
        was granted and is paused keeps its grant, and is not opened."""
        decision = self._grant_of(known.task)
        attempt = decision.attempt if decision is not None else 0
        if status == WAITING:
            self._report([m.PauseRequested("task", str(known.task), "cluster")])
        elif status == READY:
            self._report([m.ResumeRequested("task", str(known.task), "cluster")])
        elif decision is None:
            self._report([m.AbortRequested("task", str(known.task), "cluster", f"its pod is {status}")])
        elif status == RUNNING:
            self._report([m.PhaseStarted(known.phase, attempt)])
        elif status == OVER:
            if known.status != RUNNING:
                self._report([m.PhaseStarted(known.phase, attempt)])
            self._report([m.PhaseEnded(known.phase, attempt)])

    def prune(self, uids: Iterable[str]) -> None:
        """Only these pods are still listed. What has ended stays known till then, so that it is not told again."""
        for uid in [uid for uid in self._known.keys() - set(uids) if self._known[uid].status == OVER]:
            self._uids.pop(self._known.pop(uid).task, None)
            self._measured.pop(uid, None)

    def applied(self, uid: str) -> None:
        """Its gate is open."""
        decision = self._grant_of(self._known[uid].task) if uid in self._known else None
        if decision is not None:
            self._report([m.DecisionApplied(decision.id)])

    def _report(self, events: Iterable[m.Event]) -> None:
        found = list(events)
        if found:
            self.site.call(lambda: self.site.report(*found), 60.0)

    # --- what it says ---

    def granted(self) -> list[str]:
        """Uids of pods that may start, in the order in which the site has decided."""
        if self._may_have_lost:
            self._forget_withdrawn()
        with self._lock:
            return [self._uids[task] for task in self._granted if task in self._uids]

    def _is_as_granted(self, known: Known, node: str) -> bool:
        decision = self._grant_of(known.task)
        return decision is not None and decision.node == node

    def _forget_withdrawn(self) -> None:
        """For what was placed elsewhere than was granted the site takes grants back that were not followed: these wait
        for a grant again, which is all that it says."""
        with self._lock:
            before = dict(self._granted)
        waiting = [one.task for one in self.site.order().ready]
        self._may_have_lost = False
        with self._lock:
            for task in waiting:
                if task in before and self._granted.get(task) is before[task]:  # else it was granted anew meanwhile
                    del self._granted[task]

    def stops(self) -> list[str]:
        """Uids of pods that should stop for others, each once; what makes them makes them again."""
        with self._lock:
            found, self._stops = self._stops, []
            return [self._uids[task] for task in found if task in self._uids]

    def order(self) -> list[str]:
        """Uids of all pods that wait for a grant, the first first."""
        return [self._uids[one.task] for one in self.site.order().ready if one.task in self._uids]

    def why(self, uid: str) -> m.Reason | None:
        """Why a pod waits; None where the site does not know it."""
        known = self._known.get(uid)
        return None if known is None else self.site.why(known.task)

    def perform(self, decision: AnyTold, now: float) -> None:  # noqa: ARG002  # the protocol's name
        """See `Holder`."""
        if isinstance(decision, Grant):
            with self._lock:
                self._granted[decision.task] = decision  # it may come before `grow` has said whose task that is
        elif isinstance(decision, Stop) and decision.requeue:
            with self._lock:
                self._stops.append(decision.task)
        elif isinstance(decision, Dropped):
            self._ungrant(decision.tasks)
        self._woken()

    def _grant_of(self, task: int) -> Grant | None:
        with self._lock:
            return self._granted.get(task)

    def _ungrant(self, tasks: Iterable[int]) -> None:
        with self._lock:
            for task in tasks:
                self._granted.pop(task, None)

    def record(self, record: r.Record) -> None:
        """See `Holder`: nothing is logged yet."""

    def asked(self, request: Asked) -> None:
        """See `Holder`."""
        self._asked(request)

    def site_lost(self, error: BaseException) -> None:  # noqa: ARG002  # the protocol's name
        """See `Holder`."""
        self._is_lost = True
        self._woken()
