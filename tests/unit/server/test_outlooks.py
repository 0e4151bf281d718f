"""In which of several clusters work should end first, by what was told of their queues; and who may tell and ask."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from egs_core.client.outlooks import (
    MOST_ASKED,
    MOST_WORK,
    STALE_S,
    Candidate,
    Holding,
    Named,
    Outlook,
    Question,
    Queue,
    Work,
)
from egs_core.server.outlooks import MOST_OF_ONE, NEVER, PATIENCE_S, YOUNG_S, Outlooks, named, start_of
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from tests.unit.server.real_app import FILE, RealApp

DOOR = "team/lq"
GPU = "nvidia.com/gpu"
ANN, BEN = Principal("ann", teams=("red",)), Principal("ben", teams=("blue",))


def holding(name: str, gpus: float, left_s: float | None, flavor: str = "a100") -> Holding:
    return Holding(f"team/{name}", {flavor: {GPU: gpus}}, left_s)


def work(name: str, gpus: float = 1, takes_s: float | None = 100.0, priority: int = 0) -> Work:
    return Work(f"team/{name}", ({GPU: gpus, "pods": 1.0},), takes_s, priority)


def queue(
    gpus: float, *held: Holding, waiting: tuple[Work, ...] = (), strict: bool = False, borrows: bool = False
) -> Queue:
    return Queue((DOOR,), ({"a100": {GPU: gpus}},), held, waiting, is_strict=strict, may_borrow=borrows)


def clusters(**queues: Queue) -> dict[str, tuple[Outlook, float]]:
    """What was told of each just now."""
    return {name: (Outlook(name, (one,)), 0.0) for name, one in queues.items()}


def candidate(one: Work, *present: str, waited_s: float = 0.0, settled: str = "") -> Candidate:
    return Candidate(one, DOOR, ("blue", "green"), present, waited_s, settled)


def answered(outlooks: dict[str, tuple[Outlook, float]], *asked: Candidate) -> list[tuple[str, ...]]:
    return [one.clusters for one in named(Question(asked), outlooks)]


@pytest.mark.parametrize(
    ("found", "start"),
    [
        (queue(2, holding("a", 1, 60.0)), 0.0),
        (queue(2, holding("a", 2, 60.0)), 60.0),
        (queue(2, holding("a", 1, 60.0), holding("b", 1, 20.0)), 20.0),
        (queue(2, holding("a", 2, None)), None),
        (queue(2, holding("a", 1, None), holding("b", 1, 20.0)), 20.0),
        (queue(1, holding("a", 1, 60.0), waiting=(work("w", takes_s=30.0),)), 90.0),
        (queue(1, holding("a", 1, 60.0), waiting=(work("w", takes_s=None),)), None),
        (queue(1, holding("a", 1, 60.0), waiting=(work("w", priority=-1),)), 60.0),
        (queue(2, holding("a", 1, 60.0), waiting=(work("w", 2),)), 0.0),  # which fits beside it, and is passed
        (queue(2, holding("a", 1, 60.0), waiting=(work("w", 2),), strict=True), 160.0),
        (queue(1, holding("a", 1, 60.0), waiting=(work("it"), work("w"))), 60.0),  # it is there, and the first
        (queue(1, holding("it", 1, 60.0)), 0.0),
        (queue(0.5), NEVER),
        (queue(0.5, borrows=True), None),
        (queue(1, holding("a", 2, 60.0)), 60.0),  # that has borrowed
        (Queue((DOOR,), ({"a100": {"cpu": 8.0}},)), NEVER),
        (Queue((DOOR,), ({"a100": {GPU: 4.0, "pods": 0.0}},)), NEVER),
        (msgspec.structs.replace(queue(4), is_known=False), None),
    ],
)
def test_when_work_gets_quota(found: Queue, start: float | None) -> None:
    """One GPU for a hundred seconds: now, when something ends, behind what goes first, never, or nobody knows."""
    assert start_of(work("it"), found) == start


def test_a_set_of_pods_gets_one_flavor_of_each_group() -> None:
    """Two of one flavor and two of another are no three; two sets of two get one each. CPUs are of another group."""
    flavors = {"a100": {GPU: 2.0}, "t4": {GPU: 2.0}}
    found = Queue((DOOR,), (flavors, {"any": {"cpu": 4.0}}))
    assert start_of(Work("team/it", ({GPU: 3.0},)), found) == NEVER
    assert start_of(Work("team/it", ({GPU: 2.0, "cpu": 2.0}, {GPU: 2.0, "cpu": 2.0})), found) == 0.0
    assert start_of(Work("team/it", ({GPU: 2.0, "cpu": 2.0}, {GPU: 2.0, "cpu": 3.0})), found) == NEVER
    held = msgspec.structs.replace(found, holding=(holding("a", 1, 50.0, "t4"), holding("b", 1, 30.0, "a100")))
    assert start_of(Work("team/it", ({GPU: 2.0},)), held) == 30.0


def test_what_was_told_a_while_ago() -> None:
    """Ends come nearer as time goes by."""
    assert start_of(work("it"), queue(1, holding("a", 1, 60.0)), ago_s=25.0) == 35.0
    assert start_of(work("it"), queue(1, holding("a", 1, 10.0)), ago_s=25.0) == 0.0


def test_the_cluster_where_it_ends_first_is_named() -> None:
    """With its start; one that could never run it is none, however free it is."""
    outlooks = clusters(blue=queue(1, holding("a", 1, 300.0)), green=queue(1, holding("a", 1, 40.0)))
    (found,) = named(Question((candidate(work("it")),)), outlooks)
    assert (found.clusters, found.starts) == (("green",), {"blue": 300.0, "green": 40.0})
    outlooks = clusters(blue=queue(8, holding("a", 8, 300.0)), green=queue(1))
    assert answered(outlooks, candidate(work("it", 4))) == [("blue",)]


def test_each_takes_room_before_the_next_is_named() -> None:
    """Three of a hundred seconds, one GPU each here and there, one of them free in 40 s. What has only just come to a
    cluster is counted there once, whether or not that cluster has told of it."""
    outlooks = clusters(blue=queue(1), green=queue(1, holding("a", 1, 40.0)))
    three = [candidate(work(name)) for name in "xyz"]
    assert answered(outlooks, *three) == [("blue",), ("green",), ("blue",)]
    settled = candidate(work("new"), settled="blue")
    assert answered(outlooks, settled, candidate(work("x"))) == [("blue",), ("green",)]
    told = clusters(blue=queue(2, holding("new", 1, 90.0)), green=queue(1, holding("a", 1, 40.0)))
    assert answered(told, settled, candidate(work("x"))) == [("blue",), ("blue",)]


def test_a_queue_has_several_doors() -> None:
    """What was named through one of them is counted for those who come by another."""
    two = msgspec.structs.replace(queue(1), doors=(DOOR, "lab/lq"))
    outlooks = clusters(blue=two, green=queue(1, holding("a", 1, 40.0)))
    outlooks["green"] = (
        Outlook("green", (msgspec.structs.replace(outlooks["green"][0].queues[0], doors=two.doors),)),
        0.0,
    )
    other = msgspec.structs.replace(candidate(work("y")), door="lab/lq")
    assert answered(outlooks, candidate(work("x")), other) == [("blue",), ("green",)]


def test_where_nothing_is_known_all_are_named() -> None:
    """Of one that is not known it may be that it is sooner, unless it starts at once elsewhere."""
    free, busy = queue(1), queue(1, holding("a", 1, 40.0))
    assert answered({}, candidate(work("it"))) == [("blue", "green")]
    assert answered(clusters(green=free), candidate(work("it"))) == [("green",)]
    assert answered(clusters(green=busy), candidate(work("it"))) == [("green", "blue")]
    unknown = queue(1, holding("a", 1, None))
    assert answered(clusters(blue=unknown, green=unknown), candidate(work("it"))) == [("blue", "green")]
    assert answered(clusters(blue=free, green=free), candidate(work("it", 4))) == [("blue", "green")]  # fits nowhere
    elsewhere = msgspec.structs.replace(free, doors=("other/lq",))
    assert answered(clusters(blue=elsewhere, green=busy), candidate(work("it"))) == [("green",)]


def test_what_waits_somewhere_stays_there() -> None:
    """Unless it should end sooner by more than a minute elsewhere, where it is the last again."""
    waits = (work("it"),)
    outlooks = clusters(blue=queue(1, holding("a", 1, 300.0), waiting=waits), green=queue(1, holding("a", 1, 250.0)))
    assert answered(outlooks, candidate(work("it"), "blue")) == [("blue",)]
    assert answered(outlooks, candidate(work("it"))) == [("green",)]
    outlooks = clusters(blue=queue(1, holding("a", 1, 300.0), waiting=waits), green=queue(1, holding("a", 1, 200.0)))
    assert answered(outlooks, candidate(work("it"), "blue")) == [("green",)]


def test_what_waits_somewhere_goes_where_it_starts_now() -> None:
    """Though it takes so long that the hour that it waits is less than a tenth of it. Where it starts now it stays."""
    long = work("it", takes_s=360_000.0)
    outlooks = clusters(blue=queue(1), green=queue(1, holding("a", 1, 3600.0), waiting=(long,)))
    assert answered(outlooks, candidate(long, "green")) == [("blue",)]
    outlooks = clusters(blue=queue(1), green=queue(1, waiting=(long,)))
    assert answered(outlooks, candidate(long, "green")) == [("green",)]


def test_what_is_not_gone_through_in_time() -> None:
    """Once it is late, also in the midst of a queue, nothing is known: all are named."""
    waiting = tuple(work(f"w{n}", takes_s=10.0) for n in range(20))
    outlooks = clusters(blue=queue(1, waiting=waiting), green=queue(0))
    looked = iter(range(1000))
    assert [one.clusters for one in named(Question((candidate(work("it")),)), outlooks)] == [("blue",)]
    found = named(
        Question((candidate(work("it")), candidate(work("next")))), outlooks, is_late=lambda: next(looked) > 5
    )
    assert [(one.clusters, one.starts) for one in found] == [(("blue", "green"), {})] * 2
    assert next(looked) < 20


def test_a_server_that_has_only_just_started() -> None:
    """Of which nothing is told yet leaves what is named, and names all for what is new; not where something is told,
    and not for ever."""
    new, there = candidate(work("new")), candidate(work("there"), "green")
    outlooks = Outlooks(100.0)
    assert (outlooks.is_young(100.0), outlooks.is_young(100.0 + YOUNG_S)) == (True, False)
    found = named(Question((there, new)), {}, is_young=True)
    assert [one.clusters for one in found] == [("green",), ("blue", "green")]
    found = named(Question((there,)), clusters(blue=queue(1)), is_young=True)
    assert [one.clusters for one in found] == [("blue",)]
    assert answered({}, there) == [("blue", "green")]


def test_one_account_puts_away_nothing_of_another() -> None:
    """It may tell of so many clusters; what it has told of it may tell again."""
    outlooks = Outlooks(0.0)
    outlooks.tell(BEN, Outlook("green"), 0.0)
    for number in range(MOST_OF_ONE):
        outlooks.tell(ANN, Outlook(f"c{number}"), 1.0)
    with pytest.raises(Refusal, match="ann tells of 20 clusters already") as refused:
        outlooks.tell(ANN, Outlook("one-too-many"), 2.0)
    assert (refused.value.status, refused.value.wait_s) == (429, STALE_S)
    outlooks.tell(ANN, Outlook("c7"), 2.0)
    assert len(outlooks.seen(ANN, 2.0)) == MOST_OF_ONE
    assert outlooks.seen(BEN, 2.0).keys() == {"green"}


def test_what_should_have_started_and_has_not() -> None:
    """After a minute all are named, and go on to be: something is in its way that is not foretold."""
    outlooks = clusters(blue=queue(1, waiting=(work("it"),)), green=queue(1, holding("a", 1, 40.0)))
    late = PATIENCE_S + 1
    assert answered(outlooks, candidate(work("it"), "blue", waited_s=PATIENCE_S / 2)) == [("blue",)]
    assert answered(outlooks, candidate(work("it"), "blue", waited_s=late)) == [("blue", "green")]
    assert answered(outlooks, candidate(work("it"), "blue", "green", waited_s=late)) == [("blue", "green")]


def test_the_longest_queues_are_gone_through_in_time() -> None:
    """A full question on two clusters with as much work as is told of a queue. The bound is generous: it is by this
    thread's time, and a server answers others meanwhile."""
    held = tuple(holding(f"h{n}", 1, 10.0 + n) for n in range(MOST_WORK))
    waiting = tuple(work(f"w{n}", 1 + n % 7) for n in range(MOST_WORK))
    outlooks = clusters(blue=queue(MOST_WORK, *held, waiting=waiting), green=queue(MOST_WORK, *held, waiting=waiting))
    begun = time.thread_time()
    found = named(Question(tuple(candidate(work(f"c{n}", 1 + n % 5)) for n in range(MOST_ASKED))), outlooks)
    assert time.thread_time() - begun < 8
    assert {len(one.clusters) for one in found} == {1}
    assert {one.clusters[0] for one in found} == {"blue", "green"}


