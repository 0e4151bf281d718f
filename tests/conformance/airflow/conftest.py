"""One real Airflow for the whole run of the tests, in mode on for DAGs with the tag `egs-on` and else observing.

A test module that needs more of its environment says so in `AIRFLOW_ENVIRONMENT = {"EGS_…": "…"}`; two modules may not
ask for different values. `live.live_airflow` starts another one for what cannot be tried beside other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.conformance.airflow.live import LiveAirflow, live_airflow

ENVIRONMENT = {"EGS_MODE": "on", "EGS_TAGS": "egs-on"}
FOLDER = Path(__file__).parent
TIMEOUT_S = 1200
RUNNING = ExitStack()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here starts or uses Airflow, and has time for that where the machine is busy."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.airflow)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """The session's Airflow."""
    require_airflow()
    home = tmp_path_factory.mktemp("airflow")
    environment = _environment(request.session.items)
    folders = {"EGS_HISTORY": f"sqlite:///{home / 'history.sqlite'}", "EGS_RUNLOG": str(home / "runlog")}
    with RUNNING:
        yield RUNNING.enter_context(live_airflow(home, {**folders, **environment}, many_commands=True))


@pytest.fixture(autouse=True)
def _files_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """The DAG files of a test go with it: each reading of the folder would cost more than the one before."""
    folder = request.getfixturevalue("airflow").home / "dags" if "airflow" in request.fixturenames else None
    yield
    for file in folder.glob("*.py") if folder is not None else ():
        file.unlink()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test of this folder: an Airflow that idles takes processor time from tests of other things."""
    if nextitem is None or FOLDER not in nextitem.path.parents:
        RUNNING.close()


def _environment(items: list[pytest.Item]) -> dict[str, str]:
    merged = dict(ENVIRONMENT)
    for module in {id(m): m for item in items if (m := getattr(item, "module", None)) is not None}.values():
        for name, value in getattr(module, "AIRFLOW_ENVIRONMENT", {}).items():
            if merged.setdefault(name, value) != value:
                raise ValueError(f"{module.__name__}: {name}={value!r}, but another module needs {merged[name]!r}")
    return merged


def require_airflow() -> None:
    """Skip where Airflow is not installed; an error where it is and would not find EGS."""
    try:
        version("apache-airflow-core")
    except PackageNotFoundError:
        pytest.skip("apache-airflow is not installed")
    version("airflow-provider-egs")  # without it Airflow finds no entry point of ours: nothing would be tested
