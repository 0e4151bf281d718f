"""What a site tells Prometheus, as its own parser reads it."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from egs_core.budgets import Budget
from egs_core.cost.prices import parse_prices
from egs_core.engine import Engine
from egs_core.engine.specs import QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.metrics import Beside, families, text_of
from egs_core.server.principals import Principal
from egs_core.server.runs import SiteFacts
from egs_core.server.spending import Saved, Spending
from egs_core.server.tally import Tally
from tests.unit.server.site_world import OFFER

ROOT, VIEWER = Principal("root", "admin"), Principal("eve", "viewer")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """As Prometheus's own parser reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(site: SiteLogic, who: Principal = ROOT, tally: Tally | None = None, beside: Beside | None = None) -> Samples:
    """What a site without a server tells."""
    found = families(site.book, tally or Tally(site.book.queues), beside or Beside(), who)
    return samples(text_of(found).decode())


def site_of(*queues: QueueSpec, teams: Mapping[str, str] | None = None) -> SiteLogic:
    site = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    site.offer(OFFER, queues, teams)
    return site


PRICES = "flavors: [{name: a, prices: [{since: 2000-01-01, on_demand: 3}]}]"


def spending_of(*budgets: Budget, milli: Mapping[str, int] | None = None) -> Spending:
    """Half an hour after these had begun to be held."""
    now = [0.0]
    found = Spending(budgets, lambda: now[0], parse_prices(PRICES).for_all(1e9))
    found.begin(Saved(), milli or {}, {queue: {"n": held} for queue, held in (milli or {}).items()})
    now[0] = 1800.0
    found.advance()
    return found
