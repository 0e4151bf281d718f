"""Tickets: references without a value so far, for which tasks that a script has submitted wait in Ray.

    fit.remote(x)  ─►  [fit].remote(ticket, x)        Ray keeps the task until the ticket has a value

This process has the values itself (`own_values`). An actor keeps those that workers wait for; all, where Ray does not
take values of a driver's own (`promises`). While there is room for all that has not ended, a task that takes no result
passes without a ticket. Short tasks that are alike and come one after the other share one, as many as the GPUs do in a
quarter of a second (`room`): the first whose turn it is opens it for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from egs_ray import waiting
from egs_ray.own_values import make_own_values
from egs_ray.promises import Promises
from egs_ray.session.room import Room
from egs_ray.submission import Needs

NO_TURN = "nothing_to_wait_for"
ELSEWHERE = "w"  # begins the names of tickets that workers wait for
PATIENCE_S = 20.0  # without a sign of life from the holder's thread for so long, the tickets open by themselves


class Ticket(msgspec.Struct):
    """What lets tasks go that share it. refs: for those to come, one each; users: those that have it and have not
    ended; waiting: numbers of those of them that the site knows, while it is not open; then opened: when, the decision
    and why."""

    name: str
    needs: Needs
    users: int = 1
    is_open: bool = False
    opened: tuple[float, int, str] = (0.0, 0, NO_TURN)
    refs: list[Any] = []
    waiting: list[int] = []


class Tickets:
    """The tickets of one Ray session. `take` and `hold_back` are for the submitting threads, from any thread, without
    blocking; the rest is for the holder's thread.

    do: runs an action on the holder's thread; now: its clock. estimate: seconds that a task is believed to take.
    lets_pass: see `hold_back`.
    """

    def __init__(
        self,
        room: Room,
        estimate: Callable[[Needs], float | None],
        do: Callable[[Callable[[], None]], None],
        now: Callable[[], float],
        *,
        lets_pass: bool = True,
    ) -> None:
        self._room, self._estimate, self._do, self._now = room, estimate, do, now
        self._promises = Promises(PATIENCE_S, self._board_lost)
        self._own = make_own_values()
        self._own_refs: dict[str, list[Any]] = {}  # of tickets that are not open, by name
        self._heard_s = time.monotonic()
        self._lock = threading.Lock()
        self._all_open = False
        self._lets_pass = lets_pass
        self.made = 0
        self._held: dict[str, Ticket] = {}  # by the keys of tasks that have not ended
        self._held_gpus = 0.0  # what these need
        self._last = Ticket("", Needs("", 0.0, 0.0, 0))  # that others may share
        self._kept: dict[str, Any] = {}  # opened, and not yet said so to what waits for it
        self._way_s = 0.0  # that a ticket takes from here to what waits for it
        self._on_its_way: Any = None  # a call that tells how long that is now

    @property
    def are_open(self) -> bool:
        """Whether everything passes."""
        return self._all_open

    # --- for submitting threads ---

    def take(self, needs: Needs, is_bare: bool, is_shell: bool = False) -> tuple[str, Any] | None:
        """A key and the reference to hand to the task, None where it needs none; None when all may pass.

        is_bare: the task takes no other's result. is_shell: it needs a ticket of its own, for what it is told with it.
        """
        may_share = is_bare and not is_shell
        return self._take(needs, may_pass=may_share, may_share=may_share and self._lets_pass)

    def take_for_actor(self, needs: Needs, is_bare: bool, may_wait: bool) -> tuple[str, Any] | None:
        """The same for an actor. It shares none: how long it lives says nothing about the next one. may_wait: where it
        may not, it gets a key and no reference."""
        return self._take(needs, may_pass=is_bare, may_share=False, must_pass=not may_wait)

    def take_for_worker(self, needs: Needs, is_bare: bool) -> tuple[str, bool] | None:
        """The same for a task that a worker submits: a key, and whether to wait for what the board keeps under it."""
        taken = self._take(needs, may_pass=is_bare, may_share=False, is_elsewhere=True)
        return None if taken is None else (taken[0], taken[1] is not None)

    def board(self) -> bytes:
        """See `Promises.board`."""
        return self._promises.board()

    def _take(
        self, needs: Needs, *, may_pass: bool, may_share: bool, must_pass: bool = False, is_elsewhere: bool = False
    ) -> tuple[str, Any] | None:
        with self._lock:
            if self._all_open:
                return None
            self.made += 1
            key = f"{ELSEWHERE if is_elsewhere else ''}{self.made}"
            has_room = self._held_gpus + needs.gpus <= self._room.tickets
            self._held_gpus += needs.gpus
            last = self._last
            if must_pass or (may_pass and has_room and self._lets_pass):
                self._held[key] = Ticket("", needs, is_open=True, opened=(self._now(), 0, NO_TURN))
                return key, None
            if may_share and last.refs and not last.is_open and last.needs == needs:
                last.users += 1
                self._held[key] = last
                return key, last.refs.pop()
            ticket = self._held[key] = Ticket(key, needs)
        if is_elsewhere:
            return key, True
        copies = self._room.together(needs, self._estimate(needs)) if may_share else 1
        refs = self._new_copies(key, copies)
        ref = refs.pop()
        if refs:
            ticket.refs, self._last = refs, ticket
        return key, ref

    def _new_copies(self, name: str, copies: int) -> list[Any]:
        """As many references, for as many tasks, to what will be kept under the name."""
        if self._own is None:
            return self._promises.new_copies(name, copies)
        made = [self._own.new() for _ in range(copies)]
        with self._lock:
            self._own_refs[name] = list(made)
            is_open = self._all_open
        if is_open:  # meanwhile
            self._keep_values({name: None})
        return made

    def needs_of(self, key: str, gpus: float) -> Needs:
        """What the task with this ticket asks Ray for; of one that has ended only its GPUs are known."""
        ticket = self._held.get(key)
        return Needs("", 0.0, gpus, 0) if ticket is None else ticket.needs

    def way_of(self, key: str) -> float:
        """Seconds that this ticket may have taken to its task: no time in which that ran. 0 for one that passed."""
        ticket = self._held.get(key)
        return 0.0 if ticket is None or not ticket.name else self._way_s

    def hold_back(self, holds: bool) -> None:
        """Whether from now on no task passes or shares a ticket: each must be asked for by the site."""
        self._lets_pass = not holds
        self._last = Ticket("", self._last.needs)

    # --- on the holder's thread ---

    def waits(self, key: str) -> bool:
        """Whether the task with this ticket waits for it."""
        ticket = self._held.get(key)
        return ticket is not None and not ticket.is_open

    def wait(self, key: str, number: int) -> tuple[float, int, str] | None:
        """The site knows the task with this ticket now, by this number. Where it is open already: when that was, the
        decision and why."""
        ticket = self._held.get(key)
        if ticket is None or ticket.is_open:
            return ticket.opened if ticket is not None else None
        ticket.waiting.append(number)
        return None

    def open(self, key: str, decision: int = 0, reason: str = NO_TURN, value: Any = None) -> list[int]:
        """Let the tasks go that have this ticket; the numbers of those that waited. value: what a shell is told."""
        ticket = self._held.get(key)
        return self._open(ticket, decision, reason, value) if ticket is not None else []

    def forget(self, key: str) -> list[int]:
        """The task with this ticket has ended, or never used it. The numbers of those that the ticket let go with it:
        its last user was cancelled before its turn, or gave it back."""
        with self._lock:
            ticket = self._held.pop(key, None)
            if ticket is None:
                return []
            self._held_gpus -= ticket.needs.gpus
            ticket.users -= 1
            if ticket.users:
                return []
            ticket.refs = []
        return self._open(ticket, 0, NO_TURN, None)

    def give_back(self, key: str) -> list[int]:
        """Nobody has this ticket any more; what shares it goes. Their numbers."""
        ticket = self._held.get(key)
        self.forget(key)
        return self._open(ticket, 0, NO_TURN, None) if ticket is not None else []

    def live(self) -> None:
        """This process lives: call it about once a second."""
        self._heard_s = time.monotonic()
        if self._own is None or self._promises.has_board:
            self._promises.live()

    def open_if_silent(self) -> None:
        """From any thread but the holder's: where that has not called `live` for long, what waits goes. The actor does
        so by itself."""
        if self._own is not None and time.monotonic() - self._heard_s > PATIENCE_S:
            with self._lock:
                names = list(self._own_refs)
            self._keep_values(dict.fromkeys(names))

    def open_all(self) -> bool:
        """From any thread: everything passes from now on; whether that is news."""
        with self._lock:
            was_open, self._all_open = self._all_open, True
            names = {ticket.name for ticket in self._held.values() if not ticket.is_open}
        if not was_open:
            self._keep_values(dict.fromkeys(names))
        return not was_open

    def _open(self, ticket: Ticket, decision: int, reason: str, value: Any) -> list[int]:
        with self._lock:
            if ticket.is_open:
                return []
            ticket.is_open, ticket.opened = True, (self._now(), decision, reason)
        if not self._kept:
            self._do(self._keep)  # behind all that is queued by now: one call for all of it
        self._kept[ticket.name] = value
        waiting, ticket.waiting = ticket.waiting, []
        return waiting

    def _keep(self) -> None:
        kept, self._kept = self._kept, {}
        call, sent_s = self._keep_values(kept), self._now()
        if call is not None and self._on_its_way is None:
            self._on_its_way = call
            waiting.on_ready(call, lambda: self._do(lambda: self._arrived(self._now() - sent_s)))

    def _keep_values(self, values: dict[str, Any]) -> Any:
        """Keep them for whoever waits; a reference that is ready when what others keep is kept, None where that is
        nothing. From any thread."""
        if self._own is None:
            return self._promises.keep_values(values)
        for name in [name for name in values if not name.startswith(ELSEWHERE)]:
            value = values.pop(name)
            with self._lock:
                refs = self._own_refs.pop(name, [])
            for ref in refs:
                self._own.keep(ref, value)
        return self._promises.keep_values(values)

    def _arrived(self, way_s: float) -> None:
        self._way_s, self._on_its_way = (self._way_s + way_s) / 2, None

    def _board_lost(self, _call: Any) -> None:
        """From a thread of Ray's. The tickets opened so far may be lost with the process that kept them."""
        self._do(self._open_again)

    def _open_again(self) -> None:
        with self._lock:
            names = {ticket.name for ticket in self._held.values() if ticket.is_open and ticket.name}
        self._keep_values(dict.fromkeys(names))
