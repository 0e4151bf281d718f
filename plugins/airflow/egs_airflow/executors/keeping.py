"""How many open slots of a pool are to be kept in one pass of the scheduler, and for whom. Pure: no clock, no database.

Airflow's scheduler first looks which tasks have become ready, then hands the open slots of each pool to the waiting
tasks in their order. Two things go wrong, and both are answered by telling it of fewer open slots in that pass:

    1. a task ends in between: its successor is not among the waiting yet, and a leaf takes the slot

           order   waiting     successor of what has ended      the pass, one slot open
           w=90                fit (1 slot)                     kept
           w=11    leaf                                         waits for the next pass

    2. a task needs more slots than are open: Airflow skips it, and smaller ones take every slot that comes free

           w=90    big (4 slots), for 30 s                      all that is open is kept
           w=11    small                                        waits until big has started

A gang that does not fit as a whole has slots kept for it in the same way: see `admitting`.

Where an agent hosts the engine, that decides for whom slots are kept in the second case, what may pass meanwhile, and
which of those that wait are seen at all. This module then only does as it says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from egs_airflow.order.published import Turn

Reason = Literal["successor", "reservation", "gang"]
Place = tuple[float, int, int]
COLLECTS = ("reservation", "gang")
"""Reasons for which less than the claim is kept too, until it is enough."""


@dataclass(frozen=True)
class Claim:
    """A task instance that wants slots of a pool. key: Airflow's; place: its place in Airflow's order, lowest first.

    reason: why slots may be kept for it: "" for one that only takes what it gets. id: of its row; turn: what the engine
    says of it, None where it says nothing, or no agent hosts it.
    """

    key: Any
    slots: int
    place: Place
    reason: Reason | Literal[""] = ""
    id: Any = None
    turn: Turn | None = None

    @property
    def may_start(self) -> bool:
        """Whether the engine would start it now."""
        return self.turn is not None and self.turn.may_start


@dataclass(frozen=True)
class Kept:
    """Slots of a pool that nobody gets in this pass, and for whom."""

    slots: int
    reason: Reason
    key: Any


def compute_kept(open_slots: int, claims: Sequence[Claim]) -> list[Kept]:
    """What to keep of a pool's open slots. Those before the claim in the order get theirs; nothing is kept that no
    other task would have taken."""
    kept: list[Kept] = []
    ordered = sorted(claims, key=lambda claim: claim.place)
    for number, claim in enumerate(ordered):
        if open_slots <= 0:
            break
        if claim.reason and not _is_in_danger(claim, open_slots, ordered[number + 1 :]):
            continue
        slots = claim.slots
        if claim.reason in COLLECTS:
            slots = min(slots, open_slots - _that_may_pass(open_slots, ordered[number + 1 :]))
        if slots <= open_slots:
            open_slots -= slots
            if claim.reason:
                kept.append(Kept(slots, claim.reason, claim.key))
    return kept


def compute_behind(open_slots: int, claims: Sequence[Claim], tried: Collection[Any]) -> tuple[set[Any], set[Any]]:
    """Ids of those that the scheduler is to start first, by the engine's order, as far as there is room; and of those
    that it is not to see in this pass therefore. What the engine says nothing of it sees as ever.

    tried: those that were first before and did not start, for a limit of Airflow's: nobody waits for them any more.
    """
    known = [(claim.turn, claim) for claim in claims if claim.turn is not None]
    first: set[Any] = set()
    is_kept = False
    for turn, claim in sorted(known, key=lambda pair: pair[0].rank):
        if claim.id not in tried and claim.slots <= open_slots and (turn.may_start or not is_kept):
            first.add(claim.id)
            open_slots -= claim.slots
        is_kept = is_kept or (turn.keeps and claim.id not in first)
    return first, {claim.id for _, claim in known if claim.id not in first} if first else set()


def _that_may_pass(open_slots: int, later: Sequence[Claim]) -> int:
    """Open slots for those that the engine starts beside what it keeps slots for: they will have ended in time."""
    left = open_slots
    for claim in later:
        left -= claim.slots if claim.may_start and claim.slots <= left else 0
    return open_slots - left


def _is_in_danger(claim: Claim, open_slots: int, later: Sequence[Claim]) -> bool:
    """Whether those later in the order would take slots that the claim needs."""
    takers = sum(other.slots for other in later if not other.reason and other.slots <= open_slots)
    return takers > 0 and open_slots - takers < claim.slots
