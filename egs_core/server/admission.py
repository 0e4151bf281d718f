"""A new run: whether it may be asked for here, and what it then waits for."""

from __future__ import annotations

from egs_core.client import messages as c
from egs_core.engine.explain import describe_lack
from egs_core.engine.rules.fit import fits_ever
from egs_core.engine.state.nodes import UNTRACKED
from egs_core.server import inside
from egs_core.server.book import REFUSED, Book
from egs_core.server.flavors import check_wish, may_have
from egs_core.server.principals import SUBMITTING, Principal, queue_for
from egs_core.server.runs import WHOLE_DEVICE, Refusal, Run

MOST_OPEN, MOST_OPEN_EACH = 10_000, 2_000  # of a site; of one principal
MOST_FOR_S = 7 * 86400.0  # that a GPU request lasts


def submit(book: Book, who: Principal, ask: c.RunRequest) -> c.RunView:
    """A new run; a known key is answered with its run. Raises Refusal for what can never start here."""
    who.need(SUBMITTING, "to submit")
    known = book.by_key.get((who.name, ask.key))
    if known is not None:
        return book.view(who, known)
    check_open(book, who)
    run = Run.of(ask, book.last + 1, who.name, book.now)
    run.host = who.host
    check_host(book, run)
    if ask.inside:
        inside.enter(book, who, run, ask)
    else:
        place(book, who, run, ask.queue)
    run.after = _open_after(book, who, ask)
    run.follows = tuple(dict.fromkeys(one.run for one in ask.after))
    run.follows_when = {one.run: one.when for one in ask.after if one.when != "ok"}
    if ask.gang is not None:
        _enter_gang(book, run, ask.gang)
    take_in(book, who, run)
    return _told(book, who, run)


def _told(book: Book, who: Principal, run: Run) -> c.RunView:
    """To who has asked for it: also what is left of the budget."""
    view = book.view(who, run)
    notice = book.views.spending.notice(run.queue) if run.gpus and not run.inside else ""
    return view.model_copy(update={"notice": notice}) if notice else view


def _enter_gang(book: Book, run: Run, ask: c.Gang) -> None:
    """Raises Refusal."""
    place = book.gangs.place_for(run, ask, book.now)
    book.gangs.check_order(run, place, book.runs)
    if (node := book.views.node_of(run.host)) is not None:
        book.gangs.check_room(run, place, node)
    for one in book.gangs.enter(run, place):
        book.touch(one)


def check(book: Book, who: Principal, ask: c.RunRequest) -> c.RunView:
    """What `submit` would answer, if the others of its gang came now and asked for the same. book: a copy. Raises
    Refusal."""
    view = submit(book, who, ask)
    run, number = book.runs[view.id], 0
    while run.is_open and run.gang is not None and not run.gang.is_whole:
        number += 1
        submit(book, who, ask.model_copy(update={"key": f"{ask.key[:50]}-gang-{number}"}))
    return _told(book, who, run)


def place(book: Book, who: Principal, run: Run, queue: str) -> None:
    """Its queue and team, and what it holds. Raises Refusal for what can never start here."""
    run.queue = queue_asked(book, who, queue)
    run.team = book.team_of_queue.get(run.queue, "") or who.team
    take_part(book, run)
    check_fits(book, run)


def take_in(book: Book, who: Principal, run: Run) -> None:
    """The site has it from now on. Raises Refusal for what the engine sees can never start."""
    register(book, who, run)
    admit(book, who, run)


def register(book: Book, who: Principal, run: Run) -> None:
    """The site knows it; the engine is not told of it yet."""
    book.last += 1
    book.runs[run.id] = book.by_key[run.user, run.key] = book.views.open[run.id] = run
    book.open_of[run.user] += 1
    book.heard[run.id] = book.now
    book.dirty[run.id] = run
    book.note_request(run)
    book.log(who, "submit", run)
    if run.after:
        book.note_after(run)


