"""Drivers of the site server's benchmark (`benchmarks.server`): a framework's tasks in batches, as its adapter sends
them: those that were granted have started and ended, as many are new. The next grants come with the answer; those that
do not are fetched.

Each driver has a pool and an engine of its own, with so many GPUs that a batch runs. Drivers' tasks are in no journal:
a server that starts again asks their drivers (decision 58), so nothing here waits for the disk.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import msgspec

from benchmarks.server_clients import Connection, Server
from egs_core.client import messages as c
from egs_core.engine import messages as m
from egs_core.graph.columns import GPU, Graph, Shape
from egs_core.site import messages as s
from egs_core.site import wire

TASKS = 100  # of a batch
BLOCK = 1000
BEAT_S = 5.0


class Driver:
    """One that has joined, with so many tasks that wait."""

    def __init__(self, server: Server, queued: int = 0) -> None:
        self._connection = Connection(server)
        name = uuid.uuid4().hex
        told = self._connection.ask("/v1/drivers", c.DriverRequest(key=name, framework="bench", pool=name))
        self._id, self._epoch = told["id"], told["epoch"]
        self._seq = self._ack = self._size = 0
        self._held: list[s.Grant] = []
        workload = m.WorkloadSubmitted("w", "bench", submission="bench")
        self._send([wire.Reported(m.NodeAdded("node", cpus=1.0, gpus=TASKS)), wire.Reported(workload)])
        for _ in range(queued // BLOCK):
            self._send([self._growing(BLOCK)])
        self._send([self._growing(queued % BLOCK + TASKS)])
        while self.poll(0.0):  # what is told of each for the run log, and the first grants
            pass

    def cycle(self) -> None:
        """A batch of tasks is granted; it runs and ends, and as many come after it."""
        while len(self._held) < TASKS:
            self.poll(10.0)
        ended, self._held = self._held[:TASKS], self._held[TASKS:]
        items: list[wire.AnyItem] = []
        for grant in ended:
            items.append(wire.Noted(s.Granted(grant)))
            items.append(wire.Reported(m.PhaseStarted(grant.phase, grant.attempt)))
            items.append(wire.Noted(s.Ended(grant.phase, grant.attempt)))
            items.append(wire.Reported(m.PhaseEnded(grant.phase, grant.attempt)))
        self._send([*items, self._growing(TASKS)])

    def poll(self, wait_s: float) -> int:
        """How many messages there were."""
        ask = c.Poll(epoch=self._epoch, ack=self._ack, wait_s=wait_s)
        answer = self._connection.post(f"/v1/drivers/{self._id}/poll", ask.model_dump_json())
        return self._take(msgspec.json.decode(answer.content, type=wire.Messages).messages)

    def _take(self, messages: tuple[wire.Message, ...]) -> int:
        """How many there were."""
        for message in messages:
            self._ack = message.number
            if isinstance(message.told, s.Grant):
                self._held.append(message.told)
        return len(messages)

    def leave(self) -> None:
        self._connection.ask(f"/v1/drivers/{self._id}/leave", c.Leave(epoch=self._epoch))

    def _growing(self, tasks: int) -> wire.Growing:
        graph = Graph()
        for number in range(self._size, self._size + tasks):
            graph.add_task(f"t{number}", (), ((GPU, Shape(0, 1000), 1.0),))
        self._size += tasks
        return wire.Growing("w", self._size - tasks, graph)

    def _send(self, items: list[wire.AnyItem]) -> None:
        self._seq += 1
        batch = wire.Batch(self._epoch, self._seq, tuple(items), self._ack)
        answer = self._connection.post(f"/v1/drivers/{self._id}/batch", msgspec.json.encode(batch))
        self._take(msgspec.json.decode(answer.content, type=wire.Answers).messages)


def batches_behind(queued: int, server: Server, _number: int) -> Callable[[], object]:
    """Of a driver: a batch behind tasks that wait."""
    return Driver(server, queued).cycle


class Waiting:
    """A driver whose tasks wait while others are measured: it runs nothing, and gives signs of life."""

    def __init__(self, server: Server, queued: int) -> None:
        self._driver = Driver(server, queued)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self._driver.poll(0.0)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._driver.leave()
