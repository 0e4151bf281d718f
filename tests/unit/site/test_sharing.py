"""Who asks the pools, on which thread: the loop itself where it need not wait, a thread of its own where it does."""

from __future__ import annotations

import asyncio
import threading

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
