"""What tasks of a driver submit on workers, at the driver: the desk to which `worker.nested` tells it.

    worker ── ask: needs ──────────────► a key, and whether to wait for what the board keeps under it
           ── add: task, arguments ────► the program, as what the script itself submits
           ── ask group, add group ────► the same of a placement group's bundles; needed: it is made before its turn
           ── over: a reference is there
           ── waits, goes: the code of a task that holds GPUs
           ── worked, progress: what the code of a task has told by `egs.work` and tells by `egs.progress`
           ── devices: which ones a task has that takes long
           ◄─ end: an operator or a limit ends it

The references are the worker's own. Where its line ends, all that it has told of counts as over, and what waits goes.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import ray

from egs_core.described import describe
from egs_core.graph.columns import GPU, Shape, TaskOptions
from egs_core.runlog.records import Work
from egs_ray import submitting
from egs_ray.functions import CREATION
from egs_ray.gate.grouping import tickets_of
from egs_ray.link import Message, Peer, Server, tell
from egs_ray.submission import Arrival, Needs
from egs_ray.told import ToldRef
from egs_ray.worker.spec import Address

describe(Needs, Arrival, TaskOptions)  # messages come on a thread for each worker


class NestedRef(ToldRef):
    """Stands for a reference of a worker's where a task has the reference to its result."""

    def __init__(self, name: str, peer: Peer) -> None:
        # Has the worker end the task.
        super().__init__(name, lambda why: tell(peer, {"m": "end", "name": name, "why": why}))


class _Worker(msgspec.Struct):
    """One process: tickets asked for and not used so far, what it watches, and tasks whose code waits there. worked:
    sums of what an actor has told by `egs.work` by now, by its creation."""

    keys: set[str] = set()
    refs: dict[str, NestedRef] = {}
    waits: set[str] = set()
    worked: dict[str, dict[str, float]] = {}


