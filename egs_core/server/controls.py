"""What users and operators change: abort, release, pause, resume and update of a run, drain of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egs_core.client import messages as c
from egs_core.client.options import option_of
from egs_core.engine import messages as m
from egs_core.errors import listed
from egs_core.server import turns
from egs_core.server.admission import check_fits, check_for, queue_asked, take_part
from egs_core.server.book import REFUSED, Book, LogLine
from egs_core.server.gangs import come_words
from egs_core.server.hosts import OWN
from egs_core.server.principals import OPERATING, Principal
from egs_core.server.runs import NOT_ADMITTED, Refusal, Run
from egs_core.server.trial import copy_of

OF_THE_GANG = ("queue", "team", "priority")  # what is changed for all members
CHANGES_WHILE_RUNNING = ("for_s", "expected_s")
OTHER_GPUS = {"gpus", "gpu_memory_bytes", "flavors"}


def control(book: Book, who: Principal, run_id: str, verb: str, ask: c.Control) -> c.RunView:
    """abort, release, pause or resume. Raises Refusal (409) for a run that has ended."""
    run = book.rights.changeable(who, run_id)
    if not run.is_open:
        raise Refusal(409, f"run {run.id} has ended: {run.outcome}")
    book.rights.check_whole(who, run)
    if verb == "abort":
        run.grace_s = ask.grace_s
        book.log(who, verb, run, ask.reason)
        book.abort(run, f"aborted by {who.name}" + (f": {ask.reason}" if ask.reason else ""), "aborted")
        return book.view(who, run)
    if verb == "release":
        return _release(book, who, run, ask)
    book.log(who, verb, run, ask.reason)
    kind = m.PauseRequested if verb == "pause" else m.ResumeRequested
    scope, target = ("task", str(run.task)) if run.gang else ("workload", run.workload)
    run.is_paused = verb == "pause"
    turns.note_holds([book.touch(one) for one in book.gangs.members(run)], book.now)
    if run.task == NOT_ADMITTED:
        book.admit_if_due(run)
    else:
        book.handle(kind(scope, target, who.name, ask.reason))
    return book.view(who, run)


def give_up_gang(book: Book, members: Sequence[Run]) -> None:
    """Not all of these members' gang have come in time."""
    place = members[0].gang
    why = f"gang {place.name!r} was not whole in time: {come_words(place, members)}" if place else ""
    for run in members:
        if run.is_open:
            book.abort(run, why, "aborted")


def _release(book: Book, who: Principal, run: Run, ask: c.Control) -> c.RunView:
    """It ends as when its time box is over: it has had what it asked for, and what waits for it may start."""
    if not run.is_claimed or run.stop:
        state = "is about to end" if run.stop else "has not started: `egs abort` takes it back"
        raise Refusal(409, f"run {run.id} {state}")
    parts = book.gangs.members(run) if run.is_request else [run]  # of a request over several hosts all
    for one in [part for part in parts if part.is_claimed and not part.stop]:
        book.log(who, "release", one, ask.reason)
        book.touch(one).is_time_up = True
        one.stop = f"released by {who.name}" + (f": {ask.reason}" if ask.reason else "")
        one.grace_s = ask.grace_s
        book.boxed.pop(one.id, None)
    return book.view(who, run)


def update(book: Book, who: Principal, run_id: str, ask: c.Change) -> c.RunView:
    """Other wishes of a run: it is given to the engine anew, behind those of its priority that wait. Raises Refusal
    for what it is too late for, and for what can never start; then all stays as it was."""
    run = book.rights.changeable(who, run_id)
    book.rights.check_whole(who, run)
    wishes = {name: value for name, value in ask if value is not None}
    if not run.is_open:
        raise Refusal(409, f"run {run.id} has ended: {run.outcome}")
    if not wishes:
        raise Refusal(422, "nothing is to be changed: name what, as --priority")
    if run.lease is not None and (not run.is_claimed or run.stop):
        raise Refusal(409, f"run {run.id} is about to {'end' if run.stop else 'start'}: try again")
    late = [name for name in wishes if name not in CHANGES_WHILE_RUNNING]
    if run.is_claimed and late:
        raise Refusal(409, f"run {run.id} has started: its {option_of(late[0])} cannot change, --for and --expect can")
    holding = next((one for one in book.gangs.members(run) if one.lease is not None), None)
    if holding is not None and run.lease is None:
        raise Refusal(409, f"run {holding.id} of its gang is about to end: try again")
    if run.inside and late:
        raise Refusal(409, f"run {run.id} is in request {run.inside}: its {option_of(late[0])} is that of the request")
    if run.is_request:
        check_for(wishes.get("for_s"))
    if run.is_request and run.gang and wishes.get("gpus") is not None:
        raise Refusal(422, f"gpus: request {run.whole} is over several hosts: release it, and ask for it anew")
    if "queue" in wishes:
        wishes["queue"] = queue_asked(book, who, wishes["queue"])
        wishes["team"] = book.team_of_queue.get(wishes["queue"], "") or run.team
    _change(copy_of(book), run_id, wishes)
    book.log(who, "update", run, ", ".join(f"{name}={value}" for name, value in wishes.items()))
    _change(book, run_id, wishes)
    return book.view(who, run)


