"""What is believed of a list while the API server says that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes import mirror
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.mirror import Mirror
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import pod

REFUSED = {403: "pods is forbidden: RBAC: clusterrole not found", 404: "the server could not find the resource"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


class Refusing:
    """Lists of the API server, of which some are refused. left: so many more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        self.left = 0
        listed = Cluster.list

        def refuses(cluster: Cluster, kind: Kind, *args: Any, **named: Any) -> tuple[list[dict[str, Any]], str]:
            if self.left:
                self.left -= 1
                raise ApiError(status, REFUSED[status])
            return listed(cluster, kind, *args, **named)

        monkeypatch.setattr(Cluster, "list", refuses)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("status", REFUSED)
def test_an_api_server_that_has_just_started_knows_no_rights(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch, status: int, optional: bool
) -> None:
    """As a real one (1.36) answers for a moment after a restart: what was listed is still believed, and it is listed
    again soon, not after the pause for what is missing."""
    monkeypatch.setattr(mirror, "AGAIN_S", 0.01)
    monkeypatch.setattr(mirror, "MOST_AGAIN_S", 1000.0)
    refusing = Refusing(monkeypatch, status)
    api.add("pods", pod("there"))
    seen: list[set[str]] = []
    found = Mirror(
        Cluster(api.kubeconfig),
        PODS,
        lambda raw: raw["metadata"]["name"],
        lambda: seen.append(set(found.items().values())),
        optional=optional,
    )
    found.start()
    try:
        api.until(lambda: found.lists == 1)
        refusing.left = 3
        api.gone = 1  # as after a restart: the version of the watch is none that it knows
        api.cut()
        api.until(lambda: not refusing.left and found.lists >= 2)
        api.add("pods", pod("new"))
        api.until(lambda: set(found.items().values()) == {"there", "new"})
    finally:
        found.stop()
    assert set() not in seen
    assert not found.problem


def test_a_right_that_is_taken_away_is_an_empty_list_in_the_end(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an optional kind: nobody acts for ever on what was so once."""
    monkeypatch.setattr(mirror, "AGAIN_S", 0.01)
    monkeypatch.setattr(mirror, "MOST_AGAIN_S", 0.1)
    refusing = Refusing(monkeypatch, 403)
    api.add("pods", pod("there"))
    found = Mirror(Cluster(api.kubeconfig), PODS, lambda raw: raw, lambda: None, optional=True)
    found.start()
    try:
        api.until(lambda: len(found.items()) == 1)
        refusing.left = 1_000_000
        api.gone = 1
        api.cut()
        api.until(lambda: not found.items())
        assert found.problem == f"ApiError: 403: {REFUSED[403]}"
    finally:
        found.stop()
