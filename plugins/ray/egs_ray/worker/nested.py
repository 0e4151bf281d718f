"""What the code of a task submits is ordered with its driver's own GPU tasks: the worker's end of the line.

    `.remote()` in a task ─► Ordering ─► LineGate ── ask, add, over, waits ─► driver (`session.nested`)
                    ticket: a call of the driver's board, which this worker makes and owns
                    (the board opens it in its turn, or when its driver is silent)

Only what is told goes over the line; tasks, references, errors and retries are this worker's and Ray's, as natively. A
line that is lost opens all that waits for it, and what comes passes.
"""

from __future__ import annotations

import base64
import pickle
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from egs_ray import submitting, waiting
from egs_ray.actors import end
from egs_ray.gate.ordering import Ordering
from egs_ray.gate.ticketing import WithTicket
from egs_ray.link import Message, dial
from egs_ray.submission import Arrival, Needs
from egs_ray.worker.spec import Address

ANSWER_S = 10.0  # a driver's first answer may have to make its gate
LOST = (OSError, EOFError, ValueError)


def make_ordering(
    make_gate: Callable[[], LineGate],
    on_failure: Callable[[BaseException], None],
    with_ticket: WithTicket,
    works_for: Callable[[], str],
) -> Ordering:
    """What gives tickets to the submissions of this worker."""
    return Ordering(make_gate, lambda _: None, on_failure, Hints, with_ticket, works_for, notes=False)


class LineGate:
    """A gate as `Ordering` needs one: the driver's, over the line. Raises where there is none to be had."""

    def __init__(self, line: Address, on_loss: Callable[[BaseException], None], works_for: Callable[[], str]) -> None:
        self._on_loss, self._works_for = on_loss, works_for
        self._peer = dial(line)
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._is_lost = False
        self._refs: dict[str, Any] = {}  # by the names by which the driver knows them, until they have values
        self._waiting: dict[str, str] = {}  # task -> the ticket that it waits for
        self._board: Any = None
        threading.Thread(target=self._listen, name="egs-nested", daemon=True).start()

    # --- for submitting threads ---

    def admits(self, needs: Needs) -> bool:  # noqa: ARG002  # the driver says
        """Whether a task gets a ticket."""
        return not self._is_lost

    def ticket(self, needs: Needs, is_bare: bool) -> tuple[str, Any] | None:
        """A key and the reference to hand to the task; None when it passes."""
        told = self._ask({"m": "ask", "needs": msgspec.to_builtins(needs), "bare": is_bare})
        if told is None or not told["key"]:
            return None
        if self._board is None:
            self._board = pickle.loads(base64.b64decode(told["board"]))
        return told["key"], self._board.wait.remote(told["key"]) if told["waits"] else None

    def give_back(self, key: str) -> None:
        """The ticket was not used."""
        self.say({"m": "back", "key": key})

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task of this process whose end the driver waits for."""
        return not self._refs.keys().isdisjoint(task_ids)

    def add(self, arrival: Arrival, refs: dict[str, Any], described: Any = None) -> None:
        """Tell of a submission, and later of the ends that matter to it."""
        arrival.parent, arrival.is_nested = self._works_for(), True
        if arrival.seconds is None and described is not None:
            arrival.seconds = described.expected_s
        new = {name: ref for name, ref in refs.items() if name not in self._refs}
        self._refs.update(new)
        if arrival.key:
            self._waiting[arrival.task_id] = arrival.key
        options = {} if described is None else msgspec.to_builtins(described.options)
        self.say({"m": "add", "arrival": msgspec.to_builtins(arrival), "names": list(new), "options": options})
        for name, ref in new.items():
            self._await_end(name, ref)

    def group_tickets(self, needs: list[Needs], strategy: str) -> list[tuple[str, Any]] | None:
        """Keys of a placement group's bundles, and what they wait for; None when it passes."""
        told = self._ask({"m": "ask group", "needs": msgspec.to_builtins(needs), "strategy": strategy})
        if told is None or not told.get("keys"):
            return None
        if self._board is None:
            self._board = pickle.loads(base64.b64decode(told["board"]))
        return [(key, self._board.wait.remote(key)) for key in told["keys"]]

    def add_all(self, told: list[tuple[Arrival, dict[str, Any], Any]]) -> None:
        """Tell of a placement group's bundles, and later of their end."""
        members = []
        for arrival, refs, described in told:
            arrival.parent, arrival.is_nested = self._works_for(), True
            self._refs.update(refs)
            self._waiting[arrival.task_id] = arrival.key
            options = msgspec.to_builtins(described.options)
            members.append({"arrival": msgspec.to_builtins(arrival), "options": options})
        self.say({"m": "add group", "members": members})
        for _, refs, _ in told:
            for name, ref in refs.items():
                ref.on_over(partial(self._over, name))

    def hand_on(self, key: str) -> None:
        """Others may wait for what has this ticket: it waits no longer."""
        self.say({"m": "needed", "keys": [key]})

    def unfinished(self) -> set[str]:
        """The driver knows."""
        return set()

    def learned(self) -> None:
        """A worker knows no history."""

    def close(self) -> None:
        """The process ends, and its line with it."""

    def say(self, message: Message) -> None:
        """From any thread."""
        try:
            self._peer.send(message)
        except LOST as error:
            self._lose(error)

    # --- the line ---

    def _ask(self, message: Message) -> Message | None:
        """The driver's answer; None where there is none."""
        with self._asking:
            if self._is_lost:
                return None
            self.say(message)
            try:
                return self._answers.get(timeout=ANSWER_S)
            except queue.Empty:
                self._lose(TimeoutError(f"no answer for {ANSWER_S:g} s"))
                return None

    def _listen(self) -> None:
        submitting.submit_directly()
        try:
            while True:
                message = self._peer.receive()
                if message["m"] == "end":
                    self._end(message["name"], message.get("why", ""))
                else:
                    self._answers.put(message)
        except LOST as error:
            self._lose(error)

    def _end(self, name: str, why: str) -> None:
        """An operator, or a limit of the workload, ends a task or group of this worker's."""
        if (ref := self._refs.get(name)) is not None:
            end(ref, why)

    def _await_end(self, name: str, ref: Any) -> None:
        waiting.on_ready(ref, lambda: self._over(name))

    def _over(self, name: str) -> None:
        """On a thread of Ray's."""
        self._refs.pop(name, None)
        self._waiting.pop(name, None)
        if not self._is_lost:
            self.say({"m": "over", "name": name})

    def _lose(self, error: BaseException) -> None:
        """From any thread. All that waits is let go."""
        if self._is_lost:
            return
        self._is_lost = True
        self._on_loss(error)
        self._answers.put({"key": ""})
        with submitting.directly(), suppress(Exception):
            if keys := list(self._waiting.values()):
                self._board.keep.remote(dict.fromkeys(keys))
        self._peer.hang_up()


class Hints:
    """What a worker knows of functions with hints: their place in the order. The engine's words for it are imported
    when there is one."""

    def __init__(self) -> None:
        self._hinted: Any = None

    def described(self, target: Any, hints: Any, options: dict[str, Any]) -> Any:
        """What the driver is told of a task with GPUs; None for one that Ray alone decides about."""
        if self._hinted is None:
            from egs_ray.session.described import Hinted

            self._hinted = Hinted()
        return self._hinted.described_nested(target, hints, options)

    described_nested = described

    def warn_of_lost(self, target: Any, hints: Any) -> None:
        """Drivers say it; what a worker says nobody may read."""
