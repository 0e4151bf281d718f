"""What `egs why` says of a run of a site server that has ended."""

from __future__ import annotations

import re

import pytest

from egs_core.cli.site import lasted
from egs_core.client.outlines import Earlier
from tests.unit.run_views import run_view


@pytest.mark.parametrize(
    ("earlier", "says"),
    [
        ((), "it waited 5 s, started at DAY and ran 6 s on 1 a100"),
        ((Earlier(100.0, 103.0, 1.0),), "it waited 2 s, started again at DAY and ran 6 s on 1 a100"),
    ],
)
def test_what_ran_before_an_eviction_is_no_wait(earlier: tuple[Earlier, ...], says: str) -> None:
    """Asked for at 100, started at 105: of one that ran for 3 s of them first, two were a wait."""
    times = {"submitted_at": 100.0, "started_at": 105.0, "ended_at": 111.0}
    view = run_view(state="ended", flavor="a100", earlier=earlier, **times)
    assert re.sub(r"\d{4}-[-\d]+ [:\d]+", "DAY", lasted(view)) == says