def test_who_sees_what_was_told() -> None:
    """A team its own, an administrator all; one cluster that two tell of is nobody's; what is old is forgotten."""
    outlooks, root = Outlooks(0.0), Principal("root", "admin")
    outlooks.tell(ANN, Outlook("blue"), 0.0)
    outlooks.tell(BEN, Outlook("green"), 5.0)
    outlooks.tell(ANN, Outlook("blue", (queue(1),)), 10.0)
    assert {name: ago for name, (_, ago) in outlooks.seen(root, 15.0).items()} == {"blue": 5.0, "green": 10.0}
    assert outlooks.seen(root, 15.0)["blue"][0].queues
    assert outlooks.seen(ANN, 15.0).keys() == {"blue"}
    outlooks.tell(BEN, Outlook("blue"), 15.0)
    assert outlooks.seen(root, 15.0).keys() == {"green"}
    assert outlooks.seen(ANN, 15.0).keys() == {"blue"}
    assert outlooks.seen(root, 6.0 + STALE_S).keys() == set()
    assert outlooks.seen(root, 11.0 + STALE_S).keys() == {"blue"}


def test_over_http() -> None:
    """Told by one account of a team and asked by another; a viewer may neither, another team learns nothing, and what
    cannot be read is refused in words."""
    app = RealApp(FILE)
    try:
        one, other, viewer = (
            app.token("submitter", "vision"),
            app.token("submitter", "vision"),
            app.token("viewer", "vision"),
        )
        stranger = app.token("submitter", "speech")
        told = [msgspec.to_builtins(Outlook("blue", (queue(1, holding("a", 1, 40.0)),)))]
        told += [msgspec.to_builtins(Outlook("green", (queue(1, holding("a", 1, 10.0)),)))]
        ask = msgspec.to_builtins(Question((candidate(work("it")),)))
        assert [one.post("/v1/outlooks", body).status for body in told] == [200, 200]
        found = msgspec.convert(other.post("/v1/outlooks/named", ask).told, Named)
        assert found.namings[0].clusters == ("green",)
        assert found.namings[0].starts["blue"] == pytest.approx(40.0, abs=30.0)
        found = msgspec.convert(stranger.post("/v1/outlooks/named", ask).told, Named)
        assert (found.namings[0].clusters, found.namings[0].starts) == (("blue", "green"), {})
        assert viewer.post("/v1/outlooks", told[0]).status == 403
        assert viewer.post("/v1/outlooks/named", ask).status == 403
        wrong = one.post("/v1/outlooks", {"cluster": "blue", "queues": [{"doors": 1}]})
        assert (wrong.status, "doors" in wrong.detail) == (422, True)
        assert one.post("/v1/outlooks/named", {"candidates": [ask["candidates"][0]] * (MOST_ASKED + 1)}).status == 422
    finally:
        app.close()


