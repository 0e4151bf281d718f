"""Sums by name, in a month, with and without prices; and what a site server's runs come to."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from msgspec.structs import astuple

from egs_core.client.messages import RunView
from egs_core.cost import ledger as module
from egs_core.cost.ledger import OTHERS, Amounts, Ledger
from egs_core.cost.prices import parse_prices
from egs_core.cost.served import uses_of_runs
from egs_core.cost.uses import Use
from egs_core.errors import InputError

PRICES = """
currency: EUR
flavors:
  - name: a
    prices: [{since: 2026-01-01, on_demand: 2}, {since: 2026-02-01, on_demand: 4}]
"""
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC).timestamp()
H = 3600.0


def use(start_h: float, end_h: float, *used_h: tuple[float, float], **more: object) -> Use:
    """Hours are from the first of February."""
    fields: dict[str, object] = {
        "team": "t",
        "pipeline": "p",
        "task": "k",
        "user": "u",
        "node": "n",
        "gpus": 1.0,
    } | more
    held = FEBRUARY + start_h * H, FEBRUARY + end_h * H
    used = tuple([(FEBRUARY + a * H, FEBRUARY + b * H) for a, b in used_h])
    return Use(**fields, held=held, used=used)  # type: ignore[arg-type]  # of one test each


def test_money_follows_the_price_of_the_hour() -> None:
    """Two GPUs, an hour at the old price and three at the new one, of which the first and the last were not used."""
    found = Ledger(parse_prices(PRICES))
    found.add(use(-1, 3, (0, 2), gpus=2.0))
    total = found.total
    assert (total.gpu_h_held, total.gpu_h_used, total.gpu_h_wasted) == (8.0, 4.0, 4.0)
    assert (total.cost, total.cost_wasted) == pytest.approx((2 * (2 + 12), 2 * (2 + 4)))


def test_a_month_has_its_part_of_what_crosses_it() -> None:
    """Held and used are cut at its ends; two months add up to the whole; another has none."""
    january = (datetime(2026, 1, 1, tzinfo=UTC).timestamp(), FEBRUARY)
    february = (FEBRUARY, datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    ledgers = [Ledger(parse_prices(PRICES), month) for month in (january, february, None, (0.0, 1.0))]
    for one in ledgers:
        one.add(use(-10, 5, (-4, 1)))
    first, second, whole, other = (one.total for one in ledgers)
    assert (first.gpu_h_held, first.gpu_h_used, first.cost) == pytest.approx((10.0, 4.0, 20.0))
    assert (second.gpu_h_held, second.gpu_h_used, second.cost) == pytest.approx((5.0, 1.0, 20.0))
    assert (whole.gpu_h_held, whole.cost) == pytest.approx((15.0, 40.0))
    assert (other.gpu_h_held, other.cost, ledgers[3].by["team"]) == (0.0, 0.0, {})


def test_what_is_shown_adds_up() -> None:
    """Of many sums of a few hours: the hundredths of each column add up to those of its total, used and wasted of each
    row to what it held, each is about what it is a sum of, what is little is not shown as none, and nothing wasted not
    as little."""
    draw = random.Random(7)
    for _ in range(300):
        found = Ledger(parse_prices(PRICES))
        for name in range(draw.randint(1, 12)):
            hours = draw.choice((0.001, 0.0335, 0.335, 1.005, draw.uniform(0, 3)))
            found.add(use(0, hours, (0, hours * draw.choice((0.0, 0.5, 1.0))), team=f"t{name}"))
        total, rows = found.shown_total, [row for _, row in found.shown("team")]
        sums = Amounts(*(sum(column) for column in zip(*map(astuple, rows), strict=True)))
        assert [f"{one:.2f}" for one in astuple(sums)] == [f"{one:.2f}" for one in astuple(total)]
        for shown, (_, real) in zip([total, *rows], [("", found.total), *found.rows("team")], strict=True):
            assert f"{shown.gpu_h_used + shown.gpu_h_wasted:.2f}" == f"{shown.gpu_h_held:.2f}"
            for one, other in zip(astuple(shown), astuple(real), strict=True):
                assert abs(one - other) < 0.02 + 1e-6
                assert bool(one) >= (other > 1e-6)
            assert bool(shown.gpu_h_wasted) <= (real.gpu_h_wasted > 1e-9)
            assert bool(shown.gpu_h_used) <= (real.gpu_h_used > 1e-9)


def test_without_prices_there_is_no_cost() -> None:
    found = Ledger()
    found.add(use(0, 1))
    told = found.to_dict()
    assert (told["gpu_h_held"], told["cost"], told["currency"], told["by_team"]["t"]["cost"]) == (1.0, None, None, None)


def test_tables_have_the_most_first_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """More names than are kept come together, and nothing is lost."""
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    found = Ledger()
    for number in range(10):
        found.add(use(0, number + 1, task=f"task{number}"))
    assert [name for name, _ in found.rows("task")] == [OTHERS, "task2", "task1", "task0"]
    assert sum(row.gpu_h_held for _, row in found.rows("task")) == found.total.gpu_h_held == 55.0
    assert [row["by"] for row in found.table()] == ["total", "team", "pipeline", *["task"] * 4, "user"]


def test_a_simulation_is_of_no_month() -> None:
    with pytest.raises(InputError, match="--month"):
        Ledger(month=(0.0, 1e12)).add(use(0, 1, is_dated=False))


def view(number: str, start_h: float | None, end_h: float | None, **more: object) -> RunView:
    fields: dict[str, object] = {
        "id": number,
        "name": f"job{number}",
        "user": "ann",
        "team": "vision",
        "state": "ended" if end_h is not None else "running",
        "version": 1,
        "gpus": 1.0,
        "cpus": 0.0,
        "memory_bytes": 0,
        "queue": "images",
        "priority": 0,
        "submitted_at": FEBRUARY,
        "started_at": None if start_h is None else FEBRUARY + start_h * H,
        "ended_at": None if end_h is None else FEBRUARY + end_h * H,
    }
    return RunView.model_validate(fields | more)


def test_of_a_run_that_was_evicted_all_of_its_starts_count() -> None:
    """It had two GPUs for an hour, waits, had one for half an hour on another host, and runs again; of a request that
    was evicted a command in it counts as use in each of its lives."""
    start = {"started_at": FEBRUARY, "ended_at": FEBRUARY + H, "gpus": 2.0, "host": "a", "flavor": "a100"}
    again = {"started_at": FEBRUARY + 2 * H, "ended_at": FEBRUARY + 2.5 * H, "gpus": 1.0, "host": "b"}
    inside = {"started_at": FEBRUARY + 0.25 * H, "ended_at": FEBRUARY + H, "gpus": 0.0}
    runs = [
        view("1", 4, None, evictions=2, earlier=(start, again)),
        view("2", None, None, is_request=True, gpus=2.0, evictions=1, earlier=(start,)),
        view("3", None, None, inside="2", gpus=0.0, evictions=1, earlier=(inside,)),
    ]
    found = list(uses_of_runs(runs, FEBRUARY + 5 * H))
    assert [(use.task, use.node, use.gpus * (use.held[1] - use.held[0]) / H) for use in found] == [
        ("job1", "a", 2.0),
        ("job1", "b", 0.5),
        ("job1", "", 1.0),
        ("job2", "a", 2.0),
    ]
    assert found[3].used == ((FEBRUARY + 0.25 * H, FEBRUARY + H),)


def test_of_a_servers_runs() -> None:
    """A run is used as long as it runs, until now where it does so still; a GPU request while commands run in it, two
    at once counted once; what never started, needs no GPU or is a framework's driver, is not."""
    runs = [
        view("1", 0, 2),
        view("2", 1, None, gpus=0.5),
        view("3", 0, 10, is_request=True, gpus=2.0, user="ben"),
        view("4", 1, 4, inside="3", gpus=2.0),
        view("5", 3, 5, inside="3", gpus=2.0),
        view("6", None, 1),
        view("7", 0, 1, gpus=0.0),
        view("8", 0, 1, framework="ray"),
    ]
    found = Ledger()
    for one in uses_of_runs(runs, FEBRUARY + 5 * H):
        found.add(one)
    assert {name: (row.gpu_h_held, row.gpu_h_used) for name, row in found.rows("task")} == {
        "job1": (2.0, 2.0),
        "job2": (2.0, 2.0),
        "job3": (20.0, 8.0),
    }
    assert found.by["user"]["ben"].gpu_h_wasted == 12.0
    assert found.by["team"].keys() == {"vision"}
