"""What a site's GPUs were used for, as its page has it: by hand."""

from __future__ import annotations

from typing import Any

import pytest

from egs_core.client.driver_use import DriverUse, UsedBy
from egs_core.client.messages import Device
from egs_core.client.outlines import Earlier, Outline
from egs_core.cost.prices import parse_prices
from egs_core.dashboard.usage import SPANS, Seen, usage_parts
from egs_core.dashboard.views import encoded
from tests.unit.dashboard.test_site_workloads import texts

NOW = 1_800_000_000.0
HOUR = 3600.0
PRICES = parse_prices("currency: EUR\nflavors: [{name: a, prices: [{since: 2020-01-01, on_demand: 2.0}]}]")


def held(number: int, begin_h: float, end_h: float | None, **more: Any) -> Outline:
    """A run that began and ended so many hours ago."""
    ended = None if end_h is None else NOW - end_h * HOUR
    fields: dict[str, Any] = {"team": "vision", "waited_s": 0.0, "submitted_at": NOW - begin_h * HOUR} | more
    state = "running" if ended is None else "ended"
    return Outline(
        str(number), "r", "ann", state, more.pop("gpus", 1.0), started_at=NOW - begin_h * HOUR, ended_at=ended,
        **{name: one for name, one in fields.items() if name != "gpus"},
    )  # fmt: skip


def site(*, is_whole: bool = True, **more: Any) -> Seen:
    """Two GPUs. A run held one from 4 to 2 hours ago; a GPU request holds one since an hour, and a command ran there
    for a quarter of that; another run has waited for two GPUs since half an hour."""
    runs = [
        held(1, 4, 2, gpus=1.0),
        held(2, 1, None, gpus=1.0, is_request=True, team="speech"),
        held(3, 1, 0.75, gpus=0.0, inside="2", team="speech"),
        Outline("4", "w", "ann", "waiting", 2.0, NOW - HOUR / 2, team="vision"),
        Outline("5", "w", "ann", "waiting", 2.0, NOW - HOUR, team="vision", follows=("4",), after=("4",)),
    ]
    return Seen(runs, [Device(id="0"), Device(id="1")], NOW, is_whole, **more)


def test_figures_by_hand() -> None:
    """Held 2 h and 1 h; used 2 h and a quarter. While the last run waits, half an hour, nothing is used of two GPUs:
    1 GPU·h wasted of the 48 of a day; before that nobody waited."""
    parts = encoded(usage_parts(site(prices=PRICES), "24h"))
    assert texts(parts, "now").endswith("GPUs 2 Held now 1 Used now 0 Wasted now 2 GPUs waited for 2")
    text = texts(parts, "time")
    for words in (
        "GPU hours held 3.00",
        "GPU hours wasted 1.00",
        "Used of all GPUs 4.7\u00a0%",
        "2.1\u00a0%",
        "6.00 EUR",
    ):
        assert words in text, (words, text)
    teams = "vision 2.00 2.00 0.00 4.00 EUR 0.00 EUR speech 1.00 0.25 0.75 2.00 EUR 1.50 EUR"
    assert teams in texts(parts, "teams")


def test_teams_rows_add_up_to_the_total() -> None:
    """Three teams with twenty minutes each: an hour in all, of which the rows have 0.34, 0.33 and 0.33."""
    runs = [held(n, 2, 2 - 20 / 60, team=f"team{n}") for n in range(3)]
    parts = encoded(usage_parts(Seen(runs, [Device(id=str(n)) for n in range(3)], NOW, True), "24h"))
    assert "GPU hours held 1.00 " in texts(parts, "time") + " "
    rows = [one for one in texts(parts, "teams").split() if one.startswith("0.3")]  # held and used of each
    assert sorted(rows[::2]) == ["0.33", "0.33", "0.34"]


def test_only_the_time_that_is_asked_for_counts() -> None:
    """Of the last hour: one held; a run that ended before is in no sum, and no part is missing."""
    parts = encoded(usage_parts(site(), "1h"))
    assert "GPU hours held 1.00" in texts(parts, "time")
    assert "vision" not in texts(parts, "teams")
    for over in SPANS:
        assert set(usage_parts(site(), over)) == {"title", "now", "time", "teams", "notes"}
    nothing = encoded(usage_parts(Seen([], [], NOW, True), "1h"))
    assert "No GPU was held" in texts(nothing, "teams")


def test_who_does_not_see_all_is_told_of_its_own_alone() -> None:
    """Not how many GPUs there are, nor what is free: what it held and did not use."""
    parts = encoded(usage_parts(site(is_whole=False), "1h"))
    assert "GPUs 2" not in texts(parts, "now")
    assert "Wasted now 1 " in texts(parts, "now")
    for words in ("GPU hours wasted 0.75", "Used of what was held 25.0\u00a0%", "Wasted of that 75.0\u00a0%"):
        assert words in texts(parts, "time"), words


