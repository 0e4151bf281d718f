"""A driver's or worker's end of the cluster's gate: tickets from the actor, and one thread that tells it what happens.

    submitting threads ─► ticket (a call of the actor) ─► Ray
                      └─► messages ─► thread "egs-gate" ─► one `tell` at a time, with all that has come meanwhile

Everything that is open is kept here as well, so that a gate that has started again can be told. A gate that does not
answer is ended, which makes Ray start it again; one that is silent a second time is given up.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from egs_ray import submitting
from egs_ray.gate.messages import (
    NAME,
    NAMESPACE,
    VERSION,
    Answer,
    Arrived,
    Asked,
    Attached,
    Believed,
    Ended,
    GateTask,
    GaveBack,
    Message,
    Node,
    Noted,
    answer,
    gate_tasks,
    pack,
)
from egs_ray.submission import Arrival, Needs, Ordered, Submission
from egs_ray.waiting import has_core, on_ready

PULSE_S = 1.0
CONNECT_S = 30.0  # for the actor to be there, and to answer: the first GPU task of a driver waits for it
SETTLE_S = 2.0
FRESH_S = 20.0  # a gate heard of within this time is there; it ends itself after IDLE_S
IDLE_S = 60.0
PATIENCE_S = 20.0  # without an answer for so long a gate is ended
ENGINE_PATIENCE_S = 20.0  # without a sign of life from its engine for so long a gate opens all tickets
TICKETS_AT_ONCE = 100_000
OPERATOR_S = 10.0  # for an answer to an operator


class ClusterGate:
    """See the module; a gate as `Ordering` needs one. Raises where there is none to be had.

    estimate, told, on_failure: as for the local gate; noted: what workers of this driver's job have submitted. A worker
    (`is_driver` False) makes no gate, and keeps nothing that would keep its process from ending.
    """

    def __init__(
        self,
        estimate: Callable[[Needs], float | None],
        told: Callable[[Ordered], None],
        on_failure: Callable[[BaseException], None],
        noted: Callable[[Submission], None],
        *,
        is_driver: bool = True,
    ) -> None:
        if not has_core():
            raise RuntimeError("this kind of connection to Ray (client, local mode) has no tickets")
        self._estimate, self._told, self._on_failure, self._noted = estimate, told, on_failure, noted
        self._is_driver = is_driver
        self.workload = str(ray.get_runtime_context().get_job_id())
        self.made = 0
        self.passed: dict[str, float] = {}  # task id -> Unix time at which it was let go, to its end
        self.is_aborted = False
        self._name = uuid.uuid4().hex[:16]
        self._actor: Any = None
        self._nodes: list[Node] = []
        self._lock = threading.Lock()
        self._tickets: dict[str, Any] = {}
        self._open: dict[str, Arrived] = {}  # by task id, from its submission to its end
        self._refs: dict[str, Any] = {}  # of these and of what they wait for, by id
        self._messages: deque[Message] = deque()
        self._is_off = False
        self._is_attached = False
        self._heard_s = 0.0
        self._silences = 0
        self._closing = False
        self._wake = threading.Event()
        self._answered = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="egs-gate", daemon=True)
        self._thread.start()
        self._hear()

    # --- for submitting threads ---

    def admits(self, needs: Needs) -> bool:
        """Whether the gate is there for a task with these needs, which some node must be able to run."""
        return not self._is_off and any(
            node.cpus >= needs.cpus and node.gpus >= needs.gpus and node.memory_bytes >= needs.memory_bytes
            for node in self._nodes
        )

    def ticket(self, needs: Needs, is_bare: bool) -> tuple[str, Any] | None:  # noqa: ARG002  # each has its own
        """A key and the reference to hand to the task; None when all may pass."""
        if self._is_off:
            return None
        if time.monotonic() - self._heard_s > FRESH_S:
            try:
                self._hear()  # after a long rest the gate may have ended itself
            except Exception as error:
                self._fail(error)
                return None
        with self._lock:
            self.made += 1
            key = f"{self._name}-{self.made}"
        self._tickets[key] = ref = self._actor.acquire.remote(key)
        return key, ref

    def give_back(self, key: str) -> None:
        """The ticket was not used."""
        self._tickets.pop(key, None)
        self._say(GaveBack(key))

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task of this process whose end the gate waits for."""
        return not self._open.keys().isdisjoint(task_ids)

    def add(self, arrival: Arrival, refs: dict[str, Any]) -> None:
        """refs: the result and what Ray waits for, by id; kept until they have values, else nobody would hear of it."""
        known = {reference for reference, task in arrival.direct if task in self._open}
        watched = {name: ref for name, ref in refs.items() if name not in known and name not in self._refs}
        self._open[arrival.task_id] = Arrived(arrival)
        self._refs.update(watched)
        self._say(Arrived(arrival))
        for name, ref in watched.items():
            self._await_end(name, ref)

    def _await_end(self, name: str, ref: Any) -> None:
        on_ready(ref, lambda: self._say(Ended(name)))

    def note(self, submission: Submission) -> None:
        """A submission of this worker, for the run log of its driver."""
        self._messages.append(Noted(submission))
        if not self._open:  # else the next pulse takes it along
            self._wake.set()

    def open_tasks(self) -> list[str]:
        """The tasks with tickets that this process has submitted and that have not ended, by their ids."""
        return [task_id for task_id, told in list(self._open.items()) if told.arrival.key]

    def task(self, task_id: str) -> tuple[Needs, Any] | None:
        """What a task of this process needs, and the reference to its result; None when it has ended."""
        told, ref = self._open.get(task_id), self._refs.get(task_id)
        return (told.arrival.needs, ref) if told is not None and ref is not None else None

    def cancel(self, task_ids: Iterable[str]) -> None:
        """End these tasks of this process, whether they wait or run, and their own; nothing is tried again."""
        for found in [self.task(task_id) for task_id in task_ids]:
            if found is not None:
                ray.cancel(found[1], force=True, recursive=True)

    def learned(self) -> None:
        """`estimate` knows more now."""
        waiting = [told.arrival for told in list(self._open.values())]
        believed = {arrival.task_id: self._estimate(arrival.needs) for arrival in waiting}
        self._say(Believed({task: seconds for task, seconds in believed.items() if seconds is not None}))

    def settle(self) -> None:
        """Wait a little for what the gate has still to tell."""
        with contextlib.suppress(Exception):
            self._hear(SETTLE_S)

    def close(self) -> None:
        """Ray is about to disconnect: the gate learns of it by itself."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=2.0)

    def _say(self, message: Message) -> None:
        self._messages.append(message)
        self._wake.set()

    def _hear(self, timeout_s: float = CONNECT_S) -> None:
        """Wait for an answer of the gate. Raises what keeps it from coming."""
        with self._answered:
            asked_s = time.monotonic()
            self._wake.set()
            self._answered.wait_for(lambda: self._heard_s >= asked_s or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._heard_s < asked_s:
                raise TimeoutError(f"no answer for {timeout_s:.0f} s")

    # --- the thread ---

    def _run(self) -> None:
        submitting.submit_directly()
        while not self._closing:
            try:
                self._turn()
            except Exception as error:
                if self._closing:
                    return
                self._fail(error)
                if not self._open:
                    return
            self._wake.wait(PULSE_S if self._open or not self._is_attached else None)
            self._wake.clear()

    def _turn(self) -> None:
        """Tell what there is to tell; nothing is also a sign of life, and answered."""
        try:
            if self._actor is None:
                self._actor = connect(self._is_driver)
            if self._is_attached:
                self._tell()
            else:
                self._attach()
        except RayActorError:
            if self._open:
                raise
            self._actor, self._is_attached = None, False  # it had ended itself
            self._wake.set()

    def _tell(self) -> None:
        found = self._ask(self._actor.tell.remote(self._name, pack(self._drained())))
        if found is None or not found.is_known:
            self._is_attached = False
            self._wake.set()
        else:
            self._take_in(found)

    def _attach(self) -> None:
        """Say all that is open; what was to be said of it has become part of that."""
        kept = [message for message in self._drained() if isinstance(message, (Noted, GaveBack))]
        tickets = list(self._tickets.values())
        waiting = set(ray.wait(tickets, num_returns=len(tickets), timeout=0, fetch_local=False)[1]) if tickets else ()
        opened = list(self._open.values())
        for told in opened:
            told.is_open = bool(told.arrival.key) and self._tickets.get(told.arrival.key) not in waiting
        outside = [name for name in list(self._refs) if name not in self._open]
        listed = [] if self._is_off else opened
        data = pack([Attached(self.workload, self._is_driver, listed, outside, self.is_aborted)])
        boxed = []
        if self._is_driver:
            boxed.append(self._actor.watch.options(max_task_retries=0).remote())
        found = self._ask(self._actor.attach.remote(self._name, data, boxed))
        if found is not None:
            self._is_attached = True
            if boxed:
                on_ready(boxed[0], self._lost)
            self._messages.extendleft(reversed(kept))
            self._take_in(found)

    def _drained(self) -> list[Message]:
        told = [self._messages.popleft() for _ in range(len(self._messages))]
        for message in told:
            if isinstance(message, Ended):
                self._forget(message.id)
        return told

    def _forget(self, name: str) -> None:
        self._refs.pop(name, None)
        self.passed.pop(name, None)
        if (told := self._open.pop(name, None)) is not None:
            self._tickets.pop(told.arrival.key, None)

    def _lost(self) -> None:
        """On a thread of Ray's: the gate's process has died."""
        self._is_attached = False
        self._wake.set()

    def _ask(self, call: Any) -> Answer | None:
        """The gate's answer; None when it is silent and was ended, to be asked again."""
        try:
            data = ray.get(call, timeout=PATIENCE_S * (1 + self._silences))
        except GetTimeoutError:
            self._silences += 1
            ray.kill(self._actor, no_restart=False)
            if self._silences > 1:
                self._fail(TimeoutError("the cluster's gate gives no sign of life"))
            return None
        self._silences = 0
        if not data:
            raise RuntimeError(f"the cluster's gate orders nothing: {ray.get(self._actor.why_off.remote(), timeout=5)}")
        return answer(data)

    def _take_in(self, found: Answer) -> None:
        self._nodes = found.nodes
        for told in found.granted:
            if told.task_id in self._open:
                self.passed[told.task_id] = told.granted_s
            self._told(told)
        self.cancel(found.cancelled)
        for submission in found.nested:
            self._noted(submission)
        with self._answered:
            self._heard_s = time.monotonic()
            self._answered.notify_all()

    def _fail(self, error: BaseException) -> None:
        """What comes passes; what waits is let go by the gate, which has this client no more."""
        with self._answered:
            self._failure = error
            self._answered.notify_all()
        was_off, self._is_off = self._is_off, True
        if not was_off and self._heard_s:
            self._on_failure(error)


