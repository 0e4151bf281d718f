"""Order among ready phases: a policy is a short list of comparable terms, the smallest first.

Each term gives a number for a phase; the first term in which two candidates differ is the reason that a decision
carries. Everything ends in `ready_order`, so ties are broken by who became ready first. A phase's key is these numbers,
and the phase behind them.

    dependents          priority, overdue, deadline, remaining_path, dependents, warmth, ready_order      (rule 2)
    egs                 the same, with the place of the submission before the remaining path (`submission_order`)
    fifo                ready_order
    sjf                 shortest, ready_order
    heft                upward_rank, ready_order
    airflow-downstream  downstream_weight, ready_order
    random              random, ready_order
    least-work          as dependents, with the work left of the workload before the remaining path (`work_left`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from egs_core.engine.order.work_left import WorkLeft
from egs_core.engine.rules.deadlines import NO_DEADLINE
from egs_core.engine.state.histories import mean_s as expected_s
from egs_core.engine.state.lifecycle import WARM
from egs_core.engine.state.state import State


class Term(Protocol):
    """A number for a phase; its name is the reason that decisions carry."""

    __name__: str

    def __call__(self, state: State, phase: int, /) -> float: ...


Key = tuple[Any, ...]
"""The number of each term, and the phase."""
FullKey = tuple[Any, ...]
"""Where submissions count: a key with the place of its submission in front of the path, and its number at the end."""
_MASK = 0xFFFFFFFFFFFFFFFF


def priority(state: State, phase: int) -> float:
    """What the user set by hand goes before everything learned."""
    options = state.options.get(state.task_of[phase])
    return -options.priority if options is not None else 0


def overdue(_state: State, _phase: int) -> float:
    """0 when it has waited longer than its `max_wait`; the engine moves it when that moment comes."""
    return 1


def deadline(_state: State, _phase: int) -> float:
    """When it must start to be in time, while its slack is about used up; the queue says when that is (`deadlines`)."""
    return NO_DEADLINE


def remaining_path(state: State, phase: int) -> float:
    """Longest expected path from here to an exit of the graph (upward rank) and what a plan adds to it, longest first;
    after those the jobs, tasks that are a workload of their own and that nothing waits for, shortest expected first.

    HEFT: Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002. SEPT: Rothkopf, Management Science 12(9), 1966.
    """
    task = state.task_of[phase]
    if state.is_job(task):
        return mean_s(state, phase, state.first_phase[task + 1])
    return -(state.rank_s[phase] + state.rank_boost_s.get(phase, 0.0))


def mean_s(state: State, first: int, end: int) -> float:
    """Expected seconds of these phases."""
    return sum([expected_s(state.estimate_s[p], state.estimate_p95_s[p]) for p in range(first, end)])


def upward_rank(state: State, phase: int) -> float:
    """Longest expected path from here to an exit of the graph, longest first, whatever workload it is in."""
    return -state.rank_s[phase]


def dependents(state: State, phase: int) -> float:
    """Of two equal paths the one that others wait for goes first."""
    task = state.task_of[phase]
    return 0 if state.children[task] or phase + 1 < state.first_phase[task + 1] else 1


def warmth(state: State, phase: int) -> float:
    """Of tasks equal in all of that the one whose process is warm; 0 warm or none needed, 1 being loaded, 2 cold."""
    task = state.task_of[phase]
    if state.first_phase[task] != phase or not state.warm_key_of(task):
        return 0
    return WARM - state.warmth[task]


def ready_order(state: State, phase: int) -> float:
    return state.order[phase]


def shortest(state: State, phase: int) -> float:
    """Shortest expected phase first."""
    return state.estimate_s[phase]


def seeded_random(seed: int) -> Term:
    """A number drawn from seed, phase and attempt (splitmix64), so that a replay draws the same."""

    def random(state: State, phase: int) -> float:
        x = (seed * 0xD1B54A32D192ED03 + phase * 0x9E3779B97F4A7C15 + state.attempt[state.task_of[phase]]) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return x ^ (x >> 31)

    return random


class DownstreamWeight:
    """Airflow's default weight rule: own weight plus that of every distinct descendant, largest first.

    Counted a block of tasks at a time with integers as bit sets: memory stays at a kilobyte a task.
    """

    __name__ = "downstream_weight"
    _BLOCK = 8192

    def __init__(self) -> None:
        self._weights: list[int] = []

    def __call__(self, state: State, phase: int) -> float:
        if len(self._weights) != len(state.task_ids):
            self._weights = self._count(state.children)
        return -self._weights[state.task_of[phase]]

    def _count(self, children: list[list[int]]) -> list[int]:
        n = len(children)
        weights = [0] * n
        for low in range(0, n, self._BLOCK):
            high = min(low + self._BLOCK, n)
            reach = [0] * high
            for task in range(high - 1, -1, -1):
                bits = 1 << (task - low) if task >= low else 0
                for child in children[task]:
                    if child < high:
                        bits |= reach[child]
                reach[task] = bits
                weights[task] += bits.bit_count()
        return weights


class Policy(msgspec.Struct, frozen=True):
    """name as on the command line; terms in order; ages: whether `max_wait` moves overdue phases forward;
    looks_ahead: whether plans (`look_ahead`) may add to the remaining path. weighs_transfers: whether a phase may go
    before a longer path for files that it need not fetch (`locality`).

    by_submission: submissions are told apart before the path is asked (`submission_order`): PLACE_TERMS then come
    before the term number PATH_TERM of the others.
    whole_graph: a term depends on more than the task, its children and its rank. fused: all terms in one function,
    for the hot path; a test holds it against the terms. work_left: the term of that kind, which counts events.
    """

    name: str
    terms: tuple[Term, ...]
    ages: bool = False
    looks_ahead: bool = False
    weighs_transfers: bool = False
    whole_graph: bool = False
    by_submission: bool = False
    fused: Callable[[State, int], Key] | None = None
    work_left: WorkLeft | None = None

    @property
    def term_names(self) -> tuple[str, ...]:
        names = tuple([term.__name__ for term in self.terms])
        return (*names[:PATH_TERM], "", *names[PATH_TERM:]) if self.by_submission else names

    @property
    def key(self) -> Callable[[State, int], Key]:
        """The function that gives a phase its place: all terms' numbers, and the phase."""
        terms = self.terms
        return self.fused or (lambda state, phase: (*[term(state, phase) for term in terms], phase))


