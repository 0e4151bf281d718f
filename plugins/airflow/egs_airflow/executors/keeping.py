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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Reason = Literal["successor", "reservation", "gang"]
Place = tuple[float, int, int]
COLLECTS = ("reservation", "gang")
"""Reasons for which less than the claim is kept too, until it is enough."""


@dataclass(frozen=True)
class Claim:
    """A task instance that wants slots of a pool. key: Airflow's; place: its place in Airflow's order, lowest first.

    reason: why slots may be kept for it: "" for one that only takes what it gets.
    """

    key: Any
    slots: int
    place: Place
    reason: Reason | Literal[""] = ""


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
        slots = min(claim.slots, open_slots) if claim.reason in COLLECTS else claim.slots
        if slots <= open_slots:
            open_slots -= slots
            if claim.reason:
                kept.append(Kept(slots, claim.reason, claim.key))
    return kept


def _is_in_danger(claim: Claim, open_slots: int, later: Sequence[Claim]) -> bool:
    """Whether those later in the order would take slots that the claim needs."""
    takers = sum(other.slots for other in later if not other.reason and other.slots <= open_slots)
    return takers > 0 and open_slots - takers < claim.slots
