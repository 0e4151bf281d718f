"""The controller's loop: what is listed goes to a site, what that grants becomes opened gates and written priorities.

    watches ──► mirrors ──► session (engine) ──► gates to open ──► a few patches at a time, in order
                   ▲                                                      │
                   └────────────────────── the cluster ◄──────────────────┘

Level-triggered: each step compares all that is listed with what was listed before (`looked`), and what is not done in
one is done in the next. Whatever fails, gates are opened: without an engine in the order in which pods were made, and
past their release-by time always.
"""

from __future__ import annotations

import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from egs_core.kubernetes import foreseen, gates, names, placeholders
from egs_core.kubernetes.bookings import booked_of
from egs_core.kubernetes.claiming import Claiming
from egs_core.kubernetes.cluster import NODES, PODS, WORKFLOWS, ApiError, Cluster
from egs_core.kubernetes.coming import to_come
from egs_core.kubernetes.course import Course
from egs_core.kubernetes.dispatching import MultiKueue
from egs_core.kubernetes.explaining import Explaining
from egs_core.kubernetes.grouping import Grouping
from egs_core.kubernetes.images import node_with_images
from egs_core.kubernetes.joining import Door
from egs_core.kubernetes.kueue import Queues
from egs_core.kubernetes.leader import Leader
from egs_core.kubernetes.learning import Learning
from egs_core.kubernetes.limits import Limiting
from egs_core.kubernetes.looked import Looked
from egs_core.kubernetes.mirror import FORBIDDEN, Mirror
from egs_core.kubernetes.notes import Notes
from egs_core.kubernetes.opening import limit, open_gate
from egs_core.kubernetes.placeholding import Placeholding
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of, with_pauses
from egs_core.kubernetes.preempting import Preempting
from egs_core.kubernetes.preloading import Preloading
from egs_core.kubernetes.preloads import preload_of
from egs_core.kubernetes.priorities import workload_of
from egs_core.kubernetes.readers import pod_with_reading
from egs_core.kubernetes.session import ClusterSession, preempting_site
from egs_core.kubernetes.settings import Settings
from egs_core.kubernetes.stuck import Stuck
from egs_core.kubernetes.waking import Waking
from egs_core.kubernetes.workflows import workflow_of
from egs_core.kubernetes.writing import Writers

STEP_S = 1.0
HEALTHY_S = 10.0
OPENING, LEAST_OPENING_S, OPENING_S = 4.0, 0.2, 5.0
"""What is granted is opened for so many times as long as the step has taken before, but for that long at least, so that
there are few looks in a second, and for no longer than that."""
PLACED_S = 0.02
REFUSALS = (403, 422)
REFUSED_S = 60.0
"""So long after a deadline was refused none is tried."""
Say = Callable[[str], None]


