"""What a site server tells of its objectives.

GET /v1/slo     ─► Slos     of the queues that the asker may know of
"""

from __future__ import annotations

from pydantic import Field

from egs_core.client.messages import Told


class SloView(Told):
    """objective: share of events that have to be good; target_s: within which they are, None for deadlines, which runs
    have. events, bad: in the period. budget_left: share of the error budget that is left, below 0 when more than all of
    it is used; burn: burn rate by window (5m to 3d); None where nothing has happened. alert: page, ticket or "".
    at_risk: whether the order of the queue heeds it now."""

    queue: str
    slo: str
    objective: float
    target_s: float | None = None
    events: int = 0
    bad: int = 0
    budget_left: float | None = None
    burn: dict[str, float | None] = Field(default_factory=dict)
    alert: str = ""
    at_risk: bool = False


class Slos(Told):
    """since: second since 1970 from which on runs count: of the last 30 days those that the server keeps."""

    since: float
    slos: tuple[SloView, ...] = ()
