"""What follows from reservations: what is granted beside them is taken back, waits outside of the engine and comes back
when it may, and what said that it may be evicted is, when they begin. See `keeping` for the rule."""

from __future__ import annotations

from egs_core.server.book import CONFIG, Book
from egs_core.server.keeping import lacking
from egs_core.server.runs import Run

LOOK_S = 1.0  # how often those that are kept out are looked at


def advance(book: Book) -> None:
    """Whatever is due; called whenever time has passed."""
    _evict(book)
    if not book.kept or book.now < book.reserve.look_at:
        return
    book.reserve.look_at = book.now + LOOK_S
    for run in sorted([book.runs[number] for number in book.kept], key=lambda run: (-run.priority, int(run.id))):
        if run.id not in book.kept:
            continue  # it has come back with its gang
        members = book.gangs.members(run)
        window = book.reserve.keeps_out(members)
        for one in members:
            if window is not None:
                book.kept[one.id] = window
            else:
                book.kept.pop(one.id, None)
        if window is None:
            book.admit_if_due(run)


def next_due(book: Book) -> float | None:
    """When `advance` has something to do if nothing happens before."""
    due = [book.reserve.next_change(), book.reserve.look_at if book.kept else None]
    return min((at for at in due if at is not None), default=None)


def _evict(book: Book) -> None:
    """What may be evicted, and is on devices that are kept for others by now, is told to: the latest first."""
    active = [one for one in book.reserve.calendar.near(book.reserve.wall) if one.begin <= book.reserve.wall]
    if not active:
        return
    own = {one.of.queue for one in active}
    stays = [run for run in book.reserve.holding() if not run.stop]
    may = [run for run in stays if run.requeue and run.is_claimed and run.queue not in own]
    may.sort(key=lambda run: (run.started_at or 0.0, int(run.id)))
    reserve, now = book.reserve, book.reserve.wall
    while may and lacking(active, [reserve.held_of(run) for run in stays], reserve.usable, now, now) > 0:
        run = may.pop()
        stopped = [one.id for one in _with_gang(book, run)]
        for number in stopped:
            _stop(book, book.runs[number])
        stays = [one for one in stays if one.id not in stopped]
        may = [one for one in may if one.id not in stopped]


def _with_gang(book: Book, run: Run) -> list[Run]:
    return [one for one in book.gangs.members(run) if one.is_claimed and not one.stop and one.host == run.host]


def _stop(book: Book, run: Run) -> None:
    book.touch(run).stop = "the GPUs that it has are kept for another queue from now on"
    run.is_evicted = True
    run.grace_s = run.grace_s or CONFIG.grace_s
    book.boxed.pop(run.id, None)
