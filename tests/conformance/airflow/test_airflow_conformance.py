"""Airflow passes the suite that every adapter must pass, with EgsLocalExecutor; its GPUs are slots of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from egs_core.testing.conformance import ordering, phases
from egs_core.testing.conformance.bench import give_signal
from egs_core.testing.conformance.suite import Scenario, reason_to_skip
from tests.conformance.airflow.bench_runs import AirflowRuns, DagRun, airflow_runs
from tests.conformance.airflow.broken import broken_airflow
from tests.conformance.airflow.live import LiveAirflow
from tests.conformance.airflow.test_order import held_pass
from tests.proofs import scenarios

AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).with_name("plugins")),
    "EGS_POOLS": "order_gpu=2",
    "EGS_RESERVE_AFTER": "0.0001",
}
OWN_AIRFLOW = ("observe-changes-nothing", "failures-stay-the-users", "off-is-off", "audit")
"""Scenarios with a native run."""
OWN_BREAKAGES = ("api", "engine", "worker", "uninstalled")
"""What is broken when Airflow's processes start, or leaves them broken."""


def long(one: Scenario) -> list[Any]:
    """The marks of a scenario: those that start an Airflow are long."""
    return [pytest.mark.long] * (one.name in OWN_AIRFLOW or one.breakage in OWN_BREAKAGES)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], LiveAirflow]]:
    """The Airflow in mode off, one for all scenarios, from when the first one needs it."""
    with ExitStack() as stack:
        own = broken_airflow("native", tmp_path_factory.mktemp("native") / "own")
        yield cache(lambda: stack.enter_context(own)[0])


@pytest.fixture
def bench(airflow: LiveAirflow, tmp_path: Path, native: Callable[[], LiveAirflow]) -> Iterator[AirflowRuns]:
    """For one scenario."""
    with airflow_runs(airflow, tmp_path, native=native) as found:
        yield found


@scenarios("airflow agent", besides=("preload",), marks=long)
def test_airflow(scenario: Scenario, bench: AirflowRuns) -> None:
    """Airflow passes the scenario, or declares why it does not apply."""
    if reason := reason_to_skip(scenario, bench):
        pytest.skip(reason)
    scenario.check(bench)


def test_without_phases_the_scenario_fails(
    airflow: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real Airflow, too, `split` fails where phases are not declared: the first one holds a GPU."""

    def require(condition: Callable[[], bool], what: str) -> None:
        assert condition(), what

    monkeypatch.setattr(phases, "wait_until", require)  # it would wait in vain
    with (
        airflow_runs(airflow, tmp_path, "phases") as bench,
        pytest.raises(AssertionError, match="0 GPUs held in phase 0"),
    ):
        phases.split(bench)


def test_without_order_the_scenario_fails(
    airflow: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inversion` fails where the DAG is not chosen, if `first` ends between the scheduler's look and the slots."""

    def give(running: DagRun, *names: str) -> None:
        with held_pass(airflow, {running.dag_id: running.run_id}, "first"):
            give_signal(running, *names)

    monkeypatch.setattr(ordering, "give_signal", give)
    with (
        airflow_runs(airflow, tmp_path, "order") as bench,
        pytest.raises(AssertionError, match="second waited for leaf"),
    ):
        ordering.inversion(bench)
