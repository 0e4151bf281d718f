"""Which worker processes should stand ready on each node, for jobs of which runtime environment.

Ray gives a task a process that no job has taken yet, if it was started for the same runtime environment. It starts such
processes itself for its first driver only, and one that a job has taken ends with that job:

    job 1 takes one    ready ▒▒▒▒│ taken ████│
    job 2 takes one              ask ▒▒▒▒▒▒▒▒▒│ taken ███│      asked for when job 1's came, by `egs_core.demand`

Pure: `see` is told which processes a node has, `wanted` says what to ask Ray for, `asked` that it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from egs_core.demand import MOST_KNOWN, MOST_TIMES, how_many, rate

WORTH_S = 120.0
"""So long a process stands ready, in the mean, for one task that finds it."""
LOAD_S = 2.0
"""What a worker process is believed to need, to start and import: Ray does not tell. What comes no further apart is one
burst."""
START_S = 10.0
"""What was asked for and was not seen by then was taken at once, or not started: Ray starts no more at once than there
are processors."""
LEAST_JOBS = 2
"""For an environment that one job has had, as with a folder that changes with each, nothing stands ready."""
UNKNOWN = "?"
"""Environment of those that stand ready when a node is first seen: Ray does not tell. They count for none."""
SHORT_S = 5.0
"""A job that began so short ago, and is over, may have taken what is gone."""
MISSES = 3
"""So often in turn a task may take none of those that stand ready: then it does not fit, as where tasks have
environments of their own."""


@dataclass(frozen=True, slots=True)
class Process:
    """A worker process of a node. job: that has taken it, "" for none."""

    id: str
    job: str


@dataclass(frozen=True, slots=True)
class Job:
    """A driver. environment: its runtime environment as Ray has written it, "" for none."""

    id: str
    environment: str
    is_over: bool


@dataclass(slots=True)
class Kind:
    """Of one environment on one node; see `egs_core.demand.Arrivals`."""

    came_s: list[float] = field(default_factory=list)
    needs: tuple[bool, ...] = ()  # all: no task had time to load in
    standing: int = 0
    load_s: float = LOAD_S
    misses: int = 0

    def came(self, count: int, now_s: float) -> None:
        self.came_s = [*self.came_s, *[now_s] * count][-MOST_TIMES:]


Asked = tuple[float, str]  # when, for which environment


@dataclass(slots=True)
class Node:
    """taken: processes that jobs have; ready: of each other one for which environment; asked: what has not come yet;
    perhaps: what a job may have had as it came."""

    taken: set[str]
    ready: dict[str, str]
    asked: list[Asked] = field(default_factory=list)
    perhaps: list[Asked] = field(default_factory=list)
    kinds: dict[str, Kind] = field(default_factory=dict)

    def kind(self, environment: str) -> Kind:
        """The newest are remembered."""
        found = self.kinds.pop(environment, None) or Kind()
        self.kinds[environment] = found
        if len(self.kinds) > MOST_KNOWN:
            del self.kinds[next(iter(self.kinds))]
        return found

    def had(self, environment: str, count: int) -> None:
        """Jobs have got so many processes that nobody saw stand ready: what was asked for may be among them."""
        those = [one for one in self.asked if one[1] == environment][:count]
        self.perhaps += those
        for one in those:
            self.asked.remove(one)

    def environment_of_new(self) -> str:
        """What was not asked for is Ray's own."""
        asked = self.asked or self.perhaps
        return asked.pop(0)[1] if asked else ""

    def forget(self, now_s: float) -> None:
        self.asked = [one for one in self.asked if now_s - one[0] < START_S]
        self.perhaps = [one for one in self.perhaps if now_s - one[0] < START_S]

    def count(self) -> None:
        standing = Counter(self.ready.values()) + Counter(environment for _, environment in self.asked)
        for environment, kind in self.kinds.items():
            kind.standing = standing[environment]


