"""The orders that queues of a running server learn: reviews on the writer's thread, roll-outs in a process beside it.

    writer's thread   look: is a review due? a snapshot ─┐                    ┌─► what came of it: `OrderChosen`
    another process                                      └─► roll-outs (s) ───┘     into the engine and its journal

Nothing waits for it. Where a roll-out fails or takes too long the orders stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from egs_core.server.dashboard import SECRET
from egs_core.server.leader import NotActive
from egs_core.server.logic import SiteLogic
from egs_core.server.writer import Unavailable
from egs_core.sim.advisor import Advisors, Bounds, QueueAdvisor
from egs_core.sim.rolling import Answered, Asked
from egs_core.sim.rollout import Future

LOG = logging.getLogger("uvicorn.error")
LOOK_S = 10.0
MOST_S = 600.0  # that the roll-outs of one review may take


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable."""

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


class Ordering:
    """See the module. queues: those that have their order learned; bounds: of reviews, those shipped by default."""

    def __init__(self, queues: Sequence[str], bounds: Bounds | None = None, look_s: float = LOOK_S) -> None:
        self.problem = ""
        self._advisors = Advisors(queues, bounds=bounds)
        self._look_s = look_s
        self._roller = _Roller()

    async def follow(self, site: Asks) -> None:
        """Look again and again, as long as the server is there."""
        try:
            while not self.problem:
                try:
                    for advisor, asked in await site.ask(self._look):
                        futures = await asyncio.to_thread(self._roller.ask, asked)
                        if futures is not None:
                            await site.ask(partial(self._tell, advisor, futures))
                except (Unavailable, NotActive):  # the writer has said why; the next look goes on from what is durable
                    pass
                await asyncio.sleep(self._look_s)
        finally:
            self._roller.close()

    # --- on the writer's thread ---

    def _look(self, logic: SiteLogic) -> list[tuple[QueueAdvisor, Asked]]:
        """Whose review is due, with what the roll-outs have to know. It changes nothing that anybody else has, so a bug
        ends the learning and nothing else."""
        engine = logic.book.engine
        try:
            due = self._advisors.look(engine.state)
            snapshot = engine.snapshot() if due else b""
            return [(advisor, Asked(snapshot, engine.config, advisor.question())) for advisor in due]
        except Exception as error:
            self._give_up(error)
            return []

    def _tell(self, advisor: QueueAdvisor, futures: Mapping[str, Sequence[Future]], logic: SiteLogic) -> None:
        try:
            chosen = advisor.review(futures, logic.book.engine.state.now)
        except Exception as error:
            self._give_up(error)
            return
        if chosen is not None:
            logic.book.handle(chosen)

    def _give_up(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"
        LOG.exception("orders are not learned any more, until the server is started again: this is a bug")


class _Roller:
    """One process at a time, which ends with its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._said = ""

    def ask(self, asked: Asked) -> Answered | None:
        """The futures; None where there are none, which is said once until it changes."""
        command = [sys.executable, "-P", "-m", "egs_core.sim.rolling"]
        environment = {name: value for name, value in os.environ.items() if name not in SECRET}
        try:
            with self._lock:
                if self._is_closed:
                    return None
                process = self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the server, which then ends it
                )
            out, problem = process.communicate(msgspec.msgpack.encode(asked), MOST_S)
            if process.returncode == 0:
                self._said = ""
                return msgspec.msgpack.decode(out, type=Answered)
            lines = problem.decode(errors="replace").strip().splitlines()
            why = f"exit code {process.returncode}{': ' + lines[-1] if lines else ''}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            why = f"it took more than {MOST_S:g} s"
        except (OSError, msgspec.DecodeError) as error:
            why = str(error)
        if not self._is_closed and why != self._said:
            LOG.warning("orders of queues stay as they are: a roll-out failed: %s", why)
            self._said = why
        return None

    def close(self) -> None:
        """End it, if it is there."""
        with self._lock:
            self._is_closed = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
