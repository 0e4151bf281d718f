"""What the dashboard's process knows of a site's runs, as somebody of some teams sees them. Pure.

outlines that have changed ─► Mirror ─► runs that belong together: follow each other, start together, are in a request
"""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.client.outlines import Outline

MOST_ENDED, SLACK = 10_000, 2_000  # as many as the server keeps; beyond that and the slack the oldest go


class Mirror:
    """See the module. runs: in the order in which they changed last; count: of changes so far; misses: ended ones
    were left out, the last of them ended at this second of 1970, None for none."""

    def __init__(self, runs: Iterable[Outline] = (), count: int = 0, misses: float | None = None) -> None:
        self.runs: dict[str, Outline] = {}
        self._ended, self.count, self.misses = 0, count, misses
        self._group: dict[str, str] = {}  # what a workload is called here, by each of its members
        self._members: dict[str, list[str]] = {}
        self._changes: dict[str, int] = {}
        self.take(runs)

    def take(self, found: Iterable[Outline]) -> None:
        """These are new, or have changed."""
        for run in found:
            known = self.runs.pop(run.id, None)
            self.runs[run.id] = run
            self._ended += (run.ended_at is not None) - (known is not None and known.ended_at is not None)
            if known is None:
                self._join(run)
            elif run.gang != known.gang:
                self._together(run.id, f"gang {run.gang}")
            self.count += 1
            self._changes[self._group[run.id]] = self.count

    def bounded(self) -> Mirror:
        """The same, or where that is too much one without the runs that ended first."""
        if self._ended <= MOST_ENDED + SLACK:
            return self
        ended = [run for run in self.runs.values() if run.ended_at is not None]
        ended.sort(key=lambda run: run.ended_at or 0.0)
        gone = {run.id: run.ended_at for run in ended[: len(ended) - MOST_ENDED]}
        left = [run for run in self.runs.values() if run.id not in gone]
        return Mirror(left, self.count, max(filter(None, gone.values()), default=self.misses))

    def workload_of(self, run: str) -> str | None:
        """What the workload of a run is called here: the same for all of its runs; None for a run that is not known."""
        return self._group.get(run) if run in self.runs else None

    def members(self, workload: str) -> list[Outline]:
        """Its runs, by number."""
        found = [self.runs[one] for one in self._members.get(workload, ()) if one in self.runs]
        return sorted(found, key=lambda run: (len(run.id), run.id))

    def changes(self, workload: str) -> int:
        """Another number whenever one of its runs has changed."""
        return self._changes.get(workload, 0)

    def workloads(self) -> list[str]:
        """Those of several runs, what changed last first."""
        found = dict.fromkeys(self._group[run] for run in reversed(self.runs))
        return [one for one in found if sum(member in self.runs for member in self._members[one]) > 1]

    def _join(self, run: Outline) -> None:
        self._group.setdefault(run.id, run.id)
        self._members.setdefault(self._group[run.id], [run.id])
        for other in (*run.follows, *([run.inside] if run.inside else ()), *([f"gang {run.gang}"] if run.gang else ())):
            self._together(run.id, other)

    def _together(self, run: str, other: str) -> None:
        """Both are of one workload: the smaller one's members go over. Names of gangs are members, too."""
        first = self._group[run]
        second = self._group.setdefault(other, other)
        self._members.setdefault(second, [other])
        if first == second:
            return
        if len(self._members[first]) < len(self._members[second]):
            first, second = second, first
        for member in self._members[second]:
            self._group[member] = first
        self._members[first] += self._members.pop(second)
        self._changes[first] = self.count = self.count + 1
        self._changes.pop(second, None)
