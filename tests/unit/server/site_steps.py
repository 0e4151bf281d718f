"""Requests of a site's logic as tests make them, in steps: no clock, no network, no process."""

from __future__ import annotations

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import SiteFacts
from tests.unit.server.site_world import OFFER

ANN, BOB, ROOT = Principal("ann"), Principal("bob"), Principal("root", "admin")


def request(number: int, gpus: float = 1, **more: object) -> c.RunRequest:
    supervisor = c.Process(pid=number, started=number)
    fields = {"key": f"key-{number:04}", "supervisor": supervisor, "name": f"job{number}", "gpus": gpus, **more}
    return c.RunRequest.model_validate(fields)


def three_devices() -> SiteLogic:
    """A site with nothing on its devices."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def start(site: SiteLogic, number: int, gpus: float = 1, who: Principal = ANN, **more: object) -> c.RunView:
    """A run that has claimed its lease."""
    view = site.submit(who, request(number, gpus, **more))
    assert view.lease is not None
    return site.claim(who, view.id, c.Claim(token=view.lease.token))


def end(site: SiteLogic, view: c.RunView, who: Principal = ANN, code: int = 0) -> c.RunView:
    assert view.lease is not None
    outcome = "failed" if code else "succeeded"
    return site.end(who, view.id, c.End(token=view.lease.token, outcome=outcome, exit_code=code))


def behind(number: int, run: c.RunView, when: str = "ok") -> c.RunRequest:
    return request(number, after=[{"run": run.id, "when": when}])
