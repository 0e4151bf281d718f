"""The files of examples/monitoring, and the guide: they ask for metrics that a server tells, and list all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from egs_core.budgets import Budget
from egs_core.engine.specs import QueueSpec
from egs_core.server.metrics import Beside
from egs_core.server.pools import DriverCount
from egs_core.server.tally import Tally
from egs_core.slo import WINDOWS, Objectives
from egs_core.slo_rules import rules_of
from tests.unit.server.site_steps import ANN, request
from tests.unit.server.told_metrics import ROOT, site_of, spending_of, told

MONITORING = Path(__file__).resolve().parents[3] / "examples" / "monitoring"


NAME = re.compile(r"\begs_[a-z_]+")
LABELS = re.compile(r"(egs_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def known() -> dict[str, set[str]]:
    """Labels of each name that may stand in a query."""
    site = site_of(QueueSpec("q", nominal=(-1, 1000, -1)))
    money = Budget(0.0, ("q",), team="t", cost=5.0, currency="EUR")
    site.views.spending = spending_of(Budget(1.0, ("q",), queue="q"), money)
    tally = Tally(["q"])
    tally.slos.objectives = {"q": Objectives(wait_p95=600).slos()}
    site.submit(ANN, request(1, 1, queue="q"))
    tally.committed((), site.take().runs, 0.0, 0.001)
    found: dict[str, set[str]] = {}
    beside = Beside([DriverCount("ray", "q", "", 1, 1, 1.0)], steps={("hot", "drain", "done"): 1})
    for name, labels in told(site, ROOT, tally, beside):
        found.setdefault(name, set()).update(label for label, _ in labels)
    return found


def check_query(query: str, names: Mapping[str, set[str]]) -> None:
    """Every metric and label of it is there."""
    used = set(NAME.findall(query))
    assert used, query
    assert used <= names.keys(), f"{used - names.keys()} of {query}"
    for name, matchers in LABELS.findall(query):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= names[name], f"{asked - names[name]} of {name}"
    labels: Iterable[str] = {label.strip() for group in GROUPED.findall(query) for label in group.split(",")}
    assert set(labels) <= set.union(*(names[name] for name in used)), query


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Each query of each panel; no panel lies over another; no two have one number."""
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    names = known()
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            check_query(target["expr"], names)
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_alerts_ask_for_what_there_is() -> None:
    """Each rule has a query of known names, a severity and a text that says what to do."""
    rules = [
        rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    names = known()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        check_query(rule["expr"], names)
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]
    with pytest.raises(AssertionError, match="egs_no_such"):
        check_query("rate(egs_no_such_total[5m])", names)
    with pytest.raises(AssertionError, match="user"):
        check_query('egs_runs{user="ann"}', names)


def test_the_rules_of_objectives_ask_for_what_there_is() -> None:
    """Of `egs slo rules`: each metric of the server, and each series that another rule records."""
    names = known()
    rules = [rule for group in rules_of({"q": Objectives(wait_p95=600).slos()})["groups"] for rule in group["rules"]]
    ratios = [rule for rule in rules if NAME.search(rule["expr"])]
    assert len(ratios) == len(WINDOWS)
    for rule in ratios:
        check_query(rule["expr"], names)


def test_the_guide_lists_what_there_is() -> None:
    """Every name in its table is told, with these labels; and every one that is told stands there."""
    text = (MONITORING.parents[1] / "docs" / "monitoring.md").read_text()
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `egs_")]
    listed: dict[str, set[str]] = {}
    for cell in cells:
        shared = re.findall(r"`\{([^}]*)\}`", cell)
        for name, own in re.findall(r"(egs_[a-z_]+)(?:\{([^}]*)\})?", cell):
            listed[name] = {label for label in (own or "".join(shared)).split(",") if label}
    names = {re.sub(r"_(bucket|count|sum)$", "", name): labels - {"le"} for name, labels in known().items()}
    assert listed == names


def test_the_scrape_configuration_names_the_rules() -> None:
    found = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert found["rule_files"] == ["alerts.yaml"]
    assert found["scrape_configs"][0]["authorization"]["credentials_file"]
