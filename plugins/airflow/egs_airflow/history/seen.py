"""What was read of an Airflow, in plain values; times are Unix times."""

from __future__ import annotations

import msgspec

ASLEEP = frozenset({"deferred", "up_for_reschedule"})
"""States of a task that watches something without a process."""

WAITING = frozenset({"", "scheduled", "queued"})
"""States in which a task shows the start and end of the try before, if there was one."""

OUTCOMES = {"success": "succeeded", "failed": "failed", "up_for_retry": "failed", "skipped": "skipped"}
"""How a try ended, in the words of run logs; any other that has an end was aborted."""


TryKey = tuple[str, str, str, int, int]
"""Which try it was: DAG, run, task, map index, number."""


class Try(msgspec.Struct):
    """One try of a task instance. weight: those with more go first in their pool."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    number: int
    state: str
    pool: str
    slots: int
    scheduled_s: float | None = None
    queued_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    host: str = ""
    pid: int = 0
    version: int = 0
    weight: int = 0

    @property
    def key(self) -> TryKey:
        """Which try it was."""
        return self.dag_id, self.run_id, self.task_id, self.map_index, self.number

    @property
    def held_slots(self) -> bool:
        """Whether it ran in its pool: empty operators and tasks that were never started did not."""
        return self.queued_s is not None and self.started_s is not None

    @property
    def was_deferred(self) -> bool:
        """Woken up, so it was scheduled again after it had started; for how long it slept is not kept."""
        return self.held_slots and (self.scheduled_s or 0.0) > (self.started_s or 0.0)

    @property
    def task(self) -> str:
        """Its name among the tasks of its run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class Run(msgspec.Struct):
    """A DAG run. version: of its DAG, the newest that it used."""

    dag_id: str
    run_id: str
    state: str
    submitted_s: float
    ended_s: float | None = None
    version: int = 0

    @property
    def workload(self) -> str:
        """What it is called in run logs."""
        return workload_of(self.dag_id, self.run_id)


class Dag(msgspec.Struct):
    """A DAG as it is now. parents: of each task; None where Airflow no longer has the DAG."""

    dag_id: str
    owner: str = ""
    version: int = 0
    parents: dict[str, tuple[str, ...]] | None = None


class Pool(msgspec.Struct):
    """slots: -1 for no limit. are_gpus: EGS made it for GPUs, one slot each. keeps_deferred: a deferred task keeps its
    slots there."""

    name: str
    slots: int
    are_gpus: bool = False
    keeps_deferred: bool = False


class KeptSlots(msgspec.Struct):
    """A time in which EGS kept open slots of a pool for a task instance; gang: the tasks of the gang that it is in,
    where they were kept for that."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    pool: str
    slots: int
    reason: str
    from_s: float
    until_s: float
    gang: tuple[str, ...] = ()


class Seen(msgspec.Struct):
    """All that was read. now_s: when; kept: none where the asker may not see Airflow's log of events."""

    now_s: float
    version: str = ""
    pools: dict[str, Pool] = {}
    dags: dict[str, Dag] = {}
    runs: list[Run] = []
    tries: list[Try] = []
    kept: list[KeptSlots] = []


def workload_of(dag_id: str, run_id: str) -> str:
    """The workload that a DAG run is."""
    return f"{dag_id}/{run_id}"
