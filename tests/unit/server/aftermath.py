"""What has happened at a site, from what is left of it: its database, and what its users have written themselves.

    the journal    which lease had which devices, from when to when        the users' lines   who used what, and when
    runs, log      how each run has ended, and what was asked for          the clients        what they were told

One function, `problems`, says what is wrong with it all. It believes no figure of the server's: it adds up again what
the journal's transitions say, and holds it against what the processes have written.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from egs_core.driver.journal import Entry
from egs_core.engine.state.journal import fold
from egs_core.engine.state.state import State
from egs_core.errors import InputError
from egs_core.server.store import Kept, SqlStore
from tests.unit.server.databases import Where

WHOLE = 1000  # thousandths of a device
NOT_TOLD = "the end of run {} could not be told"  # says an `egs run` after two minutes
CLOCKS_S = 1.0  # by which a machine's clocks may come apart while a test runs


class Note(msgspec.Struct, frozen=True):
    """A line of `gpu_user`. what: begin, end or collision; dying: its process is about to be killed. token: of its
    lease; part: of each device; at: seconds since 1970."""

    what: str
    name: str
    run: str
    token: int
    devices: tuple[str, ...]
    part: float
    at: float
    pid: int = 0


class Client(msgspec.Struct):
    """Who has asked for a run. run: its number, where the client was told it; codes: which of them its command may have
    ended with; returned: how its client has ended, None: it has not; is_killed: its client was, at any moment."""

    name: str
    codes: tuple[int, ...] = (0,)
    run: str = ""
    returned: int | None = None
    is_killed: bool = False
    text: str = ""


class Quota(msgspec.Struct, frozen=True):
    """How many GPUs a queue may hold at most, and its cohort ("": none) with it."""

    most: float
    cohort: str = ""
    most_of_cohort: float = 0.0


class Lease(msgspec.Struct):
    """As the journal has it. devices: by their number; milli: of each; moments: seconds since 1970."""

    token: int
    run: str
    devices: tuple[int, ...]
    milli: int
    since: float
    is_claimed: bool = False
    until: float | None = None


class Left(msgspec.Struct):
    """What is left of a site. requeues: of each run, how often it was given back to wait, by the journal; found: what
    was wrong with the journal already, read entry by entry."""

    kept: Kept
    leases: dict[int, Lease]
    requeues: Counter[str]
    found: list[str]


def read_notes(file: Path) -> list[Note]:
    """In the order in which they were written; none where nobody has written."""
    if not file.exists():
        return []
    lines = [line.split() for line in file.read_text().splitlines()]
    return [_note(*line) for line in lines]


def _note(what: str, name: str, mark: str, devices: str, part: str, pid: str, at: str) -> Note:
    _, run, token = mark.split(".")
    return Note(what, name, run, int(token), tuple(devices.split(",")), min(1.0, float(part)), float(at), int(pid))


def read_site(where: Where, quotas: Mapping[str, Quota]) -> Left:
    """Its journal, one entry after the other; while no server runs."""
    with contextlib.closing(SqlStore(where, time.time())) as store:
        kept = store.load()
    assert not kept.snapshot, "the journal's begin is gone: fewer runs leave one that is whole"
    left = Left(kept, {}, Counter(), [])
    state, queue_of = State(), {run.id: run.queue for run in kept.runs}
    for number, data in enumerate(kept.entries, start=1):
        entry = msgspec.json.decode(data, type=Entry)
        try:
            fold(state, entry.event, entry.transitions)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            left.found.append(f"entry {number} does not follow from those before it: {error}")
            break
        _follow(left, state, kept.facts.epoch + entry.now)
        for name, arguments in entry.transitions:
            if name == "requeue":
                left.requeues[_run_of(state, arguments[0])] += 1
        held = [one for one in left.leases.values() if one.until is None]
        left.found += [f"entry {number}: {text}" for text in (*_shared(held), *_beyond(held, queue_of, quotas))]
    return left


def _run_of(state: State, task: int) -> str:
    return state.task_ids[task].partition(" ")[0]


def _follow(left: Left, state: State, at: float) -> None:
    """Which leases have begun and ended with an entry."""
    now = {}
    for phase, one in state.leases.items():
        now[one.decision] = phase
        lease = left.leases.get(one.decision)
        if lease is None:
            run = _run_of(state, state.task_of[phase])
            lease = left.leases[one.decision] = Lease(one.decision, run, one.devices, one.gpu_milli, at)
        lease.is_claimed = lease.is_claimed or one.decision not in state.decisions
    for lease in left.leases.values():
        if lease.until is None and lease.token not in now:
            lease.until = at


def _shared(held: Iterable[Lease]) -> Iterator[str]:
    """Devices of which more is leased than there is."""
    used: dict[int, list[Lease]] = {}
    for one in held:
        for device in one.devices:
            used.setdefault(device, []).append(one)
    for device, leases in used.items():
        if sum(one.milli for one in leases) > WHOLE:
            yield f"device {device} is leased to runs {', '.join(one.run for one in leases)} at once"


def _beyond(held: Iterable[Lease], queue_of: Mapping[str, str], quotas: Mapping[str, Quota]) -> Iterator[str]:
    """Queues and cohorts that hold more GPUs than they may."""
    used: Counter[str] = Counter()
    for one in held:
        used[queue_of.get(one.run, "")] += one.milli * len(one.devices)
    for name, quota in quotas.items():
        if used[name] > quota.most * WHOLE:
            yield f"queue {name} holds {used[name] / WHOLE:g} GPUs, and may have {quota.most:g}"
    for cohort, most in {(quota.cohort, quota.most_of_cohort) for quota in quotas.values() if quota.cohort}:
        of_all = sum(used[name] for name, quota in quotas.items() if quota.cohort == cohort)
        if of_all > most * WHOLE:
            yield f"cohort {cohort} holds {of_all / WHOLE:g} GPUs, and may have {most:g}"


def problems(left: Left, notes: Iterable[Note], clients: Iterable[Client]) -> list[str]:
    """What must not have happened: a device leased to two or used by two, a quota exceeded, something used without its
    lease, started twice without having been requeued, lost, or ended otherwise than its client was told. Of a site at
    which everything has come to an end."""
    notes, clients = list(notes), list(clients)
    return [
        *left.found,
        *_used(notes),
        *_without_lease(left, notes),
        *_twice(left, notes),
        *_lost(left, notes, clients),
    ]


def _used(notes: Iterable[Note]) -> Iterator[str]:
    """By what the users themselves have written."""
    users: dict[str, dict[str, float]] = {}
    for note in notes:
        if note.what == "collision":
            yield f"{note.name} found that somebody else used one of its devices: {', '.join(note.devices)}"
        for device in note.devices:
            using = users.setdefault(device, {})
            if note.what == "begin":
                using[note.name] = note.part
            elif note.what in ("end", "dying"):
                using.pop(note.name, None)
            if sum(using.values()) > 1.0:
                yield f"device {device} is used by {', '.join(using)} at once"
    for device, using in users.items():
        for name in using:
            yield f"nobody knows when {name} has stopped to use device {device}"


def _without_lease(left: Left, notes: Iterable[Note]) -> Iterator[str]:
    """Everything that was used was leased to that run then, and durably so."""
    for note in notes:
        lease = left.leases.get(note.token)
        what = f"{note.name} wrote {note.what!r} with lease {note.token}"
        if lease is None or lease.run != note.run:
            yield f"{what}, which run {note.run} has never had"
            continue
        if not lease.is_claimed:
            yield f"{what}, which was never claimed"
        if tuple(map(str, lease.devices)) != note.devices or lease.milli != round(note.part * WHOLE):
            yield f"{what}, on devices {note.devices}: the lease is of {lease.milli / WHOLE:g} of {lease.devices}"
        if note.what != "dying" and note.at < lease.since - CLOCKS_S:
            yield f"{what}, {lease.since - note.at:.1f} s before that lease began"
        if note.what != "dying" and lease.until is not None and note.at > lease.until + CLOCKS_S:
            yield f"{what}, {note.at - lease.until:.1f} s after that lease had ended"


def _twice(left: Left, notes: Iterable[Note]) -> Iterator[str]:
    begins = [note for note in notes if note.what == "begin"]
    for (name, token), times in Counter((note.name, note.token) for note in begins).items():
        if times > 1:
            yield f"{name} was started {times} times with lease {token}"
    used = Counter(note.run for note in begins)
    claimed = Counter(lease.run for lease in left.leases.values() if lease.is_claimed)
    for number, times in (used | claimed).items():
        if times > 1 + left.requeues[number]:
            yield f"run {number} was started {times} times, and requeued {left.requeues[number]} times"
    for run in left.kept.runs:
        if run.evictions != left.requeues[run.id]:
            yield f"run {run.id} says {run.evictions} evictions, the journal {left.requeues[run.id]}"


def _lost(left: Left, notes: Iterable[Note], clients: list[Client]) -> Iterator[str]:
    """Each run that a client knows of is there, once, and has ended as its client has."""
    runs = {run.name: run for run in left.kept.runs}
    for name, times in Counter(run.name for run in left.kept.runs).items():
        if times > 1:
            yield f"what {name} asked for was taken for {times} runs"
    for run in left.kept.runs:
        if run.is_open:
            yield f"run {run.id} ({run.name}) is open, and nobody is there any more"
    for name in runs.keys() - {one.name for one in clients}:
        yield f"nobody has asked for run {runs[name].id} ({name})"
    begun = Counter(note.name for note in notes if note.what == "begin")
    for one in clients:
        found = runs.get(one.name)
        if found is None:
            if one.run or not one.is_killed:
                yield f"run {one.run or '?'} ({one.name}) is lost"
            continue
        if one.run and one.run != found.id:
            yield f"{one.name} was told {one.run}, and is run {found.id}"
        if one.is_killed:
            continue
        told = ("succeeded" if one.returned == 0 else "failed", one.returned)
        if one.returned not in one.codes:
            yield f"{one.name} has returned {one.returned}, not {one.codes}: {one.text}"
        elif found.outcome == "lost" and NOT_TOLD.format(found.id) in one.text:
            continue  # the server was away for too long at its end, and both say so
        elif (found.outcome, found.exit_code) != told:
            server = f"run {found.id} as {found.outcome!r}, {found.exit_code}"
            yield f"{one.name} has ended as {told}, and {server}: {one.text}"
        if not begun[one.name]:
            yield f"{one.name} has returned {one.returned} and was never started"


def check_journal(left: Left) -> None:
    """Raises AssertionError where the state that the journal leads to and the runs do not agree."""
    try:
        left.kept.logic("the journal").validate()
    except InputError as error:
        raise AssertionError(str(error)) from None
