"""Gangs: what the members of one hold lies in one placement group of Ray's, and they start together.

    grants of all members ─► every member's process is there, and warm ─► one placement group, a bundle a member
        ─► a holder in each bundle ─► all holders have begun ─► go, to all at once ─► the last ends: group removed

The site has reserved before; the group makes Ray's books as atomic as the site's, whatever foreign tasks take. Ray
cannot give back a part of a group, so what a member held is free when the last of its gang has ended this phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import msgspec
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from egs_core.engine import messages as m
from egs_core.errors import counted
from egs_core.graph.columns import Graph, Shape
from egs_core.site import Grant
from egs_ray.session.shared import Shared, first_line
from egs_ray.session.tasks import Job, Way

PATIENCE_S = 10.0  # that Ray has for a group before others get their turn
NODE_LABEL = "ray.io/node-id"


class Group(msgspec.Struct, eq=False):
    """A gang's phases of one index, from the moment when all members are there. members: task number -> job and grant.

    handle: the placement group; None: Ray gave none, so each holder queues alone. held: holders that have not ended.
    """

    name: str
    since_s: float
    members: dict[int, tuple[Job, Grant]]
    handle: Any = None
    bundles: dict[int, int] = msgspec.field(default_factory=dict)
    begun: set[int] = msgspec.field(default_factory=set)
    held: int = 0
    started: bool = False


class Gangs:
    """The gangs of a session. Used on the holder's thread only."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._waiting: dict[int, tuple[Job, Grant]] = {}  # members whose process is there
        self._groups: dict[int, Group] = {}  # by member
        self._granted: dict[tuple[str, str], dict[int, Job]] = {}  # gang -> member by its grant, of those told last

    def is_member(self, job: Job) -> bool:
        return bool(job.gang)

    def granted(self, job: Job, grant: Grant) -> None:
        """A member has been granted its phase; the grants that start with it come before or after it."""
        told = self._granted.setdefault(_key(job), {})
        for other in [other for other in told if other not in grant.gang]:
            del told[other]
        told[grant.id] = job
        self._gather_later(job)

    def ask(self, job: Job, grant: Grant) -> None:
        """The member's process is ready for its phase; or its holder has died."""
        group = self._groups.get(job.number)
        if group is not None:
            group.begun.discard(job.number)
            self._take(group, job, grant)
            return
        self._waiting[job.number] = (job, grant)
        self._gather(_key(job))

    def begun(self, job: Job) -> list[Job]:
        """Ray has given the member what it needs; returns who starts now: all, when it was the last."""
        group = self._groups.get(job.number)
        if group is None:
            return []
        group.begun.add(job.number)
        return [job] if group.started else self._start(group)

    def may_go(self, job: Job) -> bool:
        group = self._groups.get(job.number)
        return group is not None and group.started

    def leave(self, job: Job) -> list[Job]:
        """The member's phase has ended, or will not run; returns who starts now because nobody else is missing."""
        self._waiting.pop(job.number, None)
        group = self._groups.pop(job.number, None)
        self._gather_later(job)
        if group is None:
            return []
        group.members.pop(job.number, None)
        group.begun.discard(job.number)
        self._remove_if_over(group)
        return [] if group.started else self._start(group)

    def overdue(self, now: float) -> list[Group]:
        """Groups that Ray has had no room for, for long."""
        groups = {id(group): group for group in self._groups.values() if now - group.since_s > PATIENCE_S}.values()
        return [group for group in groups if not group.started and _has_no_room(group)]

    # --- forming ---

    def _gather_later(self, job: Job) -> None:
        if any(_key(other) == _key(job) for other, _ in self._waiting.values()):
            key = _key(job)
            self._shared.site.do(lambda: self._gather(key))

    def _gather(self, key: tuple[str, str]) -> None:
        """Form a group when every member that was granted is there."""
        told = self._granted.get(key, {})
        waiting = [grant for job, grant in self._waiting.values() if _key(job) == key]
        if self._shared.broken or not waiting or not all(other in told for other in waiting[-1].gang):
            return
        granted = [job for grant, job in told.items() if self._is_to_come(job, grant)]
        if granted and all(job.number in self._waiting for job in granted):
            members = {job.number: self._waiting.pop(job.number) for job in granted}
            group = Group(key[1], self._shared.site.now(), members)
            self._groups.update(dict.fromkeys(members, group))
            self._make_group(group)
            for job, grant in list(members.values()):
                self._take(group, job, grant)

    def _is_to_come(self, job: Job, grant: int) -> bool:
        """Whether it still has this grant, and starts by its gang's group."""
        is_ours = job.way is Way.SHELL and not job.is_open and not job.succeeded
        return is_ours and job.grant is not None and job.grant.id == grant and job.number not in self._groups

    def _make_group(self, group: Group) -> None:
        shapes = {task: job.shape(grant) for task, (job, grant) in group.members.items()}
        needing = [task for task, shape in shapes.items() if bundle_of(shape)]
        if len(needing) < 2:
            return
        jobs = [group.members[task][0] for task in needing]
        close = any(job.run.block.options_of(job.index).gang_same == "node" for job in jobs)
        nodes = [job.node for job in jobs]
        where = [{NODE_LABEL: node} for node in nodes] if all(nodes) and self._shared.offers.are_several else None
        try:
            group.handle = placement_group(
                [bundle_of(shapes[task]) for task in needing],
                strategy="STRICT_PACK" if close and len(set(nodes)) == 1 else "PACK",
                name=f"egs-{group.name}-{uuid4().hex[:8]}",  # names are unique in a cluster
                bundle_label_selector=where,
            )
        except Exception as error:
            self._shared.warn_once(f"gang {group.name} has no placement group: {first_line(error)}")
            return
        group.bundles = {task: bundle for bundle, task in enumerate(needing)}

    def _take(self, group: Group, job: Job, grant: Grant) -> None:
        strategy = None
        if job.number in group.bundles:
            bundle = group.bundles[job.number]
            strategy = PlacementGroupSchedulingStrategy(group.handle, placement_group_bundle_index=bundle)
        job.lease = self._shared.leases.take(job, grant, job.shape(grant), strategy)
        group.held += 1
        self._shared.when_ready(job.lease.ref, lambda: self._holder_ended(group))

    # --- starting and ending ---

    def _start(self, group: Group) -> list[Job]:
        """Who starts now: nobody, or all."""
        if not group.members or len(group.begun) < len(group.members):
            return []
        group.started = True
        return [job for job, _ in group.members.values()]

    def _holder_ended(self, group: Group) -> None:
        group.held -= 1
        self._remove_if_over(group)

    def _remove_if_over(self, group: Group) -> None:
        """Not before the last holder has ended: who waits for a task in a removed group waits for ever."""
        if not group.members and not group.held and group.handle is not None:
            handle, group.handle = group.handle, None
            try:
                remove_placement_group(handle)
            except Exception as error:  # it goes with this driver then
                self._shared.warn_once(f"the placement group of gang {group.name} stays: {first_line(error)}")


