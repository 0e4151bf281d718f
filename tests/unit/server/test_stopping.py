"""When what is told to stop should have, for those that wait for what it holds."""

from __future__ import annotations

import pytest

from egs_core.server.forecast import UNKNOWN_S
from egs_core.server.runs import Known, Run
from egs_core.server.stopping import LATE_S, known_end, takes


def told(*, suspends: bool = False, is_evicted: bool = False, stop: str = "it is aborted") -> Run:
    """To stop at 100, within 10 s."""
    run = Run("1", "key", "ann", "work", Known(1, 1), 0.0)
    run.stop, run.stop_at, run.grace_s = stop, 100.0, 10.0
    run.suspends, run.is_evicted = suspends, is_evicted
    return run


@pytest.mark.parametrize(
    ("run", "end"),
    [
        (told(stop=""), None),
        (told(), 110.0),
        (told(is_evicted=True), 110.0),
        (told(suspends=True), 110.0),
        (told(suspends=True, is_evicted=True), UNKNOWN_S),
    ],
    ids=["runs on", "aborted", "evicted", "aborted, could be put aside", "put aside"],
)
def test_its_end_is_known_but_where_cudas_driver_takes_its_time(run: Run, end: float | None) -> None:
    assert known_end(run, 105.0) == end
    if end is not None:
        assert known_end(run, 110.0 + LATE_S) == UNKNOWN_S


def test_how_long_it_may_take_is_said() -> None:
    assert (
        takes([told(), told(suspends=True)])
        == "10 s or the time that CUDA's driver takes to put aside what is on a GPU"
    )
