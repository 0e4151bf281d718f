"""How few of the candidates must end so that phases fit: a search over their order, then a bounded thinning out.

    candidates     a  b  c  d  e  f  g      in the order in which they would be stopped
    enough         -  -  -  -  x  x  x      more ends leave more room, so the first count that is enough is searched for
    on its nodes         c     e            the phases would start where c and e run: a, b and d stop for nothing
    without one          c     e            the last first, while the rest is enough

Each question costs as much as trying to place the phases; there are at most log2(candidates) + `MOST_TRIALS` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.engine.rules import quota
from egs_core.engine.rules.fit import Place
from egs_core.engine.rules.reservation import queues_with_kept, select_gang_after
from egs_core.engine.specs import NO_QUEUE, Amounts
from egs_core.engine.state.records import amounts_of
from egs_core.engine.state.state import State

MOST_TRIALS = 16  # of leaving one of the victims alone

Unit = tuple[int, ...]
"""Tasks that are stopped together: one, or those of a gang."""


def minimal_victims(
    state: State, phases: Sequence[int], number: int, wanted: Amounts, candidates: Sequence[Unit]
) -> list[Unit]:
    """The first candidates whose end lets the phases start, without those that turn out not to be needed; none when
    all of them are not enough."""
    if not _could_do(state, wanted, candidates) or room_without(state, phases, number, wanted, candidates) is None:
        return []
    low, high = 1, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if room_without(state, phases, number, wanted, candidates[:middle]) is None:
            low = middle + 1
        else:
            high = middle
    chosen = _on_their_nodes(state, phases, number, wanted, candidates[:low])
    for unit in chosen[::-1][:MOST_TRIALS] if len(chosen) > 1 else ():
        fewer = [other for other in chosen if other != unit]
        if room_without(state, phases, number, wanted, fewer) is not None:
            chosen = fewer
    return chosen


def _could_do(state: State, wanted: Amounts, candidates: Sequence[Unit]) -> bool:
    """Whether the candidates' GPUs and those that are free, wherever they are, are as many as wanted."""
    free = sum([sum(node.devices) for node in state.nodes if node.alive]) if wanted[1] else 0
    ended = _phases_of(state, [*candidates, tuple(state.recalled)])
    return free + sum([state.shape_of(p).gpu_milli for p in ended]) >= wanted[1]


def _on_their_nodes(
    state: State, phases: Sequence[int], number: int, wanted: Amounts, chosen: Sequence[Unit]
) -> list[Unit]:
    """Those of the chosen that hold something where the phases would start, when quotas need no others."""
    nodes = {node for node, _ in room_without(state, phases, number, wanted, chosen) or ()}
    there = [unit for unit in chosen if any(state.leases[p].node in nodes for p in _phases_of(state, [unit]))]
    return there if room_without(state, phases, number, wanted, there) is not None else list(chosen)


def room_without(
    state: State, phases: Sequence[int], number: int, wanted: Amounts, units: Iterable[Unit]
) -> list[Place] | None:
    """Places for the phases once these tasks, and those that are being stopped already, have ended; None when they do
    not fit, or are not allowed to start by the quota of their queue."""
    ended = list(_phases_of(state, [*units, tuple(state.recalled)]))
    if number != NO_QUEUE and not _is_within(state, phases, number, wanted, ended):
        return None
    return select_gang_after(state, phases, ended)


def _phases_of(state: State, units: Iterable[Unit]) -> set[int]:
    """What the tasks hold leases for."""
    return {state.cursor[t] for unit in units for t in unit if state.cursor[t] in state.leases}


def _is_within(state: State, phases: Sequence[int], number: int, wanted: Amounts, ended: Sequence[int]) -> bool:
    queues = queues_with_kept(state, phases)
    for phase in ended:
        owner = state.queue_of(state.task_of[phase])
        if owner != NO_QUEUE:
            queue, amounts = queues[owner], amounts_of(state.shape_of(phase))
            used = [used - amount for used, amount in zip(queue.used, amounts, strict=True)]
            queues[owner] = msgspec.structs.replace(queue, used=used)
    return quota.blocked_by(queues, number, wanted) is None
