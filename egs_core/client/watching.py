"""What a site server tells of the rules by which it watches, and what is measured of a device.

GET /v1/watch     ─► Watching     the rules, what they see now, and what they did or would have done
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from egs_core.client.messages import Ask, Told

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Watts = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class DeviceHealth(Ask):
    """What NVML says of a device; None: it does not. busy: share of the last moments in which it computed; ecc_errors:
    uncorrected ones since the driver was loaded; throttled: what holds its clocks back; xids: errors that the driver
    has told of since the last time. answers: False of one that does not answer its driver any more."""

    device: Annotated[str, Field(max_length=200)]
    answers: bool = True
    temperature_c: Annotated[float, Field(ge=-300, le=1000, allow_inf_nan=False)] | None = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None
    memory_used: Share | None = None
    busy: Share | None = None
    ecc_errors: Annotated[int, Field(ge=0, le=2**62)] | None = None
    throttled: Annotated[tuple[Literal["power", "heat", "hardware"], ...], Field(max_length=3)] | None = None
    xids: Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], Field(max_length=100)] = ()


class RuleView(Told):
    """A rule as its file has it. when: the condition in words; looked_at: how many devices or runs it sees now;
    unknown: of so many of them what it looks at is not known; None where that is not the asker's to see."""

    name: str
    when: str
    for_s: float
    do: tuple[str, ...]
    dry_run: bool
    looked_at: int | None = None
    unknown: int | None = None


class SeenView(Told):
    """A condition that holds now. subject: HOST/DEVICE, or a run's number; since: seconds since 1970; has_fired: the
    rule has done what it does, or said that it would."""

    rule: str
    subject: str
    text: str
    since: float
    has_fired: bool


class DoneView(Told):
    """What a rule did. outcome: done, would (in a dry run), left: there was nothing to do, failed, or waits: for the
    bound of an hour. text: why, with the numbers, and what came of it."""

    at: float
    rule: str
    action: str
    subject: str
    outcome: str
    text: str


class Watching(Told):
    """is_on: the server was started with rules. problem: why they are not followed any more, "" while they are. done:
    the latest ones, the last one last."""

    is_on: bool
    problem: str = ""
    rules: tuple[RuleView, ...] = ()
    seen: tuple[SeenView, ...] = ()
    done: tuple[DoneView, ...] = ()
