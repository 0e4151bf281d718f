"""What an audit takes: a framework's existing history, or a run log, as records, and what is not in it.

As a run log, which may be audited later, it is what its adapter has said of it: see `header_of` and `observed_in`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.runlog.io import Run
from egs_core.runlog.past import Past
from egs_core.runlog.records import Header, Record

IN_HEADER = ("edges_known", "cpu_name", "pinned", "may_split", "tasks_lost", "notes")


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

    tasks_lost: how many tasks the framework says that it no longer knows. notes: what a reader must know besides.
    The others are as in `Header`.
    """

    header: Header
    records: tuple[Record, ...]
    edges_known: bool = False
    tasks_lost: int = 0
    notes: tuple[str, ...] = ()
    cpu_name: str = "CPU"
    pinned: bool = False
    may_split: bool = True


def observed_of(past: Past) -> Observed:
    """A framework's own history as an audit takes it."""
    said = {name: getattr(past, name) for name in IN_HEADER}
    said |= {"edges_known": bool(past.edges_known), "notes": tuple(past.notes)}
    return Observed(past.header(past.label, past.label), tuple(past.records()), **said)


def only_job(observed: Observed, job: str) -> Observed:
    """The records of one job, and what the nodes offered meanwhile; none of a job that is not there."""
    kept = [record for record in observed.records if getattr(record, "workload", job) == job]
    return msgspec.structs.replace(observed, records=tuple(kept))


def header_of(observed: Observed) -> Header:
    """The header of the run log that keeps it: with what an audit of that log must know."""
    return msgspec.structs.replace(observed.header, **{name: getattr(observed, name) for name in IN_HEADER})


def observed_in(run: Run) -> Observed:
    """What a run log has. One that does not say whether it has the edges: a run of EGS saw what was submitted, and a
    history that a framework tells afterwards has at most an edge a task, from the actor to its calls."""
    header = msgspec.structs.replace(run.header, label=run.header.label or run.path)
    said = {name: getattr(header, name) for name in IN_HEADER}
    if header.edges_known is None:
        most_parents = max((len(getattr(record, "parents", ())) for record in run.records), default=0)
        said["edges_known"] = header.mode != "off" or most_parents > 1
    if run.truncated:
        said["notes"] = (*header.notes, f"{run.path} was cut off: its last line is left out")
    return Observed(header, tuple(run.records), **said)
