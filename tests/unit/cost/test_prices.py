"""The file of prices: what it may say, errors that name the line, and what a GPU costs when."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from egs_core.cost.prices import parse_prices
from egs_core.errors import InputError

WHOLE = """
currency: EUR
flavors:
  - name: a100
    prices:
      - {since: 2026-01-01, on_demand: 3, reserved: 2, spot: 1}
      - {since: "2026-07-01", on_demand: 30, reserved: 20, spot: 10}
  - name: l4
    prices: [{since: 2026-01-01, on_demand: 0.5}]
nodes:
  - {name: "fast-*", flavor: a100, bought: reserved}
  - {name: cheap, flavor: a100, bought: spot}
  - {name: "*", flavor: l4}
"""


def at(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]  # year, month, day and more


@pytest.mark.parametrize(("node", "per_hour"), [("fast-1", 2.0), ("cheap", 1.0), ("other", 0.5), ("Fast-1", 0.5)])
def test_the_first_entry_that_fits_says_what_a_node_is(node: str, per_hour: float) -> None:
    """Reserved, spot and on demand; names as they are written."""
    prices = parse_prices(WHOLE)
    assert prices.currency == "EUR"
    assert prices.of(node, [(at(2026, 3, 1), at(2026, 3, 1, 2))]) == pytest.approx(2 * per_hour)


def test_a_price_holds_until_the_next() -> None:
    """An hour before midnight at the old one, two after it at the new one; stretches add up."""
    prices, node = parse_prices(WHOLE), "fast-1"
    across = at(2026, 6, 30, 23), at(2026, 7, 1, 2)
    assert prices.of(node, [across]) == pytest.approx(1 * 2 + 2 * 20)
    assert prices.of(node, [across, (at(2030, 1, 1), at(2030, 1, 1, 1))]) == pytest.approx(42 + 20)
    assert prices.of(node, []) == 0.0


def test_what_has_no_date_costs_what_it_does_last() -> None:
    assert parse_prices(WHOLE).of("cheap", [(0.0, 3600.0)], is_dated=False) == pytest.approx(10.0)


def test_of_one_flavor_all_nodes_are() -> None:
    """The smallest file: no currency, no nodes."""
    prices = parse_prices("flavors: [{name: a, prices: [{since: 2026-01-01, on_demand: 3.6}]}]")
    assert prices.of("whatever", [(at(2026, 1, 1), at(2026, 1, 1) + 1)]) == pytest.approx(0.001)


def test_no_price_is_an_error_and_not_nothing() -> None:
    """Before the first one; of a node that no entry names."""
    prices = parse_prices(WHOLE.replace('  - {name: "*", flavor: l4}\n', ""), "prices.yaml")
    with pytest.raises(InputError) as early:
        prices.of("fast-1", [(at(2025, 12, 31, 23), at(2026, 1, 1, 1))])
    assert "flavor 'a100' has no price on 2025-12-31" in str(early.value)
    with pytest.raises(InputError) as unknown:
        prices.of("other", [(at(2026, 1, 1), at(2026, 1, 2))])
    assert str(unknown.value).startswith("prices.yaml: nodes: has no entry for node 'other'")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[1]", None, "needs a list of flavors"),
        ("flavors: []", 1, "needs at least one entry"),
        ("flavors:\n  - {name: a}", 2, "is missing"),
        ("flavors:\n  - name: a\n    prices: []\n    price: 1", 3, "needs at least one entry"),
        (
            "currency: EUR\ncurency: E\nflavors: [{name: a, prices: [{since: 2026-01-01, on_demand: 1}]}]",
            2,
            "unknown field",
        ),
        ("flavors:\n  - name: a\n    prices:\n      - {since: tomorrow, on_demand: 1}", 4, "must be a date"),
        ("flavors:\n  - name: a\n    prices:\n      - {since: 2026, on_demand: 1}", 4, "must be a date"),
        ("flavors:\n  - name: a\n    prices:\n      - {since: 2026-02-30, on_demand: 1}", 4, ""),
        ("flavors:\n  - name: a\n    prices:\n      - {since: 2026-01-01, on_demand: -1}", 4, "must be 0 or more"),
        ("flavors:\n  - name: a\n    prices:\n      - {since: 2026-01-01, on_demand: .nan}", 4, "must be"),
        ("flavors:\n  - name: a\n    prices:\n      - {since: 2026-01-01, spot: 1}", 4, "has no on_demand price"),
        (WHOLE.replace('"2026-07-01"', "2025-07-01"), 7, "is not after 2026-01-01"),
        (WHOLE.replace("- name: l4", "- name: a100"), 8, "a second flavor 'a100'"),
        (WHOLE.replace("flavor: l4", "flavor: l5"), 13, "unknown flavor 'l5'"),
        (WHOLE.replace("bought: spot", "bought: leased"), 12, "must be one of"),
        (WHOLE.replace("cheap, flavor: a100", "cheap, flavor: l4"), 9, "has no spot price, which nodes 'cheap'"),
        (WHOLE.partition("nodes:")[0], None, "which nodes are of which flavor?"),
        ("flavors: [", 1, "is no YAML"),
        ("flavors: [{name: a100, gpu_hour: 2.5}]", None, "what runs are placed by, as `egs serve --flavors` reads it"),
    ],
)
def test_errors_name_the_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_prices(text, "prices.yaml")
    assert problem in str(error.value)
    assert str(error.value).startswith("prices.yaml" if line is None else f"prices.yaml line {line}")
