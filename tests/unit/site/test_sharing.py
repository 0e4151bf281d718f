"""Who asks the pools, on which thread: the loop itself where it need not wait, a thread of its own where it does."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from egs_core.site import wire
from egs_core.site.pooled import About
from egs_core.site.refusal import Refusal
from egs_core.site.sharing import Shell
from egs_core.site.trusting import TrustingPools

SOON_S = 30.0


def pools() -> TrustingPools:
    return TrustingPools((), "epoch")


def thread_of(_pools: TrustingPools) -> int:
    return threading.get_ident()


def test_a_short_question_is_answered_on_the_loop() -> None:
    """Where nobody else has the lock; any other question is a thread's, and without a lock of others all are the
    loop's."""

    async def asked() -> tuple[list[bool], list[bool]]:
        here, shared, own = threading.get_ident(), Shell(pools(), threading.Lock()), Shell(pools())
        answers = [[await shell.ask(thread_of, is_short=short) for short in (True, False)] for shell in (shared, own)]
        first, second = [[one == here for one in found] for found in answers]
        return first, second

    assert asyncio.run(asked()) == ([True, False], [True, True])


def test_the_loop_never_waits_for_the_lock() -> None:
    """While another thread decides, a short question waits in a thread of its own, and the loop answers others."""

    async def asked() -> tuple[bool, int, int]:
        lock = threading.Lock()
        shell = Shell(pools(), lock)
        with lock:
            waiting = asyncio.create_task(shell.ask(thread_of, is_short=True))
            other = Shell(pools(), threading.Lock())
            here = await other.ask(thread_of, is_short=True)
            await asyncio.sleep(0)
            is_answered = waiting.done()
        return is_answered, here, await asyncio.wait_for(waiting, SOON_S)

    is_answered, here, there = asyncio.run(asyncio.wait_for(asked(), SOON_S))
    assert not is_answered
    assert here == threading.get_ident()
    assert there != here


def test_whoever_polls_for_a_driver_keeps_no_other_from_being_woken() -> None:
    """One that is refused, one that gives up, and the driver's own second one: the first is told at once what comes.
    Nothing stays of those that have gone, nor of polls for drivers that there never were."""

    def refused(_pools: TrustingPools) -> tuple[wire.Message, ...]:
        raise Refusal(410, "x")

    async def told() -> tuple[list[wire.Messages], int, int]:
        shell = Shell(pools(), threading.Lock())
        driver = (await shell.ask(lambda pools: pools.join(About("key", "ray", "pool", "d")))).id

        def poll() -> asyncio.Task[bytes]:
            fetched = shell.fetch(driver, lambda pools: pools.poll(driver, "epoch", 0), 10 * SOON_S)
            return asyncio.create_task(fetched)

        polls = [poll() for _ in range(3)]
        await asyncio.sleep(0)
        for asked in (driver, *(f"r{number}" for number in range(100, 200))):
            with pytest.raises(Refusal):
                await shell.fetch(asked, refused, SOON_S)
        gone = polls.pop()
        gone.cancel()
        await asyncio.wait([gone])
        waiting = shell.clients
        mark = msgspec.json.encode(wire.Batch("epoch", 1, (wire.Mark(7),)))
        await shell.ask(lambda pools: pools.batch(driver, mark))
        found = await asyncio.wait_for(asyncio.gather(*polls), SOON_S)
        return [msgspec.json.decode(one, type=wire.Messages) for one in found], waiting, shell.clients

    found, waiting, after = asyncio.run(told())
    assert [[message.mark for message in one.messages] for one in found] == [[7], [7]]
    assert (waiting, after) == (2, 0)


def test_all_that_wait_are_answered_when_the_server_ends() -> None:
    async def told() -> list[bytes]:
        shell = Shell(pools(), threading.Lock())
        polls = [asyncio.create_task(shell.fetch("r1", lambda _: (), 10 * SOON_S)) for _ in range(2)]
        await asyncio.sleep(0)
        shell.wake_all()
        return await asyncio.wait_for(asyncio.gather(*polls), SOON_S)

    assert len(asyncio.run(told())) == 2


def test_the_lock_is_given_back_also_by_what_fails() -> None:
    def fails(_pools: TrustingPools) -> int:
        raise KeyError("x")

    async def asked() -> list[str]:
        lock = threading.Lock()
        shell, failed = Shell(pools(), lock), list[str]()
        for is_short in (True, False, True):
            try:
                await shell.ask(fails, is_short=is_short)
            except KeyError as error:
                failed.append(str(error))
            assert not lock.locked()
        return failed

    assert asyncio.run(asked()) == ["'x'"] * 3
