"""Kubeflow's local runner passes the suite that every adapter must pass, on real pipelines, with emulated GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.testing.conformance.suite import SCENARIOS, Scenario, reason_to_skip
from tests.conformance.kubeflow.bench_local import LocalRuns, local_runs
from tests.conformance.vain import in_vain
from tests.proofs import scenarios


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalRuns]:
    """For one scenario."""
    with local_runs(tmp_path) as found:
        yield found


@scenarios("kubeflow run")
def test_local_runner(scenario: Scenario, bench: LocalRuns) -> None:
    """The runner passes the scenario, or declares why it does not apply."""
    if reason := reason_to_skip(scenario, bench):
        pytest.skip(reason)
    scenario.check(bench)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("order", {"policy": "fifo"}, "trunk waited for leaf"),
        ("inversion", {"policy": "fifo"}, "second waited for leaf"),
        ("split", {"is_split": False}, "in phase 0"),
        ("gpu-is-lent-meanwhile", {"is_split": False}, "'end' of phase 0 of task other"),
        ("preload", {"is_loading": False}, "'load' of phase 0 of task tail"),
    ],
)
def test_without_egs_the_scenario_fails(tmp_path: Path, name: str, options: dict[str, Any], says: str) -> None:
    """Here, too, a scenario fails where what it is about is switched off."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    with local_runs(tmp_path, **options) as bench, in_vain(says), pytest.raises(AssertionError, match=says):
        scenario.check(bench)
