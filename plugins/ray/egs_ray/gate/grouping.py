"""Placement groups with GPUs that this process asks Ray for, as gangs with a turn each: Tune's trials, Train's workers.

    placement_group(…) ─► a ticket for each bundle with GPUs ─► all are open ─► Ray makes the group, with its own rules
                                                                    it is removed ─► the site has its GPUs back

Only the creation waits. It does so while nobody needs more of the group than to know whether it is ready (see
`groups.WaitingGroup`), so what is placed in a group without asking has it made at once, and counted all the same.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from ray.util.placement_group import PlacementGroup

from egs_ray import submitting, waiting
from egs_ray.groups import WaitingGroup, is_gone
from egs_ray.own_values import OwnValues, make_own_values
from egs_ray.session.room import STRICT_PACK, STRICT_SPREAD
from egs_ray.submission import Arrival, Needs
from egs_ray.told import ToldRef

ID_BYTES = 24  # of a task, to Ray
LOOK_S = 1.0  # a group may be removed by another process, of which nobody here hears
PLACED_BY_HAND = ("_soft_target_node_id", "bundle_label_selector", "topology_strategy")
PLAIN = {"CPU", "GPU", "memory"}
NODE = "node"
WORKERS = "train-workers"
CALLED = {"ray.tune": "tune-trial", "ray.train": WORKERS}
ITS_OWN = "placement-group"


class Turn(msgspec.Struct, eq=False):
    """Of one group: its tickets, how many of them are still closed, and what stands for its members at the gate."""

    gate: Any
    keys: list[str]
    closed: int
    group: WaitingGroup | None = None
    refs: list[ToldRef] = []
    tickets: list[Any] = []  # references, kept until they have values

    def over(self) -> None:
        """Nothing of it is left."""
        for ref in self.refs:
            ref.over()


Tickets = list[tuple[str, Any]]
"""Of a group: for each bundle a key, and what has a value when it is open."""


class Groups:
    """The placement groups of this process. gate: see `Ordering.gate_for_workers`; on_failure: called with what went
    wrong here; tickets: those of a group that needs so much, by its strategy, from a gate. From any thread."""

    def __init__(
        self,
        gate: Callable[[], Any],
        on_failure: Callable[[BaseException], None],
        tickets: Callable[[Any, list[Needs], str], Tickets | None],
    ) -> None:
        self._gate, self._on_failure, self._tickets = gate, on_failure, tickets
        self._lock = threading.Lock()
        self._turns: dict[int, Turn] = {}  # by the group's identity: whose end is to be heard of
        self._todo: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        self._values: OwnValues | None = None
        self._runs = False
        self.ordered = 0

    def create(
        self, native: Callable[[], PlacementGroup], bundles: list[dict[str, float]], others: dict[str, Any]
    ) -> PlacementGroup:
        """The group, which waits for its turn where it is one for the gate."""
        turn = None
        try:
            if is_for_gate(bundles, others):
                turn = self._turn(native, bundles, others)
        except Exception as error:
            self._on_failure(error)
        return native() if turn is None or turn.group is None else turn.group

    def remove(self, native: Callable[[], None], group: Any) -> None:
        """Remove it, with Ray or before Ray knows it."""
        if not isinstance(group, WaitingGroup) or group.removed():
            native()
        with self._lock:
            turn = self._turns.pop(id(group), None) or self._turn_of(group)
        if turn is not None:
            turn.over()

    def forget(self) -> None:
        """The Ray session has ended, and its groups with it."""
        with self._lock:
            self._turns.clear()
            self._values = None

    def _turn_of(self, group: Any) -> Turn | None:
        """That of a group for which somebody has another handle."""
        same = (key for key, turn in self._turns.items() if turn.group == group)
        return self._turns.pop(next(same, 0), None)

    def _turn(
        self, native: Callable[[], PlacementGroup], bundles: list[dict[str, float]], others: dict[str, Any]
    ) -> Turn | None:
        needs = list(needs_of(bundles, _called()))
        if (gate := self._gate()) is None:
            return None
        with submitting.directly():
            if self._values is None:
                self._values = make_own_values()
            tickets = None if self._values is None else self._tickets(gate, needs, others["strategy"] or "")
        if tickets is None:
            return None
        turn = Turn(gate, [key for key, _ in tickets], len(tickets))
        turn.tickets = [ref for _, ref in tickets]
        try:
            self._wait(turn, native, bundles, others, needs)
        except Exception:
            for key in turn.keys:
                gate.give_back(key)
            raise
        return turn

    def _wait(
        self,
        turn: Turn,
        native: Callable[[], PlacementGroup],
        bundles: list[dict[str, float]],
        others: dict[str, Any],
        needs: list[Needs],
    ) -> None:
        from egs_core.graph.columns import TaskOptions  # of the engine, which a process without groups needs not pay
        from egs_ray.session.described import member

        assert self._values is not None
        strategy = others["strategy"] if len(needs) > 1 else ""
        options = TaskOptions(
            gang=f"group-{os.urandom(8).hex()}" if len(needs) > 1 else "",
            gang_same=NODE if strategy == STRICT_PACK else "",
            gang_apart=NODE if strategy == STRICT_SPREAD else "",
        )
        told = []
        for key, one in zip(turn.keys, needs, strict=True):
            ref = ToldRef(os.urandom(ID_BYTES).hex(), lambda why: self._kill(turn, why))
            turn.refs.append(ref)
            arrival = Arrival(key, ref.name, one, [], [], seconds=0.0)
            told.append((arrival, {ref.name: ref}, member(one, options)))
        with_gpus = [index for index, bundle in enumerate(bundles) if bundle.get("GPU")]
        members = dict(zip(with_gpus, [ref.name for ref in turn.refs], strict=True))
        fails_late = needs[0].name == WORKERS
        turn.group = WaitingGroup(native, bundles, self._values, lambda: self._hurry(turn), members, fails_late)
        with self._lock:
            self._turns[id(turn.group)] = turn
            self.ordered += 1
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="egs-groups", daemon=True).start()
        turn.gate.add_all(told)
        for ref in list(turn.tickets):
            waiting.on_ready(ref, lambda: self._opened(turn))

    def _opened(self, turn: Turn) -> None:
        """On a thread of Ray's."""
        with self._lock:
            turn.closed -= 1
            if turn.closed:
                return
            turn.tickets.clear()
        self._todo.put(turn)

    def _hurry(self, turn: Turn) -> None:
        """Somebody needs its id: it waits no longer."""
        with suppress(Exception):  # the gate has gone meanwhile
            for key in turn.keys:
                turn.gate.hand_on(key)

    def _kill(self, turn: Turn, why: str) -> None:
        """An operator ends it: what runs in it fails, and who waits for it is told. Of several bundles each is."""
        threading.Thread(target=self._end, args=(turn, why), name="egs-group-end", daemon=True).start()

    def _end(self, turn: Turn, why: str) -> None:
        submitting.submit_directly()
        with suppress(Exception):  # Ray has gone
            assert turn.group is not None
            turn.group.end(why)
        with self._lock:
            self._turns.pop(id(turn.group), None)
        turn.over()

    def _run(self) -> None:
        submitting.submit_directly()
        while True:
            try:
                self._make(self._todo.get(timeout=LOOK_S))
                continue
            except queue.Empty:
                pass
            try:
                self._look()
            except Exception:  # Ray does not answer, or has gone
                with self._lock:
                    self._turns.clear()
            with self._lock:
                if not self._turns and self._todo.empty():
                    self._runs = False
                    return

    def _make(self, turn: Turn) -> None:
        assert turn.group is not None
        try:
            if not turn.group.is_removed:
                turn.group.make()
        except Exception:  # whoever waits for it is told, and nobody hears of its end
            with self._lock:
                self._turns.pop(id(turn.group), None)
            turn.over()

    def _look(self) -> None:
        """Which of the groups that Ray has made are there no more."""
        with self._lock:
            made = [turn for turn in self._turns.values() if turn.group is not None and turn.group.is_made]
        for turn in made:
            if turn.group is not None and is_gone(turn.group):
                with self._lock:
                    self._turns.pop(id(turn.group), None)
                turn.over()


