"""How many tickets may be open: `Room`, without Ray."""

from __future__ import annotations

import math
from typing import Any

from egs_ray.session.room import (
    CALM_REVIEWS,
    IDLE_REVIEWS,
    MOST_AHEAD,
    MOST_TOGETHER,
    SOMEWHERE,
    Place,
    Room,
    Wanted,
)
from egs_ray.submission import Needs

FIT = Needs("fit", 1.0, 1.0, 0)


def row(node: str, gpus: float, *, cpus: float = 4.0, alive: bool = True) -> dict[str, Any]:
    """A row as `ray.nodes()` gives it."""
    return {"NodeID": node, "Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus, "memory": 1000.0}}


def test_as_many_tickets_as_gpus() -> None:
    """Each live node offers its GPUs, once; a node that goes offers none."""
    room = Room([row("a", 2.0), row("b", 1.0), row("c", 4.0, alive=False)])
    assert sorted(room.changes()) == [("a", 2), ("b", 1)]
    assert list(room.changes()) == []
    room.review([row("a", 2.0), row("b", 1.0, alive=False)])
    assert list(room.changes()) == [("b", 0)]


def test_fits_on_one_node() -> None:
    """Needs must fit on one node in all their kinds; the sum over nodes does not help."""
    room = Room([row("a", 2.0, cpus=1.0), row("b", 1.0, cpus=8.0)])
    assert room.fits(1.0, 2.0, 1000)
    assert room.fits(8.0, 0.5, 0)
    assert not room.fits(1.0, 3.0, 0)
    assert not room.fits(8.0, 2.0, 0)
    assert not room.fits(1.0, 1.0, 1001)


def test_groups_fit_by_their_strategy() -> None:
    """All on one node, each on a node of its own, or anywhere. Of those apart no node counts twice, and the small nodes
    are for the small ones; what may come with an autoscaler is not known."""
    rows = [row("a", 4.0), row("b", 1.0), row("c", 0.0)]
    room, one, two, none = Room(rows), FIT, Needs("fit", 1.0, 2.0, 0), Needs("fit", 1.0, 0.0, 0)
    fits = {
        "STRICT_SPREAD": ([one, one], [one, two, none]),
        "STRICT_PACK": ([one, one], [two, two]),
        "PACK": ([one] * 5, [two, two, one]),
    }
    fits_not = {
        "STRICT_SPREAD": ([two, two], [one, one, one], [none] * 4),
        "STRICT_PACK": ([one] * 5, [none] * 5),
        "PACK": ([one] * 6, [Needs("fit", 1.0, 5.0, 0)]),
    }
    for strategy in fits:
        assert [room.fits_group(group, strategy) for group in fits[strategy]] == [True, True], strategy
        assert not any(room.fits_group(group, strategy) for group in fits_not[strategy]), strategy
        assert Room(rows, grows=True).fits_group([two] * 9, strategy)


def test_where_a_process_may_run_that_takes_a_gpu_later() -> None:
    """Not on nodes that do not have what it needs, and on the others in turn where there are several. What no node has
    keeps it off none: one may come."""
    room = Room([row("head", 0.0), row("b", 1.0), row("a", 1.0, cpus=0.5), row("c", 2.0)])
    assert room.place(FIT) == Place(("a", "head"), is_spread=True)
    assert room.place(Needs("fit", 1.0, 2.0, 0)) == Place(("a", "b", "head"), is_spread=False)
    assert room.place(Needs("fit", 1.0, 4.0, 0)) == Place((), is_spread=False)


def test_short_tasks_queue_ahead_long_ones_do_not() -> None:
    """Tasks of milliseconds get tickets ahead so that Ray's queue never runs dry; a long one takes that back."""
    room = Room([row("a", 2.0)])
    assert not room.learn(FIT, 1.0, 2.0)
    assert room.ahead == 0
    while not room.learn(FIT, 0.002 * (1 + room.ahead), room.tickets):
        assert room.ahead == 0
    assert list(room.changes()) == [("a", 2 * (1 + room.ahead))]
    for _ in range(100):
        room.learn(FIT, 0.002 * (1 + room.ahead), room.tickets)
    assert room.ahead == MOST_AHEAD
    room.learn(FIT, 60.0, 1.0)
    assert room.ahead == 0


def test_only_short_tasks_share_a_ticket() -> None:
    """As many as all GPUs do in 0.25 s, by what was measured of such tasks, else believed; unknown ones do not."""
    room = Room([row("a", 2.0), row("b", 2.0)])
    assert room.together(FIT, None) == 1
    assert room.together(FIT, 0.025) == 4 * 10
    assert room.together(FIT, 0.0) == 4 * MOST_TOGETHER
    assert room.together(Needs("wide", 1.0, 2.0, 0), 0.025) == 2 * 10
    assert room.together(FIT, 0.3) == 1
    room.learn(FIT, 0.125, 8.0)  # in line behind as many as run
    assert room.together(FIT, 9.0) == 4 * 4
    assert room.together(Needs("other", 1.0, 1.0, 0), None) == 1


def test_how_long_the_queue_of_ray_lasts() -> None:
    """Beside what runs, by the mean of all tasks; nothing when no more is let go than there are GPUs."""
    room = Room([row("a", 2.0)])
    assert room.ahead_s(8.0) == 0.0
    room.learn(FIT, 0.02, 1.0)
    assert room.ahead_s(2.0) == 0.0
    assert math.isclose(room.ahead_s(8.0), 3 * 0.02)


def test_an_idle_gpu_lets_the_next_try() -> None:
    """A GPU that idles in Ray's books while a task waits at the gate gives it a ticket more where that GPU is, taken
    back in calm. Where Ray does not tell where it is: on the largest node."""
    rows, one, two = [row("a", 2.0), row("b", 1.0)], [Wanted((1.0,))], [Wanted((2.0,))]
    for idle_at, node, gpus in (({"b": 1.0, "a": 0.0}, "b", 1), ({SOMEWHERE: 1.0}, "a", 2)):
        room = Room(rows)
        assert sorted(room.changes()) == [("a", 2), ("b", 1)]
        for _ in range(IDLE_REVIEWS - 1):
            room.review(rows, one, idle_at)
            assert list(room.changes()) == []
        room.review(rows, two, idle_at)  # not enough for it: that was no idling
        for _ in range(2):
            room.review(rows, one, idle_at, 0.5)  # half of it is for what starts
        for _ in range(IDLE_REVIEWS):
            room.review(rows, [*two, *one], idle_at)
        assert list(room.changes()) == [(node, gpus + 1)]
        assert room.tickets == 4
        for _ in range(2 * CALM_REVIEWS):
            room.review(rows, (), idle_at)
        assert list(room.changes()) == [(node, gpus)]


def test_a_group_may_try_where_all_of_it_is_idle() -> None:
    """What waits for GPUs on two nodes does not try while they are idle on one of them, and then on both; one that
    must be on one node not while they are on two. Nothing is given that it could not have at once."""
    rows = [row("a", 2.0), row("b", 2.0)]
    apart, close = Wanted((1.0, 1.0), is_apart=True, is_group=True), Wanted((2.0,), is_group=True)
    anywhere = Wanted((1.0, 1.0, 1.0), is_group=True)
    cases = [
        (apart, {"a": 2.0}, {}),
        (apart, {"a": 1.0, "b": 1.0}, {"a": 3, "b": 3}),
        (close, {"a": 1.0, "b": 1.0}, {}),
        (close, {"b": 2.0}, {"b": 4}),
        (anywhere, {"a": 1.5, "b": 1.5}, {}),
        (anywhere, {"a": 1.0, "b": 2.0}, {"a": 3, "b": 4}),
        (apart, {SOMEWHERE: 2.0}, {"a": 4}),
    ]
    for wanted, idle_at, given in cases:
        room = Room(rows)
        list(room.changes())
        for _ in range(IDLE_REVIEWS):
            room.review(rows, [wanted], idle_at)
        assert dict(room.changes()) == given, (wanted, idle_at)
    gone = Room(rows)
    for _ in range(IDLE_REVIEWS):
        gone.review(rows, [apart], {"a": 1.0, "b": 1.0})
    gone.review([row("a", 2.0), row("b", 2.0, alive=False)])
    assert (gone.extra, gone.tickets) == (1, 3)
