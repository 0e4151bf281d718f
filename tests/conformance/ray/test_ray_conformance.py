"""Ray passes the suite that every adapter must pass, in both ways of using EGS there, with emulated GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.testing.conformance.suite import SCENARIOS, Scenario, reason_to_skip
from tests.conformance.ray.bench_run import RayRuns, ray_runs
from tests.conformance.ray.bench_script import RayScripts, ray_scripts
from tests.conformance.ray.own_cluster import own_cluster
from tests.conformance.vain import in_vain
from tests.proofs import scenarios


@pytest.fixture
def run_bench(ray_address: str, tmp_path: Path) -> Iterator[RayRuns]:
    """For `egs_ray.run`."""
    with ray_runs(tmp_path, ray_address) as bench:
        yield bench


@pytest.fixture
def hook_bench(ray_address: str, tmp_path: Path) -> Iterator[RayScripts]:
    """For the hook on scripts that know no EGS."""
    with ray_scripts(tmp_path, ray_address) as bench:
        yield bench


@pytest.fixture
def hinted_bench(ray_address: str, tmp_path: Path) -> Iterator[RayScripts]:
    """For the hook on scripts whose functions have hints."""
    with ray_scripts(tmp_path, ray_address, "hinted") as bench:
        yield bench


@scenarios("ray run", besides=("audit",))
def test_egs_ray_run(scenario: Scenario, run_bench: RayRuns) -> None:
    """`egs_ray.run` passes the scenario, or declares why it does not apply."""
    if reason := reason_to_skip(scenario, run_bench):
        pytest.skip(reason)
    scenario.check(run_bench)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("order", {"policy": "fifo"}, "trunk waited for leaf0, leaf1"),
        ("inversion", {"policy": "fifo"}, "second waited for leaf0, leaf1"),
        ("split", {"split": False}, "in phase 0"),
        ("gpu-is-lent-meanwhile", {"split": False}, "'end' of phase 0 of task other"),
        ("preload", {"preload": False}, "'load' of phase 0 of task tail"),
    ],
)
def test_without_egs_the_scenario_fails(
    ray_address: str, tmp_path: Path, name: str, options: dict[str, Any], says: str
) -> None:
    """On real Ray, too, a scenario fails where what it is about is switched off."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    with (
        ray_runs(tmp_path, ray_address, **options) as bench,
        in_vain(says),
        pytest.raises(AssertionError, match=says),
    ):
        scenario.check(bench)


@scenarios("ray script", besides=("audit",))
def test_hook(scenario: Scenario, hook_bench: RayScripts) -> None:
    """The hook passes the scenario, or declares why it does not apply."""
    if reason := reason_to_skip(scenario, hook_bench):
        pytest.skip(reason)
    scenario.check(hook_bench)


@scenarios(
    "ray hinted script",
    "split",
    "preload",
    "limits",
    "abort-all",
    "abort-one",
    "fail-open-engine",
    "fail-open-process",
)
def test_hook_with_hints(scenario: Scenario, hinted_bench: RayScripts) -> None:
    """`.remote()` on functions with hints passes what hints are about, and what must hold when EGS breaks meanwhile."""
    assert not reason_to_skip(scenario, hinted_bench)
    scenario.check(hinted_bench)


@pytest.mark.proves("ray script", "audit")
@pytest.mark.proves("ray hinted script", "audit")
@pytest.mark.proves("ray cluster", "audit")
def test_audit(tmp_path: Path) -> None:
    """`egs audit --ray` passes its scenario, on a cluster with a dashboard that never heard of EGS."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == "audit"]
    if reason := reason_to_skip(scenario, RayScripts(tmp_path, "", dashboard="none yet")):
        pytest.skip(reason)
    with own_cluster(dashboard=True) as cluster:
        bench = RayScripts(tmp_path, cluster.address, dashboard=cluster.dashboard)
        try:
            scenario.check(bench)
        finally:
            bench.close()
