"""Which member of a gang gets which group, where each must have one of its own.

    member    may have, best first
    a         r1  r2                    a takes r1; b, which may have no other, makes a go on to r2
    b         r1                        c takes r3
    c         r2  r3

A member that was given a group keeps one: it makes way only where another of its own is left. So all have one whenever
that is possible at all (augmenting paths, Kuhn 1955).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


def select_apart(offers: Mapping[int, Sequence[int]]) -> dict[int, int] | None:
    """Member -> group, no group twice; None where that is not possible. offers: of each member the groups that it may
    have, best first; who comes first chooses first."""
    has: dict[int, int] = {}
    return has if all(_gives(member, offers, has) for member in offers) else None


def _gives(member: int, offers: Mapping[int, Sequence[int]], has: dict[int, int]) -> bool:
    """Whether it has a group now, too; others may have gone on to another one for that."""
    holders = {group: one for one, group in has.items()}
    wanted_by: dict[int, int] = {}
    pending = deque([member])
    while pending:
        one = pending.popleft()
        for group in offers[one]:
            if group in wanted_by:
                continue
            wanted_by[group] = one
            if group in holders:
                pending.append(holders[group])
                continue
            while True:  # each takes what the one after it on the way has left
                taker = wanted_by[group]
                left = has.get(taker)
                has[taker] = group
                if left is None:
                    return True
                group = left
    return False
