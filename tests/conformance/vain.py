"""For tests of scenarios that fail: what comes in vain is waited for briefly, all else as ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from egs_core.testing.conformance import bench, phases

VAIN_S = 6.0
"""Several times what it takes to come where nothing is switched off."""


@contextmanager
def in_vain(says: str) -> Iterator[None]:
    """Inside, a scenario that waits for something whose words have these in them waits for `VAIN_S`. What comes before
    has the time that a busy machine needs, so that the failure is the one that is meant."""
    ordinary = bench.wait_until

    def wait_until(condition: Callable[[], Any], what: str) -> None:
        if says not in what:
            ordinary(condition, what)
            return
        deadline_s = time.monotonic() + VAIN_S
        while not condition():
            assert time.monotonic() < deadline_s, f"did not come about within {VAIN_S:g} s: {what}"
            time.sleep(0.05)

    with pytest.MonkeyPatch.context() as patch:
        for module in (bench, phases):
            patch.setattr(module, "wait_until", wait_until)
        yield
