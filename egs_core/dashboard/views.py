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
from egs_core.cost.prices import Prices
from egs_core.dashboard.driver_tasks import plan_parts, task_parts
from egs_core.dashboard.parts import Parts
from egs_core.dashboard.site_workloads import list_parts, workload_parts
from egs_core.dashboard.source import Source
from egs_core.dashboard.tree import tree
from egs_core.dashboard.usage import SPANS, Seen, usage_parts
from egs_core.report.html import join

Encoded = dict[str, bytes]
T = TypeVar("T")
Making = Callable[[], Callable[[], Parts]]
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
        state, now, make = await self._look(token)
        if self._made[0] != state:
            made = make()
            self._made = state, await self.seeing.pace.made(lambda: encoded(made()))
        return self._made[1], now

    async def _look(self, token: str) -> tuple[object, float, Making]:
        """What its parts depend on, the time, and what takes all that is needed to make them on another thread, while
        the mirror changes. Raises Refused where there is nothing."""
        raise NotImplementedError


class WorkloadView(View):
    """The workload of a run."""

    async def _look(self, token: str) -> tuple[object, float, Making]:
        seen, mirror = await self.source.overview(token), await self.source.mirror(token)
        key = mirror.workload_of(self.of)
        if key is None:
            raise Refused(404, GONE)
        waiting = {run.id: run for run in seen.waiting if mirror.workload_of(run.id) == key}
        state = mirror.changes(key), {run: one.reason for run, one in waiting.items()}, seen.now // AGAIN_S

        def make() -> Callable[[], Parts]:
            runs = mirror.members(key)
            return lambda: workload_parts(runs, seen.now, waiting)

        return state, seen.now, make


class TasksView(View):
    """The tasks of a driver."""

    async def _look(self, token: str) -> tuple[object, float, Making]:
        found = await self.source.tasks(token, self.of)
        return id(found), found.now, lambda: lambda: task_parts(found)


class ListView(View):
    """All workloads of several runs."""

    async def _look(self, token: str) -> tuple[object, float, Making]:
        seen, mirror = await self.source.overview(token), await self.source.mirror(token)

        def make() -> Callable[[], Parts]:
            shown = [mirror.members(key) for key in mirror.workloads()[:MOST_LISTED]]
            return lambda: list_parts(shown, seen.now, seen.drivers)

        drivers = [(one.id, one.state, one.tasks) for one in seen.drivers]
        return (mirror.count, drivers, seen.now // AGAIN_S), seen.now, make


class UsageView(View):
    """GPUs over time and by team; of a span of `usage.SPANS`."""

    async def _look(self, token: str) -> tuple[object, float, Making]:
        seen, mirror = await self.source.overview(token), await self.source.mirror(token)
        drivers = await self.source.driver_use(token, SPANS[self.of])

        def make() -> Callable[[], Parts]:
            runs, prices = list(mirror.runs.values()), self.seeing.prices
            found = Seen(runs, seen.devices, seen.now, self.seeing.is_whole, prices, mirror.misses, drivers)
            return lambda: usage_parts(found, self.of)

        return seen.now // AGAIN_S, seen.now, make


class PlanView(View):
    """What should come next."""

    async def _look(self, token: str) -> tuple[object, float, Making]:
        seen, mirror = await self.source.overview(token), await self.source.mirror(token)
        ahead = await self.source.ahead(token)

        def make() -> Callable[[], Parts]:
            running = [run for run in mirror.runs.values() if run.ended_at is None]
            return lambda: plan_parts(ahead, seen.waiting, running, seen.now)

        return id(ahead), seen.now, make


VIEWS: dict[str, Callable[[Seeing, str], View]] = {
    "workload": WorkloadView,
    "workloads": ListView,
    "usage": UsageView,
    "tasks": TasksView,
    "plan": PlanView,
}
