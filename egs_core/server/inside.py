"""Commands in a GPU request: several at once, each with a supervisor and a lease of its own, on the request's devices.

The engine knows the request alone. A command's lease is given as soon as the request has its devices, and is claimed
and ended like any other: so no process of it is left when it has ended. Its token is higher with each lease it gets.
"""

from __future__ import annotations

from egs_core.client import messages as c
from egs_core.errors import listed
from egs_core.server.book import CONFIG, Book
from egs_core.server.principals import Principal
from egs_core.server.runs import NO_PHASE, HeldLease, Refusal, Run

OF_THE_REQUEST = (
    "gpus",
    "gpu_memory_bytes",
    "cpus",
    "memory_bytes",
    "queue",
    "priority",
    "deadline_s",
    "gang",
    "flavors",
)


def enter(book: Book, who: Principal, run: Run, ask: c.RunRequest) -> None:
    """A new command is to run in a request. Raises Refusal where it may not."""
    request = book.rights.changeable(who, _part(book, who, ask.inside, run.host))
    if not request.is_request:
        raise Refusal(422, f"inside: run {ask.inside} is no GPU request: `egs request list` lists those")
    if not request.is_open or request.stop:
        raise Refusal(409, f"request {request.id} {'is about to end' if request.is_open else 'has ended'}")
    if run.host != request.host:
        raise Refusal(409, f"request {request.id} is on host {book.views.name_of(request.host)}: start it there")
    if named := [name for name in OF_THE_REQUEST if getattr(ask, name)]:
        raise Refusal(422, f"{named[0]}: what runs in a request has that of the request: leave it out")
    if run.requeue and not request.requeue:
        raise Refusal(422, f"requeue: request {request.whole} is never evicted: leave it out")
    run.inside, run.queue, run.team = request.id, request.queue, request.team


def _part(book: Book, who: Principal, number: str, host: str) -> str:
    """Of a request over several hosts the number of its part on this one. Raises Refusal where it has none there."""
    request = _request(book, who, number)
    parts = parts_of(book, request)
    here = [one.id for one in parts if one.host == host]
    if here or len(parts) == 1:
        return here[0] if here else number
    there = listed([book.views.name_of(one.host) for one in parts])
    raise Refusal(409, f"request {request.whole} has no GPUs on host {book.views.name_of(host)}: start it on {there}")


def _request(book: Book, who: Principal, number: str) -> Run:
    """Raises Refusal where there is none."""
    try:
        return book.rights.visible(who, number)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        problem = f"inside: there is no GPU request {number!r}: `egs request list` lists those that are open"
        raise Refusal(404, problem) from None


def parts_of(book: Book, run: Run) -> list[Run]:
    """Of a request over several hosts its parts, those of which are known still, by rank; of any other run itself."""
    if not run.is_request or run.gang is None:
        return [run]
    numbers = range(int(run.gang.number), int(run.gang.number) + run.gang.size)
    return [one for number in numbers if (one := book.runs.get(str(number))) is not None]


def start_waiting(book: Book, request: Run) -> None:
    """Those that wait for nothing else get a lease, where the request has its devices."""
    if not request.is_claimed or request.stop or request.lease is None:
        return
    for run in list(book.commands[request.id].values()):
        if run.lease is None and not run.after and not run.is_paused:
            version = book.touch(run).version  # of this run no earlier lease had it
            run.lease = HeldLease(version, NO_PHASE, 0, request.lease.devices, book.now)
            run.gpus, run.gpu_memory_bytes = request.gpus, request.gpu_memory_bytes


def stop(book: Book, request: Run) -> None:
    """The request ends: what runs in it is told to stop, what waits ends. Or it is evicted: what waits goes on waiting,
    and so does what runs, once it has stopped, if it said so."""
    what = "is evicted" if request.is_evicted else "ends"
    why = f"request {request.whole} ({request.name}) {what}: {request.stop or request.why}"
    for run in list(book.commands[request.id].values()):
        if not run.is_claimed and request.is_evicted:
            if run.lease is not None:
                book.take_back(run, run.lease)
        elif not run.is_claimed:
            book.abort(run, why, "aborted")
        elif not run.stop:
            book.touch(run).stop = why
            run.is_evicted = request.is_evicted and run.requeue
            run.is_time_up, run.grace_s = request.is_time_up, request.grace_s or CONFIG.grace_s
            book.boxed.pop(run.id, None)
        elif run.is_evicted and not request.is_evicted:  # there is nothing to come back to
            book.touch(run).is_evicted, run.stop, run.is_time_up = False, why, request.is_time_up


def warn(book: Book, request: Run, is_near: bool) -> None:
    """Those that run in it are told that it ends soon, or no longer does."""
    for run in list(book.commands[request.id].values()):
        if run.is_claimed and run.is_warned != is_near:
            book.touch(run).is_warned = is_near
