"""Pods that EGS's labels make a run, by the one rule that the controller goes by: `egs_core.kubernetes.pods`.

A pod that comes after one of its task has failed, from the same owner, is the next attempt. Pods of one task that ran
beside each other (workers of a Job, members of a gang) are tasks of their own, with the pods' names.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from egs_core.kubernetes import names
from egs_core.kubernetes.pods import pod_of
from egs_kubeflow.audit.seen import PodSeen, Seen
from egs_kubeflow.audit.shapes import Pod

AGAIN = ("failed", "preempted")
Group = tuple[str, str, str, str]  # run, task, what made the pod, index in that


@dataclass
class Labelled:
    """What was made of each pod, with the pod's name, until all are there."""

    pods: dict[Group, list[tuple[PodSeen, str]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, seen: Seen, pod: Pod, one: PodSeen) -> bool:
        """Add a pod; False where it is of no run."""
        found = pod_of({"metadata": msgspec.to_builtins(pod.metadata)})
        if not found.is_ours:
            return False
        run = seen.run(found.run, "", found.namespace)
        run.name, run.is_labelled = (pod.metadata.labels or {}).get(names.WORKLOAD, ""), True
        one.run, one.task, one.name = found.run, found.task, f"{run.name}.{found.task}"
        owner = next((owner.uid for owner in pod.metadata.owner_references or []), "")
        self.pods[one.run, one.task, owner, found.index].append((one, found.name))
        return True

    def put_into(self, seen: Seen) -> None:
        """Give each pod its task and attempt."""
        chains = [chain for group in self.pods.values() for chain in _chains(group)]
        beside: dict[tuple[str, str], int] = defaultdict(int)
        for chain in chains:
            beside[chain[0][0].run, chain[0][0].task] += 1
        for chain in chains:
            first, name = chain[0]
            task = first.task if beside[first.run, first.task] == 1 else f"{first.task}.{name}"
            for number, (one, _) in enumerate(chain, 1):
                one.attempt = number
                seen.pods[one.run, task, number] = one
            for one, _ in chain:
                one.task = task


def _chains(group: list[tuple[PodSeen, str]]) -> list[list[tuple[PodSeen, str]]]:
    """The attempts of each task, first first."""
    found: list[list[tuple[PodSeen, str]]] = []
    for one, name in sorted(group, key=lambda pair: (pair[0].ready_s or 0.0, pair[1])):
        before = next((chain for chain in found if _is_again(chain[-1][0], one)), None)
        if before is None:
            found.append([(one, name)])
        else:
            before.append((one, name))
    return found


def _is_again(before: PodSeen, one: PodSeen) -> bool:
    ended_s, ready_s = before.ended_s, one.ready_s
    return before.outcome in AGAIN and ended_s is not None and ready_s is not None and ended_s <= ready_s