def _change(book: Book, run_id: str, wishes: dict[str, Any]) -> None:
    run = book.runs[run_id]
    if "deadline_s" in wishes:
        wishes = {**wishes, "deadline_s": book.now + wishes["deadline_s"] - run.submitted_at}
    changed = book.gangs.members(run) if run.is_request else [run]  # of a request over several hosts all parts
    for one in changed:
        _wish(book.touch(one), wishes)
    for other in book.gangs.members(run):
        for name in [one for one in OF_THE_GANG if one in wishes]:
            setattr(book.touch(other), name, wishes[name])
    if run.lease is not None:
        for one in changed:
            _last(book, one)
        return
    if run.inside:
        return
    for one in changed:
        take_part(book, one)
        check_fits(book, one)
    if run.task != NOT_ADMITTED:
        book.readmit(run)
    if run.outcome == REFUSED:
        raise Refusal(422, run.why)


def _wish(run: Run, wishes: dict[str, Any]) -> None:
    if "gpu_memory_bytes" in wishes and "gpus" not in wishes and run.gpus < 1:
        run.gpus = 0  # the part that it was
    elif "gpus" in wishes and "gpu_memory_bytes" not in wishes and run.gpus % 1:
        run.gpu_memory_bytes = 0
    if wishes.keys() & OTHER_GPUS:  # it has to begin anew
        run.aside = None
    for name, value in wishes.items():
        setattr(run, name, value)


def _last(book: Book, run: Run) -> None:
    """What runs lasts longer, or less long."""
    length_s = run.expected_s or run.for_s
    book.note_box(run)
    if length_s is not None and run.lease is not None and not run.inside:
        book.handle(m.Estimates(((run.lease.phase, length_s, length_s),)))


def drain(book: Book, who: Principal, ask: c.Drain) -> c.Runs:
    """Nothing new gets the device, or any of the host's; what runs goes on. Or no longer so. Raises Refusal."""
    who.need(OPERATING, "to drain")
    if who.teams is not None:
        raise Refusal(403, "to drain needs a token that is bound to no team: the devices are everybody's")
    host, meant = _meant(book, ask.target)
    drained = meant.union(book.drained_of(host)) if ask.drained else set(book.drained_of(host)) - meant
    book.lines.append(LogLine(book.now, who, "drain" if ask.drained else "undrain", "", "", ask.target))
    if host == OWN:
        book.add_node(tuple(sorted(drained)))
    else:
        book.add_host(book.hosts.all[host], tuple(sorted(drained)))
    for run in book.open_runs():
        book.admit_if_due(run)
    return book.views.listed(who.sees)


def _meant(book: Book, target: str) -> tuple[str, set[int]]:
    """The host and its devices that a name means: of a host, of a device, or HOST/DEVICE. Raises Refusal for none, and
    for a device's name that several hosts have."""
    names = {OWN: {book.offer.host, book.views.name_of(OWN)}} | {one.name: {one.name} for one in book.hosts.joined()}
    found: list[tuple[str, set[int]]] = []
    known: list[str] = []
    for host, called in names.items():
        ids = [device.id for device in book.views.devices_of(host)]
        if target in called:
            return host, set(range(len(ids)))
        shown = book.views.name_of(host)
        known += [shown, *(ids if len(names) == 1 else [f"{shown}/{one}" for one in ids])]
        found += [(host, {n}) for n, one in enumerate(ids) if target in (one, *(f"{name}/{one}" for name in called))]
    if not found:
        raise Refusal(404, f"there is no host and no device {target!r}; there are {listed(known)}")
    if len(found) > 1:
        choice = " or ".join(f"{book.views.name_of(host)}/{target}" for host, _ in found)
        raise Refusal(409, f"several hosts have a device {target!r}: say {choice}")
    return found[0]