def test_what_is_not_known_is_said() -> None:
    """No price for what was held, GPUs that are none, runs that are kept no longer, and evictions."""
    late = parse_prices("flavors: [{name: a, prices: [{since: 2100-01-01, on_demand: 2.0}]}]")
    notes = texts(encoded(usage_parts(site(prices=late, misses=NOW - HOUR), "24h")), "notes")
    for words in ("No money is told", "has no price on 2027-01-15", "Not all of this time is kept"):
        assert words in notes, words
    assert "Not all" not in texts(encoded(usage_parts(site(misses=NOW - 3 * HOUR), "1h")), "notes")
    emulated = Seen([held(1, 1, None, evictions=1)], [Device(id="0", label="emulated")], NOW, True)
    notes = texts(encoded(usage_parts(emulated, "1h")), "notes")
    for words in ("emulated", "1 runs were evicted", "--prices"):
        assert words in notes, words


def test_each_start_of_a_run_that_was_evicted_counts() -> None:
    """Held from 3 to 2 hours ago after it had waited for half an hour; since then it waits, while the GPU is free."""
    before = Earlier(NOW - 3 * HOUR, NOW - 2 * HOUR, 1.0, waited_s=HOUR / 2)
    run = Outline("1", "r", "ann", "waiting", 1.0, NOW - 5 * HOUR, evictions=1, earlier=(before,))
    parts = encoded(usage_parts(Seen([run], [Device(id="0")], NOW, True), "24h"))
    assert "GPU hours held 1.00 GPU hours wasted 2.50" in texts(parts, "time")
    assert "evicted" not in texts(parts, "notes")


@pytest.mark.parametrize("waited_s", [None, 600.0])
def test_a_run_that_has_waited(waited_s: float | None) -> None:
    """Its wait counts where a GPU was free meanwhile: ten minutes of one GPU."""
    run = held(1, 0.5, None, waited_s=waited_s)
    text = texts(encoded(usage_parts(Seen([run], [Device(id="0")], NOW, True), "1h")), "time")
    assert f"GPU hours wasted {'0.17' if waited_s else '0.00'}" in text


@pytest.mark.parametrize("state", ["drained", "occupied", "suspect"])
def test_what_no_run_may_have_is_not_wasted(state: str) -> None:
    """Of three GPUs two are held and used, the third is drained, used by others or silent; a run waits."""
    runs = [held(1, 1, None, gpus=2.0), Outline("4", "w", "ann", "waiting", 1.0, NOW - HOUR / 2)]
    devices = [Device(id="0", state="held"), Device(id="1", state="held"), Device(id="2", state=state)]
    assert "Wasted now 0" in texts(encoded(usage_parts(Seen(runs, devices, NOW, True), "1h")), "now")
    devices[2] = Device(id="2")
    assert "Wasted now 1" in texts(encoded(usage_parts(Seen(runs, devices, NOW, True), "1h")), "now")


def test_what_tasks_of_drivers_held_is_in_teams_rows_and_in_money() -> None:
    """Of two hours ago 3 GPU·h of vision's, of which a third was not used, and of the hour that goes on 1 GPU·h of a
    team without runs: in hours and money; in no share, as their GPUs may be others."""
    rows = (
        UsedBy(NOW - 2 * HOUR, NOW - HOUR, "vision", "ray", "node-1", 3 * HOUR, 2 * HOUR),
        UsedBy(NOW - HOUR, NOW, "text", "airflow", "node-2", HOUR, HOUR),
    )
    drivers = DriverUse(NOW, NOW - 3 * HOUR, 1.5, rows)
    parts = encoded(usage_parts(site(prices=PRICES, drivers=drivers), "24h"))
    assert texts(parts, "now").endswith("Held by drivers' tasks 1.50")
    for words in ("GPU hours held 7.00", "Of that drivers' tasks 4.00", "Used of all GPUs 4.7\u00a0%", "14.00 EUR"):
        assert words in texts(parts, "time"), (words, texts(parts, "time"))
    for words in ("vision 5.00 4.00 1.00 10.00 EUR 2.00 EUR", "text 1.00 1.00 0.00 2.00 EUR 0.00 EUR"):
        assert words in texts(parts, "teams"), words
    assert "when the server started" in texts(parts, "notes")
    assert "`egs cost` of the server has runs and requests alone" in texts(parts, "notes")
    assert "egs cost" not in texts(encoded(usage_parts(site(prices=PRICES), "24h")), "notes")
    hour = encoded(usage_parts(site(prices=PRICES, drivers=drivers), "1h"))
    assert "Of that drivers' tasks 1.00" in texts(hour, "time")
    assert "when the server started" not in texts(hour, "notes")
