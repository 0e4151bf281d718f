"""`KeepsSlots`: what turns an executor of Airflow into one that keeps slots, named before it among the base classes.

    class MyExecutor(KeepsSlots, CeleryExecutor): ...

It has no part in running tasks. With the option `[egs] keep_slots = no`, and in every mode but on, it does nothing.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from egs_airflow import compat, config
from egs_airflow.executors.gangs import Gangs
from egs_airflow.executors.gate import Gate
from egs_airflow.executors.health import Reporter, drop_dead
from egs_airflow.options import GONE
from egs_airflow.order.published import forget, reader

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor as Base
else:
    Base = object  # a mixin: its base is the executor that follows it

MOST_EVENTS = 1000
NEEDS: dict[str, str] = {"slots": "pool_stats", "gangs": "queueing"}
"""What the gate does -> the API of Airflow that it needs for that."""


class KeepsSlots(Base):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Calls the gate where Airflow calls the executor; each call goes on as without EGS, whatever the gate does."""

    gate: Gate | None = None
    _open: ExitStack | None = None
    _events: deque[Any]
    _reporter: Reporter | None = None

    def start(self) -> None:
        """Make pools that are missing, start the executor, then open the gate."""
        if is_on():
            _create_missing_pools()  # before processes are forked: these then know them
        super().start()
        if is_on():
            self.gate = gate = Gate(self._log_event, config.seconds_of("reserve_after"))
            self._reporter = Reporter(gate.health)
            if config.stated_option("refresh_weights")[0]:
                config.warn(f"[egs] refresh_weights {GONE['refresh_weights']}")
            self._open = ExitStack()
            self._events = deque(maxlen=MOST_EVENTS)
            gate.guard(drop_dead)
            gate.guard(lambda: self._open_gate(gate))

    def _open_gate(self, gate: Gate) -> None:
        way_back = self._open
        if way_back is None:
            return
        gate.health.missing |= {
            part: compat.FEATURES[api].lost for part, api in NEEDS.items() if not compat.available(api)
        }
        if "slots" in gate.health.missing:
            return
        way_back.callback(compat.wrap_pool_stats(lambda pools: gate.guard(lambda: gate.adjust(pools))))
        if "gangs" not in gate.health.missing:
            told = (self._log_event, gate.reserve_after_s, gate.clock)
            gangs = gate.gangs = Gangs(self.parallelism, lambda: int(self.slots_available), *told)
            way_back.callback(
                compat.wrap_queueing(lambda queue, most, session: gangs.queue(queue, most, session, gate.guard))
            )

    def _log_event(self, event: str, extra: str, ti_key: Any) -> None:
        """One line in Airflow's log of events. Airflow 3.3 loses the record where nobody else refers to it."""
        self.log_task_event(event=event, extra=extra, ti_key=ti_key)
        self._events.append(self._task_event_logs[-1])

    def queue_workload(self, workload: Any, session: Any) -> None:
        """Take a workload from the scheduler."""
        super().queue_workload(workload, session)
        gate = self.gate
        if gate is not None:
            gate.guard(lambda: gate.note(workload))

    def heartbeat(self) -> None:
        """Start what fits and hear of what has ended, as ever; while a slot is kept the scheduler is not to sleep."""
        super().heartbeat()
        gate = self.gate
        if gate is not None:
            gate.guard(reader().tick)
            gate.guard(gate.learn)
            gate.guard(self._keep_awake)
            gate.check_recovery()
        if self._reporter is not None:
            self._reporter.tick()

    def _keep_awake(self) -> None:
        """The scheduler sleeps a second when no executor has news: tell it again of the task that has ended.

        Straight into the buffer: CeleryExecutor forgets a task of which `running_state` is told, and never frees its
        place.
        """
        task = self.gate.awaited if self.gate is not None else None
        if task is not None and task.key not in self.event_buffer:
            self.event_buffer[task.key] = ("running", task.external_id)

    def end(self) -> None:
        """Close the gate, then end the executor."""
        forget()
        if self._open is not None:
            self._open.close()
        if self._reporter is not None:
            self._reporter.close()
        super().end()


def _create_missing_pools() -> None:
    from egs_airflow.order.pools import create_pools, gpu_pool

    try:
        create_pools(resize=False)
        gpu_pool()
    except Exception as error:  # the scheduler goes on: no task is put into a pool that was not created
        config.warn(f"no pool was created: {error}")


def is_on() -> bool:
    """Whether executors of ours keep slots in this process."""
    return config.settings().mode == "on" and config.is_yes("keep_slots")
