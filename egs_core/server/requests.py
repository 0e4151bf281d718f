"""GPU requests: GPUs for a while, held by the site itself, in which commands run (`inside`).

    waiting ─ grant ─► claimed at once ─ time is up, released, idle, aborted ─► stop ─► no command is left ─► over

A request is a run without a supervisor, so the engine orders it like any other; one over several hosts is a run on
each, which are a gang: the engine starts them together or not at all, and what is done to one is done to all. `advance`
takes each the steps that are due; it is called before and after each batch, so what it does is part of that batch's
commit. The devices go to others only when every command in it has ended, and that is when its processes are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.server import inside
from egs_core.server.admission import admit, check_for, check_host, check_open, place, register
from egs_core.server.book import CONFIG, Book
from egs_core.server.controls import control, update
from egs_core.server.hosts import OWN
from egs_core.server.inside import parts_of
from egs_core.server.principals import SUBMITTING, Principal
from egs_core.server.request_hosts import gpus_each, hosts_for, move
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
    hosts = hosts_for(book, who, ask, _part(book, who, ask, 0, who.host))
    parts = [_part(book, who, ask, rank, host) for rank, host in enumerate(hosts)]
    for part in parts:
        check_host(book, part)
        place(book, who, part, ask.queue)
    if len(parts) > 1:
        book.gangs.form(parts, f"request {parts[0].id}", book.now)
    for part in parts:
        register(book, who, part)
    admit(book, who, parts[0])
    advance(book)
    return view(book, who, parts[0].id).model_copy(update={"notice": book.views.spending.notice(parts[0].queue)})


def _part(book: Book, who: Principal, ask: q.GpuRequest, rank: int, host: str) -> Run:
    """What it has on one host, as a run that nobody knows yet. Raises Refusal."""
    key, gpus = f"{ask.key} {rank}" if rank else ask.key, gpus_each(ask)
    name = ask.name or "request"
    run = Run(str(book.last + 1 + rank), key, who.name, name, NOBODY, book.now, gpus, is_request=True)
    run.host, run.gpu_memory_bytes, run.priority = host, ask.gpu_memory_bytes, ask.priority
    run.for_s, run.idle_s, run.flavors = ask.for_s, ask.idle_timeout_s, ask.flavors or ()
    run.requeue, run.roams = ask.requeue, bool(ask.hosts and ask.hosts > 1 and not ask.on)
    return run


def extend(book: Book, who: Principal, number: str, ask: q.Extend) -> q.RequestView:
    """It lasts longer. Raises Refusal where it does not run, and for more than any request may have."""
    parts = _changeable(book, who, number)
    run = parts[0]
    if any(part.is_open and not part.is_claimed for part in parts):
        raise Refusal(409, f"request {run.whole} has not begun: `egs update {run.id} --for` changes what it asks for")
    if ending := next((part for part in parts if part.stop or not part.is_open), None):
        run = ending  # it says why not
    update(book, who, run.id, c.Change(for_s=min((run.for_s or 0.0) + ask.more_s, 1e9)))
    advance(book)
    return view(book, who, number)


def release(book: Book, who: Principal, number: str, ask: c.Control) -> q.RequestView:
    """It ends before its time, as a success; one that waits is taken back. Raises Refusal for one that has ended."""
    parts = _changeable(book, who, number)
    run = parts[0]
    if not run.is_open or run.is_claimed:
        for part in [one for one in parts if one.is_evicted]:  # it is not to come back
            book.touch(part).is_evicted, part.stop = False, ""
        live = next((one for one in parts if one.is_open and not one.stop), run)
        control(book, who, live.id, "release", ask)
    else:
        book.rights.changeable(who, run.id)
        book.log(who, "release", run, ask.reason)
        book.abort(run, f"released by {who.name} before it began", "released")
    advance(book)
    return view(book, who, number)


def listed(book: Book, who: Principal, *, with_ended: bool = False) -> q.Requests:
    """The requests that it sees."""
    who.need_to_see()
    runs = [run for run in (book.runs if with_ended else book.views.open).values() if run.is_request and who.sees(run)]
    found = list({run.whole: parts_of(book, run) for run in runs}.values())
    places, starts = _places(book), book.views.starts()
    return q.Requests(requests=tuple([_view(book, who, parts, places, starts) for parts in found]))


def view(book: Book, who: Principal, number: str) -> q.RequestView:
    """One of them. Raises Refusal (404) for what is none, or not to be seen."""
    who.need_to_see()
    parts = _found(book, who, number)
    return _view(book, who, parts, _places(book), book.views.starts())


def advance(book: Book) -> None:
    """Whatever is due of each; repeated at the same moment it changes nothing more."""
    for number in list(book.commands):
        request = book.runs[number]
        if request.roams and request.id == request.whole:
            move(book, book.gangs.members(request))
        _advance(book, request)


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
        if request.is_evicted:
            if not _is_used(book, request):
                book.requeue(request, is_aside=any(one.aside for one in book.commands[request.id].values()))
            return
        if request.is_open and not book.commands[request.id]:
            book.finish(request, "succeeded", None)
        if not request.is_open and not book.commands[request.id]:
            del book.commands[request.id]
            book.active.pop(request.id, None)
            book.tried.pop(request.id, None)
        return
    inside.start_waiting(book, request)
    near = _warned_from(request)
    inside.warn(book, request, near is not None and near <= book.now)


def _is_idle(book: Book, request: Run) -> bool:
    if request.idle_s is None or not request.is_claimed:
        return False
    parts = book.gangs.members(request)
    if any(_is_used(book, part) for part in parts):
        book.active.update(dict.fromkeys([part.id for part in parts], book.now))
    return book.now - max(book.active.setdefault(part.id, book.now) for part in parts) >= request.idle_s


def _is_used(book: Book, request: Run) -> bool:
    """Whether a command has a lease in this request, or part of one."""
    return any(run.lease is not None for run in book.commands.get(request.id, {}).values())


def _warned_from(request: Run) -> float | None:
    """From when on its end is near."""
    end = request.time_is_up_at
    return None if end is None else end - min(WARN_S, (request.for_s or 0.0) * WARN_PART)


def _found(book: Book, who: Principal, number: str) -> list[Run]:
    """Its parts, or itself where it is of one host."""
    run = book.runs.get(number)
    if run is None or not run.is_request or not who.sees(run):
        raise Refusal(404, f"there is no GPU request {number!r}: `egs request list` lists those that are open")
    return parts_of(book, run)


def _changeable(book: Book, who: Principal, number: str) -> list[Run]:
    """As `_found`; raises Refusal (403) where a host that has joined asks for what others have a part of."""
    parts = _found(book, who, number)
    book.rights.check_whole(who, parts[0])
    return parts


def _state(book: Book, parts: Sequence[Run]) -> q.State:
    """Of all of these together."""
    if any(run.stop or not run.is_open for run in parts):
        return "stopping" if any(run.is_open for run in parts) else "ended"
    if not all(run.is_claimed for run in parts):
        return "paused" if any(run.is_paused for run in parts) else "queued"
    near = _warned_from(parts[0])
    if near is not None and near <= book.now:
        return "expiring"
    if any(_is_used(book, run) for run in parts):
        return "in use"
    numbers = {run.id for run in parts}
    has_been_used = any(one.inside in numbers and one.started_at is not None for one in book.runs.values())
    return "idle" if has_been_used else "ready"


def _places(book: Book) -> dict[str, int]:
    """Of each run that waits for devices its place, 1 for the first."""
    state = book.engine.state
    order = [book.by_task[state.task_of[phase]].id for phase in book.engine.ready_order()]
    return {number: at for at, number in enumerate(order, 1)}


def _commands(book: Book, who: Principal, run: Run) -> tuple[str, ...]:
    return tuple([one.id for one in book.commands.get(run.id, {}).values() if who.sees(one)])


def _part_view(book: Book, who: Principal, run: Run) -> q.RequestPart:
    seen = book.views.view(run)
    return q.RequestPart(
        id=run.id,
        host=seen.host,
        state=_state(book, [run]),
        devices=seen.lease.devices if seen.lease else (),
        commands=_commands(book, who, run),
        flavor=run.flavor,
    )


def _outcome(parts: Sequence[Run]) -> str:
    """What came of all, once all have ended: lost, where one is; else that of the first."""
    if any(run.is_open for run in parts):
        return ""
    return "lost" if any(run.outcome == "lost" for run in parts) else parts[0].outcome


def _view(
    book: Book, who: Principal, parts: Sequence[Run], places: dict[str, int], starts: dict[int, float]
) -> q.RequestView:
    run = next((one for one in parts if one.is_open), parts[0])  # which says why the whole is where it is
    seen, epoch = book.views.view(run, True, starts, who.sees), book.facts.epoch
    is_held = run.is_open and run.is_claimed
    is_used = any(_is_used(book, part) for part in parts)
    idle_s = book.now - max(book.active.get(part.id, part.started_at or book.now) for part in parts)
    ended = [part.ended_at for part in parts if part.ended_at is not None]
    return q.RequestView(
        id=run.whole,
        site=seen.site,
        name=run.name,
        user=run.user,
        team=run.team,
        host=seen.host,
        state=_state(book, parts),
        gpus=run.gpus * (run.gang.size if run.gang else 1),
        gpu_memory_bytes=run.gpu_memory_bytes,
        queue=run.queue,
        priority=run.priority,
        for_s=run.for_s or 0.0,
        idle_timeout_s=run.idle_s,
        place=min((places[part.id] for part in parts if part.id in places), default=None),
        starts_in_s=seen.starts_in_s,
        reason=seen.reason,
        devices=seen.lease.devices if seen.lease else (),
        commands=tuple([number for part in parts for number in _commands(book, who, part)]),
        idle_s=idle_s if is_held and not is_used else None,
        submitted_at=seen.submitted_at,
        started_at=seen.started_at,
        ends_at=None if run.time_is_up_at is None or not is_held else epoch + run.time_is_up_at,
        ended_at=None if run.is_open or not ended else epoch + max(ended),
        outcome=_outcome(parts),
        stop=seen.stop,
        flavors=run.flavors,
        flavor=run.flavor,
        requeue=run.requeue,
        evictions=run.evictions,
        parts=tuple([_part_view(book, who, part) for part in parts]) if run.gang else (),
    )
