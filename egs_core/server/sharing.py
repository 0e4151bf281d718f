"""The shell of the server's pools."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping

from egs_core.client import messages as c
from egs_core.engine.specs import QueueSpec
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.spending import Spending
from egs_core.site import wire
from egs_core.site.pooled import batch_of
from egs_core.site.sharing import Shell
from egs_core.site.spanning import Spanning

SHORT_BYTES = 16 * 1024  # of a batch that is answered in a few milliseconds, where it has nothing of `wire.LONG`


class Sharing(Shell[Pools]):
    """See `Shell`."""

    def __init__(
        self,
        queues: tuple[QueueSpec, ...] = (),
        team_of_queue: Mapping[str, str] | None = None,
        spanning: Spanning | None = None,
        lock: threading.Lock | None = None,
        spending: Spending | None = None,
        gather_s: float | None = None,
    ) -> None:
        epoch = secrets.token_hex(8)
        super().__init__(Pools(queues, epoch, time.time(), team_of_queue, spanning, spending, gather_s), lock)

    async def batch(self, who: Principal, driver: str, body: bytes) -> bytes:
        """What a driver tells and asks: encoded `Answers`. Raises Refusal."""
        if len(body) > SHORT_BYTES:
            return await self.ask(lambda pools: pools.batch(who, driver, body))
        batch = batch_of(body)
        is_short = not any(isinstance(item, wire.LONG) for item in batch.items)
        return await self.ask(lambda pools: pools.take(who, driver, batch), is_short=is_short)

    async def poll(self, who: Principal, driver: str, ask: c.Poll) -> bytes:
        """What a driver is told, held back for a while where there is nothing: encoded `Messages`."""
        return await self.fetch(driver, lambda pools: pools.poll(who, driver, ask), ask.wait_s)
