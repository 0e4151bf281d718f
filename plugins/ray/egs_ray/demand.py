"""What Ray's autoscaler is told of work that Ray cannot see: tasks at the gate, and what a session's engine expects.

    gate:    tasks that wait there, those let through, and GPUs in others' use ─┐
    session: the engine's scaling hints, flavor by flavor ─────────────────────┴─► one request, replaced when it changes

A task that waits for an argument is no demand to Ray's autoscaler (tried), and so neither is one that waits for a
ticket. `request_resources` names what the cluster should have in all; a cluster has one request, the last caller's. So
EGS asks only where an autoscaler is found, never over a living program's request, and withdraws its own at the end.
Ray's second autoscaler makes room for all of a request or for nothing of it, where a cluster has a greatest size: then
EGS asks for less, until it is taken (`Taken`).
EGS_SCALING=off: it asks for nothing, and gates nothing where an autoscaler is; on: there is one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from egs_core.engine import messages as m
from egs_core.notices import warn
from egs_ray import autoscaler, submitting
from egs_ray.submission import Needs

SCALING = "EGS_SCALING"
MOST_BUNDLES = 1000
CLOSE_S = 5.0
LOOK_S = 1.0  # how often it is looked whether what a session asks for is taken
AGAIN_S = 300.0  # so long after a refusal all is asked for again: the cluster's greatest size may be another
Bundle = dict[str, float]


def cluster_grows() -> bool:
    """Whether an autoscaler adds nodes to this cluster, as far as EGS can tell or was told."""
    said = os.environ.get(SCALING, "").strip().lower()
    return said == "on" or autoscaler.has_autoscaler()


def may_ask() -> bool:
    """Whether the user lets EGS ask for nodes."""
    return os.environ.get(SCALING, "").strip().lower() != "off"


class Taken:
    """How much of what is wanted an autoscaler takes that makes room for all of a request or nothing, by halving.

    What is refused is not asked for: of bundles like it only as many as were taken. So whatever comes behind it may.
    """

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()
        self._refused: list[Bundle] = []  # between `low` and `high` of these are taken; empty: nothing is looked for
        self._low = self._high = 0

    @property
    def is_less(self) -> bool:
        """Whether something was refused."""
        return bool(self._most)

    def to_ask(self, wanted: list[Bundle]) -> list[Bundle]:
        """What to ask for now."""
        if self._refused and wanted:
            return self._refused[: (self._low + self._high) // 2]
        self._refused = []
        asked, seen = list[Bundle](), Counter[str]()
        for bundle in wanted:
            shape = _shape(bundle)
            seen[shape] += 1
            if shape not in self._most or seen[shape] <= self._most[shape]:
                asked.append(bundle)
        return asked

    def heard(self, asked: list[Bundle], is_taken: bool) -> None:
        """What the autoscaler says to what `to_ask` gave."""
        if self._refused and is_taken:
            self._low = len(asked)
        elif not is_taken:
            if not self._refused:
                self._refused, self._low = asked, 0
            self._high = len(asked)
        if self._refused and self._high - self._low == 1:
            shape = _shape(self._refused[self._low])
            self._most[shape] = sum(_shape(bundle) == shape for bundle in self._refused[: self._low])
            self._refused = []


def _shape(bundle: Bundle) -> str:
    return repr(sorted(bundle.items()))


class Demand:
    """This process's one request. sources: who wants how much; all of it together is asked for. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, list[Bundle]] = {}
        self._asked: list[Bundle] = []
        self._ours = ""  # how Ray shows our request
        self._since = 0  # the number of the cluster's state when it was made
        self._taken, self._again_s = Taken(), 0.0
        self.is_refused = False  # somebody else's request is in force

    def want(self, source: str, bundles: list[Bundle]) -> None:
        """Ask for this and for what other sources want, if that is news. To be called again each second while
        something is wanted, because less may have to be asked for. May block for as long as Ray takes."""
        with self._lock:
            self._wanted[source] = bundles[:MOST_BUNDLES]
            total = [bundle for wanted in self._wanted.values() for bundle in wanted][:MOST_BUNDLES]
            if self.is_refused:
                return
            total = self._possible(total)
            if total == self._asked:
                return
            there = autoscaler.requested_nodes()
            if there not in ("", self._ours) and not autoscaler.is_leftover(there):
                self.is_refused = True
                warn("another program asks the autoscaler for nodes: EGS does not")
                return
            autoscaler.request_nodes(total)
            self._asked, self._ours = total, autoscaler.requested_nodes()
            autoscaler.sign_request(self._ours)
            self._since = autoscaler.state_number()

    def withdraw(self, source: str) -> None:
        """A source has ended, with Ray's connection perhaps: what comes next may be another cluster."""
        with self._lock:
            self._wanted.pop(source, None)
            if any(self._wanted.values()):
                return
            try:
                if self._asked and autoscaler.requested_nodes() == self._ours:
                    autoscaler.request_nodes([])
            except Exception as error:  # the cluster may be gone already
                warn(f"the request to the autoscaler stays: {type(error).__name__}")
            self._wanted, self._asked, self._ours, self.is_refused = {}, [], "", False
            self._taken = Taken()

    def _possible(self, wanted: list[Bundle]) -> list[Bundle]:
        """As much of it as the autoscaler makes room for, by what it has said to what is asked for now."""
        if self._taken.is_less and time.monotonic() > self._again_s:
            self._taken = Taken()
        elif self._asked and (is_taken := autoscaler.is_taken(self._since)) is not None:
            self._taken.heard(self._asked, is_taken)
            if not is_taken:
                self._again_s = time.monotonic() + AGAIN_S
        return self._taken.to_ask(wanted)


