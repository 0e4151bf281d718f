"""What the owner of a program gives it: what is known of durations, and where to tell what went when."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_ray.submission import Needs, Ordered


class Outlook(msgspec.Struct, frozen=True):
    """What a program's owner gives it.

    seconds: that a task is believed to take, if anything is. believe: (phase of a block, median, 95th percentile) of
    those that history knows. told: what went when. record: a line of the run log about a task with phases. on_failure:
    the site decides no more. reasons: Ray's task id -> why it was aborted, for the run log.
    """

    seconds: Callable[[Needs], float | None]
    believe: Callable[[Graph], list[tuple[int, float, float]]]
    told: Callable[[Ordered], None]
    record: Callable[[r.Record], None]
    on_failure: Callable[[BaseException], None]
    reasons: dict[str, str]
