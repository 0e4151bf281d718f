"""The pods that a site is told of, each list of them compared with the one before: what has not changed costs nothing
but that.

A pod has changed where another object stands in its place: whoever makes these objects keeps those that are as they
were. So nothing has to be noted between two lists, and the first one, or one after a fault, is only one in which more
has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import compress
from operator import is_not
from typing import Generic, TypeVar

from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.seen import Known, as_told

Group = TypeVar("Group")
Value = TypeVar("Value")
Gang = tuple[str, str]
"""Run and name."""


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Keys of what is another object than before, or new; then of what is gone."""
    found = [*compress(now, map(is_not, now.values(), map(before.get, now)))]
    if len(now) - sum(key not in before for key in found) < len(before):
        found += sorted(before.keys() - now.keys())
    return found


def move(
    groups: dict[Group, dict[str, Value]], was: Group | None, now: Group | None, uid: str, value: Value | None
) -> None:
    """From one group to another one, by uid; None: to none, or from none. Groups of nothing are not there."""
    if was is not None and was != now:
        del groups[was][uid]
        if not groups[was]:
            del groups[was]
    if now is not None and value is not None:
        groups.setdefault(now, {})[uid] = value


class Compared:
    """listed: the last list; pods: as they are told (`seen.as_told`), by uid; counted: uids of those that have a run
    and whose GPUs count, or that are over: what others hold by claims is not free; on: those that have not ended by
    their node's name, then by uid; touched: nodes on which those are others than when it was last set to nothing."""

    def __init__(self) -> None:
        self.listed: dict[str, Pod] = {}
        self.pods: dict[str, Pod] = {}
        self.counted: set[str] = set()
        self.on: dict[str, dict[str, Pod]] = {}
        self.touched: set[str] = set()
        self._gangs: dict[Gang, dict[str, Pod]] = {}
        self._numbers: dict[str, int] = {}  # by uid, in the order in which they were listed first
        self._listed = 0
        self._news: set[str] = set()
        self._astray: set[str] = set()  # what has a node that is not listed
        self._there: frozenset[str] = frozenset()
        self._wheres, self._waiting = _Texts(), _Texts()

    @property
    def wheres(self) -> frozenset[str]:
        """What pods of ours say of nodes; the same object while it is the same."""
        return self._wheres.all

    @property
    def waiting(self) -> frozenset[str]:
        """Those of pods that have no node."""
        return self._waiting.all

    def hear(self, pods: Mapping[str, Pod]) -> None:
        """This is the list now: all of it, by uid."""
        for uid in changed(self.listed, pods):
            before, pod = self.listed.get(uid), pods.get(uid)
            self._wheres.move(_where(before), _where(pod))
            self._waiting.move(_where(before, is_waiting=True), _where(pod, is_waiting=True))
            if pod is None:
                del self.listed[uid]
            else:
                self.listed[uid] = pod
            if before is None:
                self._listed += 1
                self._numbers[uid] = self._listed
            self._news.add(uid)

    def news(self) -> list[Pod]:
        """Listed pods that have changed since `to_tell`, or had a node then that was not listed."""
        return [self.listed[uid] for uid in self._news | self._astray if uid in self.listed]

    def to_tell(self, known: Mapping[str, Known], nodes: Collection[str]) -> list[str]:
        """`pods` is what is to be told now. Uids of those that are others than the last time, or gone, and of all that
        are in a gang with one of them, as they were listed first. nodes: names of those that are listed; none: it is
        not looked at them."""
        there = frozenset(nodes)
        looked: Iterable[str] = self._news | self._astray
        if there != self._there:
            self._there, looked = there, {**self.listed, **self.pods}
        self._news, self._astray = set(), set()
        found: set[str] = set()
        gangs: set[Gang] = set()
        for uid in looked:
            before, pod = self.pods.get(uid), self.listed.get(uid)
            if pod is not None and there and pod.run and pod.node and pod.node not in there:
                self._astray.add(uid)
                pod = as_told(pod, known.get(uid), there)
                pod = before if pod == before else pod
            if pod is not before:
                found.add(uid)
                gangs.update(self._put(uid, before, pod))
        found.update(*(self._gangs.get(gang, ()) for gang in gangs))
        told = sorted(found, key=self._numbers.__getitem__)
        for uid in looked:
            if uid not in self.listed:
                self._numbers.pop(uid, None)
        return told

    def _put(self, uid: str, before: Pod | None, pod: Pod | None) -> set[Gang]:
        """The gangs that it was in and is in."""
        if pod is None:
            del self.pods[uid]
        else:
            self.pods[uid] = pod
        if (
            pod is not None and pod.run and (pod.shape.gpu_milli or pod.is_over)
        ):  # what is over gives back what it holds
            self.counted.add(uid)
        else:
            self.counted.discard(uid)
        was, is_on = _place(before), _place(pod)
        if was != is_on or before is None or pod is None or _takes(before) != _takes(pod):
            self.touched.update(name for name in (was, is_on) if name is not None)
        move(self.on, was, is_on, uid, pod)
        gangs = _gang(before), _gang(pod)
        move(self._gangs, *gangs, uid, pod)
        return {gang for gang in gangs if gang is not None}


class Kept(Generic[Value]):
    """What was made of some objects, kept as long as it is asked for of the very same ones."""

    def __init__(self, made: Callable[..., Value]) -> None:
        self._made = made
        self._kept: tuple[tuple[object, ...], Value] | None = None

    def __call__(self, *of: object) -> Value:
        if self._kept is None or any(map(is_not, of, self._kept[0])):
            self._kept = of, self._made(*of)
        return self._kept[1]


class _Texts:
    """Texts, each there so often. all: the same object while they are the same."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._all: frozenset[str] | None = frozenset()

    @property
    def all(self) -> frozenset[str]:
        if self._all is None:
            self._all = frozenset(self._counts)
        return self._all

    def move(self, was: str | None, now: str | None) -> None:
        """One less of that, one more of this."""
        if was == now:
            return
        if now is not None:
            if now not in self._counts:
                self._all = None
            self._counts[now] += 1
        if was is not None:
            self._counts[was] -= 1
            if not self._counts[was]:
                del self._counts[was]
                self._all = None


def _where(pod: Pod | None, *, is_waiting: bool = False) -> str | None:
    if pod is None or not pod.run or (is_waiting and (pod.node or pod.is_over)):
        return None
    return pod.where


def _gang(pod: Pod | None) -> Gang | None:
    return (pod.run, pod.gang) if pod is not None and pod.gang and pod.run else None


def _place(pod: Pod | None) -> str | None:
    return pod.node if pod is not None and pod.node and not pod.is_over else None


def _takes(pod: Pod) -> tuple[object, ...]:
    """Of its node."""
    return pod.shape, pod.claimed, bool(pod.run)
