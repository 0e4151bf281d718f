"""When pods end at the latest: a limit of a task, its stage or its run is a deadline of its pods.

                  of a task                            of a stage or a run
    max_runtime   so long from each pod's start on     the same moment for all of their pods: so long after the
                  its node on                          first of them has started
    max_gpu_time  what the task's failed attempts      what is left for the pod alone; when all of them together
                  have left, by the pod's GPUs         have used it up, at once

The deadline is the pod's own (`activeDeadlineSeconds`): its kubelet keeps it whether a controller lives or not, nobody
can raise it, and its pod has failed then, as the owner sees it. What comes to its turn after that has one second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from egs_core.engine.specs import NO_LIMITS, Limits, strictest
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.stated import NOTHING
from egs_core.kubernetes.steps import without_try

KEPT_S = 3600.0
"""So long after a run with limits has no pod any more its use is known: more of it may come."""
EVERY_S = 1.0
"""So often it is looked at what runs have used: at all of their pods."""
SHARE = 0.1
"""A deadline that has become so much earlier is written again; else when its moment has come."""
TaskKey = tuple[str, str, str]


class Rules(msgspec.Struct, frozen=True):
    """Of a site: the longest that a pod with, or without, a GPU runs that states no time itself."""

    cpu_s: float | None = None
    gpu_s: float | None = None


NO_RULES = Rules()


class Deadline(msgspec.Struct, frozen=True):
    """seconds: from the pod's start on; why: which limit that keeps."""

    seconds: int
    why: str


def by_run(pods: Iterable[Pod]) -> tuple[dict[str, dict[str, Pod]], set[str]]:
    """Pods of runs by run, then by uid; and the runs of which some state limits: for `Limiting.look`."""
    runs: dict[str, dict[str, Pod]] = {}
    limited: set[str] = set()
    for pod in pods:
        if pod.run:
            runs.setdefault(pod.run, {})[pod.uid] = pod
            limited.update([pod.run] if pod.limits is not NOTHING else [])
    return runs, limited


class _Use(msgspec.Struct):
    """Of a run or a stage by now. first: when the first of its pods started; 0: none has."""

    limits: Limits = NO_LIMITS
    first: float = 0.0
    gpu_s: float = 0.0

    def add(self, pod: Pod, limits: Limits, now: float) -> None:
        self.limits = strictest(self.limits, limits)
        self.gpu_s += gpu_s(pod, now)
        if pod.started:
            self.first = min(self.first or pod.started, pod.started)


class _Bound(NamedTuple):
    seconds: float
    why: str


