"""Airflow's LocalExecutor, with preloaded modules, processes that stand ready, kept slots, and a queue in order.

Airflow 3.3's LocalExecutor never notes what it runs, so it believes that all of its processes are free: everything that
the scheduler hands over goes into one pipe at once, and leaves it in the order in which it came, whatever its weight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import connection
from typing import Any

from airflow.executors.local_executor import LocalExecutor

from egs_airflow import compat, config, own_scheduler, own_supervisor
from egs_airflow.executors import bell
from egs_airflow.executors.gate import Gate
from egs_airflow.executors.mixin import KeepsSlots, is_on
from egs_airflow.executors.reading import End
from egs_airflow.executors.ready import ReadyQueue
from egs_airflow.executors.room import Room
from egs_airflow.executors.waking import Manners, Running, Runs, sleep_until


class EgsLocalExecutor(KeepsSlots, LocalExecutor):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """`[core] executor = egs_airflow.executors.EgsLocalExecutor`."""

    activity_queue: Any
    _started: Running
    _runs: Runs
    _manners: Manners
    _handed: set[bytes]
    _ready: ReadyQueue | None = None
    _room: Room | None = None
    _undo: ExitStack | None = None

    def start(self) -> None:
        """Import what is to be preloaded, then start the executor: its processes are forks of this one."""
        from egs_airflow.preload.modules import preload_modules

        preload_modules()
        self._undo = undo = ExitStack()
        if config.settings().mode == "on":
            undo.callback(bell.take_down)
            rung = bell.hang()
            if is_on() and self.is_mp_using_fork and compat.available("watching"):
                undo.callback(own_supervisor.watch(rung.ring))
                rung.tasks_ring = False
        self._ready, self._room = None, _make_room() if self.is_mp_using_fork else None
        super().start()
        self._started, self._runs, self._manners, self._handed = Running(), Runs(), Manners(), set()
        if self.gate is not None:
            self.gate.guard(self._wake_scheduler)

    def _spawn_worker(self) -> None:
        """Fork a process that takes workloads from the queue, and where processes may stand ready has one do so."""
        queue = self.activity_queue
        if self._room is not None:
            self._ready = self._ready or ReadyQueue(queue, self._room)
            self.activity_queue = self._ready
        try:
            super()._spawn_worker()
        finally:
            self.activity_queue = queue

    def _wake_scheduler(self) -> None:
        if self._open is not None and compat.available("idle_sleep"):
            self._open.callback(
                compat.wrap_idle_sleep(lambda longest_s: sleep_until(self._has_news, longest_s, self._hear))
            )

        if self._open is not None and compat.available("handing_out"):
            self._open.callback(own_scheduler.wrap_scheduling(self._before_pass))
            self._started.is_followed = True

    def _before_pass(self, hand_out: own_scheduler.HandOut) -> None:
        """A slot that a task has given back goes at once to a task that waits for it, where that is for sure; then the
        pass waits for a moment until the code of what has just got its slots begins."""
        gate, begun, rung = self.gate, bell.begun, bell.hung
        if gate is None or begun is None or rung is None:
            return
        early = begun.ids()
        gate.guard(lambda: self._give_way(gate, hand_out, early, begun, rung))
        self._handed = set()  # also where the gate is paused

    def _give_way(
        self,
        gate: Gate,
        hand_out: own_scheduler.HandOut,
        early: set[bytes],
        begun: bell.Bell,
        rung: bell.Bell,
    ) -> None:
        """early: those that have begun by now. What ends meanwhile is followed at once, by the pass where need be."""
        if rung.has_rung():
            self._ended_now()
        follows = self._hand_out(gate, self._started.take_over(), hand_out)
        given, self._handed = self._handed - early, set()
        with self._manners.waiting(given, follows=follows) as until_s:
            while given and (left_s := until_s - time.monotonic()) > 0:
                connection.wait([begun.fileno(), rung.fileno()], left_s)
                given -= begun.ids()
                if rung.has_rung() and self._ended_now():
                    if not self._hand_out(gate, self._started.take_over(), hand_out):
                        return
                    given |= self._handed
                    self._handed = set()

    def _hand_out(self, gate: Gate, over: Sequence[End], hand_out: own_scheduler.HandOut) -> bool:
        """Whether slots that these gave back were given to others."""
        if over and self.slots_available > 0 and gate.may_hand_out(over) and hand_out():
            self.heartbeat()
            return True
        return False

    def _ended_now(self) -> bool:
        self._started.ask_now()
        return self._started.have_ended()

    def _hear(self, longest_s: float) -> None:
        """Sleep until a task rings, or a process has ended."""
        try:
            connection.wait([self.result_queue._reader, *([bell.hung] if bell.hung is not None else ())], longest_s)
        except Exception:  # raised here it would end the scheduler
            time.sleep(longest_s)

    def _has_news(self) -> bool:
        """Whether a process has ended, or a task whose process still lives; or a DAG run has come."""
        if bell.hung is not None and bell.hung.has_rung():
            self._started.ask_now()
        news: list[bool] = []
        if self.gate is not None:
            self.gate.guard(lambda: news.append(self._started.have_ended() or self._runs.have_come()))
        return any(news) or not self.result_queue.empty()

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        """Hand workloads to the processes, and note that these are taken: what comes next waits here, by weight."""
        super()._process_workloads(workload_list)
        if self.gate is not None:
            self._started.note(workload_list)
            if self._started.is_followed:
                self._handed |= {workload.ti.id.bytes for workload in workload_list if hasattr(workload, "ti")}
            self.running.update(workload.ti.key for workload in workload_list if hasattr(workload, "ti"))

    def end(self) -> None:
        """End as ever."""
        super().end()
        if self._undo is not None:
            self._undo.close()
        if self._room is not None:
            self._room.close()


def _make_room() -> Room | None:
    """For processes that have read their DAG file before their task comes; None where there are to be none."""
    most = config.number_of("ready_processes")
    if config.settings().mode != "on" or not most or not compat.available("ready"):
        return None
    try:
        return Room(most)
    except (OSError, AttributeError) as error:  # a system without files in memory
        config.warn(f"no process stands ready: {type(error).__name__}: {error}")
        return None
