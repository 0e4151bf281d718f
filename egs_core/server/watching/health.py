"""What was measured of devices lately, and what runs told of their work: with when. Pure; kept by nobody.

A device is a pair: its host, as runs name it ("" for the server's own), and its id. Moments are of the site's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from egs_core.client.messages import Progress
from egs_core.client.watching import DeviceHealth
from egs_core.server.hosts import OWN
from egs_core.server.watching.trends import Trend
from egs_core.site.messages import Where

Place = tuple[str, str]
STALE_S = 15.0  # what is older is no measurement of now
XID_S = 600.0  # so long an error counts
MOST_XIDS = 20
BUSY = 0.0  # more than this share is work


class Known(msgspec.Struct):
    """Of one device. busy_at: when it was last seen to compute, or it could not be told; xids: when, and which."""

    at: float
    last: DeviceHealth
    busy_at: float
    xids: deque[tuple[float, int]]


class Health:
    """See the module. began: from then on it is listened to without a break: what was not heard of or seen at work
    before may have been so while nobody looked. keep_s, keep_steps: for how long it is kept what losses did."""

    def __init__(self, began: float, keep_s: float = 0.0, keep_steps: float = 0.0) -> None:
        self.began = began
        self._keep = keep_s, keep_steps
        self._trends: dict[str, Trend] = {}
        self._known: dict[Place, Known] = {}
        self._hosts: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def note(self, host: str, found: Iterable[DeviceHealth], now: float) -> None:
        """What was measured there now."""
        for one in found:
            place = host, one.device
            before = self._known.get(place)
            xids = before.xids if before else deque[tuple[float, int]](maxlen=MOST_XIDS)
            xids.extend((now, number) for number in one.xids)
            if not one.answers:
                self._known[place] = before or Known(self.began, one, self.began, xids)
                continue
            busy_at = now if before is None or one.busy is None or one.busy > BUSY else before.busy_at
            self._known[place] = Known(now, one, busy_at, xids)

    def heard(self, host: str, now: float) -> None:
        """The agent of a joined host lives."""
        self._hosts[host] = now

    def told(self, run: str, at: float) -> None:
        """A run, or a task of a framework by its key, has told of its work then, at the latest."""
        self._told[run] = at

    def progressed(self, run: str, told: Progress | Where, now: float) -> None:
        """It says where it is."""
        self._trends.setdefault(run, Trend(*self._keep)).note(told, now)

    def forget_runs(self, but: Iterable[str]) -> None:
        """What ended tells nothing more."""
        kept = set(but)
        self._told = {run: at for run, at in self._told.items() if run in kept}
        self._trends = {run: one for run, one in self._trends.items() if run in kept}

    # --- what is known ---

    def of(self, place: Place, now: float) -> DeviceHealth | None:
        """What was measured of it just now; None where that is too long ago."""
        known = self._known.get(place)
        return None if known is None or now - known.at > STALE_S else known.last

    def heard_at(self, place: Place, *, is_watched: bool) -> float | None:
        """When something was heard of it last; None where nothing ever will be: it is emulated. is_watched: it is not,
        or so its host says."""
        known = self._known.get(place)
        if known is not None:
            return max(known.at, self.began)
        if place[0] != OWN:
            return max(self._hosts.get(place[0], self.began), self.began)
        return self.began if is_watched else None

    def idle_since(self, place: Place, now: float) -> float | None:
        """From when on it has not computed; None where that is not known."""
        known = self._known.get(place)
        if known is None or now - known.at > STALE_S or known.last.busy is None:
            return None
        return max(known.busy_at, self.began)

    def xids(self, place: Place, now: float) -> tuple[int, ...]:
        """The errors of the last ten minutes, oldest first."""
        known = self._known.get(place)
        return tuple([number for at, number in known.xids if now - at <= XID_S]) if known else ()

    def trend(self, run: str) -> Trend | None:
        """Of the loss of a run that tells it."""
        return self._trends.get(run)

    def told_at(self, run: str) -> float | None:
        """None of one that has never told of its work."""
        at = self._told.get(run)
        return None if at is None else max(at, self.began)
