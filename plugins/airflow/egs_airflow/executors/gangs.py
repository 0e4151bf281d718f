"""Gangs begin whole: what the scheduler of this process may see of them in each pass, and what became of it.

    pass of the scheduler     lock the pools ─► look: which gangs wait, which fits ─► search, narrowed ─► commit
                                                                                       part of it only: roll back

What the scheduler does not see waits as `scheduled`, without a slot, and is written to by nobody. A gang's pass is one
transaction of Airflow's own, so its members are queued together or, rolled back, not at all; then the executor, which
has processes for all of them, hears of them in one go.

A member that is over (also one that was skipped, or failed before it began) is not waited for. While a member is under
way, others join it at once: a retry waits for nobody. When none is, those that begin again wait for each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from egs_airflow import compat, config
from egs_airflow.executors import gang_rows
from egs_airflow.executors.admitting import Gang, Turn
from egs_airflow.executors.gang_rows import Company, GangName
from egs_airflow.executors.reading import is_chosen, waited_s

LEFT_EVENT = "egs gang left to Airflow"
MOST_REFUSALS = 5
"""So often Airflow may have queued only a part of a gang, for a limit that EGS does not know: then it is left to it."""

REFUSED_S = 5.0
MOST_SHAPES = 512
MOST_LEFT = 1000
Guard = Callable[[Callable[[], Any]], None]


@dataclass
class Gangs:
    """The gangs of a scheduler. parallelism: of its executor; room: how many tasks that could take now.

    shapes: by DAG version, the gang of each task. hidden: DAG, run and task of members that may not begin in this pass.
    tasks_of: of the gang, by the key of its first member. admitted: the gang that this pass is for. behind: ids of what
    the engine lets start later than others of its pool; in_vain: that was hidden, and nothing else was queued. refused:
    how often, and until when it is not tried. left: to Airflow, and why.
    """

    parallelism: int
    room: Callable[[], int]
    log_event: Callable[..., None]
    reserve_after_s: float
    clock: Callable[[], float]
    shapes: dict[Any, Mapping[str, str]] = field(default_factory=dict)
    hidden: frozenset[tuple[str, str, str]] = frozenset()
    tasks_of: dict[Any, list[str]] = field(default_factory=dict)
    admitted: Gang | None = None
    floor: float | None = None
    behind: set[Any] = field(default_factory=set)
    in_vain: bool = False
    refused: dict[GangName, tuple[int, float]] = field(default_factory=dict)
    left: dict[GangName, str] = field(default_factory=dict)
    is_broken: bool = False

    def look(self, connection: Any, pools: Mapping[str, Any]) -> list[Gang]:
        """The gangs that wait for nothing but slots. What of them may not begin is hidden from here on."""
        gang_of: dict[tuple[str, str], dict[str, str]] = {}
        for version, dag, run in gang_rows.scheduled_runs(connection) if not self.is_broken else ():
            if gangs := self._shape(version, dag):
                gang_of.setdefault((dag, run), {}).update(gangs)
        found = [one for one in gang_rows.companies(connection, gang_of) if self._is_kept_together(one, pools)]
        self.hidden = frozenset((*one.name[:2], task) for one in found for task in one.tasks)
        self.tasks_of = {one.waiting[0].key: sorted(one.tasks) for one in found}
        names = {one.name for one in found}
        self.refused = {name: past for name, past in self.refused.items() if name in names}
        return self._in_order(one for one in found if self._waits_for_slots(one))

    def take(self, turn: Turn) -> None:
        """What this pass is for."""
        self.admitted, self.floor = turn.gang, turn.floor

    def let_go(self) -> None:
        """The scheduler sees all that waits, and no pass is for a gang."""
        self.hidden, self.admitted, self.floor, self.behind = frozenset(), None, None, set()

    def prepare(self) -> None:
        """Read the DAGs of what waits for slots and was not met before, while no pool is locked."""
        with compat.connect() as connection:
            waiting = dict(gang_rows.scheduled_versions(connection))
            for version, dag_id in waiting.items():
                if version is not None and version not in self.shapes:
                    self.shapes[version] = _read_shape(version, dag_id) if is_chosen(connection, dag_id) else {}
        unused = [version for version in self.shapes if version not in waiting]
        for version in unused[: max(0, len(self.shapes) - MOST_SHAPES)]:
            del self.shapes[version]

    def queue(self, queue: compat.Queue, most: int, session: Any, guard: Guard) -> list[Any]:
        """The scheduler's step, in its place: it sees what it may, and a gang is queued as a whole or not at all.

        A gang larger than what Airflow queues at once is queued in several goes, within the one transaction. guard:
        does what is EGS's own; what fails in it lets the scheduler see everything, and what `queue` raises is the
        scheduler's, as natively.
        """
        self.let_go()
        if not self.is_broken:
            guard(self.prepare)
        with ExitStack() as narrowing:
            guard(lambda: narrowing.enter_context(compat.narrowed(session, self._criterion)))
            found = queue(most)
            while self.admitted is not None and len(found) < self.admitted.size:
                more = queue(self.admitted.size - len(found))
                found += more
                if not more:
                    break
        self.in_vain = bool(self.behind) and not found
        return self._settle(found, session, guard)

    def _settle(self, found: list[Any], session: Any, guard: Guard) -> list[Any]:
        """What was queued; nothing, where it is a part of a gang."""
        admitted, self.admitted = self.admitted, None
        if admitted is None:
            guard(lambda: self._check(found))
            return found
        if len(found) >= admitted.size:
            return found
        session.rollback()
        guard(lambda: self._refuse(admitted))
        return []

    def has(self, version: Any, task_id: str) -> bool:
        """Whether a task of that version of a DAG is in a gang: slots are kept for gangs, not for members."""
        return task_id in self._shape(version)

    def _criterion(self) -> Any:
        only = {(*self.admitted.name[:2], task) for task in self.admitted.tasks} if self.admitted is not None else ()
        return gang_rows.criterion(self.hidden, only, self.floor, self.behind)

    def _shape(self, version: Any, dag_id: str = "") -> Mapping[str, str]:
        """The gangs of one version of a DAG. Only one that another scheduler has made ready since `prepare` is still
        to be read in the middle of a pass: the next pass could be too late."""
        if version is not None and dag_id and version not in self.shapes:
            with compat.connect() as connection:
                is_on = is_chosen(connection, dag_id)
            self.shapes[version] = _read_shape(version, dag_id) if is_on else {}
        return self.shapes.get(version, {})

    def _is_kept_together(self, one: Company, pools: Mapping[str, Any]) -> bool:
        if one.is_joined or not one.waiting or one.name in self.left:
            return False
        if problem := self._problem(one, pools):
            self._leave(one.name, one.waiting[0].key, problem)
        return not problem

    def _problem(self, one: Company, pools: Mapping[str, Any]) -> str:
        """Why it could never begin as a whole, with the numbers; empty where it could."""
        size = one.size
        for pool, slots in one.needs.items():
            if pool not in pools:
                return f"its pool {pool} is not there"
            if slots > pools[pool]["total"]:
                return f"it needs {slots} slots of pool {pool} at once, which has {pools[pool]['total']:g}"
        if size > self.parallelism:
            return f"it has {size} members, and the executor's parallelism is {self.parallelism}"
        if size > one.most_active:
            return f"it has {size} members, and max_active_tasks of its DAG is {one.most_active}"
        return ""

    def _waits_for_slots(self, one: Company) -> bool:
        may_be_tried = self.refused.get(one.name, (0, 0.0))[1] <= self.clock()
        return one.is_whole and one.may_run and one.active + one.size <= one.most_active and may_be_tried

    def _in_order(self, found: Iterable[Company]) -> list[Gang]:
        """By the heaviest member, then by when the last member became ready; before single tasks of that weight."""
        now, ordered = datetime.now(UTC), []
        for one in found:
            waits_s = min(waited_s(members.scheduled, now) for members in one.waiting)
            ordered.append((-max(members.weight for members in one.waiting), -waits_s, one.name, one))
        return [
            Gang(
                name,
                one.waiting[0].key,
                one.tasks,
                one.needs,
                one.size,
                (weight, -1, number),
                -waits_s >= self.reserve_after_s,
            )
            for number, (weight, waits_s, name, one) in enumerate(sorted(ordered, key=lambda entry: entry[:3]))
        ]

    def _refuse(self, gang: Gang) -> None:
        times = self.refused.get(gang.name, (0, 0.0))[0] + 1
        self.refused[gang.name] = (times, self.clock() + REFUSED_S)
        if times >= MOST_REFUSALS:
            self._leave(gang.name, gang.key, "a limit of Airflow's lets only some of its members run at once")

    def _leave(self, name: GangName, key: Any, problem: str) -> None:
        """Airflow starts its members one by one; said once in the scheduler's log, and at the run."""
        if len(self.left) >= MOST_LEFT:
            self.left.pop(next(iter(self.left)))
        self.left[name] = problem
        config.warn(
            f"gang {name[2]!r} of DAG {name[0]} is left to Airflow, which starts its members one by one: {problem}"
        )
        self.log_event(event=LEFT_EVENT, extra=json.dumps({"gang": name[2], "problem": problem}), ti_key=key)

    def _check(self, found: Iterable[Any]) -> None:
        """Whether the scheduler saw what it was not to see: then this Airflow is not the one that was tried."""
        if any((ti.dag_id, ti.run_id, ti.task_id) in self.hidden for ti in found):
            self.is_broken = True
            config.warn("gangs start in parts, as without EGS: this Airflow looks for waiting tasks in another way")


def _read_shape(version: Any, dag_id: str) -> Mapping[str, str]:
    """The gang of each task of a chosen DAG; gangs that could never begin are left out, with a warning."""
    tasks = compat.stored_tasks(version)
    gang_of = compat.stored_gangs(tasks)
    stuck = gang_rows.gangs_in_cycle(compat.stored_downstream(tasks), gang_of) if gang_of else set()
    for gang in sorted(stuck):
        why = "its tasks wait for each other, so they cannot start together"
        config.warn(f"gang {gang!r} of DAG {dag_id} is left to Airflow, which starts its members one by one: {why}")
    return {task: gang for task, gang in gang_of.items() if gang not in stuck}
