"""What an adapter hands to an audit: a framework's existing history as run log records, and what is not in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.runlog.records import Header, Record


class AuditRequest(msgspec.Struct, frozen=True):
    """Where the history is: the address of a running cluster, or events that it left in a file or folder."""

    address: str = ""
    events: Path | None = None


class Observed(msgspec.Struct, frozen=True):
    """A history as the records of one run log.

    edges_known: whether the tasks' parents are all there; else the framework does not tell what a task waited for.
    tasks_lost: how many tasks the framework says that it no longer knows. notes: what a reader must know besides.
    """

    header: Header
    records: tuple[Record, ...]
    edges_known: bool = False
    tasks_lost: int = 0
    notes: tuple[str, ...] = ()


def only_job(observed: Observed, job: str) -> Observed:
    """The records of one job, and what the nodes offered meanwhile; none of a job that is not there."""
    kept = [record for record in observed.records if getattr(record, "workload", job) == job]
    return msgspec.structs.replace(observed, records=tuple(kept))
