"""Drivers that trust one another share a pool without saying who they are: queues are all that is asked of them."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.pooled import GATHER_S, About
from egs_core.site.refusal import Refusal
from egs_core.site.trusting import TrustingPools

EPOCH = "e"
RED = QueueSpec("red", nominal=(UNLIMITED, 1000, UNLIMITED))
NODE = m.NodeAdded("n", cpus=8.0, gpus=2)


def about(name: str, queue: str = "") -> About:
    return About(f"key of {name}", "ray", "cluster", name, queue)


def send(pools: TrustingPools, driver: wire.Joined, seq: int, *items: wire.Item) -> None:
    encoded = [msgspec.Raw(msgspec.json.encode(item)) for item in items]
    pools.batch(driver.id, msgspec.json.encode(wire.Encoded(driver.epoch, seq, encoded)))
    pools.validate()


def submit(pools: TrustingPools, driver: wire.Joined) -> None:
    """One task with a GPU."""
    graph = Graph()
    graph.add_task("t", (), ((GPU, Shape(0, 1000), 1.0),), options=TaskOptions())
    told = [wire.Reported(event) for event in (NODE, m.WorkloadSubmitted("w", "w"))]
    send(pools, driver, 1, *told, wire.Growing("w", 0, graph))


def grants(pools: TrustingPools, driver: wire.Joined) -> int:
    found = pools.poll(driver.id, driver.epoch, 0)
    return sum(isinstance(message.told, s.Grant) for message in found)


def test_one_quota_for_all() -> None:
    """Two drivers and one GPU of quota: the second's turn comes when the first has left."""
    pools = TrustingPools((RED,), EPOCH)
    first, second = pools.join(about("a")), pools.join(about("b"))
    assert (first.queue, second.queue) == ("red", "red")
    assert pools.join(about("a")) == first, "a repeated request is another seat"
    for driver in (first, second):
        submit(pools, driver)
    assert (grants(pools, first), grants(pools, second)) == (1, 0)
    pools.leave(first.id)
    assert grants(pools, second) == 1
    assert not pools.is_empty
    pools.leave(second.id)
    assert pools.is_empty


@pytest.mark.parametrize(
    ("names", "asked", "said"),
    [
        (("red",), "blue", "there is no queue 'blue'; there are red: choose by EGS_QUEUE"),
        (("red", "green"), "", "none is named; there are red, green: choose by EGS_QUEUE"),
    ],
)
def test_a_queue_that_there_is_not(names: tuple[str, ...], asked: str, said: str) -> None:
    """The refusal names those that there are."""
    pools = TrustingPools(tuple(QueueSpec(name) for name in names), EPOCH)
    with pytest.raises(Refusal, match=said):
        pools.join(about("a", asked))


def test_who_has_left_is_known_no_more() -> None:
    """What it sends then is refused; to leave again changes nothing."""
    pools = TrustingPools((), EPOCH)
    driver = pools.join(about("a"))
    pools.leave(driver.id)
    pools.leave(driver.id)
    with pytest.raises(Refusal):
        pools.poll(driver.id, driver.epoch, 0)
    with pytest.raises(Refusal):
        send(pools, driver, 1)


def test_a_pool_that_begins_anew_waits_for_those_that_come_back() -> None:
    """A driver that has been there before may run something that has not been told yet: until it has told all, and
    others have had their time to come, nobody starts anything new."""
    pools = TrustingPools((), EPOCH)
    back, new = pools.join(msgspec.structs.replace(about("a"), back=True)), pools.join(about("b"))
    for driver in (back, new):
        submit(pools, driver)
    pools.at(1.0)
    assert (grants(pools, back), grants(pools, new)) == (0, 0)
    send(pools, back, 2, wire.Here())
    assert (grants(pools, back), grants(pools, new)) == (0, 0)
    pools.at(GATHER_S + 0.1)
    assert (grants(pools, back), grants(pools, new)) == (1, 1)


def test_a_pool_that_has_begun_waits_for_what_one_tells() -> None:
    """One that comes back to others holds their grants only until it has told all."""
    pools = TrustingPools((), EPOCH)
    first = pools.join(about("a"))
    back = pools.join(msgspec.structs.replace(about("b"), back=True))
    submit(pools, first)
    assert grants(pools, first) == 0
    send(pools, back, 1, wire.Here())
    assert grants(pools, first) == 1
