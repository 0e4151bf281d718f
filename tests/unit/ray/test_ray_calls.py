"""What is remembered of a function's calls: needs by its options, and kinds of calls that it takes. No Ray runs."""

from __future__ import annotations

from typing import Any

import ray

from egs_ray.gate.ticketing import Twins
from egs_ray.submission import Needs


def fit(x: int, *, y: int = 0) -> int:
    return x + y


def test_calls_with_the_same_options_share_their_needs() -> None:
    """Equal options give the very same needs; other ones give other needs, and a place that a user chose is seen."""
    twins, target = Twins(), ray.remote(num_gpus=1)(fit)
    first: Any = twins.asked_of(target, {"num_gpus": 1})
    assert first.needs == Needs("fit", 1.0, 1.0, 0)
    assert first.is_free
    assert twins.asked_of(target, {"num_gpus": 1}) is first
    other = twins.asked_of(target, {"num_gpus": 1, "num_cpus": 2, "memory": 5})
    assert other.needs == Needs("fit", 2.0, 1.0, 5)
    placed = twins.asked_of(target, {"num_gpus": 1, "resources": {"rack": 1}})
    assert not placed.is_free
    assert twins.asked_of(target, {"num_gpus": 1}).needs == first.needs


def test_a_call_that_the_function_does_not_take_has_no_twin() -> None:
    """Whether a call fits is asked once for each kind of call; one that does not fit is refused every time."""
    twins, target = Twins(), ray.remote(num_gpus=1)(fit)
    twin = twins.of(target, (1,), {})
    assert twin is not None
    for _ in range(2):
        assert twins.of(target, (2,), {}) is twin
        assert twins.of(target, (2,), {"y": 3}) is twin
        assert twins.of(target, (), {}) is None
        assert twins.of(target, (1, 2), {}) is None
        assert twins.of(target, (1,), {"z": 3}) is None
