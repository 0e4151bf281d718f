"""Pages that are made of parts: of what they are made, and that nothing is made anew which cannot have changed.

Source ─► pure functions that make markup ─► trees, encoded once for all who see the same (`feed.Pages`)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from egs_core.client.http import Refused
from egs_core.client.overview import Overview
from egs_core.cost.prices import Prices
from egs_core.dashboard.mirror import Mirror
from egs_core.dashboard.parts import Parts
from egs_core.dashboard.site_workloads import list_parts, workload_parts
from egs_core.dashboard.source import Source
from egs_core.dashboard.tree import tree
from egs_core.dashboard.usage import Seen, usage_parts
from egs_core.report.html import join

Encoded = dict[str, bytes]
T = TypeVar("T")
REST = 9.0  # times as long as a page took to make
AGAIN_S = 10.0  # so long a believed length may be an old one
MOST_LISTED = 400
GONE = "there is no such run, or it is kept no longer: the list of workloads has those that are"


def encoded(parts: Parts) -> Encoded:
    return {name: msgspec.json.encode(tree(join(found))) for name, found in parts.items()}


class Seeing(msgspec.Struct, frozen=True):
    """What somebody sees who looks. is_whole: all teams; pace: shared by all."""

    source: Source
    is_whole: bool
    pace: Pace
    prices: Prices | None = None


class Pace:
    """One part of a page is made at a time, on a thread, and then for some time none: whatever is looked at, streams
    and the site's server have most of the processor."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    async def made(self, make: Callable[[], T]) -> T:
        async with self._lock:
            await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
            found, took_s = await asyncio.to_thread(_timed, make)
            self._free_at = time.monotonic() + REST * took_s
        return found


def _timed(make: Callable[[], T]) -> tuple[T, float]:
    began = time.thread_time()
    return make(), time.thread_time() - began


class View:
    """A page of parts; called for what it has now. of: what it is of."""

    def __init__(self, seeing: Seeing, of: str) -> None:
        self.source, self.seeing, self.of = seeing.source, seeing, of
        self._made: tuple[object, Encoded] = None, {}

    async def __call__(self, token: str) -> tuple[Encoded, float]:
        seen = await self.source.overview(token)
        mirror = await self.source.mirror(token)
        state = self._state(seen, mirror)
        if self._made[0] != state:
            make = self._parts(seen, mirror)
            self._made = state, await self.seeing.pace.made(lambda: encoded(make()))
        return self._made[1], seen.now

    def _state(self, seen: Overview, mirror: Mirror) -> object:
        """What its parts depend on."""
        raise NotImplementedError

    def _parts(self, seen: Overview, mirror: Mirror) -> Callable[[], Parts]:
        """What makes them, on another thread, while the mirror changes."""
        raise NotImplementedError


class WorkloadView(View):
    """The workload of a run. Raises Refused where that is not known."""

    def _state(self, seen: Overview, mirror: Mirror) -> object:
        key = self._key(mirror)
        reasons = {run.id: run.reason for run in seen.waiting if mirror.workload_of(run.id) == key}
        return mirror.changes(key), reasons, seen.now // AGAIN_S

    def _parts(self, seen: Overview, mirror: Mirror) -> Callable[[], Parts]:
        runs, waiting = mirror.members(self._key(mirror)), {run.id: run for run in seen.waiting}
        return lambda: workload_parts(runs, seen.now, waiting)

    def _key(self, mirror: Mirror) -> str:
        key = mirror.workload_of(self.of)
        if key is None:
            raise Refused(404, GONE)
        return key


class ListView(View):
    """All workloads of several runs."""

    def _state(self, seen: Overview, mirror: Mirror) -> object:
        return mirror.count, seen.now // AGAIN_S

    def _parts(self, seen: Overview, mirror: Mirror) -> Callable[[], Parts]:
        shown = [mirror.members(key) for key in mirror.workloads()[:MOST_LISTED]]
        return lambda: list_parts(shown, seen.now)


class UsageView(View):
    """GPUs over time and by team; of a span of `usage.SPANS`."""

    def _state(self, seen: Overview, _mirror: Mirror) -> object:
        return seen.now // AGAIN_S

    def _parts(self, seen: Overview, mirror: Mirror) -> Callable[[], Parts]:
        runs, whole, prices = list(mirror.runs.values()), self.seeing.is_whole, self.seeing.prices
        found = Seen(runs, seen.devices, seen.now, whole, prices, mirror.misses)
        return lambda: usage_parts(found, self.of)


VIEWS: dict[str, Callable[[Seeing, str], View]] = {
    "workload": WorkloadView,
    "workloads": ListView,
    "usage": UsageView,
}
