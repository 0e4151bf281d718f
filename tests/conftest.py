"""What all tests share: nothing is read from or left in the user's own folders, and no usage report is sent.

Where several processes share the tests (`pytest -n 2`), one of them has all those that share a start of a framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/conformance/ray/",
    "tests/conformance/airflow/",
    "tests/conformance/kubeflow/",
    "tests/scenarios/test_examples.py",
)
"""What shares a start of a framework; the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first: nothing then waits for it at the end."""
    items.sort(key=lambda item: _number(item.nodeid))


def _number(nodeid: str) -> int:
    return next((number for number, place in enumerate(TOGETHER) if nodeid.startswith(place)), len(TOGETHER))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hands out what belongs together as one piece, and all others one by one, in the order in which they stand."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            return [*TOGETHER, nodeid][_number(nodeid)]

    config.option.loadscopereorder = False  # else what has most tests comes first
    return Together(config, log)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each test starts without EGS's variables and with user folders of its own."""
    for name in ("EGS_MODE", "EGS_DEBUG", "RAY_RUNTIME_ENV_HOOK"):
        monkeypatch.delenv(name, raising=False)
    home: Path = tmp_path_factory.mktemp("home")
    for name, folder in (("XDG_DATA_HOME", "data"), ("XDG_CACHE_HOME", "cache"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(name, str(home / folder))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else the first start writes a token into the home folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