def is_for_gate(bundles: list[dict[str, float]], others: dict[str, Any]) -> bool:
    """Whether it has GPUs, is Ray's to place, and is this process's alone: who else can look for it may wait for it."""
    if others["name"] or others["lifetime"] is not None or any(others.get(name) for name in PLACED_BY_HAND):
        return False
    amounts = [amount for bundle in bundles for amount in bundle.values()]
    is_plain = min(amounts) >= 0 and all(PLAIN.issuperset(bundle) for bundle in bundles)
    return is_plain and any(bundle.get("GPU") for bundle in bundles)


def needs_of(bundles: list[dict[str, float]], name: str) -> Iterator[Needs]:
    """What its bundles with GPUs need."""
    for bundle in bundles:
        if bundle.get("GPU"):
            cpus, gpus, memory = (bundle.get(kind, 0) for kind in ("CPU", "GPU", "memory"))
            yield Needs(name, float(cpus), float(gpus), int(memory))


def _called() -> str:
    """What operators read: which library asks, if one does."""
    frame: Any = sys._getframe()
    while frame is not None:
        module = ".".join(str(frame.f_globals.get("__name__", "")).split(".")[:2])
        if module in CALLED:
            return CALLED[module]
        frame = frame.f_back
    return ITS_OWN


def tickets_of(gate: Any, needs: list[Needs], strategy: str, take: Callable[[Needs], tuple[str, Any] | None]) -> Any:
    """A ticket for each bundle from a driver's gate, by `take`, each to be waited for; None where the group passes."""
    if not gate.admits_group(needs, strategy):
        return None
    taken: list[tuple[str, Any]] = []
    for one in needs:
        ticket = take(one)
        if ticket is None:
            for key, _ in taken:
                gate.give_back(key)
            return None
        taken.append(ticket)
    return taken


def drivers_tickets(gate: Any, needs: list[Needs], strategy: str) -> Tickets | None:
    """Those of a group that the driver itself asks for."""
    found: Tickets | None = tickets_of(gate, needs, strategy, lambda one: gate.ticket(one, is_bare=False))
    return found
