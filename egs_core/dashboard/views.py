"""Pages that are made of parts: of what they are made, and that nothing is made anew which cannot have changed.

Source ─► pure functions that make markup ─► trees, encoded once for all who see the same (`feed.Parts`)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from egs_core.client.http import Refused
from egs_core.dashboard.site_workloads import Parts, list_parts, workload_parts
from egs_core.dashboard.source import Source
from egs_core.dashboard.tree import tree
from egs_core.report.html import join

Encoded = dict[str, bytes]
Make = Callable[[str], Awaitable[tuple[Encoded, float]]]
AGAIN_S = 10.0  # so long a believed length may be an old one
MOST_LISTED = 400
GONE = "there is no such run, or it is kept no longer: the list of workloads has those that are"


def encoded(parts: Parts) -> Encoded:
    return {name: msgspec.json.encode(tree(join(found))) for name, found in parts.items()}


class WorkloadView:
    """The workload of a run."""

    def __init__(self, source: Source, run: str) -> None:
        self._source, self._run = source, run
        self._made: tuple[object, Encoded] | None = None

    async def __call__(self, token: str) -> tuple[Encoded, float]:
        seen = await self._source.overview(token)
        mirror = await self._source.mirror(token)
        key = mirror.workload_of(self._run)
        if key is None:
            raise Refused(404, GONE)
        runs = mirror.members(key)
        waiting = {run.id: run for run in seen.waiting}
        reasons = tuple([waiting[run.id].reason for run in runs if run.id in waiting])
        state = mirror.changes(key), reasons, seen.now // AGAIN_S
        if self._made is None or self._made[0] != state:
            made = await asyncio.to_thread(lambda: encoded(workload_parts(runs, seen.now, waiting)))
            self._made = state, made
        return self._made[1], seen.now


class ListView:
    """All workloads of several runs."""

    def __init__(self, source: Source, _of: str) -> None:
        self._source = source
        self._made: tuple[object, Encoded] | None = None

    async def __call__(self, token: str) -> tuple[Encoded, float]:
        seen = await self._source.overview(token)
        mirror = await self._source.mirror(token)
        state = mirror.count, seen.now // AGAIN_S
        if self._made is None or self._made[0] != state:
            shown = [mirror.members(key) for key in mirror.workloads()[:MOST_LISTED]]
            self._made = state, await asyncio.to_thread(lambda: encoded(list_parts(shown, seen.now)))
        return self._made[1], seen.now


VIEWS: dict[str, Callable[[Source, str], Make]] = {"workload": WorkloadView, "workloads": ListView}
