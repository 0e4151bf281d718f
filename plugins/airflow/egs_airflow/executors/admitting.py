"""Which gang begins in a pass of the scheduler, and for which others slots are kept. Pure: no clock, no database.

Airflow hands out slots task by task, and the first member of a gang would take one while the last finds none. So the
members of a gang are not seen by the scheduler until it fits as a whole; then one pass sees them and nobody else:

    4 slots open     order        pass 1     pass 2     pass 3, nothing has ended
                     red, 3       red, 3                running
                     blue, 3      -          -          -, and what is open is kept for it once it has waited
                     small, 1     -          small      running

A pass for a gang costs the others that one pass: after one that started something, Airflow begins the next at once.
Only the first gang in the order has slots kept for it before those behind it, so of two gangs one always gets all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egs_airflow.executors.keeping import COLLECTS, Claim, Place


@dataclass(frozen=True)
class Gang:
    """A gang of which all members wait for nothing but slots. key: Airflow's, of its first member; place: in the order.

    name: DAG, run and gang; needs: slots by pool; size: its members; is_due: it has waited so long that slots are kept.
    """

    name: tuple[str, str, str]
    key: Any
    tasks: frozenset[str]
    needs: Mapping[str, int]
    size: int
    place: Place
    is_due: bool = False


@dataclass(frozen=True)
class Turn:
    """What one pass is for: the gang that begins, alone; else the claims on each pool, those of gangs among them.

    floor: what weighs no more than this may not start in this pass, because a gang lacks processes; None: all may.
    """

    gang: Gang | None
    claims: Mapping[str, Sequence[Claim]]
    floor: float | None = None


def compute_turn(
    open_slots: Mapping[str, float], room: int, claims: Mapping[str, Sequence[Claim]], gangs: Iterable[Gang]
) -> Turn:
    """The first gang in the order that fits beside what goes before it. room: how many tasks the executor can take."""
    known = {pool: list(several) for pool, several in claims.items()}
    floor = None
    for gang in sorted(gangs, key=lambda one: one.place):
        left = {pool: compute_left(open_slots.get(pool, 0), known.get(pool, ()), gang.place) for pool in gang.needs}
        if gang.size <= room and all(slots <= left[pool] for pool, slots in gang.needs.items()):
            return Turn(gang, known)
        if not gang.is_due:
            continue
        if gang.size > room:
            floor, room = -gang.place[0] if floor is None else floor, 0
        for pool, slots in gang.needs.items():
            known.setdefault(pool, []).append(Claim(gang.key, slots, gang.place, "gang"))
    return Turn(None, known, floor)


def compute_left(open_slots: float, claims: Iterable[Claim], place: Place) -> float:
    """What those before that place in the order leave of a pool's open slots."""
    for claim in sorted(claims, key=lambda one: one.place):
        if claim.place >= place:
            break
        if claim.reason in COLLECTS:
            open_slots -= min(claim.slots, open_slots)
        elif claim.slots <= open_slots:
            open_slots -= claim.slots
    return open_slots
