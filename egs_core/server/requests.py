"""GPU requests: GPUs for a while, held by the site itself, in which commands run (`inside`).

    waiting ─ grant ─► claimed at once ─ time is up, released, idle, aborted ─► stop ─► no command is left ─► over

A request is a run without a supervisor, so the engine orders it like any other. `advance` takes each the steps that are
due; it is called before and after each batch, so what it does is part of that batch's commit. The devices go to others
only when every command in it has ended, and that is when its processes are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.server import inside
from egs_core.server.admission import check_for, check_host, check_open, place, take_in
from egs_core.server.book import CONFIG, Book
from egs_core.server.controls import control, update
from egs_core.server.forecast import expected_starts
from egs_core.server.hosts import OWN
from egs_core.server.principals import SUBMITTING, Principal
from egs_core.server.runs import NOBODY, Refusal, Run

WARN_S, WARN_PART = 300.0, 0.1  # before its end; of a short one the last tenth


def ask_for(book: Book, who: Principal, ask: q.GpuRequest) -> q.RequestView:
    """A new request; a known key is answered with its own. Raises Refusal for what can never start here."""
    who.need(SUBMITTING, "to ask for GPUs")
    known = book.by_key.get((who.name, ask.key))
    if known is not None:
        return view(book, who, known.id)
    check_open(book, who)
    check_for(ask.for_s)
    run = Run(str(book.last + 1), ask.key, who.name, ask.name or "request", NOBODY, book.now, ask.gpus, is_request=True)
    run.host = who.host
    check_host(book, run)
    run.gpu_memory_bytes, run.priority = ask.gpu_memory_bytes, ask.priority
    run.for_s, run.idle_s, run.flavors = ask.for_s, ask.idle_timeout_s, ask.flavors or ()
    place(book, who, run, ask.queue)
    take_in(book, who, run)
    advance(book)
    return view(book, who, run.id).model_copy(update={"notice": book.views.spending.notice(run.queue)})


def extend(book: Book, who: Principal, number: str, ask: q.Extend) -> q.RequestView:
    """It lasts longer. Raises Refusal where it does not run, and for more than any request may have."""
    run = _found(book, who, number)
    if run.is_open and not run.is_claimed:
        raise Refusal(409, f"request {run.id} has not begun: `egs update {run.id} --for` changes what it asks for")
    update(book, who, number, c.Change(for_s=min((run.for_s or 0.0) + ask.more_s, 1e9)))
    advance(book)
    return view(book, who, number)


def release(book: Book, who: Principal, number: str, ask: c.Control) -> q.RequestView:
    """It ends before its time, as a success; one that waits is taken back. Raises Refusal for one that has ended."""
    run = _found(book, who, number)
    if not run.is_open or run.is_claimed:
        control(book, who, number, "release", ask)
    else:
        book.rights.changeable(who, number)
        book.log(who, "release", run, ask.reason)
        book.abort(run, f"released by {who.name} before it began", "released")
    advance(book)
    return view(book, who, number)


def listed(book: Book, who: Principal, *, with_ended: bool = False) -> q.Requests:
    """The requests that it sees."""
    who.need_to_see()
    runs = [run for run in (book.runs if with_ended else book.views.open).values() if run.is_request and who.sees(run)]
    places, starts = _places(book), expected_starts(book.engine, book.views.spending.stopped)
    return q.Requests(requests=tuple([_view(book, who, run, places, starts) for run in runs]))


def view(book: Book, who: Principal, number: str) -> q.RequestView:
    """One of them. Raises Refusal (404) for what is none, or not to be seen."""
    who.need_to_see()
    run = _found(book, who, number)
    return _view(book, who, run, _places(book), expected_starts(book.engine, book.views.spending.stopped))


def advance(book: Book) -> None:
    """Whatever is due of each; repeated at the same moment it changes nothing more."""
    for number in list(book.commands):
        _advance(book, book.runs[number])


def next_due(book: Book) -> float | None:
    """When `advance` has something to do if nothing happens before."""
    held = [request for request in _open(book) if request.is_claimed and not request.stop]
    due = [_warned_from(request) for request in held]
    due += [book.active.get(one.id, book.now) + one.idle_s for one in held if one.idle_s and not _is_used(book, one)]
    return min((at for at in due if at is not None and at > book.now), default=None)


def measured(book: Book) -> dict[str, str]:
    """Devices of the server's own host whose work is to be measured, each with its request."""
    held = [request for request in _open(book) if request.idle_s and request.lease and not _is_used(book, request)]
    held = [request for request in held if request.host == OWN]
    return {book.views.devices[n].id: one.id for one in held for n in (one.lease.devices if one.lease else ())}


