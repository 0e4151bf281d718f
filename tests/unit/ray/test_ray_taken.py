"""How much is asked of an autoscaler that takes all of a request or nothing: `Taken`, without Ray."""

from __future__ import annotations

import math

from egs_ray.demand import Bundle, Taken

FIT = {"CPU": 1.0, "GPU": 1.0}
HUGE = {"GPU": 64.0}
PREPARE = {"CPU": 1.0}


class Cluster:
    """An autoscaler with so many nodes at most of one CPU and one GPU, and so many of one CPU."""

    def __init__(self, gpu_nodes: int, cpu_nodes: int) -> None:
        self.gpu_nodes, self.cpu_nodes = gpu_nodes, cpu_nodes

    def takes(self, asked: list[Bundle]) -> bool:
        """Whether all of it fits."""
        gpus, cpus = asked.count(FIT), asked.count(PREPARE)
        others = max(0, cpus - (self.gpu_nodes - gpus))
        return HUGE not in asked and gpus <= self.gpu_nodes and others <= self.cpu_nodes


def settle(taken: Taken, wanted: list[Bundle], cluster: Cluster) -> tuple[list[Bundle], int]:
    """What is asked for in the end, and how many answers that took."""
    for answers in range(1000):
        asked = taken.to_ask(wanted)
        is_taken = cluster.takes(asked)
        taken.heard(asked, is_taken)
        if is_taken and taken.to_ask(wanted) == asked:
            return asked, answers
    raise AssertionError("it asks for ever")


def test_what_fits_is_asked_for_as_it_is() -> None:
    """A request that is taken stays as it is, and nothing counts as refused."""
    taken = Taken()
    assert settle(taken, [FIT] * 3 + [PREPARE], Cluster(4, 0)) == ([FIT] * 3 + [PREPARE], 0)
    assert not taken.is_less


def test_as_much_as_the_cluster_may_be_large() -> None:
    """For each greatest size the request ends at that size, after as many answers as halving takes."""
    for largest in range(10):
        taken = Taken()
        asked, answers = settle(taken, [FIT] * 1000, Cluster(largest, 0))
        assert asked == [FIT] * largest
        assert answers <= math.ceil(math.log2(1000)) + 1
        assert taken.is_less


def test_what_no_node_offers_keeps_nothing_else_back() -> None:
    """A bundle that never fits is left out, wherever it stands; those behind it are asked for."""
    for wanted in ([HUGE, *[FIT] * 5, PREPARE, PREPARE], [*[FIT] * 5, PREPARE, HUGE, PREPARE, HUGE]):
        asked, _ = settle(Taken(), wanted, Cluster(2, 1))
        assert asked == [FIT, FIT, PREPARE]


def test_tasks_that_end_meanwhile_begin_no_new_search() -> None:
    """What was learned holds for the tasks that are left; when none is, nothing is asked for, also amid a search."""
    taken, cluster = Taken(), Cluster(2, 0)
    assert settle(taken, [FIT] * 8, cluster)[0] == [FIT] * 2
    for left in (7, 3, 2, 1):
        assert settle(taken, [FIT] * left, cluster) == ([FIT] * min(2, left), 0)
    amid = Taken()
    amid.heard(amid.to_ask([FIT] * 8), is_taken=False)
    assert amid.to_ask([FIT] * 8) == [FIT] * 4
    assert amid.to_ask([]) == []
