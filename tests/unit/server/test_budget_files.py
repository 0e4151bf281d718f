"""Budgets as their file states them: the periods of the calendar, and mistakes with their line."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from egs_core.budgets import Budget, Per, period_of
from egs_core.engine.specs import QueueSpec
from egs_core.errors import InputError
from egs_core.queues import load_budgets, load_queues

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")


# --- the calendar ---


def test_a_month_is_that_of_the_place() -> None:
    """From midnight to midnight there, summer time or not; a week begins on Monday, and is of its year."""
    march = period_of(datetime(2027, 3, 31, 23, 59, tzinfo=BERLIN).timestamp(), "month", "Europe/Berlin")
    assert (march.label, march.end - march.begin) == ("2027-03", 31 * DAY - HOUR)
    assert period_of(march.end, "month", "Europe/Berlin").label == "2027-04"
    assert period_of(march.end, "month", "UTC").label == "2027-03"
    new_year = datetime(2027, 1, 1, 12, tzinfo=BERLIN).timestamp()
    assert period_of(new_year, "week", "Europe/Berlin").label == "2026-W53"
    assert period_of(new_year, "day", "Europe/Berlin").label == "2027-01-01"


@pytest.mark.parametrize("per", ["month", "week", "day"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"])
def test_periods_follow_one_another(per: Per, zone: str) -> None:
    """Each moment is in its period, the next one begins where that ends, and has another label."""
    rng = random.Random(zone + per)
    for _ in range(200):
        at = rng.uniform(0, 2e9)
        period = period_of(at, per, zone)
        assert period.begin <= at < period.end
        following = period_of(period.end, per, zone)
        assert (following.begin, following.label != period.label) == (period.end, True)


# --- the file ---


WHOLE = """
teams:
  - {name: vision, budget: {gpu_hours: 2000, per: week, zone: Europe/Berlin}}
  - {name: speech}
queues:
  - {name: images, team: vision, budget: {gpu_hours: 500, warn_at: 0.5, then: warn}}
  - {name: videos, team: vision}
  - {name: common, budget: {gpu_hours: 10}}
"""


def test_the_file(tmp_path: Path) -> None:
    """Of queues and of teams; the queues themselves are as without them."""
    path = tmp_path / "queues.yaml"
    path.write_text(WHOLE)
    assert load_budgets(path) == (
        Budget(500.0, ("images",), queue="images", warn_at=0.5, then="warn"),
        Budget(10.0, ("common",), queue="common", is_shared=True),
        Budget(2000.0, ("images", "videos"), team="vision", per="week", zone="Europe/Berlin"),
    )
    assert load_queues(path, has_prices=False) == (QueueSpec("images"), QueueSpec("videos"), QueueSpec("common"))


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("gpu_hours: 2000", "gpu_hour: 2000", 3, "gpu_hour"),
        ("gpu_hours: 2000", "gpu_hours: -1", 3, "must be 0 or more"),
        ("gpu_hours: 500, ", "", 6, "gpu_hours"),
        ("per: week", "per: year", 3, "'month', 'week' or 'day'"),
        ("warn_at: 0.5", "warn_at: 80", 6, "must be at most 1"),
        ("then: warn", "then: kill", 6, "'stop' or 'warn'"),
        ("zone: Europe/Berlin", "zone: Europa/Berlin", 3, "is no time zone"),
        ("{name: speech}", "{name: speech, budget: {gpu_hours: 1}}", 4, "team 'speech' has no queue"),
    ],
)
def test_a_mistake_names_the_line(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_budgets(path)
    assert f"{path} line {line}" in str(caught.value)
    assert problem in str(caught.value)
