"""The arithmetic of the benchmark of `egs ray keep-ready`; what it starts is tested in `tests/conformance/ray`."""

from __future__ import annotations

from benchmarks.ray_ready import Driver, row_of


def test_the_first_driver_of_each_round_is_told_apart() -> None:
    """Its time is in no median, and whether it has found a process is not counted."""
    rounds = [
        [Driver(9.0, True, 0, 0), Driver(1.0, True, 1, 100 << 20), Driver(3.0, False, 1, 120 << 20)],
        [Driver(8.0, False, 0, 0), Driver(2.0, True, 2, 200 << 20)],
    ]
    assert row_of("ready", rounds) == {
        "side": "ready",
        "first_s": [9.0, 8.0],
        "later_median_s": 2.0,
        "least_s": 1.0,
        "most_s": 3.0,
        "found": "2 of 3",
        "standing": 1,
        "own_mib": 120,
        "later_s": [1.0, 3.0, 2.0],
    }