def worked(book: Book, numbers: Iterable[str]) -> None:
    """The GPUs of these requests have done work."""
    for number in numbers:
        if number in book.commands:
            book.active[number] = book.now


# --- one request ---


def _open(book: Book) -> list[Run]:
    return [request for number in book.commands if (request := book.runs[number]).is_open]


def _advance(book: Book, request: Run) -> None:
    if request.lease is not None and not request.is_claimed:
        book.begin(request, request.lease)
    if request.is_open and not request.stop and _is_idle(book, request):
        book.touch(request).is_time_up = True
        request.stop = f"idle for {request.idle_s:g} s: no command was in it, and no work of its GPUs was seen"
        request.grace_s = CONFIG.grace_s
        book.boxed.pop(request.id, None)
    if request.stop or not request.is_open:
        inside.stop(book, request)
        if request.is_open and not book.commands[request.id]:
            book.finish(request, "succeeded", None)
        if not request.is_open and not book.commands[request.id]:
            del book.commands[request.id]
            book.active.pop(request.id, None)
        return
    inside.start_waiting(book, request)
    near = _warned_from(request)
    inside.warn(book, request, near is not None and near <= book.now)


def _is_idle(book: Book, request: Run) -> bool:
    if request.idle_s is None or not request.is_claimed:
        return False
    if _is_used(book, request):
        book.active[request.id] = book.now
    return book.now - book.active.setdefault(request.id, book.now) >= request.idle_s


def _is_used(book: Book, request: Run) -> bool:
    return any(run.lease is not None for run in book.commands[request.id].values())


def _warned_from(request: Run) -> float | None:
    """From when on its end is near."""
    end = request.time_is_up_at
    return None if end is None else end - min(WARN_S, (request.for_s or 0.0) * WARN_PART)


def _found(book: Book, who: Principal, number: str) -> Run:
    run = book.runs.get(number)
    if run is None or not run.is_request or not who.sees(run):
        raise Refusal(404, f"there is no GPU request {number!r}: `egs request list` lists those that are open")
    return run


def _state(book: Book, run: Run) -> q.State:
    if not run.is_open or run.stop:
        return "stopping" if run.is_open else "ended"
    if not run.is_claimed:
        return "paused" if run.is_paused else "queued"
    near = _warned_from(run)
    if near is not None and near <= book.now:
        return "expiring"
    has_been_used = any(one.inside == run.id and one.started_at is not None for one in book.runs.values())
    return "in use" if _is_used(book, run) else "idle" if has_been_used else "ready"


def _places(book: Book) -> dict[str, int]:
    """Of each run that waits for devices its place, 1 for the first."""
    state = book.engine.state
    order = [book.by_task[state.task_of[phase]].id for phase in book.engine.ready_order()]
    return {number: at for at, number in enumerate(order, 1)}


def _view(book: Book, who: Principal, run: Run, places: dict[str, int], starts: dict[int, float]) -> q.RequestView:
    seen, epoch = book.views.view(run, True, starts, who.sees), book.facts.epoch
    found = [one.id for one in book.commands.get(run.id, {}).values() if who.sees(one)]
    is_held = run.is_open and run.is_claimed
    idle_s = book.now - book.active.get(run.id, run.started_at or book.now)
    return q.RequestView(
        id=run.id,
        site=seen.site,
        name=run.name,
        user=run.user,
        team=run.team,
        host=seen.host,
        state=_state(book, run),
        gpus=run.gpus,
        gpu_memory_bytes=run.gpu_memory_bytes,
        queue=run.queue,
        priority=run.priority,
        for_s=run.for_s or 0.0,
        idle_timeout_s=run.idle_s,
        place=places.get(run.id),
        starts_in_s=seen.starts_in_s,
        reason=seen.reason,
        devices=seen.lease.devices if seen.lease else (),
        commands=tuple(found),
        idle_s=idle_s if is_held and not _is_used(book, run) else None,
        submitted_at=seen.submitted_at,
        started_at=seen.started_at,
        ends_at=None if run.time_is_up_at is None or not is_held else epoch + run.time_is_up_at,
        ended_at=seen.ended_at,
        outcome=run.outcome,
        stop=seen.stop,
        flavors=run.flavors,
        flavor=run.flavor,
    )