def admit(book: Book, who: Principal, run: Run) -> None:
    """The engine is told of it, with its gang, where nothing else keeps it. Raises Refusal for what can never start."""
    book.admit_if_due(run)
    if run.inside:
        inside.start_waiting(book, book.runs[run.inside])
    if run.outcome == REFUSED:
        raise Refusal(422, book.views.told_text(run.why, who.sees))


def check_fits(book: Book, run: Run) -> None:
    """Raises Refusal for what no empty host could run."""
    check_wish(run, book.views.devices_of(run.host))
    node = book.views.node_of(run.host)
    nodes = [node] if node else []
    if not any(fits_ever(one, run.shape) for one in nodes):
        where = f" on host {book.views.name_of(run.host)}, where it would start" if book.has_several else ""
        raise Refusal(422, describe_lack(nodes, run.shape) + where)


def check_host(book: Book, run: Run) -> None:
    """Raises Refusal for one of a host that offers nothing."""
    if book.views.node_of(run.host) is None:
        raise Refusal(409, f"host {run.host} has not joined: start `egs serve --join` there")


def take_part(book: Book, run: Run) -> None:
    """Memory without GPUs asks for the part of one that has so much: of the smallest that it may have, where they are
    unlike. Raises Refusal where it is not known."""
    if not run.gpu_memory_bytes:
        return
    node = book.views.node_of(run.host)
    most = node.gpu_memory_bytes if node and node.gpus else UNTRACKED
    if most == UNTRACKED:
        raise Refusal(422, "gpu_memory_bytes: there is no GPU here whose memory is known")
    if not run.gpus:
        able = [one.memory_bytes for one in book.views.devices_of(run.host) if may_have(run, one)]
        part = -(-run.gpu_memory_bytes * WHOLE_DEVICE // min([one for one in able if one], default=most))
        run.gpus = min(part, WHOLE_DEVICE) / WHOLE_DEVICE  # what is more than one has fits nowhere: that is said


def check_open(book: Book, who: Principal) -> None:
    """Raises Refusal (429) where too many runs are open."""
    if len(book.views.open) >= MOST_OPEN:
        raise Refusal(429, f"{MOST_OPEN} runs are open: end some, or wait")
    if who.role != "admin" and book.open_of[who.name] >= MOST_OPEN_EACH:
        raise Refusal(429, f"{MOST_OPEN_EACH} runs of {who.name} are open: end some, or wait")


def check_for(for_s: float | None) -> None:
    """Raises Refusal for a GPU request that would last too long."""
    if for_s is not None and for_s > MOST_FOR_S:
        days = MOST_FOR_S / 86400
        raise Refusal(422, f"for_s: a GPU request lasts {days:g} days at most, with all that it is extended by")


def queue_asked(book: Book, who: Principal, asked: str) -> str:
    """The queue of what somebody asks for by name, see `queue_for`. Raises Refusal also where the site has no queues:
    a misspelt name would go unseen. A driver's EGS_QUEUE is not refused there: it would then order its work alone."""
    if asked and not book.queues:
        hint = "leave --queue out, or start `egs serve` with a file of --queues"
        raise Refusal(422, f"queue: there is no queue {asked!r}; this site has none: {hint}")
    return queue_for(who, asked, book.queues, book.team_of_queue, "--queue")


def _open_after(book: Book, who: Principal, ask: c.RunRequest) -> tuple[tuple[str, str], ...]:
    """What it still has to wait for. Raises Refusal for what can never be."""
    left = []
    for one in ask.after:
        found = book.runs.get(one.run)
        if found is None or not who.sees(found):
            raise Refusal(422, f"after: {book.rights.missing(who, one.run)}")
        if found.is_open:
            left.append((one.run, one.when))
        elif not found.satisfies(one.when):
            raise Refusal(422, f"after: run {one.run} has ended: {found.outcome}")
    return tuple(left)
