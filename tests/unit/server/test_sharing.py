"""Which batches of drivers the server's loop answers itself."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.server.principals import Principal
from egs_core.server.sharing import SHORT_BYTES, Sharing
from egs_core.site import wire

ANN = Principal("ann")
SOON_S = 30.0


def is_answered_at_once(*items: bytes) -> bool:
    """Whether the loop has answered such a batch before anything else ran on it."""

    async def asked() -> bool:
        sharing = Sharing(lock=threading.Lock())
        ask = c.DriverRequest(key="12345678", framework="ray", pool="pool")
        driver = await sharing.ask(lambda pools: pools.join(ANN, ask))
        body = msgspec.json.encode(wire.Encoded(driver.epoch, 1, [msgspec.Raw(item) for item in items]))
        assert len(body) <= SHORT_BYTES
        batch = asyncio.create_task(sharing.batch(ANN, driver.id, body))
        await asyncio.sleep(0)
        is_done = batch.done()
        msgspec.json.decode(await asyncio.wait_for(batch, SOON_S), type=wire.Answers)
        return is_done

    return asyncio.run(asked())


MARK = msgspec.json.encode(wire.Mark(1))


@pytest.mark.parametrize(
    "item",
    [*map(msgspec.json.encode, (wire.Order(), wire.Tasks((0, 1)), wire.Why(0))), b'{"i":"\\u006frder"}'],
    ids=["order", "tasks", "why", "escaped"],
)
def test_what_is_long_work_for_few_bytes_is_a_threads(item: bytes) -> None:
    """A thousand of them fit into a short batch, and nobody else would be answered meanwhile."""
    assert not is_answered_at_once(MARK, item)


def test_what_a_driver_tells_all_the_time_is_answered_on_the_loop() -> None:
    """Also how far tasks are, whose list is called as that of a question."""
    assert is_answered_at_once(MARK, msgspec.json.encode(wire.Told()), msgspec.json.encode(wire.Workload("w")))
    assert is_answered_at_once(b'{"i":"told","tasks":[]}')