class Limiting:
    """What runs have used, of pods that are listed or were: `look`, then ask. Times are Unix times."""

    def __init__(self, rules: Rules = NO_RULES) -> None:
        self._rules = rules
        self._pods: dict[str, dict[str, Pod]] = {}  # by run, of those with limits; then by uid
        self._seen_at: dict[str, float] = {}
        self._uses: dict[tuple[str, str], _Use] = {}  # by run and stage, "" for all of the run
        self._failed_s: dict[TaskKey, float] = {}  # GPU seconds of a task's attempts that are over
        self._runs: Mapping[str, Mapping[str, Pod]] = {}
        self._next = float("-inf")

    def is_due(self, limited: Collection[str], now: float) -> bool:
        """Whether it is to look again: once in EVERY_S, and when one of these runs was not there. limited: as of
        `look`."""
        return now >= self._next or any(run not in self._pods for run in limited)

    def look(self, runs: Mapping[str, Mapping[str, Pod]], limited: Iterable[str], now: float) -> None:
        """runs: all pods that are there, by run, then by uid, also after that; limited: the runs of which some state
        limits."""
        self._runs, self._next = runs, now + EVERY_S
        self._seen_at.update(dict.fromkeys(limited, now))
        self._seen_at = {run: at for run, at in self._seen_at.items() if at + KEPT_S > now}
        self._pods = {run: self._pods.get(run, {}) for run in self._seen_at}
        self._uses, self._failed_s = {}, {}
        for run, members in self._pods.items():
            there = runs.get(run, {})
            for uid, pod in there.items():
                before = members.get(uid)
                members[uid] = _with_end(pod, before.ended if before is not None else 0.0, now)
            for uid, pod in members.items():
                if uid not in there and not pod.ended:
                    members[uid] = msgspec.structs.replace(pod, phase="Failed", ended=now)
            self._count(run, members.values(), now)

    def _count(self, run: str, pods: Iterable[Pod], now: float) -> None:
        for pod in pods:
            self._uses.setdefault((run, ""), _Use()).add(pod, pod.limits.run, now)
            if pod.stage:
                self._uses.setdefault((run, pod.stage), _Use()).add(pod, pod.limits.stage, now)
            if pod.phase == "Failed" and pod.gpus:
                key = task_key(pod)
                self._failed_s[key] = self._failed_s.get(key, 0.0) + gpu_s(pod, now)

    def deadline(self, pod: Pod, now: float) -> Deadline | None:
        """Of a pod that has not ended; None where nothing limits it."""
        first = min(self._bounds(pod, now), default=None)
        return None if first is None else Deadline(max(1, math.ceil(first.seconds)), first.why)

    def due(self, now: float) -> Iterator[tuple[Pod, Deadline]]:
        """What has its node, and a deadline that is to be written."""
        for run in self._runs if self._rules != NO_RULES else self._pods:  # most sites limit nothing
            for pod in self._runs.get(run, {}).values():
                is_limited = run in self._pods or pod.deadline_s is None
                if is_limited and pod.node and not (pod.is_over or pod.is_leaving):
                    found = self.deadline(pod, now)
                    if found is not None and _is_news(pod, found.seconds, now):
                        yield pod, found

    def faults(self) -> Iterator[str]:
        """What is stated and cannot be read."""
        for run in self._pods:
            for pod in self._runs.get(run, {}).values():
                if pod.limits.fault:
                    yield f"{pod.namespace}/{pod.name}: {pod.limits.fault}"

    def _bounds(self, pod: Pod, now: float) -> Iterator[_Bound]:
        own, gpus = pod.limits.own, pod.gpus
        site_s = self._rules.gpu_s if gpus else self._rules.cpu_s
        if own.max_runtime_s is not None:
            yield _Bound(own.max_runtime_s, "max_runtime of its task")
        elif site_s is not None and pod.deadline_s is None:
            yield _Bound(site_s, "the site's limit of time")
        if own.max_gpu_s is not None and gpus:
            left_s = own.max_gpu_s - self._failed_s.get(task_key(pod), 0.0)
            yield _Bound(left_s / gpus, "max_gpu_time of its task, in all attempts")
        for stage, what in (("", "run"), (pod.stage, "stage")) if pod.run in self._pods else ():
            use = self._uses.get((pod.run, stage))
            if use is not None and (stage or what == "run"):
                yield from _together(pod, use, what, now)


def _together(pod: Pod, use: _Use, what: str, now: float) -> Iterator[_Bound]:
    begun, limits, gpus = pod.started or now, use.limits, pod.gpus
    if limits.max_runtime_s is not None:
        yield _Bound((use.first or begun) + limits.max_runtime_s - begun, f"max_runtime of its {what}")
    if limits.max_gpu_s is not None:
        left_s = limits.max_gpu_s - use.gpu_s
        if left_s <= 0:
            yield _Bound(now - begun, f"max_gpu_time of its {what}")
        elif gpus:  # others may use of it too: then it is earlier
            yield _Bound(now - begun + left_s / gpus, f"max_gpu_time of its {what}")


def gpu_s(pod: Pod, now: float) -> float:
    """The GPU time that a pod has held by now: it has its GPUs from its place on its node to its end."""
    if not pod.started:
        return 0.0
    return pod.gpus * max(0.0, (pod.ended or now) - pod.started)


def task_key(pod: Pod) -> TaskKey:
    """The same for all attempts at one task of a run: of Argo by its node, of a Job by its index."""
    return pod.run, pod.task, without_try(pod.argo_node) or pod.index


def _with_end(pod: Pod, before: float, now: float) -> Pod:
    """Of one that is over and does not say since when: when that was first seen."""
    return pod if pod.ended or not pod.is_over else msgspec.structs.replace(pod, ended=before or now)


def _is_news(pod: Pod, seconds: int, now: float) -> bool:
    if pod.deadline_s is None:
        return True
    is_due = now - (pod.started or now) >= seconds
    return seconds < pod.deadline_s and (is_due or pod.deadline_s - seconds >= SHARE * pod.deadline_s)