def test_one_question_at_a_time() -> None:
    """A question that takes long is answered after a second, with all clusters where nothing is known by then.
    Meanwhile the same account is told when to ask again; another one is answered next, however often that one asks."""
    held = tuple(holding(f"h{n}", 1, 10.0 + n) for n in range(MOST_WORK))
    waiting = tuple(work(f"w{n}", 1 + n % 7) for n in range(MOST_WORK))
    names = tuple(f"c{number}" for number in range(12))
    many = [msgspec.structs.replace(candidate(work(f"it{n}", 1 + n % 5)), clusters=names) for n in range(MOST_ASKED)]
    app = RealApp(FILE)
    try:
        one, other = app.token("submitter", "vision"), app.token("submitter", "speech")
        for name in names:
            told = Outlook(name, (queue(MOST_WORK, *held, waiting=waiting),))
            assert one.post("/v1/outlooks", msgspec.to_builtins(told)).status == 200
        found = []
        ask = msgspec.to_builtins(Question(tuple(many)))

        def ask_long() -> None:  # a short one of the same account may be first: then it is asked again
            while (answer := one.post("/v1/outlooks/named", ask)).status == 429:
                pass
            found.append(answer)

        long = threading.Thread(target=ask_long)
        long.start()
        refused, short = set(), msgspec.to_builtins(Question((candidate(work("it")),)))
        while long.is_alive():
            again = one.post("/v1/outlooks/named", short)
            if again.status != 200:
                refused.add((again.status, again.headers["retry-after"]))
                assert other.post("/v1/outlooks/named", short).status == 200, "it has waited for its turn"
        assert refused == {(429, "1")}
        namings = msgspec.convert(found[0].told, Named).namings
        assert (len(namings), namings[-1].clusters, namings[-1].starts) == (MOST_ASKED, names, {})
        assert other.post("/v1/outlooks/named", {"candidates": []}).status == 200
    finally:
        app.close()
