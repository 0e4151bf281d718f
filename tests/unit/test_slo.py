"""Objectives: error budgets and burn rates from events, and rules for Prometheus that ask for what there is."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.queues import load_teams, parse_queues
from egs_core.slo import ALERTS, PERIOD_S, WINDOWS, Event, Objectives, Slo, report
from egs_core.slo_rules import rules_of

H = 3600.0
NOW = 40 * 86400.0
WAIT = Slo("wait_p95", "wait", 0.95, 600.0)
FILE = """
queues:
  - name: images
    slo: {wait_p95: 10m, jct_p99: 4h, deadline_share: 0.9}
  - name: 'odd "{{name}}"'
    slo: {wait_p99: 30}
  - name: rest
"""


def events(bad: int, good: int, at_s: float = NOW - 60) -> list[Event]:
    return [Event(at_s, False)] * bad + [Event(at_s, True)] * good


def test_an_error_budget_is_what_may_go_wrong() -> None:
    """Five of 100 may wait longer: two that did are 40 % of the budget, ten are twice of it."""
    found = report(WAIT, events(2, 98), NOW)
    assert (found.events, found.bad) == (100, 2)
    assert found.budget_left == pytest.approx(0.6)
    assert report(WAIT, events(10, 90), NOW).budget_left == pytest.approx(-1.0)
    assert report(WAIT, events(0, 7), NOW).budget_left == 1.0


def test_nothing_is_told_of_no_events() -> None:
    """Nor are events of before the period, or to come, counted."""
    old, late = events(3, 3, NOW - PERIOD_S), events(3, 3, NOW + 1)
    found = report(WAIT, [*old, *late], NOW)
    assert found == (0, 0, None, dict.fromkeys(WINDOWS), "")


def test_a_burn_rate_is_of_its_window() -> None:
    """All bad in the last hour, all good before: as fast as can be in short windows, less in long ones; in any
    order."""
    told = events(10, 0, NOW - 0.5 * H) + events(0, 30, NOW - 1.5 * H) + events(0, 60, NOW - 20 * H)
    random.Random(2).shuffle(told)
    burn = report(WAIT, told, NOW).burn
    assert burn["5m"] is None
    assert {name: burn[name] for name in ("1h", "2h", "6h", "1d", "3d")} == {
        "1h": pytest.approx(20.0),
        "2h": pytest.approx(10 / 40 / 0.05),
        "6h": pytest.approx(10 / 40 / 0.05),
        "1d": pytest.approx(10 / 100 / 0.05),
        "3d": pytest.approx(10 / 100 / 0.05),
    }


@pytest.mark.parametrize(
    ("bad_now", "bad_before", "alert"),
    [
        (1.0, 1.0, "page"),  # burns at 20 in the short and in the long window
        (0.0, 1.0, "ticket"),  # was bad for hours and is over: nothing to page for
        (0.4, 0.4, "page"),  # at 8: above 6 in half an hour and six
        (0.2, 0.2, "ticket"),  # at 4: above 3 in two hours and a day
        (0.04, 0.04, ""),  # within the budget
    ],
)
def test_somebody_looks_when_it_burns_for_long_and_still_does(bad_now: float, bad_before: float, alert: str) -> None:
    """A hundred runs in the last five minutes and in each quarter of an hour of four days; *now* is the last hour."""
    told = events(round(100 * bad_now), round(100 * (1 - bad_now)))
    for quarter in range(1, 4 * 24 * 4):
        bad = bad_now if quarter <= 4 else bad_before
        told += events(round(100 * bad), round(100 * (1 - bad)), NOW - 0.25 * H * quarter)
    assert report(WAIT, told, NOW).alert == alert


def test_a_file_of_queues_states_them(tmp_path: Path) -> None:
    """With shares by their names; nothing that the engine is told of a queue changes."""
    (tmp_path / "site.yaml").write_text(FILE)
    slos = load_teams(tmp_path / "site.yaml").slos
    assert slos["images"] == (
        Slo("wait_p95", "wait", 0.95, 600.0),
        Slo("jct_p99", "jct", 0.99, 4 * H),
        Slo("deadline_share", "deadline", 0.9, None),
    )
    assert list(slos) == ["images", 'odd "{{name}}"']
    without = re.sub(r"\n    slo:.*", "", FILE)
    assert parse_queues(FILE) == parse_queues(without)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{wait_p95: soon}", "slo.wait_p95"),
        ("{wait_p95: 0}", "slo.wait_p95"),
        ("{deadline_share: 1}", "slo.deadline_share"),
        ("{deadline_share: 95}", "slo.deadline_share"),
        ("{wait_p90: 1m}", "slo.wait_p90"),
        ("[wait]", "slo"),
    ],
)
def test_a_wrong_objective_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(InputError, match="line 3") as error:
        parse_queues(f"queues:\n  - name: q\n    slo: {text}\n", "site.yaml")
    assert problem in str(error.value)


# --- rules for Prometheus ---


def rules_in(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "site.yaml").write_text(FILE)
    assert run(["slo", "rules", "--queues", str(tmp_path / "site.yaml")]) == 0
    return capsys.readouterr().out


def test_the_rules_are_those_of_sloth(written: str) -> None:
    """For each objective the names that Sloth writes and its dashboards read: an error ratio in each window, what
    belongs to the budget, a page and a ticket; groups and series with names of their own."""
    groups = yaml.safe_load(written)["groups"]
    assert len(groups) == len({group["name"] for group in groups}) == 3 * 4
    ratios, meta, alerts = (group["rules"] for group in groups[:3])
    assert [rule["record"] for rule in ratios] == [f"slo:sli_error:ratio_rate{window}" for window in (*WINDOWS, "30d")]
    assert [rule["labels"]["sloth_window"] for rule in ratios] == [*WINDOWS, "30d"]
    assert {rule["record"] for rule in meta} == {
        "slo:objective:ratio",
        "slo:error_budget:ratio",
        "slo:time_period:days",
        "slo:current_burn_rate:ratio",
        "slo:period_burn_rate:ratio",
        "slo:period_error_budget_remaining:ratio",
        "sloth_slo_info",
    }
    assert [(rule["alert"], rule["labels"]["sloth_severity"]) for rule in alerts] == [
        ("EgsSloWaitP95", "page"),
        ("EgsSloWaitP95", "ticket"),
    ]
    ids = {tuple(rule["labels"][name] for name in ("sloth_id", "sloth_service", "sloth_slo")) for rule in meta}
    assert ids == {("egs-images-wait_p95", "egs", "images-wait_p95")}
    series = [(rule["record"], *sorted(rule["labels"].items())) for rule in rules_in(written) if "record" in rule]
    assert len(series) == len(set(series))


def test_a_page_and_a_ticket_ask_for_both_windows(written: str) -> None:
    """The factors of the objective's own budget, in the windows that `egs slo` looks at, too."""
    page, ticket = (rule["expr"] for rule in rules_in(written) if rule.get("alert") == "EgsSloWaitP95")
    for text, severity in ((page, "page"), (ticket, "ticket")):
        asked = re.findall(r"ratio_rate(\w+)\{[^}]*\} > \(([\d.]+) \* ([\d.]+)\)", text)
        expected = [(w, one.factor) for one in ALERTS if one.severity == severity for w in (one.short, one.long)]
        assert [(window, float(factor)) for window, factor, _ in asked] == expected
        assert {float(budget) for _, _, budget in asked} == {0.05}


def test_expressions_stand_as_they_are_and_names_are_quoted(written: str) -> None:
    """No rule refers to another by an alias, which some readers of rule files refuse; a queue's name is a string of
    PromQL and no template; brackets match."""
    assert "*id" not in written
    odd = [rule for rule in rules_in(written) if rule.get("labels", {}).get("queue", "").startswith("odd")]
    assert 'queue="odd \\"{{name}}\\""' in odd[0]["expr"]
    assert "{{name}}" not in next(rule["annotations"]["summary"] for rule in odd if "alert" in rule)
    for rule in rules_in(written):
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_window_that_an_alert_asks_for_is_recorded() -> None:
    rules = rules_of({"q": Objectives(wait_p95=1).slos()})["groups"]
    recorded = {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    asked = {
        name for group in rules for rule in group["rules"] for name in re.findall(r"slo:[a-z_]+:\w+", rule["expr"])
    }
    assert asked <= recorded


def test_without_objectives_there_are_no_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.yaml").write_text("queues: [{name: q}]")
    assert run(["slo", "rules", "--queues", str(tmp_path / "site.yaml")]) == 2
    assert "no queue promises anything" in capsys.readouterr().err
