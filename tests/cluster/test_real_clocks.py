"""Clocks that are minutes off the API server's, on a real one with its scheduler (`test_real_cluster`): nothing is
gated for longer than its release-by time, and nothing is opened minutes before it, out of its turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.kubernetes import gates, names
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.overdue import open_overdue
from tests.cluster.real import LIMIT_S, Site, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]

SKEWED_S, HOUR_S, SOON_S = 900.0, 3600.0, 5.0
OFF = pytest.mark.parametrize("ahead_s", [SKEWED_S, -SKEWED_S], ids=["ahead", "behind"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Full: its GPU is another one's."""
    found = Site(tmp_path)
    try:
        found.apply()
        found.add("holds", gate=False, gpus=1)
        until(lambda: found.pods()["holds"].node)
        yield found
    finally:
        found.close()


def waits(site: Site, name: str, in_s: float) -> None:
    site.add(name, gpus=1, notes={names.RELEASE_BY: moment(time.time() + in_s)})


@OFF
def test_a_controller_opens_at_the_release_by_time(site: Site, ahead_s: float) -> None:
    """Within some seconds of it, not a quarter of an hour later or earlier; what states none, an hour after it was
    made."""
    waits(site, "soon", SOON_S)
    waits(site, "later", SKEWED_S / 2)
    site.add("new", gpus=1)
    due = site.pods()["soon"].release_by
    with controlled(site, ahead_s=ahead_s):
        until(lambda: not site.pods()["soon"].is_gated)
        assert time.time() < due + LIMIT_S / 4
        soon = site.pods()["soon"]
        assert (soon.opened_for, -1.0 <= soon.opened_at - due < LIMIT_S / 4) == (gates.OVERDUE, True)
        assert all(site.pods()[name].is_gated for name in ("later", "new"))
        site.delete("holds")
        until(lambda: site.pods()["soon"].node or any(one.opened_for == gates.ORDER for one in site.pods().values()))
        site.delete("soon")  # and the turn of the others comes all the same
        until(lambda: any(one.opened_for == gates.ORDER for one in site.pods().values()))


@OFF
def test_the_second_process_opens_what_is_overdue_and_nothing_else(site: Site, ahead_s: float) -> None:
    """With its own account, while no controller lives."""
    waits(site, "late", -2.0)
    waits(site, "later", SKEWED_S / 2)
    site.add("new", gpus=1)
    said: list[str] = []
    assert open_overdue(site.account(names.OVERDUE, ahead_s), [site.name], HOUR_S, said.append) == 0
    assert said == [f"{site.name}/late: opened (overdue)"]