class Desk:
    """See the module. Messages come on a thread for each worker; gate: see `Ordering.gate_for_workers`. estimate:
    seconds that a task is believed to take. ordered, groups: how many tasks, and groups, of workers have had a turn."""

    def __init__(self, gate: Callable[[], Any], estimate: Callable[[Needs], float | None]) -> None:
        self._gate, self._estimate = gate, estimate
        self._workers: dict[Peer, _Worker] = {}
        self._board = ""
        self.ordered = self.groups = 0
        self._counting = threading.Lock()
        self._server = Server(ray.util.get_node_ip_address(), self._on_message, self._on_gone)

    @property
    def address(self) -> Address:
        """Where workers reach it."""
        return self._server.address

    def close(self) -> None:
        """The Ray session ends, and its workers with it."""
        self._server.close()

    def note_work(self) -> None:
        """The script is about to end: what its actors have told by now goes into its run log."""
        for worker in list(self._workers.values()):
            self._note_work(worker)

    def _note_work(self, worker: _Worker) -> None:
        worked, worker.worked = worker.worked, {}
        if worked and (gate := self._gate()) is not None:
            for creation, amounts in list(worked.items()):  # in the run log an actor's life has the actor's own id
                actor = creation.removeprefix(CREATION)
                gate.record(Work(gate.site.now(), gate.books.workload, actor, amounts=amounts))

    def _on_message(self, peer: Peer, message: Message) -> None:
        worker = self._workers.setdefault(peer, _Worker())
        kind = message["m"]
        if kind == "ask":
            tell(peer, self._answer(worker, message))
        elif kind == "ask group":
            tell(peer, self._answer_of_group(worker, message))
        elif kind == "over":
            if (ref := worker.refs.pop(message["name"], None)) is not None:
                ref.over()
        elif (gate := self._gate()) is None:
            return
        elif kind == "add":
            self._add(gate, worker, peer, message)
        elif kind == "add group":
            self._add_group(gate, worker, peer, message["members"])
        elif kind == "needed":
            for key in message["keys"]:
                gate.hand_on(key)
        elif kind == "back":
            worker.keys.discard(message["key"])
            gate.give_back(message["key"])
        elif kind == "worked" and message["id"].startswith(CREATION):
            _add_up(worker.worked.setdefault(message["id"], {}), message["amounts"])
        elif kind == "worked":
            gate.site.note(Work(gate.site.now(), gate.books.workload, message["id"], amounts=message["amounts"]))
        elif kind == "progress":
            gate.site.do(lambda: gate.site.progressed(_where(gate, message)))
        elif kind == "devices":
            gate.site.do(lambda: gate.site.has_devices(gate.books.number_of(message["id"]), tuple(message["uuids"])))
        elif kind == "waits":
            worker.waits.add(message["id"])
            gate.site.do(lambda: gate.code_waits(message["id"]))
        elif kind == "goes":
            worker.waits.discard(message["id"])
            gate.site.do(lambda: gate.loans.goes(message["id"]))

    def _on_gone(self, peer: Peer) -> None:
        worker = self._workers.pop(peer, _Worker())
        self._note_work(worker)
        for ref in worker.refs.values():
            ref.over()
        if (worker.keys or worker.waits) and (gate := self._gate()) is not None:
            for key in worker.keys:
                gate.give_back(key)
            for task in worker.waits:
                gate.site.do(lambda task=task: gate.loans.goes(task))

    def _answer(self, worker: _Worker, message: Message) -> Message:
        """To a task that is about to be submitted; without a key it passes."""
        needs, gate = msgspec.convert(message["needs"], Needs), self._gate()
        if gate is None or not gate.admits(needs):
            return {"m": "key", "key": ""}
        with submitting.directly():
            ticket = gate.tickets.take_for_worker(needs, message["bare"])
            if ticket is None:
                return {"m": "key", "key": ""}
            key, waits = ticket
            worker.keys.add(key)
            board = self._pickled_board(gate)
        return {"m": "key", "key": key, "waits": waits, "board": board}

    def _answer_of_group(self, worker: _Worker, message: Message) -> Message:
        """To a placement group that is about to be made; without keys it passes."""
        needs, gate = msgspec.convert(message["needs"], list[Needs]), self._gate()
        if gate is None:
            return {"m": "keys", "keys": []}
        with submitting.directly():
            take = partial(gate.tickets.take_for_worker, is_bare=False)
            keys = [key for key, _ in tickets_of(gate, needs, message["strategy"], take) or ()]
            worker.keys.update(keys)
            return {"m": "keys", "keys": keys, "board": self._pickled_board(gate) if keys else ""}

    def _pickled_board(self, gate: Any) -> str:
        self._board = self._board or base64.b64encode(gate.tickets.board()).decode()
        return self._board

    def _add_group(self, gate: Any, worker: _Worker, peer: Peer, members: list[dict[str, Any]]) -> None:
        from egs_ray.session.described import member  # see `_described`

        told = []
        for one in members:
            arrival = msgspec.convert(one["arrival"], Arrival)
            ref = worker.refs[arrival.task_id] = NestedRef(arrival.task_id, peer)
            worker.keys.discard(arrival.key)
            described = member(arrival.needs, msgspec.convert(one["options"], TaskOptions))
            told.append((arrival, {arrival.task_id: ref}, described))
        with self._counting:
            self.groups += 1
        gate.add_all(told)

    def _add(self, gate: Any, worker: _Worker, peer: Peer, message: Message) -> None:
        arrival = msgspec.convert(message["arrival"], Arrival)
        known = self._estimate(arrival.needs)
        arrival.seconds = arrival.seconds if known is None else known
        new = {name: NestedRef(name, peer) for name in message["names"]}
        worker.refs.update(new)
        worker.keys.discard(arrival.key)
        if arrival.key:
            with self._counting:
                self.ordered += 1
        refs = {name: worker.refs.get(name) or _over(name, peer) for name in (arrival.task_id, *_names(arrival))}
        gate.add(arrival, refs, _described(arrival, message["options"]) if message["options"] else None)


def _add_up(sums: dict[str, float], amounts: dict[str, float]) -> None:
    for unit, amount in amounts.items():
        sums[unit] = sums.get(unit, 0.0) + amount


def _where(gate: Any, message: Message) -> Any:
    """How far a task is."""
    from egs_core.site.messages import Where  # the site is there by now; a script's first task may need none

    return Where(gate.books.number_of(message["id"]), *message["told"])


def _names(arrival: Arrival) -> list[str]:
    return [reference for reference, _ in arrival.direct]


def _over(name: str, peer: Peer) -> NestedRef:
    """Of what was told of before, and has ended meanwhile."""
    ref = NestedRef(name, peer)
    ref.over()
    return ref


def _described(arrival: Arrival, options: dict[str, Any]) -> Any:
    """What its hints say of its place in the order."""
    from egs_ray.payload import Payload  # with hints and graphs: a script's first task without a GPU needs neither
    from egs_ray.session.described import Described

    needs = arrival.needs
    payload = Payload("", _elsewhere, None, (), {}, {})
    payload.cpus, payload.gpus, payload.memory_bytes = needs.cpus, needs.gpus, needs.memory_bytes
    phase = (GPU, Shape(0, max(1, round(needs.gpus * 1000))), arrival.seconds)
    return Described(payload, (phase,), msgspec.convert(options, TaskOptions))


def _elsewhere() -> None:
    """The function of a nested task is known on its worker."""
