"""What a server has counted since it started: grants, ends, waits and GPU time by queue and team. Pure.

    a batch is durable ─► `committed(runs)`: each run beside what was known of it ─► counters that never fall

Only what is durable is counted, once: a batch that the store does not take leaves no trace. Counters begin at zero with
the process, as Prometheus expects; what a run held before that is not in them.

    grant ─────── claim ───────────────── end      GPU seconds held: grant to end; used: while a command runs, which in
      └ held ────────┴── held and used ────┘        a GPU request is only part of the time; wasted: held, less used
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import msgspec

from egs_core.server.runs import NOT_ADMITTED, WAITING, Run
from egs_core.server.slo_tally import SloTally, Told, wait_anew

Key = tuple[str, str]  # queue, team
WAIT_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 604800.0)
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
MOST_KEYS = 500
OTHERS: Key = ("", "(others)")
"""What is counted of further teams, once so many pairs are known: tokens may name any team where the file has none."""


class Buckets:
    """A histogram: how many values were at most so large; the last count is of those above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class GpuSeconds(msgspec.Struct):
    held: float = 0.0
    used: float = 0.0


class _Lease(msgspec.Struct):
    """One that is held, of a run that is not in a request. settled_at: until then its time is counted; commands: what
    runs with it: the run itself, or what is in the request."""

    token: int
    gpus: float
    settled_at: float
    commands: set[str]


class _Seen(msgspec.Struct):
    """An open run, as it was after the last commit. waits_since: None while it does not wait for its turn; told: what
    was counted of it for objectives."""

    key: Key
    waits_since: float | None = None
    lease: _Lease | None = None
    is_evicted: bool = False
    evictions: int = 0
    told: Told = msgspec.field(default_factory=set)