class Controller:
    """See the module. say: hears one line for what an administrator should know; tell: of its course (`course`)."""

    def __init__(
        self, cluster: Cluster, settings: Settings, say: Say, *, tell: Say = lambda _: None, watch_s: int = 240
    ) -> None:
        self._cluster, self._settings, self._say = cluster, settings, say
        self._woken = Waking()
        self._ended = threading.Event()
        self._began = 0.0
        self._stepped_at = float("-inf")
        self._note = Notes(say).note
        self.opened = 0
        self.leader = Leader(cluster, settings.lease_namespace, names.CONTROLLER, settings.identity)
        self._course = Course(cluster.host, settings.namespaces, self.leader, tell)
        pod_made, node_made = (pod_with_reading, node_with_images) if settings.preloads else (pod_of, node_of)
        self._pods = Mirror(cluster, PODS, pod_made, self._woken.set, watch_s=watch_s)
        self._nodes = Mirror(cluster, NODES, node_made, self._woken.set, watch_s=watch_s)
        self._claiming = Claiming(cluster, self._woken.set, watch_s)
        self._grouping = Grouping(cluster, self._woken.set, watch_s)
        made = booked_of if settings.multikueue else workload_of
        self._queues = Queues(cluster, self._woken.set, self._note, watch_s, made=made) if settings.with_kueue else None
        running = f"{names.ARGO_OVER}!=true"
        self._workflows = Mirror(
            cluster, WORKFLOWS, workflow_of, self._woken.set, labels=running, optional=True, watch_s=watch_s
        )
        self._looked = self._nothing_looked()
        self._writers: Writers[gates.Opening] = Writers()
        self._explaining = Explaining(cluster, self._pods.put, self._goes_on, self._note)
        self._stuck = Stuck()
        self._limiting = Limiting(settings.limits)
        self._limits_again = float("-inf")
        self._preempting = (
            Preempting(cluster, lambda: self._workflows.items().values(), say) if settings.preempts else None
        )
        learning = self._learning = Learning(cluster, settings.lease_namespace, self._note)
        loading = Preloading(cluster, settings.pull_s, learning, self._note, settings.reads)
        self._preloading = loading if settings.preloads else None
        self._placeholding = Placeholding(cluster, settings.placeholders, settings.lease_namespace, self._note)
        labels = f"{names.PRELOAD}={names.BY_CONTROLLER}"
        self._preloads = Mirror(cluster, PODS, preload_of, lambda: None, labels=labels, watch_s=watch_s)
        self._gated: ClusterSession | None = None
        name = settings.cluster_name or cluster.host.partition("//")[2]
        self._door = (
            Door(
                settings.url,
                name,
                settings.queue,
                self._may_restart,
                self._woken.set,
                self._note,
                notebooks=settings.notebook_queue,
            )
            if settings.url
            else None
        )
        role, woken = settings.multikueue, self._woken.set
        self._multikueue = (
            MultiKueue(cluster, role, name, settings.url, woken, self._note, say, watch_s) if role else None
        )

    # --- its life ---

    @property
    def is_healthy(self) -> bool:
        """It leads, and its loop goes round: only then may new pods be gated."""
        return self.leader.leads and time.monotonic() - self._stepped_at < HEALTHY_S

    def _goes_on(self) -> bool:
        return self.leader.leads and not self._ended.is_set()

    def run(self) -> None:
        """Until `stop`."""
        self.leader.start()
        mirrors = [self._pods, self._nodes, self._workflows, *self._claiming.mirrors, *self._grouping.mirrors]
        mirrors += self._queues.mirrors if self._queues is not None else []
        mirrors += self._multikueue.mirrors if self._multikueue is not None else []
        mirrors += [self._preloads] if self._preloading is not None else []
        for mirror in mirrors:
            mirror.start()
        try:
            while not self._ended.is_set():
                self._woken.wait(STEP_S)
                self._course.look()
                if self.leader.left_at:
                    self._say(f"EGS was taken out of the cluster at {self.leader.left_at}: this controller ends")
                    return
                if not self.leader.leads:
                    self._rest()
                    self._note("lease", self.leader.problem)
                elif unlisted := [mirror for mirror in mirrors if not mirror.is_listed]:
                    self._note("list", next((mirror.problem for mirror in unlisted if mirror.problem), ""))
                else:
                    self._try_step()
        finally:
            for mirror in mirrors:
                mirror.stop()
            self._writers.close()
            self._rest()
            if self._multikueue is not None:
                self._multikueue.close()
            self.leader.stop()
            self._course.end(self.opened, sum(pod.is_gated for pod in self._served(self._pods.items()).values()))

    def stop(self) -> None:
        self._ended.set()
        self._woken.set()

    def _try_step(self) -> None:
        try:
            self.step(self._cluster.now())
            self._stepped_at = time.monotonic()
        except Exception as error:  # whatever it is: gates must open
            self._looked = self._nothing_looked()
            if not self._is_servers(error):
                self._note("step", f"{type(error).__name__}: {error}")
                self._drop_sessions()
            self._ended.wait(STEP_S)

    def _drop_sessions(self) -> None:
        """What comes next tells a new engine everything."""
        if self._gated is not None:
            self._gated.close()
        self._gated = None
        if self._queues is not None:
            self._queues.forget()

    def _rest(self) -> None:
        """It does not lead, or will not in a moment."""
        self._drop_sessions()
        self._learning.rest(self._cluster.now(), leads=self.leader.leads)
        if self._door is not None:
            self._door.rest()

    # --- one step ---

    def step(self, now: float) -> None:
        """Tell what is new, open what may be opened. now: Unix time, of the API server."""
        self._began = time.monotonic()
        problem = self._workflows.problem  # a cluster without Argo is nothing to speak of
        self._note("workflows", f"{problem}; pods go by their labels" if problem.startswith(FORBIDDEN) else "")
        looked = self._looked
        try:
            listed = self._grouping.applied(self._pods.items(), now)
            everything, nodes = self._claiming.applied(listed, self._nodes.items().values(), now)
            looked.look(everything, self._workflows.items().values(), self._learning.learnt(now))
        except Exception:  # by what a tenant has written: no gate is closed for ever for that
            served = self._served(self._pods.items()).values()
            self._open(gates.overdue(served, now, self._settings.longest_s), in_line=True)
            raise
        for about, said in (*self._claiming.notes(), *self._grouping.notes()):
            self._note(about, said)
        if has_counted := self._limiting.is_due(looked.limited, now):
            self._limiting.look(looked.runs, looked.limited, now)
        self._open([*looked.overdue(now), *self._strays(looked, now)], in_line=True)
        try:
            self._order_gates(looked, nodes, now)
            self._note("engine", "")
        except Exception as error:  # without an engine, pods start as they would without us
            self._looked = self._nothing_looked()
            if not self._is_servers(error):
                self._note("engine", f"{type(error).__name__}: {error}: all gates are opened")
                self._drop_sessions()
                self._open(gates.all_gates(self._served(self._pods.items()).values(), gates.ALONE), in_line=True)
        if has_counted:
            self._limit(now)
        self._explaining.look(looked.served, self._gated, self._writers, now, self._placeholding.awaited)
        self._preload(looked, nodes, now)
        self._have_nodes_added(looked, nodes, now)
        if self._queues is not None:
            self._queues.order(looked.in_queues, lambda: self.leader.leads)
            if self._multikueue is not None:
                self._multikueue.look(self._queues, looked.all, now, lambda: self.leader.leads)
        self._learning.hear(looked.succeeded, now)

    def _strays(self, looked: Looked, now: float) -> list[gates.Opening]:
        """Nobody orders what has the gate and no label: it is said, and gated for no longer than the rest."""
        only, strays = self._settings.namespaces, looked.strays.values()
        found = [pod for pod in strays if not only or pod.namespace in only]
        self._note("gate", gates.stray(found))
        return gates.overdue(found, now, self._settings.longest_s)

    def _nothing_looked(self) -> Looked:
        """What comes next is looked at anew."""
        own = self._settings.lease_namespace
        return Looked(self._serves, lambda pod: pod.is_placeholder and pod.namespace == own, self._settings.longest_s)

    def _served(self, pods: dict[str, Pod]) -> dict[str, Pod]:
        """Of these, by uid."""
        return with_pauses({uid: pod for uid, pod in pods.items() if self._serves(pod)})

    def _serves(self, pod: Pod) -> bool:
        return bool(pod.run) and (not self._settings.namespaces or pod.namespace in self._settings.namespaces)

    def _order_gates(self, looked: Looked, nodes: list[Node], now: float) -> None:
        """Pods that Kueue does not hold back; those that it does take room like any other's, and have no gate."""
        self._open(gates.queued(looked.queued.values()))
        placeless = looked.placeless(nodes)
        self._open(gates.stranded(self._placeholding.given_up(placeless, now, are_made=self._door is None)))
        told: Mapping[str, Pod] = looked.ordered
        if left_out := {*placeless, *self._stuck.among(looked.unplaced, now)}:
            told = {uid: pod for uid, pod in told.items() if uid not in left_out}
        session = self._told_session(told, nodes)
        if session is None:
            return  # gates wait for the site server, each until its release-by time
        session.prune(told)
        self._open_granted(session, looked, now)
        self._note_stuck(self._stuck.look(looked.unplaced, session.has_grant, now))
        if self._preempting is not None and not self._preempting.carry_out(session.stops(), looked.all, now):
            self._drop_sessions()

    def _note_stuck(self, found: list[Pod]) -> None:
        for pod in found[:1]:
            place = f"{pod.namespace}/{pod.name}"
            self._note(
                "scheduler", f"{place} had its turn and gets no node: the room goes to others; its events say why"
            )

    def _open_granted(self, session: ClusterSession, looked: Looked, now: float) -> None:
        """What is granted, as far as the window goes. Where there is more, also what follows as these get their nodes,
        for a while: where a look takes long, the next step takes longer than its gates."""
        settings, spent_s = self._settings, time.monotonic() - self._began
        opened: dict[str, Pod] = {}
        pods = ChainMap(opened, looked.ordered)
        order = session.order() if settings.ahead else []
        until = time.monotonic() + min(max(OPENING * spent_s, LEAST_OPENING_S), OPENING_S)
        while self._goes_on():
            granted = session.unopened()
            found = gates.releases(
                granted,
                order,
                pods,
                now,
                window=settings.window,
                ahead=settings.ahead,
                unplaced={**looked.unplaced, **opened}.values(),
                has_grant=session.has_grant,
            )
            done = self._open(found)
            session.applied(*done)
            self._stepped_at = time.monotonic()  # it goes round: new pods may be gated meanwhile
            for uid in [*opened, *done]:
                latest = self._pods.get(uid)
                opened[uid] = latest or msgspec.structs.replace(pods[uid], is_gated=False, run="")
            is_left = any(uid in pods and pods[uid].is_gated and not pods[uid].is_paused for uid in granted)
            if not is_left or time.monotonic() >= until or len(done) < len(found) or self._ended.wait(PLACED_S):
                return

    def _told_session(self, pods: Mapping[str, Pod], nodes: list[Node]) -> ClusterSession | None:
        """The session that orders, and has been told of these pods; None while the site server is waited for."""
        if self._door is not None and (self._gated is None or not self._gated.is_shared):
            if (found := self._door.session()) is not None:
                self._drop_sessions()
                self._gated = found
            elif self._gated is None and not self._door.is_given_up:
                return None
        session = self._gated = self._gated or self._new_session()
        if self._door is not None and session.is_shared and session.has_told:
            session = self._gated = self._door.kept(session, pods, nodes)
        session.tell(pods, nodes)
        if session.is_shared:
            session.order()  # an answer, behind all that was told
        if not session.is_alive:
            raise RuntimeError("the engine is dead")
        if self._door is not None and session.is_shared:
            self._door.works()
        return session

    def _is_servers(self, error: Exception) -> bool:
        """Whether it happened with a session at the site server: that is lost then, and no reason to open gates."""
        if self._door is None or self._gated is None or not self._gated.is_shared:
            return False
        self._door.lost(self._gated, f"{type(error).__name__}: {error}")
        self._gated = None
        return True

    def _new_session(self) -> ClusterSession:
        if self._preempting is None:
            return ClusterSession(woken=self._woken.set)
        return ClusterSession(preempting_site, self._woken.set, self._may_restart)

    def _may_restart(self, pod: Pod) -> bool:
        return pod.may_restart if self._preempting is None else self._preempting.may_restart(pod)

    def _preload(self, looked: Looked, nodes: list[Node], now: float) -> None:
        """Load what is needed for what will start, where it will."""
        if self._preloading is None or self._gated is None or not self._preloading.is_due(now):
            return
        order = self._gated.order()
        with self._beside("loading ahead"):
            coming = to_come(looked.traced(), now)[: foreseen.MOST]
            wanted = [*foreseen.waiting(looked.all, order), *coming]
            there = [one for one in self._preloads.items().values() if one is not None]
            self._preloading.look(wanted, there, looked.all, nodes, now, lambda: self.leader.leads)

    def _have_nodes_added(self, looked: Looked, nodes: list[Node], now: float) -> None:
        """Placeholders for what the nodes there leave waiting. At a site server quotas say who waits, and
        no node would change that."""
        there = list(looked.stand_ins.values())
        if self._gated is None or not self._placeholding.is_due(there, now):
            return
        pods = placeholders.as_opened(looked.all, self._pods.items())  # some in this very step
        order = [*self._placeholding.awaited, *self._gated.order()]
        with self._beside("asking for nodes"):
            coming = to_come(looked.traced(), now)[: foreseen.MOST]
            wanted = [] if self._gated.is_shared else placeholders.to_stand_for(pods, order, coming)
            self._placeholding.look(wanted, there, pods, nodes, now, lambda: self.leader.leads)

    @contextmanager
    def _beside(self, about: str) -> Iterator[None]:
        """What fails in it is said, and the order goes on: it goes by what tenants have written."""
        try:
            yield
            self._note(about, "")
        except Exception as error:
            self._note(about, f"{type(error).__name__}: {error}: the order goes on without it")

    def _open(self, openings: Iterable[gates.Opening], *, in_line: bool = False) -> list[str]:
        """Open these gates, in order; the uids of those that are open now. in_line: where the order is all there is,
        and nobody knows of room for them."""
        found = []
        for one, raw in self._writers.each(openings, self._open_one, lambda: self.leader.leads, in_line=in_line):
            if isinstance(raw, ApiError):
                if raw.status not in (404, 409):
                    self._note("open", f"{one.pod.namespace}/{one.pod.name}: {raw}")
                continue
            if raw is not None:
                self._pods.put(raw)
            self.opened += 1
            found.append(one.pod.uid)
        return found

    def _open_one(self, one: gates.Opening) -> dict[str, Any] | None:
        """With its deadline; where that is refused, without."""
        now = self._cluster.now()
        deadline = self._limiting.deadline(one.pod, now)
        try:
            return open_gate(self._cluster, one.pod, one.why, now, deadline)
        except ApiError as error:
            if deadline is None or error.status not in REFUSALS:
                raise
            self._note_limit(one.pod, error)
            return open_gate(self._cluster, one.pod, one.why, now)

    def _limit(self, now: float) -> None:
        """Write the deadlines of pods that have their nodes: all those with limits are looked at."""
        if now < self._limits_again:
            return
        self._note("limits", next(self._limiting.faults(), ""))
        for pod, deadline in self._limiting.due(now):
            if not self.leader.leads:
                return
            try:
                self._pods.put(limit(self._cluster, pod, deadline, now))
            except ApiError as error:
                if error.status not in (404, 409):
                    self._note_limit(pod, error)
                    self._limits_again = now + REFUSED_S
                    return

    def _note_limit(self, pod: Pod, error: ApiError) -> None:
        self._note("deadlines", f"{pod.namespace}/{pod.name}: {error}: limits are not kept")
