"""The local runner cannot tell its own process's site from one behind a wire: order, gangs, limits and aborts there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egs_core.site import connecting
from egs_core.testing.conformance.suite import SCENARIOS, Scenario
from egs_core.testing.wire_site import WireSite
from egs_kubeflow.run import Run
from tests.conformance.kubeflow import test_kfp_control as control
from tests.conformance.kubeflow.bench_local import LocalRuns, local_runs

NAMES = ("order", "inversion", "failures-stay-the-users", "gang-starts-whole", "limits", "abort-all", "abort-one")
begun = control.begun


@pytest.fixture(autouse=True)
def wired(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WireSite]]:
    """Every holder gets a site behind a wire; some message was repeated on each."""
    made: list[WireSite] = []

    class Noted(WireSite):
        def start(self) -> None:
            made.append(self)
            super().start()

    monkeypatch.setattr(connecting, "EmbeddedSite", Noted)
    yield made
    assert made
    assert all(site.repeated for site in made)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalRuns]:
    """For one scenario."""
    with local_runs(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name not in ("order", "abort-one")))
        for one in SCENARIOS
        if one.name in NAMES
    ],
)
def test_local_runner(scenario: Scenario, bench: LocalRuns) -> None:
    """The scenario holds behind a wire as it does in process."""
    scenario.check(bench)


def test_a_gang_in_a_loop_starts_again_as_a_whole(begun: Callable[..., Run], tmp_path: Path) -> None:
    """One iteration fails: the other is stopped by a decision, and both run a second time."""
    control.test_a_gang_in_a_loop_starts_again_as_a_whole(begun, tmp_path)


def test_a_run_is_aborted_from_another_thread(begun: Callable[..., Run]) -> None:
    """All that runs ends, nothing more starts, and `wait` says so."""
    control.test_a_run_is_aborted_from_another_thread(begun)
