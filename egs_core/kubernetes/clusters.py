"""In which clusters Workloads may run: what of them waits for MultiKueue to have one, and what is written for it.

    manager cluster   Workload has quota, its check is Pending ──► nominated: [green] ──► Kueue makes it there, too
    worker clusters   blue, green: who gives it quota first has it; then it is theirs

A Workload for which nobody nominates waits for ever. So where it is not known which cluster is best all are nominated,
and whoever is first has it, as Kueue does by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from egs_core.client.outlooks import MOST_ASKED, MOST_S, Candidate, Naming, Question
from egs_core.kubernetes.bookings import Booked, work_of
from egs_core.kubernetes.objects import Object, items, part, text
from egs_core.kubernetes.pods import Pod

MANAGER, WORKER = "manager", "worker"
ROLES = (MANAGER, WORKER)
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
ANSWER_S = 3.0
"""So long a Workload for which nothing is nominated waits for an answer of the site server."""
AWAY_S = 60.0
"""What was named is kept for so long without another answer."""
OVERDUE_S = 60.0
"""Of what waits for longer with nothing nominated the second process nominates all."""
SETTLED_S = 30.0
"""For so long what has come to a cluster may be missing in what is told of it."""


class Choice(msgspec.Struct, frozen=True):
    """A Workload that waits for a cluster, or has just got one (then it is settled). clusters: that may be nominated:
    those of its check that are connected, as they are listed."""

    workload: Booked
    clusters: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.workload.namespace}/{self.workload.name}"


class Nomination(msgspec.Struct, frozen=True):
    """To be written. why: for people."""

    choice: Choice
    clusters: tuple[str, ...]
    why: str


def clusters_of(
    checks: Iterable[Object], configs: Iterable[Object], clusters: Iterable[Object]
) -> dict[str, tuple[str, ...]]:
    """By name of each admission check of MultiKueue, its clusters that are connected."""
    connected = {_name(one) for one in clusters if _is_active(one)}
    listed = {_name(one): part(one, "spec").get("clusters") for one in configs}
    found = {}
    for one in checks:
        spec = part(one, "spec")
        if text(spec, "controllerName") == MULTIKUEUE:
            named = listed.get(text(part(spec, "parameters"), "name"))
            found[_name(one)] = tuple(str(name) for name in named or () if name in connected)
    return found


def choices(workloads: Iterable[Booked], clusters: Mapping[str, tuple[str, ...]], now: float) -> list[Choice]:
    """Those that have quota here and wait for a cluster, and those that have just got one: what waits already, then by
    priority and age. clusters: as `clusters_of` has them; now: Unix time."""
    found = []
    for one in workloads:
        booking = one.booking
        check = next((name for name in booking.pending if name in clusters), "")
        is_settled = bool(booking.cluster) and 0 <= now - booking.admitted_at <= SETTLED_S
        if one.holds and (is_settled or (check and not booking.cluster)):
            found.append(Choice(one, clusters.get(check, ())))
    found.sort(key=lambda one: (not one.workload.booking.cluster, not one.workload.booking.nominated, *_rank(one)))
    return found


def _rank(one: Choice) -> tuple[int, str, str]:
    return -one.workload.priority, one.workload.created, one.name


def question(found: Collection[Choice], pods: Mapping[str, Pod], now: float, turn: int) -> Question:
    """What to ask a server. found: as `choices` has them; where there are too many for one question those that wait for
    a first answer are in each, and the others by turns."""
    new = [one for one in found if not _has_place(one) and one.clusters][: MOST_ASKED * 3 // 4]
    old = [one for one in found if _has_place(one)]
    room = MOST_ASKED - len(new)
    begin = turn * room % len(old) if len(old) > room else 0
    asked = {one.name for one in (old[begin:] + old[:begin])[:room]}
    return Question(
        tuple(_candidate(one, pods, now) for one in found if one.name in asked)
        + tuple(_candidate(one, pods, now) for one in new)
    )


def _has_place(one: Choice) -> bool:
    return bool(one.workload.booking.cluster or one.workload.booking.nominated)


def _candidate(one: Choice, pods: Mapping[str, Pod], now: float) -> Candidate:
    booking = one.workload.booking
    return Candidate(
        work=work_of(one.workload, pods),
        door=one.workload.queue,
        clusters=one.clusters,
        present=booking.nominated,
        waited_s=min(MOST_S, max(0.0, now - booking.reserved_at)),
        settled=booking.cluster,
    )


def nominations(
    found: Iterable[Choice], answers: Mapping[str, Naming], now: float, *, is_away: bool
) -> list[Nomination]:
    """What to write. answers: of the server, by name; is_away: there is none, or it has not answered for long."""
    made = []
    for one in found:
        booking, answer = one.workload.booking, answers.get(one.name)
        if booking.cluster or not one.clusters:
            continue
        present = tuple(name for name in booking.nominated if name in one.clusters)
        wanted = tuple(name for name in answer.clusters if name in one.clusters) if answer is not None else ()
        why = _why(answer) if answer is not None else ""
        if not wanted:
            if not is_away and (present or now - booking.reserved_at <= ANSWER_S):
                continue
            wanted, why = one.clusters, "all that there are: nobody says which is best"
        if set(wanted) != set(booking.nominated):
            made.append(Nomination(one, wanted, why))
    return made


def overdue(found: Iterable[Choice], now: float) -> list[Nomination]:
    """All clusters for what has waited for long and has none nominated that is connected."""
    return [
        Nomination(one, one.clusters, "all of them: overdue")
        for one in found
        if not one.workload.booking.cluster
        and one.clusters
        and not set(one.workload.booking.nominated) & set(one.clusters)
        and now - one.workload.booking.reserved_at > OVERDUE_S
    ]


def status_with(raw: Object, one: Nomination) -> Object | None:
    """What is applied to a Workload as the API server has it: its whole status, with this nomination. None where it no
    longer waits for one. The field is Kueue's to take away by its own name (`FIELDS_OF`); so it has to be set by that
    name, and whoever applies by a name what it has not, takes it away."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    is_same = text(meta, "uid") == one.choice.workload.booking.uid
    if not is_same or text(status, "clusterName") or not part(status, "admission"):
        return None
    kept = {name: text(meta, name) for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": kept,
        "status": {**status, "nominatedClusterNames": list(one.clusters)},
    }


def _why(answer: Naming) -> str:
    told = [f"{name} in {at:.0f} s" for name, at in sorted(answer.starts.items(), key=lambda pair: pair[1])]
    return f"foretold is a start on {', '.join(told)}" if told else "nothing is foretold of any"


def _name(raw: Object) -> str:
    return text(part(raw, "metadata"), "name")


def _is_active(raw: Object) -> bool:
    conditions = items(part(raw, "status"), "conditions")
    return any(text(one, "type") == "Active" and text(one, "status") == "True" for one in conditions)
