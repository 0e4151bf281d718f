"""Pods as people make them who are new to this, or careless: nothing of one is in the way of another's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.pods import shape_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    "notes",
    [
        {names.HINTS: "[" * 100_000},
        {names.RUN_LIMITS: "[" * 100_000},
        {names.RELEASE_BY: "0001-01-01T00:00:00+23:59", names.OPENED: "9999-12-31T23:59:59-23:59 order"},
    ],
    ids=["hints", "limits", "moments"],
)
def test_one_pod_that_cannot_be_read_keeps_no_other_gated(
    api: EmulatedApi, notes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Annotations are anybody's to write, and all that is listed is read together: JSON too deep for a reader, or a
    moment outside of all calendars, does not end the list for the rest, neither of the controller nor of the others."""
    api.add("nodes", node("n1", gpus=2))
    api.add("pods", pod("odd", notes=notes))
    api.add("pods", pod("plain", gpus=1))
    api.add("pods", pod("late", gpus=1, notes={names.RELEASE_BY: OLD}))
    kubeconfig = ["--kubeconfig", str(api.kubeconfig)]
    assert run(["kubernetes", "open-overdue", *kubeconfig]) == 0
    assert api.opened() == ["late"]
    with controlled(api, says="limits: "):
        api.until(lambda: {"odd", "plain"} <= set(api.opened()))
    assert run(["kubernetes", "ps", "-A", *kubeconfig]) == 0
    assert "odd" in capsys.readouterr().out


def test_what_a_pod_asks_as_a_whole_counts() -> None:
    """Since Kubernetes 1.34 a pod may say its CPUs and memory for all of its containers: the scheduler goes by that,
    and by the containers' for what it does not name."""
    container: dict[str, Any] = {"resources": {"requests": {"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "1"}}}
    spec = {"containers": [container, container], "resources": {"requests": {"cpu": "6"}}, "overhead": {"cpu": "250m"}}
    assert shape_of(spec) == Shape(6250, 2000, 2 << 30)
