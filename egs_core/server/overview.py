"""The whole site for somebody who looks at it all the time: see `egs_core.client.overview`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from egs_core.client import messages as c
from egs_core.client.overview import Overview, QueueView
from egs_core.engine.specs import KINDS, UNLIMITED
from egs_core.engine.state.records import QueueState
from egs_core.server.book import Book
from egs_core.server.joining import views
from egs_core.server.principals import Principal, queues_of
from egs_core.server.runs import Run
from egs_core.server.steps import Steps, at_once

MOST_RUNNING = 500
MOST_IN_A_STEP = 100
MOST_WAITING = 100
MOST_COMPARED = 20_000  # why a run waits is found by comparing it with all that wait, and nothing is granted meanwhile
GPUS = KINDS.index("gpus")
THOUSANDTHS = 1000


def overview(book: Book, who: Principal) -> Overview:
    """What it sees. Raises Refusal for the role that sees nothing."""
    return at_once(overview_steps(book, who))


def overview_steps(book: Book, who: Principal) -> Steps[Overview]:
    """The same in steps, between which others may be answered: what has no lease any more by then is not shown as
    running."""
    who.need_to_see()
    waiting = book.views.waiting(who.sees)
    running = [run for run in book.open_runs() if run.lease is not None and who.sees(run)]
    explained = min(MOST_WAITING, MOST_COMPARED // max(1, len(book.open_runs())))
    shown = book.views.explained(waiting[:MOST_WAITING], who.sees, explained)
    queues = _queues(book, who, waiting, shown)
    yield
    devices, hosts = book.views.held_devices(who.sees), views(book.views.listed_hosts(who.sees)).hosts
    run_views: list[c.RunView] = []
    for begin in range(0, min(len(running), MOST_RUNNING), MOST_IN_A_STEP):
        yield
        part = running[begin : min(begin + MOST_IN_A_STEP, MOST_RUNNING)]
        run_views += [book.views.view(run, sees=who.sees) for run in part if run.lease is not None]
    return Overview(
        now=book.facts.epoch + book.now,
        devices=devices,
        hosts=hosts,
        queues=queues,
        running=tuple(run_views),
        running_count=len(running),
        waiting=shown,
        waiting_count=len(waiting),
    )


def _queues(book: Book, who: Principal, waiting: Sequence[Run], shown: Sequence[c.RunView]) -> tuple[QueueView, ...]:
    names = set(queues_of(who, book.queues, book.team_of_queue))
    counts = Counter(run.queue for run in waiting)
    starts: dict[str, float] = {}
    for view in shown:
        if view.starts_in_s is not None:
            starts[view.queue] = min(view.starts_in_s, starts.get(view.queue, view.starts_in_s))
    states = [queue for queue in book.engine.state.queues if queue.spec.name in names]
    teams = book.team_of_queue
    stopped = book.views.spending.stopped
    return tuple([_queue(one, teams.get(one.spec.name, ""), counts, starts, who, stopped) for one in states])


def _queue(
    queue: QueueState,
    team: str,
    counts: Counter[str],
    starts: dict[str, float],
    who: Principal,
    stopped: Collection[str],
) -> QueueView:
    """What is used of a queue of no team is not one team's to see, as in `/metrics`."""
    name, nominal = queue.spec.name, queue.spec.nominal[GPUS]
    return QueueView(
        name=name,
        team=team,
        gpus=None if nominal >= UNLIMITED else nominal / THOUSANDTHS,
        used=queue.total(GPUS) / THOUSANDTHS if team or who.teams is None else None,
        is_used_up=name in stopped,
        waiting=counts[name],
        starts_in_s=starts.get(name),
    )
