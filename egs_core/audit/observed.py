"""What an adapter hands to an audit: a framework's existing history as run log records, and what is not in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.runlog.records import Header, Record


class AuditRequest(msgspec.Struct, frozen=True):
    """Where the history is: the address of a running cluster, or events that it left in a file or folder.

    days: how far back, where a history is long. user: who asks, where somebody must. gpu_pools: pools whose slots are
    GPUs, where a framework knows pools and no GPUs.
    """

    address: str = ""
    events: Path | None = None
    days: float = 30.0
    user: str = ""
    gpu_pools: tuple[str, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """A history as the records of one run log.

    edges_known: whether the tasks' parents are all there; else the framework does not tell what a task waited for.
    tasks_lost: how many tasks the framework says that it no longer knows. notes: what a reader must know besides.
    cpu_name: what a CPU of the records is there. pinned: a task can run on that node only on which it ran, as in a
    pool; else anywhere. may_split: EGS can load ahead and split there, so what hints would save is forecast too.
    """

    header: Header
    records: tuple[Record, ...]
    edges_known: bool = False
    tasks_lost: int = 0
    notes: tuple[str, ...] = ()
    cpu_name: str = "CPU"
    pinned: bool = False
    may_split: bool = True


def only_job(observed: Observed, job: str) -> Observed:
    """The records of one job, and what the nodes offered meanwhile; none of a job that is not there."""
    kept = [record for record in observed.records if getattr(record, "workload", job) == job]
    return msgspec.structs.replace(observed, records=tuple(kept))
