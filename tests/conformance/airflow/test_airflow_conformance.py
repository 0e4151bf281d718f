"""Airflow passes the suite that every adapter must pass, with EgsLocalExecutor; its GPUs are slots of a pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.testing.conformance.suite import SCENARIOS, Scenario, reason_to_skip
from tests.conformance.airflow.bench_runs import AirflowRuns, airflow_runs
from tests.conformance.airflow.live import LiveAirflow

AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).with_name("plugins")),
    "EGS_POOLS": "order_gpu=2",
    "EGS_RESERVE_AFTER": "1",
}
QUICK = ("convert",)
OWN_AIRFLOW = ("observe-changes-nothing", "failures-stay-the-users", "off-is-off", "audit")
"""Scenarios with a native run."""
OWN_BREAKAGES = ("api", "engine", "worker", "uninstalled")
"""What is broken when Airflow's processes start, or leaves them broken."""


def marked() -> list[Any]:
    """The scenarios as parameters: most take 20 s of a session that has six minutes; some start an Airflow."""
    found = []
    for one in SCENARIOS:
        is_long = one.name in OWN_AIRFLOW or one.breakage in OWN_BREAKAGES
        marks = [pytest.mark.long] if is_long else [] if one.name in QUICK else [pytest.mark.slow]
        found.append(pytest.param(one, marks=marks, id=one.name))
    return found


@pytest.fixture
def bench(airflow: LiveAirflow, tmp_path: Path) -> Iterator[AirflowRuns]:
    """For one scenario."""
    with airflow_runs(airflow, tmp_path) as found:
        yield found


@pytest.mark.parametrize("scenario", marked())
def test_airflow(scenario: Scenario, bench: AirflowRuns) -> None:
    """Airflow passes the scenario, or declares why it does not apply."""
    if reason := reason_to_skip(scenario, bench):
        pytest.skip(reason)
    scenario.check(bench)


# Each waits ten seconds for what does not come.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "off", "says"),
    [
        ("split", "phases", "0 GPUs held in phase 0"),
        ("inversion", "order", "second waited for leaf"),
    ],
)
def test_without_egs_the_scenario_fails(
    airflow: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, off: str, says: str
) -> None:
    """On real Airflow, too, a scenario fails where what it is about is switched off: of three tries, as a leaf takes
    the slot only where `first` ends between the scheduler's looking and its handing out, most of its time."""
    if name == "split":
        monkeypatch.setattr("egs_core.testing.conformance.bench.LIMIT_S", 10.0)
    slow = airflow.home / "slow"
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    try:
        with airflow_runs(airflow, tmp_path, off) as bench:
            slow.touch()  # see `plugins/slow_scheduler.py`
            with pytest.raises(AssertionError, match=says):
                _check_three_times(scenario, bench)
    finally:
        slow.unlink()


def _check_three_times(scenario: Scenario, bench: AirflowRuns) -> None:
    for _ in range(3):
        scenario.check(bench)
