"""The writer's answers on their way to the event loop."""

from __future__ import annotations

import asyncio

import pytest

from egs_core.server.answers import Answers


def test_an_answer_that_no_future_takes_leaves_none_behind_it_out() -> None:
    """A future takes no StopIteration: who asked is told of it in another, and the rest of the commit is answered."""

    async def asked() -> int:
        loop, answers = asyncio.get_running_loop(), Answers()
        first, second = loop.create_future(), loop.create_future()
        answers.told(first, StopIteration("no more"))
        answers.told(second, 2)
        async with asyncio.timeout(60):
            with pytest.raises(RuntimeError, match="no more"):
                await first
            return int(await second)

    assert asyncio.run(asked()) == 2