def connect(may_make: bool) -> Any:
    """The gate's actor, which orders. Raises RuntimeError or TimeoutError with the reason where there is none."""
    for _ in range(3):
        actor = make_gate() if may_make else ray.get_actor(NAME, namespace=NAMESPACE)
        try:
            said = ray.get(actor.hello.remote(VERSION), timeout=CONNECT_S - 5)
        except RayActorError:
            continue  # it has just ended itself
        if said["version"] != VERSION:
            raise RuntimeError(f"the gate on this cluster is of version {said['version']}, not {VERSION}")
        if said["off"]:
            raise RuntimeError(f"the cluster's gate orders nothing: {said['off']}")
        return actor
    raise RuntimeError("the cluster's gate has ended again and again")


def tasks_at_gate() -> list[GateTask]:
    """All GPU tasks of the cluster that wait at the gate, or have passed it and not ended. Raises ValueError where
    there is no gate, RuntimeError where it orders nothing, TimeoutError or RayActorError when it does not answer."""
    data = ray.get(ray.get_actor(NAME, namespace=NAMESPACE).tasks.remote(), timeout=OPERATOR_S)
    if not data:
        raise RuntimeError("the cluster's gate orders nothing")
    return gate_tasks(data)


def ask_gate(asked: Asked) -> None:
    """Let the gate do what an operator asks. Raises ValueError, TimeoutError or RayActorError."""
    ray.get(ray.get_actor(NAME, namespace=NAMESPACE).ask.remote(pack(asked)), timeout=OPERATOR_S)


def make_gate(patience_s: float = ENGINE_PATIENCE_S, idle_s: float = IDLE_S, **options: Any) -> Any:
    """The actor, made where it is not there yet; options: of Ray, beside what it needs."""
    from egs_ray.gate.actor import gate_class  # brings the engine, which workers do not need

    needed: dict[str, Any] = {
        "name": NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": TICKETS_AT_ONCE,
        "enable_task_events": False,  # none of this is the user's
    }
    return ray.remote(gate_class()).options(**needed, **options).remote(patience_s, idle_s)
