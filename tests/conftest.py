"""What all tests share: nothing is read from or left in the user's own folders, and no usage report is sent."""

from __future__ import annotations

from pathlib import Path

import pytest


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
