"""A copy of a site, to see what a request or a change would do: the site itself stays as it is."""

from __future__ import annotations

import msgspec

from egs_core.engine import Engine
from egs_core.server.book import CONFIG, Book


def copy_of(book: Book) -> Book:
    """As it is now, with an engine and runs of its own."""
    copies = [msgspec.structs.replace(run) for run in book.runs.values()]
    copy = Book(book.facts, Engine.restore(book.engine.snapshot(), CONFIG), copies)
    copy.hosts = copy.views.hosts = book.hosts.copy()
    copy.views.devices, copy.views.occupied = book.views.devices, dict(book.views.occupied)
    copy.queues = book.queues
    copy.flavors.specs, copy.flavors.learned = book.flavors.specs, book.flavors.learned
    copy.offer, copy.reserve.calendar = book.offer, book.reserve.calendar
    copy.now = book.now
    copy.kept.update(book.kept)
    copy.team_of_queue, copy.views.spending = book.team_of_queue, book.views.spending
    return copy
