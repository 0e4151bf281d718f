"""Alerts and an address that nobody can have: each is tried and told in the log, and the next one goes out, too."""

from __future__ import annotations

import logging

import pytest

from egs_core.server.watching import alerts as module
from egs_core.server.watching.alerts import Alerts
from egs_core.server.watching.rules import Alert
from tests.unit.server.real_site import wait_for


@pytest.mark.parametrize("host", ["chat..example.org", f"{'x' * 64}.example.org"])
def test_a_host_that_nobody_can_have_ends_no_thread(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client raises an error of its own for such a name. The log says so for each alert, without the address."""
    monkeypatch.setattr(module, "PAUSES_S", ())
    alerts = Alerts(f"http://{host}/secret", "site")
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        alerts.start()
        try:
            for rule in ("hot", "idle"):
                alerts.send(Alert(0.0, rule, "0", "too hot"))
            wait_for(lambda: len(caplog.records) == 2, "both are told")
        finally:
            alerts.close()
    told = [record.getMessage() for record in caplog.records]
    assert [one.split(" was not taken")[0] for one in told] == [f"an alert of rule {rule}" for rule in ("hot", "idle")]
    assert "secret" not in caplog.text
