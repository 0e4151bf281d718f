"""Where a pod stands, from what the API server lists of it: for `egs kubernetes ps` and `why`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from egs_core.client.waiting_words import time_words
from egs_core.kubernetes import names
from egs_core.kubernetes.faults import faults_of
from egs_core.kubernetes.objects import Object, items, moment, part, seconds_of, text
from egs_core.kubernetes.pods import Pod, pod_of, run_name

WAITS, PAUSED, HELD, QUEUED, OPENED, RUNS, ENDED = "waits", "paused", "held", "queued", "opened", "runs", "ended"
KUEUE = "kueue.x-k8s.io/"
_WHY_OPENED = {
    "order": "it was its turn",
    "ahead": "ahead of its turn, for an autoscaler to see",
    "nowhere": "no node could ever take it",
    "overdue": "its release-by time had come",
    "alone": "the controller had no engine",
    "leaving": "EGS has left the cluster",
}


class Standing(msgspec.Struct, frozen=True):
    """One pod. state: one of those above; why: what keeps it there; facts: what else is known of it; created, since:
    moments, the second one that from which on it has run, or has waited; said: when the controller said why."""

    namespace: str
    run: str
    task: str
    pod: str
    state: str
    node: str = ""
    created: str = ""
    since: str = ""
    why: str = ""
    facts: tuple[str, ...] = ()
    said: str = ""


def standings(found: Iterable[Object]) -> list[Standing]:
    """Of the pods that EGS orders and that have not ended: those that run, then what is next, then what waits."""
    order = (RUNS, OPENED, QUEUED, WAITS, PAUSED, HELD)
    made = [(pod_of(one), standing_of(one)) for one in found]
    kept = [(pod, one) for pod, one in made if pod.is_ours and one.state != ENDED]
    kept.sort(key=lambda pair: (order.index(pair[1].state), _place(pair[0]), pair[0].created, pair[1].pod))
    return [one for _, one in kept]


def standing_of(raw: Object) -> Standing:
    """A pod of EGS's as the API server has it."""
    pod = pod_of(raw)
    state, why = _state(pod, raw)
    since = pod.created if not pod.node else pod.started or _condition(raw, "PodScheduled")[1] or pod.created
    return Standing(
        pod.namespace,
        run_of(raw),
        pod.task,
        pod.name,
        state,
        pod.node,
        moment(pod.created) if pod.created else "",
        moment(since) if since else "",
        why,
        tuple(_facts(pod, raw)),
        moment(pod.waits_at) if state == WAITS and pod.waits_at else "",
    )


def run_of(raw: Object) -> str:
    """What a user calls the run: by our label, else a maker's, else what owns the pod."""
    meta = part(raw, "metadata")
    labels = part(meta, "labels")
    owner = next((text(one, "name") for one in items(meta, "ownerReferences")), "")
    return run_name(labels) or owner or text(meta, "name")


def _state(pod: Pod, raw: Object) -> tuple[str, str]:
    if pod.is_over:
        return ENDED, _ended(pod, part(raw, "status"))
    if pod.node:
        return RUNS, ""
    if pod.is_gated and pod.paused:
        what, _, said = pod.paused.partition(" ")
        return PAUSED, f"{'it' if what == 'pod' else f'its {what}'} is paused since {said}"
    if pod.is_gated:
        return WAITS, pod.waits or "nothing is said of it: it waits for a few seconds only, or no controller is there"
    if pod.has_other_gates:
        gates = [text(one, "name") for one in items(part(raw, "spec"), "schedulingGates")]
        if pod.queue and all(gate.startswith(KUEUE) for gate in gates):
            return QUEUED, f"Kueue's queue {pod.queue} has not admitted it"
        return HELD, f"another gate than EGS's is closed: {', '.join(gates)}"
    return OPENED, f"it is the scheduler's: {_scheduler(raw)}"


def _ended(pod: Pod, status: Object) -> str:
    """How and when, and after how long, as far as its kubelet has said it."""
    reason = text(status, "reason")
    at = f" at {moment(pod.ended)}" if pod.ended else ""
    lasted = f", {time_words(pod.ended - pod.started)} after its start" if pod.ended and pod.started else ""
    return f"it has ended: {pod.phase}{reason and ', '}{reason}{at}{lasted}"


def _ends(pod: Pod, status: Object) -> list[str]:
    """What is known of an end that was none of a success."""
    if pod.phase != "Failed":
        return []
    said = text(status, "message")
    found = [said] if said else []
    for one in (*items(status, "initContainerStatuses"), *items(status, "containerStatuses")):
        end = part(part(one, "state"), "terminated")
        if end and (code := text(end, "exitCode")) != "0":
            why = ", ".join(filter(None, (text(end, "reason"), text(end, "message").strip())))
            found.append(f"container {text(one, 'name')}: exit code {code}{f' ({why})' if why else ''}")
    return found


def _waited(pod: Pod, raw: Object) -> list[str]:
    """How long it waited for what, of one that waits no more."""
    if not (pod.node or pod.is_over) or not pod.created:
        return []
    is_placed, placed_at = _condition(raw, "PodScheduled")
    gated_s = max(0.0, pod.opened_at - pod.created)
    found = [f"{time_words(gated_s)} behind its gate"] if pod.opened_at else []
    if is_placed and placed_at:
        found.append(f"{time_words(placed_at - pod.created - gated_s)} for {'its' if found else 'a'} node")
    elif pod.is_over and not pod.node:
        found.append("for a node, and got none")
    return [f"it waited {' and '.join(found)}"] if found else []


def _condition(raw: Object, kind: str) -> tuple[bool, float]:
    """Whether it is so, and since when it is as it is: Unix time, 0: not stated."""
    found = [one for one in items(part(raw, "status"), "conditions") if text(one, "type") == kind]
    return next(((text(o, "status") == "True", seconds_of(o.get("lastTransitionTime"))) for o in found), (False, 0.0))


def _facts(pod: Pod, raw: Object) -> list[str]:
    notes = part(part(raw, "metadata"), "annotations")
    at, _, why = text(notes, names.OPENED).partition(" ")
    found = [*_ends(pod, part(raw, "status")), *_waited(pod, raw)]
    found += [f"its gate was opened at {at}: {_WHY_OPENED.get(why, why)}"] if at else []
    if limit := text(notes, names.LIMIT):
        found.append(f"its deadline was written at {limit.replace(' at most ', ': at most ', 1)}")
    if pod.is_gated and pod.release_by and not (pod.paused or pod.resumed_at):
        found.append(f"its gate is opened at {moment(pod.release_by)} at the latest")
    if pod.is_gated and pod.waits_at and not pod.paused:
        found.append(f"said at {moment(pod.waits_at)}")
    if pod.is_leaving:
        found.append("it is being deleted")
    return found + (faults_of(raw) if pod.is_ours else [])


def _scheduler(raw: Object) -> str:
    stated = [one for one in items(part(raw, "status"), "conditions") if text(one, "type") == "PodScheduled"]
    return next((text(one, "message") or text(one, "reason") for one in stated), "") or "it has said nothing yet"


def _place(pod: Pod) -> int:
    """In the order, as its text says."""
    word = pod.waits.removeprefix("place ").partition(" ")[0]
    return int(word) if pod.waits.startswith("place ") and word.isdecimal() else 1 << 30
