"""What a session keeps of tasks whose results came before what their processes tell at the end. No Ray runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from egs_ray.session.endings import Endings
from egs_ray.session.shared import HEAR_S
from egs_ray.session.tasks import Way


class Kept:
    """The endings of a session at some second of its site."""

    def __init__(self) -> None:
        self.now = 0.0
        self.unheard: dict[int, Any] = {}
        shared = SimpleNamespace(unheard=self.unheard, site=SimpleNamespace(now=lambda: self.now))
        self.endings = Endings(cast("Any", shared), cast("Any", None), cast("Any", None))

    def result(self, submission: int, way: Way, *, peer: object = None, ended: bool = False) -> None:
        job = SimpleNamespace(way=way, peer=peer, ended=ended)
        self.endings._await_last_words(cast("Any", job), submission)


def test_words_that_never_come_are_forgotten() -> None:
    """A driver that runs for months and whose workers cannot reach it does not keep a job for each task."""
    kept = Kept()
    for submission in range(1000):
        kept.now += HEAR_S / 10
        kept.result(submission, Way.OBSERVED)
    assert len(kept.unheard) <= 12
    assert 999 in kept.unheard


@pytest.mark.parametrize(
    ("way", "peer", "ended", "is_awaited"),
    [
        (Way.SHELL, object(), False, True),
        (Way.SHELL, object(), True, False),
        (Way.SHELL, None, False, False),  # it was ended before it said a word
        (Way.OBSERVED, None, False, True),
        (Way.NATIVE, None, False, False),
    ],
)
def test_whose_words_are_awaited(way: Way, peer: object, ended: bool, is_awaited: bool) -> None:
    """Those of a process that has a line, or may have one, and has not told of its end."""
    kept = Kept()
    kept.result(1, way, peer=peer, ended=ended)
    assert (1 in kept.unheard) is is_awaited
