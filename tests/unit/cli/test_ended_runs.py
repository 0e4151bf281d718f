"""What `egs why` says of a run of a site server that has ended."""

from __future__ import annotations

import re

import pytest

from egs_core.cli.site import lasted
from egs_core.client.messages import RunView
from egs_core.client.outlines import Earlier


@pytest.mark.parametrize(
    ("earlier", "says"),
    [
        ((), "it waited 5 s, started at DAY and ran 6 s on 1 a100"),
        ((Earlier(100.0, 103.0, 1.0),), "it waited 2 s, started again at DAY and ran 6 s on 1 a100"),
    ],
)
def test_what_ran_before_an_eviction_is_no_wait(earlier: tuple[Earlier, ...], says: str) -> None:
    """Asked for at 100, started at 105: of one that ran for 3 s of them first, two were a wait."""
    view = RunView(
        id="1",
        name="fit.py",
        user="ann",
        state="ended",
        version=1,
        cpus=0.0,
        memory_bytes=0,
        queue="",
        priority=0,
        gpus=1.0,
        submitted_at=100.0,
        started_at=105.0,
        ended_at=111.0,
        flavor="a100",
        earlier=earlier,
    )
    assert re.sub(r"\d{4}-[-\d]+ [:\d]+", "DAY", lasted(view)) == says
