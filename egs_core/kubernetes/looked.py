"""All pods as the controller has them, kept from look to look: a look costs what has changed since the one before.

    listed ──► as learned ──► with pauses ──► with the ranks of their runs' graphs ──► all
                   │               │                        │                           │
           of their pipeline   of their run            of their run         what waits, what is open,
                                                                            what is in a queue, …

What is not served has no run, and none of that.
What has changed is what is another object than at the last look (`compared`). So a first look, or one after a fault, is
no other than the rest: `Looked` may be made anew at any time, and has the same then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_not

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import gates, places
from egs_core.kubernetes.compared import changed, move
from egs_core.kubernetes.learned import NOTHING as NOTHING_LEARNT
from egs_core.kubernetes.learned import Learnt, as_learned, pipeline_of
from egs_core.kubernetes.paths import Run, Traces
from egs_core.kubernetes.pods import Node, Pod, with_pauses
from egs_core.kubernetes.stated import NOTHING
from egs_core.kubernetes.workflows import Workflow

Demand = tuple[str, Shape]


class Looked:
    """serves: whether a pod is ordered; stands_in: whether it stands for others; longest_s: as of `gates.overdue`.

    All by uid. all: what is listed, without what stands in; what is not served has no run. ordered: the same, where
    what is in a queue of Kueue has no run either. served: of runs; in_queues: those of them in queues of Kueue, queued:
    and behind their gates; unplaced: those of the others that are open and have no node. strays: what has the gate and
    no label, of all namespaces. runs: what is served as it is listed and learned, by run; limited: the same, where a
    pod states limits. succeeded: of what is served, what was seen to have succeeded in the last look, and was stopped
    by nobody."""

    def __init__(self, serves: Callable[[Pod], bool], stands_in: Callable[[Pod], bool], longest_s: float) -> None:
        self._serves, self._stands_in, self._longest_s = serves, stands_in, longest_s
        self._listed: dict[str, Pod] = {}
        self.all: dict[str, Pod] = {}
        self.ordered: dict[str, Pod] = {}
        self.served: dict[str, Pod] = {}
        self.in_queues: dict[str, Pod] = {}
        self.queued: dict[str, Pod] = {}
        self.unplaced: dict[str, Pod] = {}
        self.stand_ins: dict[str, Pod] = {}
        self.strays: dict[str, Pod] = {}
        self.runs: dict[str, dict[str, Pod]] = {}
        self.limited: dict[str, dict[str, Pod]] = {}
        self.succeeded: list[Pod] = []
        self._learnt: Learnt = NOTHING_LEARNT
        self._of_pipelines: dict[str, dict[str, Pod]] = {}  # what has not ended, as listed and learned
        self._pausing: dict[str, dict[str, Pod]] = {}  # by run, what says that something is paused
        self._paused: dict[str, dict[str, Pod]] = {}  # by run, what is marked so
        self._of_workflows: dict[tuple[str, str], dict[str, Pod]] = {}
        self._stopped: dict[tuple[str, str], bool] = {}  # Workflows that are listed, or were and have pods
        self._traces = Traces()
        self._gated: dict[str, Pod] = {}  # but what is paused
        self._dues: dict[str, float] = {}  # of these: not before then
        self._soonest = float("inf")
        self._demands: dict[Demand, dict[str, Pod]] = {}  # of these, but what is in queues
        self._unanswered: set[Demand] = set()
        self._refused: set[Demand] = set()  # no node could ever meet them
        self._nodes: list[Node] = []

    # --- a look ---

    def look(self, listed: Mapping[str, Pod], workflows: Iterable[Workflow], learnt: Learnt = NOTHING_LEARNT) -> None:
        """This is there now: all of it, by uid. learnt: what earlier runs took."""
        news: dict[str, Pod | None] = {}
        touched: set[str] = set()
        runs = list(workflows)
        listed_now = {(one.namespace, one.name): one.is_stopped for one in runs}
        self._stopped.update(listed_now)
        self.succeeded = []
        for uid in dict.fromkeys([*changed(self._listed, listed), *self._relearned(listed, learnt)]):
            before, found = self._listed.get(uid), listed.get(uid)
            touched.update(run for one in (before, found) if (run := self._run_of(one)) is not None)
            if found is not None and found.phase == "Succeeded" and self._run_of(found) is not None:
                self.succeeded += [found] if self._teaches(found) else []
            news[uid] = self._list(uid, before, found and as_learned(found, learnt))
            _set(self._listed, uid, found)
        there = listed_now.keys() | self._of_workflows.keys()
        self._stopped = {key: is_stopped for key, is_stopped in self._stopped.items() if key in there}
        for run in touched & (self._pausing.keys() | self._paused.keys()):
            news.update(self._with_pauses(run))
        news.update(self._traces.follow(self._of_workflows, runs, learnt))
        for uid, one in news.items():
            self._put(uid, self.all.get(uid), None if one is None else self._traces.ranked.get(uid, one))

    def _teaches(self, succeeded: Pod) -> bool:
        """Of a Workflow that was over before the first look nobody knows whether it was stopped."""
        workflow = self._workflow_of(succeeded)
        return workflow is None or self._stopped.get(workflow) is False

    def _relearned(self, listed: Mapping[str, Pod], learnt: Learnt) -> list[str]:
        """Uids of listed pods of which other durations were learned since the last look."""
        if learnt is self._learnt:
            return []
        before, self._learnt = self._learnt, learnt
        others = [one for one in self._of_pipelines if learnt.get(one) is not before.get(one)]
        known = ((uid, pod) for one in others for uid, pod in self._of_pipelines[one].items() if uid in listed)
        return [uid for uid, pod in known if as_learned(self._listed[uid], learnt) != pod]

    def traced(self) -> list[Run]:
        """Runs that have graphs and pods."""
        return self._traces.runs()

    def _list(self, uid: str, before: Pod | None, pod: Pod | None) -> Pod | None:
        """As far as it says it itself; None: it is not looked at."""
        was, run = self._run_of(before), self._run_of(pod)
        move(self.runs, was, run, uid, pod)
        states = pod is not None and pod.limits is not NOTHING
        move(self.limited, was if uid in self.limited.get(was or "", ()) else None, run if states else None, uid, pod)
        move(self._of_pipelines, self._pipeline_of(before), self._pipeline_of(pod), uid, pod)
        says = pod is not None and bool(pod.paused)
        move(self._pausing, was if uid in self._pausing.get(was or "", ()) else None, run if says else None, uid, pod)
        move(self._of_workflows, self._workflow_of(before), self._workflow_of(pod), uid, pod)
        stands_in = pod is not None and self._stands_in(pod)
        _set(self.stand_ins, uid, pod if stands_in else None)
        is_stray = pod is not None and pod.is_gated and not (pod.run or pod.node)
        _set(self.strays, uid, pod if is_stray else None)
        if pod is None or (stands_in and run is None):
            return None
        return pod if run is not None or not pod.run else msgspec.structs.replace(pod, run="")

    def _with_pauses(self, run: str) -> dict[str, Pod]:
        """All of its pods; those that are paused are the same objects as long as they are so."""
        members, before = self.runs.get(run, {}), self._paused.pop(run, {})
        found = with_pauses(members)
        for uid, one in found.items():
            if one is not members[uid]:
                kept = before.get(uid)
                found[uid] = one if kept != one or kept is None else kept
                self._paused.setdefault(run, {})[uid] = found[uid]
            if (workflow := self._workflow_of(one)) is not None:
                self._of_workflows[workflow][uid] = found[uid]
        return found

    def _run_of(self, pod: Pod | None) -> str | None:
        return pod.run if pod is not None and self._serves(pod) else None

    def _pipeline_of(self, pod: Pod | None) -> str | None:
        return pipeline_of(pod) if pod is not None and not pod.is_over and self._serves(pod) else None

    def _workflow_of(self, pod: Pod | None) -> tuple[str, str] | None:
        return (pod.namespace, pod.workflow) if pod is not None and pod.workflow and self._serves(pod) else None

    def _put(self, uid: str, before: Pod | None, pod: Pod | None) -> None:
        if before is pod:
            return
        ours = pod if pod is not None and pod.run else None
        in_queue = ours if ours is not None and ours.queue else None
        gated = ours if ours is not None and ours.is_gated and not ours.is_paused else None
        _set(self.all, uid, pod)
        _set(self.ordered, uid, pod if in_queue is None else msgspec.structs.replace(in_queue, run=""))
        _set(self.served, uid, ours)
        _set(self.in_queues, uid, in_queue)
        _set(self.queued, uid, in_queue if gated is not None else None)
        _set(self.unplaced, uid, ours if in_queue is None and ours is not None and _is_unplaced(ours) else None)
        was, now = _demand(before), _demand(pod)
        if now is not None and now not in self._demands:
            self._unanswered.add(now)
        move(self._demands, was, now, uid, pod)
        _set(self._gated, uid, gated)
        if gated is None:
            self._dues.pop(uid, None)
        else:
            self._dues[uid] = gates.soonest_due(gated, self._longest_s)
            self._soonest = min(self._soonest, self._dues[uid])

    # --- what follows from it ---

    def overdue(self, now: float) -> list[gates.Opening]:
        """The gates that are open too late already. now: Unix time."""
        if now < self._soonest:
            return []
        self._soonest = min(self._dues.values(), default=float("inf"))
        late = [self._gated[uid] for uid, at in self._dues.items() if at <= now]
        return gates.overdue(late, now, self._longest_s)

    def placeless(self, nodes: list[Node]) -> dict[str, Pod]:
        """Of what waits behind its gate, by uid, what no node could ever take; each demand is looked at once."""
        if len(nodes) != len(self._nodes) or any(map(is_not, nodes, self._nodes)):
            self._nodes, self._unanswered = nodes, {*self._demands}
        self._refused &= self._demands.keys()
        for demand in self._unanswered & self._demands.keys():
            one = next(iter(self._demands[demand].values()))
            (self._refused.discard if places.may_ever_run(one, nodes) else self._refused.add)(demand)
        self._unanswered = set()
        return {uid: pod for demand in self._refused for uid, pod in self._demands[demand].items()}


def _demand(pod: Pod | None) -> Demand | None:
    """Of what waits behind its gate."""
    if pod is None or not (pod.run and pod.is_gated) or pod.is_paused or pod.queue:
        return None
    return pod.where, pod.shape


def _is_unplaced(pod: Pod) -> bool:
    return not (pod.node or pod.is_gated or pod.is_over or pod.is_leaving)


def _set(found: dict[str, Pod], uid: str, pod: Pod | None) -> None:
    """None: it is not in there."""
    if pod is None:
        found.pop(uid, None)
    else:
        found[uid] = pod
