"""What stands between Airflow's scheduler and its own count of open slots, while an executor of ours is loaded.

Once a pass the scheduler asks how many slots of each pool are open. The gate reads, on a connection of its own, what
has ended since the scheduler last looked at its run, and answers with what `keeping` leaves; gangs are part of that,
see `admitting`. It writes nothing, so an executor that dies leaves nothing behind. Whatever fails in it is one warning;
Airflow counts alone for a while, and then the gate tries again: see `health`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from egs_airflow import compat, config
from egs_airflow.executors import health as gate_health
from egs_airflow.executors import reading
from egs_airflow.executors.admitting import Turn, compute_turn
from egs_airflow.executors.gangs import Gangs
from egs_airflow.executors.health import Health
from egs_airflow.executors.keeping import Claim, Kept, compute_behind, compute_kept
from egs_airflow.history import kept as kept_events

LONGEST_S = 1.0
"""A slot is kept no longer than this for a successor that the scheduler has not made ready; or for one pass of the
scheduler, where that takes longer, because slots are handed out in passes only."""

RESERVE_AFTER_S = 30.0
"""So long a task that needs more slots than are open waits before slots are kept for it; option `reserve_after`."""

MOST_TRIES = 2
"""In so many passes of the scheduler one that the engine would start is seen before others."""

EVENT = kept_events.EVENT
MOST_SHAPES = 512
"""So many versions of DAGs are kept beyond those that are in use."""


@dataclass
class Started:
    """A task that this executor was given. ended_s: when the gate first saw that it had ended; 0 until then; ended_at:
    the same by the clock of the metadata."""

    key: Any
    version: Any
    external_id: str | None
    ended_s: float = 0.0
    ended_at: datetime | None = None

    def see_end(self, now_s: float) -> None:
        """It has ended; the first time counts."""
        if self.ended_at is None:
            self.ended_s, self.ended_at = now_s, datetime.now(UTC)

    def is_seen(self, looked: datetime | None) -> bool:
        """Whether the scheduler has looked at the run since the gate saw the end. The task's own `end_date` says
        nothing of that: it is from before the end is written, and a look in between has seen a task that runs."""
        return looked is not None and self.ended_at is not None and looked > self.ended_at


@dataclass
class Keeping:
    """Slots that are being kept: since when (monotonic), and in how many passes of the scheduler. tasks: of a gang."""

    kept: Kept
    since_s: float
    tasks: list[str] = field(default_factory=list)
    passes: int = 0


@dataclass
class Gate:
    """The state of one executor's gate. log_event: Airflow's own log of what happened to a task instance.

    gangs: None where they are not kept together. started: by task instance id; shapes: by DAG version; keeping: by
    pool and key; tried: how often one was to go first, by id; awaited: the ended task for whose successor a slot is
    kept; last_key: of the task started last.
    """

    log_event: Callable[..., None]
    reserve_after_s: float = RESERVE_AFTER_S
    clock: Callable[[], float] = time.monotonic
    gangs: Gangs | None = None
    started: dict[Any, Started] = field(default_factory=dict)
    shapes: dict[Any, reading.Shape] = field(default_factory=dict)
    keeping: dict[tuple[str, Any], Keeping] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    awaited: Started | None = None
    last_pass_s: float = 0.0
    last_key: Any = None
    health: Health = field(init=False)

    def __post_init__(self) -> None:
        self.health = Health(self.clock)

    def guard(self, action: Callable[[], object]) -> None:
        """Do it, unless the gate is paused; what it raises is one warning, and a pause. Never raises itself, but for
        what is to end the scheduler."""
        if self.health.is_paused:
            return
        try:
            action()
        except BaseException as error:
            if config.ends_process(error):
                raise
            self._pause(error)

    def _pause(self, error: BaseException) -> None:
        """Keep nothing from anybody until the pause is over."""
        self.awaited = None
        self.keeping.clear()
        if self.gangs is not None:
            self.gangs.let_go()
        self.health.fail(error)
        config.warn(f"for a while slots go to tasks in Airflow's own order, as without EGS: {self.health.problem}")
        self._tell()

    def check_recovery(self) -> None:
        """Say when the gate has worked again for a while."""
        if self.health.recovers():
            config.log.warning("egs: slots are kept again, after faults: %d", self.health.faults)
            self._tell()

    def _tell(self) -> None:
        """A pause or a recovery is an event of the task that was started last; before the first there is none."""
        if self.last_key is not None:
            with suppress(Exception):  # the log has it too
                self.log_event(event=gate_health.EVENT, extra=gate_health.event_of(self.health), ti_key=self.last_key)

    def note(self, workload: Any) -> None:
        """A workload was given to the executor."""
        ti = getattr(workload, "ti", None)
        if ti is not None:
            self.started[ti.id] = Started(ti.key, ti.dag_version_id, ti.external_executor_id)
            self.last_key = ti.key

    def learn(self) -> None:
        """Read the DAGs of new tasks, and forget the tasks that nothing waits for. Not inside the scheduler's pass."""
        dag_of = {task.version: task.key.dag_id for task in self.started.values()}
        for version in dag_of.keys() - self.shapes.keys():
            self.shapes[version] = _shape_of(version, dag_of[version])
        for ti, task in list(self.started.items()):
            if not self.shapes[task.version].downstream.get(task.key.task_id):
                del self.started[ti]
        self._forget_shapes()

    def _forget_shapes(self) -> None:
        """Those that are not in use, oldest first: as many as there are too many."""
        if len(self.shapes) > MOST_SHAPES:
            used = {task.version for task in self.started.values()}
            unused = [version for version in self.shapes if version not in used]
            for version in unused[: len(self.shapes) - MOST_SHAPES]:
                del self.shapes[version]

    def adjust(self, pools: dict[str, Any]) -> None:
        """Take what is kept out of the pools' `open`, in the middle of the scheduler's pass."""
        if self.gangs is not None and self.gangs.admitted is not None:
            return  # the same pass goes on, for the rest of a gang
        now_s = self.clock()
        self.awaited = None
        kept: dict[str, list[Kept]] = {}
        if any(stats["scheduled"] > 0 for stats in pools.values()):
            with compat.connect() as connection:
                turn = self._turn(connection, pools, now_s)
            if turn.gang is not None:  # others have their slots in the next pass
                self.last_pass_s = now_s
                return
            kept = {name: compute_kept(int(pools[name]["open"]), claims) for name, claims in turn.claims.items()}
        for name, several in kept.items():
            pools[name]["open"] -= sum(one.slots for one in several)
        self._record(kept, now_s)
        self.last_pass_s = now_s

    def _turn(self, connection: Any, pools: Mapping[str, Any], now_s: float) -> Turn:
        """What this pass is for, and who claims slots of the pools that have some, but not without end."""
        gangs = self.gangs.look(connection, pools) if self.gangs is not None else []
        hidden = self.gangs.hidden if self.gangs is not None else frozenset()
        contended = [name for name, stats in pools.items() if stats["scheduled"] > 0 and 0 < stats["open"] < 2**31]
        ready = self._just_ready(connection, now_s) if contended else []
        claims = {}
        for name in contended:
            total, open_slots = pools[name]["total"], int(pools[name]["open"])
            waiting = reading.waiting(connection, name, total, open_slots, self.reserve_after_s, hidden)
            claims[name] = waiting + _claims_of(ready, name)
        if self.gangs is None:
            return Turn(None, claims)
        self.gangs.behind = self._behind(pools, claims)
        slots = {name: stats["open"] for name, stats in pools.items()}
        turn = compute_turn(slots, self.gangs.room(), claims, gangs)
        self.gangs.take(turn)
        return Turn(turn.gang, {name: turn.claims[name] for name in contended}, turn.floor)

    def _behind(self, pools: Mapping[str, Any], claims: Mapping[str, Collection[Claim]]) -> set[Any]:
        """Who is not seen in this pass, because the engine lets others of its pool start first. One that was first in
        MOST_TRIES passes, or in one in which nothing started, keeps nobody waiting any more."""
        there = {claim.id for several in claims.values() for claim in several}
        if self.gangs is not None and self.gangs.in_vain:  # they were seen alone, and none of them was started
            self.tried = dict.fromkeys(self.tried, MOST_TRIES)
        self.tried = {one: times for one, times in self.tried.items() if one in there}
        stuck = {one for one, times in self.tried.items() if times >= MOST_TRIES}
        behind: set[Any] = set()
        for name, several in claims.items():
            first, hidden = compute_behind(int(pools[name]["open"]), list(several), stuck)
            behind |= hidden
            for one in first if hidden else ():
                self.tried[one] = self.tried.get(one, 0) + 1
        return behind

    def _just_ready(self, connection: Any, now_s: float) -> list[reading.Ready]:
        """What this executor's ended tasks have made ready, for at most LONGEST_S each."""
        found: list[reading.Ready] = []
        known = [ti for ti, task in self.started.items() if task.version in self.shapes]
        for end in reading.ended(connection, known):
            task = self.started[end.id]
            gap_s = now_s - self.last_pass_s if task.ended_at else 0.0  # the next pass comes about that much later
            task.see_end(now_s)
            if not end.is_success or task.is_seen(end.looked) or now_s - task.ended_s + gap_s > LONGEST_S:
                del self.started[end.id]
            elif ready := [
                one
                for one in reading.just_ready(connection, task.key, self.shapes[task.version])
                if self.gangs is None or not self.gangs.has(task.version, one.key.task_id)
            ]:
                self.awaited = task
                found += ready
        return found

    def may_hand_out(self, over: Collection[reading.End]) -> bool:
        """Whether others wait for what these tasks gave back when they ended, and no successor of theirs does: for one
        the scheduler has to look at DAG runs first."""
        if not over or not all(end.is_success for end in over):
            return False
        with compat.connect() as connection:
            pools = reading.contended(connection, [end.id for end in over])
            tasks = [self.started[end.id] for end in over if pools and end.id in self.started]
            if not pools or any(task.version not in self.shapes for task in tasks):
                return False
            ready = [
                one for task in tasks for one in reading.just_ready(connection, task.key, self.shapes[task.version])
            ]
        return not any(one.pool in pools for one in ready)

    def _record(self, kept: Mapping[str, list[Kept]], now_s: float) -> None:
        """Note since when slots are kept; the end of each time is one line in Airflow's own log of events."""
        current = {(pool, one.key): one for pool, several in kept.items() for one in several}
        for place in [place for place in self.keeping if place not in current]:
            over = self.keeping.pop(place)
            told = {"pool": place[0], "reason": over.kept.reason, "slots": over.kept.slots}
            told |= {"seconds": round(now_s - over.since_s, 3), "passes": over.passes}
            told |= {"tasks": over.tasks} if over.tasks else {}
            self.log_event(event=EVENT, extra=json.dumps(told), ti_key=over.kept.key)
        for place, one in current.items():
            tasks = self.gangs.tasks_of.get(one.key, []) if self.gangs is not None else []
            self.keeping.setdefault(place, Keeping(one, now_s, tasks)).passes += 1


def _shape_of(version: Any, dag_id: str) -> reading.Shape:
    """Who comes after whom, read only where the DAG is chosen."""
    with compat.connect() as connection:
        if not reading.is_chosen(connection, dag_id):
            return reading.Shape()
    return reading.Shape(compat.stored_downstream(compat.stored_tasks(version)))


def _claims_of(ready: list[reading.Ready], pool: str) -> list[Claim]:
    """Behind waiting tasks of the same weight, which Airflow would start first too."""
    here = [one for one in ready if one.pool == pool]
    return [Claim(one.key, one.slots, (-one.weight, 1, n), "successor") for n, one in enumerate(here)]
