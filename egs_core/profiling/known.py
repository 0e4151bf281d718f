"""What is known of tasks that ran on GPUs, by kind: from histories, run logs, profiles and a site server's runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from egs_core.client.messages import RunView
from egs_core.history.from_runlog import history_from_runlog
from egs_core.history.rows import HistoryRow
from egs_core.out_of_memory import GPU, HOST
from egs_core.profiling.advising import Died, Kind, Seen, Starved, size_of
from egs_core.profiling.running import NO_GPU
from egs_core.profiling.tiers import Measured
from egs_core.runlog.records import Ended, Header, Record, Started, TaskAdded, WorkloadSubmitted


class Known:
    """Takes one source after another. seen: what has come of them."""

    def __init__(self) -> None:
        self.seen: dict[Kind, Seen] = {}

    def _of(self, kind: Kind) -> Seen:
        return self.seen.setdefault(kind, Seen())

    def add_rows(self, rows: Iterable[HistoryRow], *, is_emulated: bool = False) -> None:
        """All rows of one pipeline. A task that holds its GPU from start to end has, beside its row, those of the
        phases that a split would make of it: they count only where it was split, too."""
        whole, by_kind = set[tuple[str, str, float]](), dict[Kind, list[HistoryRow]]()
        for row in rows:
            if not row.shape.gpu_milli or row.outcome != "succeeded" or row.seconds <= 0:
                continue
            by_kind.setdefault(Kind(row.pipeline, row.task, row.phase), []).append(row)
            if row.phase == 0:
                whole.add((row.pipeline, row.task, row.ended_at))
        for kind, found in by_kind.items():
            is_derived = kind.phase and all((row.pipeline, row.task, row.ended_at) in whole for row in found)
            if is_derived:
                continue
            self._of(kind).measured += [
                Measured(
                    row.flavor, row.seconds, row.shape.gpu_milli / 1000, is_emulated=is_emulated, ended_at=row.ended_at
                )
                for row in found
            ]

    def add_log(self, header: Header, records: Iterable[Record], flavor_of: dict[str, str]) -> None:
        """A run log, of whichever framework. flavor_of: of nodes, for logs that name no flavor."""
        moved = [_with_flavor(one, flavor_of) for one in records]
        rows, emulated = history_from_runlog([header, *moved]), header.emulated_gpus
        by_pipeline: dict[str, list[HistoryRow]] = defaultdict(list)
        for row in rows:
            by_pipeline[row.pipeline].append(row)
        for found in by_pipeline.values():
            self.add_rows(found, is_emulated=emulated)
        self._add_lost(header, moved)

    def _add_lost(self, header: Header, records: list[Record]) -> None:
        pipelines = {one.workload: one.name for one in records if isinstance(one, WorkloadSubmitted)}
        names = {(one.workload, one.task): one.name for one in records if isinstance(one, TaskAdded)}
        started = {(one.workload, one.task, one.phase, one.attempt): one for one in records if isinstance(one, Started)}
        for one in records:
            if not isinstance(one, Ended) or one.outcome == "succeeded":
                continue
            begun = started.get((one.workload, one.task, one.phase, one.attempt))
            if begun is None or not begun.gpus:
                continue
            pipeline = pipelines.get(one.workload) or one.workload
            kind = Kind(pipeline, names.get((one.workload, one.task)) or one.task, one.phase)
            at = header.started_at + one.t
            self._of(kind).lost.append(begun.gpus * (one.t - begun.t))
            if one.reason.startswith(HOST):
                self._of(kind).starved.append(Starved(begun.memory_bytes, at))
            elif one.reason.startswith(GPU):
                self._of(kind).died.append(Died(size_of(begun.flavor or "?", begun.gpus), at))

    def add_runs(self, runs: Iterable[RunView]) -> None:
        """A site server's, which have ended. Of their memory nothing is known."""
        for run in runs:
            if run.inside or run.framework or run.is_request or not run.gpus:
                continue
            if run.started_at is None or run.ended_at is None or run.ended_at <= run.started_at:
                continue
            found = self._of(Kind("", run.name))
            found.lost += [one.gpus * (one.ended_at - one.started_at) for one in run.earlier if one.gpus]
            if run.outcome != "succeeded":
                found.lost.append(run.gpus * (run.ended_at - run.started_at))
            else:
                seconds = run.ended_at - run.started_at
                found.measured.append(Measured(run.flavor, seconds, run.gpus, work=run.work, ended_at=run.ended_at))

    def add_profile(self, name: str, measured: Iterable[Measured]) -> None:
        """What `egs profile` has measured of a command. Its runs are at the server, too: they are replaced, since a
        profile knows more of them. What it calls runs where GPUs have no flavor is a label that nobody can ask for."""
        own = self._of(Kind("", name))
        fresh = [msgspec.structs.replace(one, flavor="") if one.flavor == NO_GPU else one for one in measured]
        ended = {(one.flavor, one.ended_at) for one in fresh}
        own.measured = [one for one in own.measured if (one.flavor, one.ended_at) not in ended] + fresh

    @property
    def flavors(self) -> list[str]:
        """On which something ran, in order of first appearance."""
        sizes = [one.flavor for seen in self.seen.values() for one in seen.measured]
        return list(dict.fromkeys(one for one in sizes if one))


def _with_flavor(record: Record, flavor_of: dict[str, str]) -> Record:
    if not isinstance(record, Started) or record.flavor or not record.gpus or record.node not in flavor_of:
        return record
    return msgspec.structs.replace(record, flavor=flavor_of[record.node])
