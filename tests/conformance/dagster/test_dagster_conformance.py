"""The fourth adapter, of docs/adding-a-framework.md, passes the suite on a real Dagster; the core knows nothing of it.

Dagster is in an environment of its own: `make test-versions` makes it. Elsewhere these tests skip.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from egs_core.testing.conformance.suite import SCENARIOS, Scenario, reason_to_skip

pytest.importorskip("dagster", reason="Dagster is not installed here: make test-versions has an environment for it")

if TYPE_CHECKING:
    from tests.conformance.dagster.bench_jobs import DagsterJobs

pytestmark = pytest.mark.filterwarnings("ignore")  # Dagster's own


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[DagsterJobs]:
    from tests.conformance.dagster.bench_jobs import DagsterJobs

    made = DagsterJobs(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_conformance(bench: DagsterJobs, scenario: Scenario) -> None:
    """Every scenario that the adapter's surface declares; the others skip in its own words."""
    if reason := reason_to_skip(scenario, bench):
        pytest.skip(reason)
    scenario.check(bench)


def test_the_installed_adapter_is_found(tmp_path: Path) -> None:
    """`egs` knows it by the entry point of its wheel, which stands in the environment and not in this checkout."""
    egs = [sys.executable, "-m", "egs_core.cli.app"]
    asked = subprocess.run([*egs, "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    told = json.loads(asked.stdout)
    assert "dagster" in {check["name"]: check["detail"] for check in told["checks"]}["adapters"].split(", ")
    assert told["packages"]["egs-dagster"] == "0.1.0"
    program = "from egs_core.adapter import load_adapter; import egs_dagster as e; "
    program += "print(e.__file__ if load_adapter('dagster') is e.ADAPTER else '')"
    where = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert Path(where.stdout.strip()).parent == Path(sysconfig.get_path("purelib"))


def test_without_egs_the_order_is_dagsters_own(tmp_path: Path) -> None:
    """The scenario is not passed by chance: Dagster alone lets the leaves go first."""
    from tests.conformance.dagster.bench_jobs import DagsterJobs

    (scenario,) = (one for one in SCENARIOS if one.name == "order")
    made = DagsterJobs(tmp_path, off=True)
    try:
        with pytest.raises(AssertionError, match="trunk waited for leaf"):
            scenario.check(made)
    finally:
        made.close()
