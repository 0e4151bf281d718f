"""Which gates are opened now. The state is in the pods alone: who opens, and when it was begun, does not matter.

granted by the engine ──► opened, gangs whole, while fewer than `window` opened pods wait for their node, and none of
                          them without a grant: by an engine before this one, or as it was placed elsewhere
the next in order     ──► opened too, until `ahead` of them wait: an autoscaler sees no gated pod
nowhere to run        ──► opened: that is the scheduler's to say
in a queue of Kueue   ──► opened: it waits there, and quota would wait behind its gate
past its release-by   ──► opened, whatever else is so, unless somebody has paused it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from egs_core.kubernetes import names
from egs_core.kubernetes.pods import Pod

STUCK_S = 5.0
"""What was opened so long ago and has no node waits for what the engine does not know: it no longer counts."""
RELEASE_BY_S = 3600.0
"""How long a gate may stay closed, where nobody says otherwise."""
SKEW_S = 60.0
"""A moment in the past that is written as one so far ahead is of a clock that is wrong."""
ORDER, AHEAD, NOWHERE, QUEUED = "order", "ahead", "nowhere", "queued"
OVERDUE, ALONE, LEAVING = "overdue", "alone", "leaving"


class Opening(msgspec.Struct, frozen=True):
    """A gate to open, and why."""

    pod: Pod
    why: str


def releases(
    granted: Sequence[str],
    order: Sequence[str],
    pods: Mapping[str, Pod],
    now: float,
    *,
    window: int,
    ahead: int = 0,
    unplaced: Iterable[Pod] | None = None,
    has_grant: Callable[[str], bool] | None = None,
) -> list[Opening]:
    """The gates to open now, first first. granted: uids in the order in which the engine has granted them, at least of
    those whose gates are closed; order: of those that wait for a grant; pods: by uid; unplaced: all of them that are
    open and have no node, at least; has_grant: of any uid, where `granted` has not all."""
    open_ones = (pod for pod in (pods.values() if unplaced is None else unplaced) if not (pod.node or pod.is_gated))
    pending = [pod for pod in open_ones if _is_pending(pod)]
    flying = [pod for pod in pending if _is_in_flight(pod, now)]
    in_flight = len(flying)
    found: list[Opening] = []
    taken: set[str] = set()
    gangs: dict[tuple[str, str], list[Pod]] = {}
    for uid in granted if not _is_room_unknown(has_grant or frozenset(granted).__contains__, flying) else ():
        pod = pods.get(uid)
        if pod is None or not pod.is_gated or uid in taken:
            continue
        if pod.gang and not gangs:
            gangs = _gangs(granted, pods)
        group = gangs[pod.run, pod.gang] if pod.gang else [pod]
        if any(one.is_paused for one in group):
            continue
        if in_flight + len(found) >= window:
            break
        taken.update(one.uid for one in group)
        found += [Opening(one, ORDER) for one in group]
    for uid in order:
        if len(pending) + len(found) >= ahead:
            break
        if uid in pods and pods[uid].is_gated and not (pods[uid].gang or pods[uid].is_paused):
            found.append(Opening(pods[uid], AHEAD))
    return found


def overdue(pods: Iterable[Pod], now: float, longest_s: float) -> list[Opening]:
    """The gates that are open too late already, the oldest first. longest_s: of a pod that states no moment."""
    gated = ((due_of(pod, longest_s, now), pod) for pod in pods if pod.is_gated and not pod.is_paused)
    late = [one for one in gated if one[0] <= now]
    return [Opening(pod, OVERDUE) for _, pod in sorted(late, key=lambda one: (one[0], one[1].uid))]


def due_of(pod: Pod, longest_s: float, now: float) -> float:
    """When a gate is opened at the latest. No pod can state a later moment than longest_s after it was made; of one
    that was paused the time begins anew when that is taken back, which is no moment that is still to come."""
    if 0 < pod.resumed_at <= now + SKEW_S:
        return pod.resumed_at + longest_s
    latest = pod.created + longest_s
    return min(pod.release_by, latest) if pod.release_by else latest


def soonest_due(pod: Pod, longest_s: float) -> float:
    """A moment before which its gate is not opened for that it is late, whatever time it is."""
    due = due_of(pod, longest_s, -SKEW_S)
    return min(due, pod.resumed_at + longest_s) if pod.resumed_at else due


def stranded(pods: Iterable[Pod]) -> list[Opening]:
    """The gates of pods that no node could ever take, in the order in which these were made."""
    return [Opening(pod, NOWHERE) for pod in sorted(pods, key=lambda one: (one.created, one.uid)) if pod.is_gated]


def stray(pods: Iterable[Pod]) -> str:
    """What to say of pods that have the gate and not the label by which they would be ordered; "": of none."""
    first = min((f"{pod.namespace}/{pod.name}" for pod in pods), default="")
    lacks = f"has the gate {names.GATE} without the label {names.WORKLOAD}"
    return first and f"{first} {lacks}: nobody orders it, and it is opened at its release-by time"


def queued(pods: Iterable[Pod]) -> list[Opening]:
    """The gates of pods that Kueue holds back. Its webhook may have put them into a queue after ours has gated them."""
    return [Opening(pod, QUEUED) for pod in pods if pod.is_gated and pod.is_ours and pod.queue and not pod.is_paused]


def all_gates(pods: Iterable[Pod], why: str) -> list[Opening]:
    """Every gate but of what is paused, by the user's priority and then in the order in which the pods were made, as
    without us."""
    gated = [pod for pod in pods if pod.is_gated and not pod.is_paused]
    return [Opening(pod, why) for pod in sorted(gated, key=lambda one: (-one.rank, one.created, one.uid))]


def _gangs(granted: Iterable[str], pods: Mapping[str, Pod]) -> dict[tuple[str, str], list[Pod]]:
    """The members of each gang that are granted and opened together."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for uid in granted:
        pod = pods.get(uid)
        if pod is not None and pod.gang and pod.is_gated:
            found.setdefault((pod.run, pod.gang), []).append(pod)
    return found


def _is_room_unknown(has_grant: Callable[[str], bool], flying: Iterable[Pod]) -> bool:
    """Whether what was opened for its turn is about to get room that no grant keeps for it: the engine may have given
    that to another one by now. flying: what is open and about to get its node."""
    return any(pod.opened_for == ORDER and not has_grant(pod.uid) for pod in flying)


def _is_pending(pod: Pod) -> bool:
    """Open, and without a node."""
    return pod.is_ours and not (pod.node or pod.is_gated or pod.is_over or pod.is_leaving)


def _is_in_flight(pod: Pod, now: float) -> bool:
    """What was opened by a clock that is ahead of this one waits no longer for that."""
    return _is_pending(pod) and abs(now - pod.opened_at) < STUCK_S
