"""A site that is told of a cluster's pods and nodes, and what it has granted of them.

The cluster's books are the authority (`TasksSeen`): a pod that runs has its place, whatever was granted. Nothing is
kept here that a list does not say again, so the site may be made anew at any time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.kubernetes import places
from egs_core.kubernetes.compared import Compared, changed, move
from egs_core.kubernetes.kinds import Kinds
from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.room import is_renumbered, room_of
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
)
from egs_core.runlog import records as r
from egs_core.site import AnyTold, Asked, Dropped, Grant, Grown, Site, Stop
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.protocol import Holder

MOST_TASKS = 200_000
"""When the site was told of so many it is made anew: an engine keeps what has ended."""
MOST_KEYS = 256
"""With more, nodes are told apart by those alone that pods name now: a namespace may make up names without end."""
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
    it is told. asked: hears what an operator of the site wants; queues: the queue of a run, by a pod of it; one
    that the site has not, or "", is the usual one."""

    def __init__(
        self,
        connect: Connect = own_site,
        woken: Callable[[], None] = lambda: None,
        may_restart: Callable[[Pod], bool] = lambda pod: pod.may_restart,
        asked: Callable[[Asked], None] = lambda _: None,
        queues: Callable[[Pod], str] = lambda _: "",
    ) -> None:
        self._connect, self._woken, self._may_restart = connect, woken, may_restart
        self._asked, self._queue_of = asked, queues
        self._lock = threading.Lock()
        self._is_lost = False
        self._begin()

    def _begin(self) -> None:
        self._known: dict[str, Known] = {}
        self._live: dict[str, dict[str, None]] = {}  # by run, what is known and not over
        self._over: set[str] = set()
        self._uids: dict[int, str] = {}
        self._granted: dict[int, Grant] = {}  # by task, in the order in which they were granted
        self._unopened: dict[int, None] = {}  # those of them whose gates were not seen open
        self._stops: list[int] = []
        self._may_have_lost = False  # some of what was granted: told of what is placed elsewhere, or of other nodes
        self._compared = Compared()
        self._kinds = Kinds()
        self._there: dict[str, Node] = {}
        self._closed: frozenset[str] = frozenset()  # kinds of these
        self._nodes: dict[str, m.NodeAdded] = {}
        self._sizes: dict[str, int] = {}  # tasks by run
        self._tasks = 0  # all of these: two a pod at most, and rests that were told anew
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
        heard, kinds, found = self._compared, self._kinds, list(nodes)
        heard.hear(pods)
        keys = kinds.wanted(heard.wheres, found)
        if not keys <= kinds.keys or self._tasks > max(MOST_TASKS, 4 * len(self._uids)):
            return every if len(every := keys | kinds.keys) <= MOST_KEYS else kinds.telling(heard.wheres, found)
        there = {node.name: node for node in found}
        pairs = ((name, self._there.get(name), there.get(name)) for name in changed(self._there, there))
        if any(is_renumbered(was, now, heard.on.get(name, {}).values()) for name, was, now in pairs):
            return kinds.keys
        if any(kinds.told.values()) and any(self._is_elsewhere(pod, there) for pod in heard.news()):
            return kinds.keys
        return kinds.keys if kinds.mean_another(heard.wheres, heard.waiting & kinds.told.keys(), found) else None

    def _is_elsewhere(self, pod: Pod, nodes: Mapping[str, Node]) -> bool:
        """Whether a pod has just got a node of a kind that was not told of it, so that it would find no place there."""
        known, told = self._known.get(pod.uid), self._kinds.told.get(pod.where, ())
        is_news = known is not None and known.status not in (RUNNING, OVER) and pod.run and not pod.is_over
        if not is_news or not told or pod.node not in nodes:
            return False
        return self._kinds.of(nodes[pod.node]) not in {places.kind_of(name) for name in told}

    def renew(self) -> None:
        """A site that knows nothing."""
        self.site.close()
        self._begin()

    # --- what the site is told ---

    def tell(self, pods: Mapping[str, Pod], nodes: Iterable[Node] = ()) -> Changes:
        """Tell what has changed since the last time; returns it. pods: by uid, all of them, also those of others.
        Whatever it raises, the session is lost: some of that may be told."""
        found = list(nodes)
        try:
            if (keys := self.outgrown(pods, found)) is not None:
                self.renew_with(keys)
                self._compared.hear(pods)
            return self._tell(found)
        except BaseException:
            self._is_lost = True
            raise

    def _tell(self, nodes: list[Node]) -> Changes:
        there = {node.name: node for node in nodes}
        among = self._compared.to_tell(self._known, there)
        self._tell_nodes(nodes, there, set(among))
        pods = self._compared.pods
        news = changes(pods, self._known, among)
        if not news.are_none:  # else what is told first would be granted before what should go first is told
            self._report([m.GrantsHeld(HELD_S)])
        try:
            for run, new in news.new.items():
                self._grow(run, new, nodes)
            self._tell_statuses(pods, news)
            self._tell_lengths(pods, among)
        finally:
            self._report([] if news.are_none else [m.GrantsHeld(0.0)])
        opened = [uid for uid in among if uid in self._known and not (uid in pods and pods[uid].is_gated)]
        with self._lock:
            for uid in opened:
                self._unopened.pop(self._known[uid].task, None)
        return news

    def renew_with(self, keys: frozenset[places.Key]) -> None:
        """Nodes are told apart by these: each kind has another name then."""
        if self.has_told:
            self.renew()
        self._kinds = Kinds(keys)

    def _tell_nodes(self, nodes: list[Node], there: dict[str, Node], among: set[str]) -> None:
        """Of those that are others, or have others' pods, or devices of pods that are."""
        heard, kinds = self._compared, self._kinds
        closed = kinds.closed(heard.wheres, nodes)
        stale, turned = {*changed(self._there, there), *heard.touched}, closed ^ self._closed
        for node in nodes:
            if (turned and kinds.of(node) in turned) or (node.devices and not among.isdisjoint(node.held)):
                stale.add(node.name)
        gone = sorted(self._nodes.keys() - there.keys())
        events: list[m.Event] = [m.NodeLost(name) for name in gone]
        for name in gone:
            kinds.forget(name)
            del self._nodes[name]
        for name in sorted(stale & there.keys()):
            node, on = there[name], heard.on.get(name, {}).values()
            ours, others = [pod for pod in on if pod.run], [pod for pod in on if not pod.run]
            kind = kinds.of(node)
            before, is_open = self._nodes.get(name), node.is_open and kind not in closed
            event = room_of(node, kind, ours, others, heard.counted, is_open=is_open, before=before)
            if before != event:
                self._nodes[name] = event
                events.append(event)
        self._there, self._closed = there, closed
        heard.touched.clear()
        self._may_have_lost = self._may_have_lost or bool(events)
        self._report(events)

    def _grow(self, run: str, new: tuple[Pod, ...], nodes: list[Node]) -> None:
        if run not in self._sizes:
            self._sizes[run] = 0
            namespace, name = run.split("/")[:2]
            queue = self._queue_of(new[0])
            self.site.submit(m.WorkloadSubmitted(run, name=name, tenant=namespace, queue=queue))
        flavors = self._kinds.tell({pod.where for pod in new if not pod.node}, self._compared.wheres, nodes)
        on = ((pod, self._there.get(pod.node)) for pod in new if pod.node)
        flavors |= {pod.uid: self._kinds.devices_of(pod, node) for pod, node in on if node is not None}
        new = tuple(msgspec.structs.replace(pod, may_restart=self._may_restart(pod)) for pod in new)
        graph, rests = block_of(new, flavors, self._sizes[run])
        at, grown = self._sizes[run], self._add(run, graph, len(new))
        for number, (pod, behind) in enumerate(zip(new, rests, strict=True)):
            task, is_gang = grown.task + number, bool(graph.options_of(number).gang)
            numbers = tuple(grown.task + one for one in behind)
            self._before.update(numbers)
            told = at + number, pod.predicted_s, rest_s(pod)
            self._known[pod.uid] = Known(task, grown.phase + number, run, READY, "", is_gang, numbers, *told)
            self._live.setdefault(run, {})[pod.uid] = None
            self._uids[task] = pod.uid

    def _add(self, run: str, graph: Graph, pods: int = 0) -> Grown:
        """Tell a block of a run. pods: so many of its tasks, the first ones, are no rests."""
        grown = self.site.call(lambda: self.site.grow(run, self._sizes[run], graph), 60.0)
        self._sizes[run] += graph.n_tasks
        self._tasks += graph.n_tasks
        self._rests.update((grown.task + n, grown.phase + n) for n in range(pods, graph.n_tasks))
        return grown

    def _tell_statuses(self, pods: Mapping[str, Pod], news: Changes) -> None:
        begun = [(uid, RUNNING) for new in news.new.values() for uid in (p.uid for p in new if status_of(p) == RUNNING)]
        sights: list[m.Sight] = []
        for uid, status in sorted([*news.statuses, *begun], key=lambda one: (one[1] != OVER, self._known[one[0]].task)):
            known, node = self._known[uid], pods[uid].node if uid in pods else ""
            self._known[uid] = msgspec.structs.replace(known, status=status, node=node)
            if known.is_gang:
                self._tell_member(known, status)
            else:
                sights.append(m.Sight(known.task, status, node))
            self._may_have_lost = self._may_have_lost or (status == RUNNING and not self._is_as_granted(known, node))
            if status == OVER:
                move(self._live, known.run, None, uid, None)
                self._over.add(uid)
                sights += [m.Sight(rest, OVER) for rest in self._rests_done(known)]
            if status in (OVER, WAITING) and not (known.is_gang and status == WAITING):
                self._ungrant([known.task])
        if sights:
            closed = [self._nodes[name] for name in sorted({one.node for one in sights} & self._nodes.keys())]
            closed = [one for one in closed if one.gpus > self._there[one.node].gpus or len(one.closed) == one.gpus > 0]
            # what runs on a closed node has its devices there, and so has what runs on more than there are by now;
            # nothing is granted meanwhile
            self._report([msgspec.structs.replace(one, closed=()) for one in closed])
            self._report([m.TasksSeen(tuple(sights)), *closed])

    def _tell_lengths(self, pods: Mapping[str, Pod], among: Iterable[str]) -> None:
        """Of pods that do not take as long as was told, or whose runs do not go on as long; of a run with a graph also
        when pods have come: then all that there are stand in one chain again."""
        found = sorted((self._known[uid].task, uid) for uid in among if uid in self._known and uid not in self._over)
        estimates: list[tuple[int, float, float]] = []
        again: dict[str, None] = {}
        traced: dict[str, None] = {}
        for _, uid in found:
            one, pod = self._known[uid], pods[uid]
            if self._measured.get(uid) is pod:
                continue
            self._measured[uid] = pod
            if pod.predicted_s is not None and has_moved(one.predicted_s or 0.0, pod.predicted_s):
                estimates.append((one.phase, pod.predicted_s, pod.predicted_s))
                self._known[uid] = msgspec.structs.replace(one, predicted_s=pod.predicted_s)
            if has_moved(one.rest_s, rest_s(pod)):
                again[one.run] = None
            elif pod.is_traced:
                traced[one.run] = None
        self._report([m.Estimates(tuple(estimates))] if estimates else [])
        for run in sorted(traced.keys() - again.keys()):
            chains = {self._known[uid].rests[-1:] for uid in self._live[run] if pods[uid].is_traced}
            if len(chains - {()}) > 1:
                again[run] = None
        for run in again:
            self._chain_again(run, {uid: pods[uid] for uid in self._live[run]})

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

    def prune(self, uids: Collection[str]) -> None:
        """Only these pods are still listed. What has ended stays known till then, so that it is not told again."""
        for uid in [uid for uid in self._over if uid not in uids]:
            self._over.discard(uid)
            self._uids.pop(self._known.pop(uid).task, None)
            self._measured.pop(uid, None)

    def applied(self, *uids: str) -> None:
        """Their gates are open."""
        decisions = [self._grant_of(self._known[uid].task) for uid in uids if uid in self._known]
        self._report([m.DecisionApplied(one.id) for one in decisions if one is not None])

    def _report(self, events: Iterable[m.Event]) -> None:
        found = list(events)
        if found:
            self.site.call(lambda: self.site.report(*found), 60.0)

    # --- what it says ---

    def granted(self) -> list[str]:
        """Uids of pods that may start, in the order in which the site has decided."""
        return self._named(self._granted)

    def unopened(self) -> list[str]:
        """Those of them whose gates were closed in the last list."""
        return self._named(self._unopened)

    def has_grant(self, uid: str) -> bool:
        """Whether it is one of `granted`, as of the last question for these."""
        return uid in self._known and self._grant_of(self._known[uid].task) is not None

    def _named(self, tasks: Iterable[int]) -> list[str]:
        if self._may_have_lost:
            self._forget_withdrawn()
        with self._lock:
            return [self._uids[task] for task in tasks if task in self._uids]

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
                    self._unopened.pop(task, None)

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
                self._unopened[decision.task] = None
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
                self._unopened.pop(task, None)

    def record(self, record: r.Record) -> None:
        """See `Holder`: nothing is logged yet."""

    def asked(self, request: Asked) -> None:
        """See `Holder`."""
        self._asked(request)

    def site_lost(self, error: BaseException) -> None:  # noqa: ARG002  # the protocol's name
        """See `Holder`."""
        self._is_lost = True
        self._woken()