def egs_key(state: State, phase: int) -> Key:
    """(priority, overdue, deadline, remaining_path, dependents, warmth, ready_order, phase) without six calls."""
    task = state.task_of[phase]
    options = state.options.get(task)
    has_dependents = state.children[task] or phase + 1 < state.first_phase[task + 1]
    is_job = not state.children[task] and state.is_job(task)
    rank = mean_s(state, phase, state.first_phase[task + 1]) if is_job else -state.rank_s[phase]
    if state.rank_boost_s and not is_job:
        rank -= state.rank_boost_s.get(phase, 0.0)
    if options is None:
        return 0, 1, NO_DEADLINE, rank, 0 if has_dependents else 1, 0, state.order[phase], phase
    place = 0 if has_dependents else 1, warmth(state, phase), state.order[phase], phase
    return -options.priority, 1, NO_DEADLINE, rank, *place


EGS_TERMS: tuple[Term, ...] = (priority, overdue, deadline, remaining_path, dependents, warmth, ready_order)
OVERDUE_TERM = EGS_TERMS.index(overdue)
DEADLINE_TERM = EGS_TERMS.index(deadline)
AGE_TERM = DEADLINE_TERM + 1  # of overdue phases: the order in which they became ready, in place of what stands there
PATH_TERM = EGS_TERMS.index(remaining_path)
DEPENDENTS_TERM = EGS_TERMS.index(dependents)
PLACE_TERMS = ("workload_wait", "remaining_work", "dependents", "workload_order")
DEPENDENTS = Policy("dependents", EGS_TERMS, ages=True, looks_ahead=True, weighs_transfers=True, fused=egs_key)
EGS = msgspec.structs.replace(DEPENDENTS, name="egs", by_submission=True)


def least_work(_seed: int) -> Policy:
    """The workload that is nearest to its end first: for the mean completion time where many wait."""
    term = WorkLeft(mean_s)
    return Policy("least-work", (*EGS_TERMS[:3], term, *EGS_TERMS[3:]), ages=True, work_left=term)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "egs": lambda _: EGS,
    "fifo": lambda _: Policy("fifo", (ready_order,)),
    "sjf": lambda _: Policy("sjf", (shortest, ready_order)),
    "heft": lambda _: Policy("heft", (upward_rank, ready_order)),
    "airflow-downstream": lambda _: Policy("airflow-downstream", (DownstreamWeight(), ready_order), whole_graph=True),
    "random": lambda seed: Policy("random", (seeded_random(seed), ready_order)),
    "least-work": least_work,
    "dependents": lambda _: DEPENDENTS,
}


def make_policy(name: str, seed: int = 0) -> Policy:
    """A policy by name. Raises KeyError for an unknown one."""
    return POLICIES[name](seed)