class Kept:
    """All nodes. most: processes on one node. came, found: so many have jobs got, and so many of them stood ready."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._nodes: dict[str, Node] = {}
        self._jobs: dict[str, Job] = {}
        self._of: Counter[str] = Counter()
        self._heard_s: dict[str, float] = {}
        self.came = self.found = 0

    def hear(self, jobs: Iterable[Job], now_s: float) -> None:
        """All jobs that Ray knows. At first, and where `must_hear`."""
        self._jobs = {job.id: job for job in jobs}
        self._of = Counter(job.environment for job in self._jobs.values())
        self._heard_s = {one: self._heard_s.get(one, now_s) for one in self._jobs}

    def must_hear(self, node: str, processes: Sequence[Process]) -> bool:
        """Whether what has come, or is gone, there is that of jobs which are to be looked up before `see`."""
        known, ids = self._nodes.get(node), {one.id for one in processes}
        is_new = any(one.job and one.job not in self._jobs for one in processes)
        return is_new or (known is not None and not known.ready.keys() <= ids)

    def see(self, node: str, processes: Sequence[Process], now_s: float) -> None:
        """What a node has now."""
        free, taken = {one.id for one in processes if not one.job}, {one.id: one.job for one in processes if one.job}
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = Node(set(taken), dict.fromkeys(sorted(free), UNKNOWN))
            return
        gone = {one: environment for one, environment in known.ready.items() if one not in free}
        takers = (self._taken_for(taken.get(one), environment, now_s) for one, environment in gone.items())
        found = Counter(environment for environment in takers if environment is not None)
        new = [taken[one] for one in taken if one not in known.taken and one not in gone]
        cold = Counter(self._jobs[job].environment for job in new if job in self._jobs)
        known.ready = {one: environment for one, environment in known.ready.items() if one not in gone}
        for environment in found | cold:
            self._needed(known, environment, found[environment], cold[environment], now_s)
        known.taken = set(taken)
        known.forget(now_s)
        for one in sorted(free - known.ready.keys()):
            known.ready[one] = known.environment_of_new()
        known.count()

    def wanted(self, node: str, now_s: float) -> dict[str, int]:
        """How many to ask Ray for there, by environment. Those for which the time is over do not count as standing:
        Ray ends them when it wants their CPUs."""
        known, found = self._nodes[node], dict[str, int]()
        able = {one: kind for one, kind in known.kinds.items() if self._is_worth_it(one, kind)}
        should = {one: how_many(kind, now_s, self._most, WORTH_S) for one, kind in able.items()}
        room = self._most - sum(min(kind.standing, should[one]) for one, kind in able.items())
        for environment, kind in sorted(able.items(), key=lambda one: -rate(one[1], one[1].standing + 1, now_s)):
            number = min(room, should[environment] - kind.standing)
            if number > 0:
                found[environment], room = number, room - number
        return found

    def asked(self, node: str, environment: str, count: int, now_s: float) -> None:
        """Ray was asked for them."""
        self._nodes[node].asked += [(now_s, environment)] * count
        self._nodes[node].count()

    def keep_nodes(self, nodes: Iterable[str]) -> None:
        """Forget the others."""
        there = set(nodes)
        self._nodes = {name: node for name, node in self._nodes.items() if name in there}

    def _is_worth_it(self, environment: str, kind: Kind) -> bool:
        return kind.misses < MISSES and self._of[environment] >= LEAST_JOBS

    def _taken_for(self, job: str | None, environment: str, now_s: float) -> str | None:
        """The environment of the job that has taken a process; None where Ray has ended it. job: None of one that is
        gone, which a job may have taken that is over again, or its task."""
        if job is not None:
            return self._jobs[job].environment if job in self._jobs else None
        able = (one for one in self._jobs.values() if one.environment == environment)
        is_taken = any(not one.is_over or now_s - self._heard_s[one.id] < SHORT_S for one in able)
        return environment if is_taken else None

    def _needed(self, node: Node, environment: str, found: int, cold: int, now_s: float) -> None:
        kind = node.kind(environment)
        node.had(environment, cold)
        kind.came(found + cold, now_s)
        self.came, self.found = self.came + found + cold, self.found + found
        stood = environment in node.ready.values()
        kind.misses = 0 if found else kind.misses + (1 if stood else 0)