def _key(job: Job) -> tuple[str, str]:
    """Names a gang: those of two runs may have the same name."""
    return job.run.workload, job.gang


def _has_no_room(group: Group) -> bool:
    """Whether Ray has not placed the group yet; one that is there only waits for its holders' processes."""
    try:
        return group.handle is not None and placement_group_table(group.handle).get("state") == "PENDING"
    except Exception:  # Ray does not say: the wait goes on
        return False


def bundle_of(shape: Shape) -> dict[str, float]:
    """What a phase of this shape holds, in Ray's words."""
    amounts = {"CPU": shape.cpu_milli / 1000, "GPU": shape.gpu_milli / 1000, "memory": float(shape.memory_bytes)}
    return {name: amount for name, amount in amounts.items() if amount}


def members_by_gang(graph: Graph) -> dict[str, list[int]]:
    """Indices of the tasks of each gang of a graph."""
    gangs: dict[str, list[int]] = {}
    for index, options in sorted(graph.options.items()):
        if options.gang:
            gangs.setdefault(options.gang, []).append(index)
    return gangs


def describe_lack(graph: Graph, gang: str, members: list[int], nodes: Iterable[m.NodeAdded]) -> str:
    """How much a gang needs at once, and how much there is."""
    shapes = [[graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(index)] for index in members]
    gpus = sum(max(shape.gpu_milli for shape in task) for task in shapes) / 1000
    cpus = sum(max(shape.cpu_milli for shape in task) for task in shapes) / 1000
    level = next((s for index in members if (s := graph.options[index].gang_same)), "")
    there = list(nodes)
    if level and level != "node" and not any(level in dict(node.topology) for node in there):
        return f"gang {gang!r} is to be together in one {level}, and no node has the label {level!r}"
    needs = f"{counted(gpus, 'GPU')} and {counted(cpus, 'CPU')} at once" + (f" in one {level}" if level else "")
    all_gpus, all_cpus = sum(node.gpus for node in there), sum(node.cpus for node in there)
    has = f"{counted(all_gpus, 'GPU')} and {counted(all_cpus, 'CPU')} on {counted(len(there), 'node')}"
    return f"gang {gang!r} of {counted(len(members), 'task')} needs {needs}; there are {has}"