DEMAND = Demand()


def bundles_of_tasks(needs: Iterable[Needs], used_by_others: float) -> list[Bundle]:
    """What tasks of the gate need, beside GPUs that others hold: the request is for the whole cluster."""
    tasks = [{"CPU": need.cpus, "GPU": need.gpus, "memory": float(need.memory_bytes)} for need in needs]
    kept = [{name: amount for name, amount in task.items() if amount} for task in tasks]
    others = [{"GPU": 1.0}] * math.ceil(max(0.0, used_by_others) - 1e-6)
    return kept + others if kept else []


def bundles_of_hints(hints: Iterable[m.ScalingHint], accelerators: Iterable[str]) -> list[Bundle]:
    """What the engine says should be there. accelerators: flavors that Ray's nodes offer as a resource of their own;
    another flavor cannot be named to every autoscaler, so any GPU is asked for."""
    named, bundles = set(accelerators), list[Bundle]()
    for hint in hints:
        of_flavor = {f"accelerator_type:{hint.flavor}": 0.001} if hint.flavor in named else {}
        bundles += [{"GPU": 1.0, **of_flavor}] * hint.gpus + [{"CPU": 1.0}] * hint.cpus
    return bundles


class Hints:
    """The engine's latest hints, and a thread that tells Ray of them: asking may block, and the engine must not."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._latest: dict[str, m.ScalingHint] = {}
        self._changed = threading.Event()
        self._is_over = False
        self._is_busy = True
        self._accelerators: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="egs-scaling", daemon=True)
        self._thread.start()

    def take(self, hint: m.ScalingHint) -> None:
        self._latest = {**self._latest, hint.flavor: hint}
        self._changed.set()

    def look(self, is_busy: bool, accelerators: Iterable[str]) -> None:
        """is_busy: some run is under way; else nothing is wanted, whatever the last hint was."""
        now: Any = (is_busy, tuple(accelerators))
        if now != (self._is_busy, self._accelerators):
            self._is_busy, self._accelerators = now
            self._changed.set()

    def close(self) -> None:
        self._is_over = True
        self._changed.set()
        self._thread.join(CLOSE_S)
        DEMAND.withdraw(self._source)

    def _run(self) -> None:
        submitting.submit_directly()
        wanted: list[Bundle] = []
        while not self._is_over:
            self._changed.wait(LOOK_S if wanted else None)
            if self._is_over:
                return
            self._changed.clear()
            wanted = bundles_of_hints(self._latest.values(), self._accelerators) if self._is_busy else []
            try:
                DEMAND.want(self._source, wanted)
            except Exception as error:
                warn(f"the autoscaler is not told of what is needed: {type(error).__name__}: {error}".splitlines()[0])
                return
