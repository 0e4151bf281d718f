"""Why a task was aborted, for the run log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from egs_ray.gate.cluster_operations import ClusterOperations


def test_the_first_reason_stays() -> None:
    """A task that was aborted is listed until its end is known, and so is named again by who then aborts all others."""
    cancelled: list[str] = []
    reasons: dict[str, str] = {}
    gate: Any = SimpleNamespace(cancel=cancelled.extend)
    operations = ClusterOperations(gate, "train-1", reasons)
    operations._cancel(["one"], "aborted by ann")
    operations._cancel(["one", "two"], "aborted by ben")
    assert reasons == {"one": "aborted by ann", "two": "aborted by ben"}
    assert cancelled == ["one", "one", "two"]