class Tally:
    """See the module. queues: names that may be a label; any other is told as none. Moments are of the site's clock."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self._queues = frozenset(queues)
        self._known: set[Key] = set()
        self.open: dict[str, _Seen] = {}
        self.gpu_s: dict[Key, GpuSeconds] = {}
        self.waits: dict[Key, Buckets] = {}
        self.grants: Counter[Key] = Counter()
        self.evictions: Counter[Key] = Counter()
        self.requeues: Counter[Key] = Counter()
        self.ended: Counter[tuple[Key, str]] = Counter()  # and how
        self.commits = Buckets(COMMIT_BOUNDS_S)
        self.failed_commits = 0
        self.journal_entries = self.journal_bytes = 0
        self.slos = SloTally()
        self._has_begun = False

    # --- the writer's side ---

    def committed(self, entries: Iterable[bytes], runs: Iterable[Run], now: float, seconds: float) -> None:
        """A batch has become durable, which took so long."""
        self.commits.add(seconds)
        for entry in entries:
            self.journal_entries += 1
            self.journal_bytes += len(entry)
        for run in runs:
            self._take(run, now)

    def recovered(self, entries: Iterable[bytes], runs: Iterable[Run], now: float) -> None:
        """What is durable was read. The first time all starts from there; later it is what was counted already, or was
        committed without an answer."""
        self.compacted()
        for entry in entries:
            self.journal_entries += 1
            self.journal_bytes += len(entry)
        for run in runs:
            if self._has_begun and (run.is_open or run.id in self.open):
                self._take(run, now)
            elif run.is_open:
                self._begin(run, now)
        self._has_begun = True

    def compacted(self) -> None:
        """The journal is empty."""
        self.journal_entries = self.journal_bytes = 0

    @property
    def keys(self) -> list[Key]:
        return sorted({*self._known, *(seen.key for seen in self.open.values())})

    def key(self, queue: str, team: str) -> Key:
        """The labels: of bounded number, whatever clients name."""
        key = (queue if queue in self._queues else "", team)
        if key in self._known:
            return key
        if len(self._known) >= MOST_KEYS:
            key = OTHERS
        self._known.add(key)
        return key

    # --- one run ---

    def _begin(self, run: Run, now: float) -> None:
        """One that was there before this process."""
        seen = self.open[run.id] = _Seen(self.key(run.queue, run.team), evictions=run.evictions)
        seen.is_evicted = run.is_evicted
        if _waits(run):
            seen.waits_since = (now if run.evictions else run.submitted_at) if run.turn_at is None else run.turn_at
        if run.inside:
            self._note_command(run, now)
        elif run.lease is not None:
            self._hold(run, seen, now)

    def _take(self, run: Run, now: float) -> None:
        seen = self.open.get(run.id)
        if seen is None:
            if run.ended_at is not None and run.ended_at < now:
                return  # it was counted when it ended
            seen = self.open[run.id] = _Seen(self.key(run.queue, run.team), now)
        if run.inside:
            self._note_command(run, now)
        else:
            self._note_lease(run, seen, now)
        if run.is_evicted and not seen.is_evicted:
            self.evictions[seen.key] += 1
        self.requeues[seen.key] += run.evictions - seen.evictions
        seen.is_evicted, seen.evictions = run.is_evicted, run.evictions
        if not run.is_open:
            self.ended[seen.key, run.outcome] += 1
            self.slos.look(seen.key, run, now, seen.told)
            del self.open[run.id]
            return
        if seen.lease is None:
            seen.key = self.key(run.queue, run.team)  # it may have been moved to another queue
        since = run.turn_at if run.turn_at is not None else seen.waits_since
        seen.waits_since = (now if since is None else since) if _waits(run) else None
        self.slos.look(seen.key, run, now, seen.told)

    def _note_lease(self, run: Run, seen: _Seen, now: float) -> None:
        token = run.lease.token if run.lease else 0
        if seen.lease is not None and seen.lease.token != token:
            self._settle(seen.key, seen.lease, now)
            seen.lease = None
            if run.is_open:
                wait_anew(seen.told)
            if run.is_open and seen.waits_since is None:
                seen.waits_since = now  # it was taken back, or given way, and has its next one already
        if run.lease is not None:
            if seen.lease is None:
                self._count_grant(seen, run, run.lease.granted_at)
                self._hold(run, seen, run.lease.granted_at)
            elif run.is_claimed and not run.is_request:
                self._start(seen, run.id, now)

    def _count_grant(self, seen: _Seen, run: Run, at: float) -> None:
        self.grants[seen.key] += 1
        if seen.key not in self.waits:
            self.waits[seen.key] = Buckets(WAIT_BOUNDS_S)
        told_s = max(0.0, at - (at if seen.waits_since is None else seen.waits_since))
        self.waits[seen.key].add(told_s if run.waited_s is None else run.waited_s)

    def _hold(self, run: Run, seen: _Seen, since: float) -> None:
        assert run.lease is not None
        commands = {run.id} if run.is_claimed and not run.is_request else set()
        seen.lease = _Lease(run.lease.token, run.gpus, since, commands)

    def _note_command(self, run: Run, now: float) -> None:
        """In a request: while one runs there, the request's GPUs are used."""
        request = self.open.get(run.inside)
        if request is None or request.lease is None:
            return
        if run.is_claimed:
            self._start(request, run.id, now)
        elif run.id in request.lease.commands:
            self._settle(request.key, request.lease, now)
            request.lease.commands.discard(run.id)

    def _start(self, seen: _Seen, command: str, now: float) -> None:
        if seen.lease is not None and command not in seen.lease.commands:
            self._settle(seen.key, seen.lease, now)
            seen.lease.commands.add(command)

    # --- GPU time ---

    def _settle(self, key: Key, lease: _Lease, now: float) -> None:
        total = self.gpu_s.setdefault(key, GpuSeconds())
        gpu_s = lease.gpus * max(0.0, now - lease.settled_at)
        total.held += gpu_s
        total.used += gpu_s if lease.commands else 0.0
        lease.settled_at = max(lease.settled_at, now)

    def settle(self, now: float) -> None:
        """Count what is held until now."""
        for seen in self.open.values():
            if seen.lease is not None:
                self._settle(seen.key, seen.lease, now)

    def look(self, runs: Iterable[Run], now: float) -> None:
        """Count what open ones have become late for since they changed last."""
        for run in runs:
            if (seen := self.open.get(run.id)) is not None:
                self.slos.look(seen.key, run, now, seen.told)


def _waits(run: Run) -> bool:
    """Whether it is its turn that it waits for: not another run, nobody who paused it, and none of its gang."""
    is_due = run.gang is None or run.task != NOT_ADMITTED  # a gang gets its turn when each of it might start
    return run.state == WAITING and is_due and not run.after and not run.inside
