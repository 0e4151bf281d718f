"""What a million units took: a ratio of sums, by hardware, with an interval that holds what it says."""

from __future__ import annotations

import random

import pytest

from egs_core.cost import rating as module
from egs_core.cost.prices import parse_prices
from egs_core.cost.rating import Measured, Rating, rated
from egs_core.cost.work import Held, Worked

PRICES = """
flavors:
  - {name: a100, prices: [{since: 1970-01-01, on_demand: 6, spot: 3}]}
  - {name: l4, prices: [{since: 1970-01-01, on_demand: 0.6}]}
nodes:
  - {name: "fast-*", flavor: a100, bought: spot, provider: north}
  - {name: "*", flavor: l4}
"""


def worked(amount: float, minutes: float, node: str = "fast-1", gpus: float = 1.0, at_s: float = 0.0) -> Worked:
    held = [Held(node, gpus, 4.0, (at_s, at_s + minutes * 60))]
    return Worked("train", "fit", {"tokens": amount}, held, at_s)


def test_a_million_units_take_the_sum_by_the_sum() -> None:
    """Two GPUs for ten minutes, and for thirty: 80 GPU minutes for four million tokens; money at its price. A large
    task weighs more than a small one."""
    found = Rating(parse_prices(PRICES))
    found.add(worked(1_000_000, 10, gpus=2.0))
    found.add(worked(3_000_000, 30, gpus=2.0))
    (row,) = found.rows()
    assert row.kind == ("tokens", "train", "fit", "a100", "north", "spot")
    assert (row.tasks, row.amount) == (2, 4_000_000)
    assert row.gpu_min == Measured(20.0, None, None)
    assert row.cpu_min.value == pytest.approx(40.0)
    assert row.cost is not None
    assert row.cost.value == pytest.approx(80 / 60 * 3 / 4)


def test_hardware_and_tasks_are_rated_apart() -> None:
    """The same task on two kinds of hardware is two rows; without prices there is no money, and nobody knows which."""
    for prices, kinds in (
        (parse_prices(PRICES), [("a100", "north", "spot"), ("l4", "", "on_demand")]),
        (None, [("",) * 3]),
    ):
        found = Rating(prices)
        for node in ("fast-1", "cheap"):
            found.add(worked(10, 1, node))
        rows = list(found.rows())
        assert [row.kind[3:] for row in rows] == kinds
        assert [row.cost is None for row in rows] == [prices is None] * len(kinds)
    one = worked(0, 1)
    found.add(one._replace(amounts={"none": 0.0}))
    assert "none" not in [row.kind.unit for row in found.rows()]


def test_a_month_has_the_tasks_that_ended_in_it() -> None:
    found = Rating(month=(100.0, 200.0))
    for at_s in (99.0, 100.0, 199.0, 200.0):
        found.add(worked(10, 1, at_s=at_s))
    assert [row.tasks for row in found.rows()] == [2]


def test_few_tasks_say_nothing_of_a_spread() -> None:
    found = Rating()
    for number in range(module.LEAST_TASKS):
        assert [row.gpu_min.low for row in found.rows()] in ([], [None])
        found.add(worked(1000, 10 + number))
    (row,) = found.rows()
    assert row.gpu_min.low is not None
    assert row.gpu_min.low < row.gpu_min.value < (row.gpu_min.high or 0.0)


def test_the_interval_is_the_same_each_time_and_another_with_another_seed() -> None:
    draw = random.Random(1)
    blocks = [[1.0, draw.uniform(1, 9), 1.0, 0.0] for _ in range(30)]
    first, again, other = (rated(blocks, has_interval=True, seed=seed)[0] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert rated(blocks, has_interval=True)[1][1:] == (1_000_000.0, 1_000_000.0)  # what never differs has no spread


@pytest.mark.parametrize(("tasks", "least"), [(40, 0.83), pytest.param(1600, 0.83, marks=pytest.mark.slow)])
def test_nine_of_ten_intervals_hold_the_true_rating(tasks: int, least: float) -> None:
    """Of 200 series of tasks whose true rating is known, also where so many are put together in blocks."""
    draw, true, hits = random.Random(7), 3.0, 0
    for _ in range(200):
        found = Rating()
        for _ in range(tasks):
            amount = draw.uniform(1e6, 5e6)
            found.add(worked(amount, true * amount / 1e6 * draw.uniform(0.4, 1.6)))
        (row,) = found.rows()
        hits += (row.gpu_min.low or 0.0) <= true <= (row.gpu_min.high or 0.0)
    assert least <= hits / 200 <= 0.97


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and rows: what is more is added to what is there, or left out and said so."""
    monkeypatch.setattr(module, "BLOCKS", 10)
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    found = Rating()
    for number in range(100):
        found.add(worked(2.0, number))
    (row,) = found.rows()
    assert (row.tasks, row.amount, len(found._blocks[row.kind])) == (100, 200.0, 10)
    assert row.gpu_min.value == pytest.approx(sum(range(100)) / 200 * 1e6)
    for unit in ("a", "b"):
        found.add(worked(1, 1)._replace(amounts={unit: 1.0}))
    assert (len(list(found.rows())), found.has_more) == (2, True)
