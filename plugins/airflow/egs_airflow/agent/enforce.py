"""Finds tries and DAG runs that are past a limit, and marks them; the agent's next look ends their processes.
What is queued again Airflow itself ends, with its next heartbeat: only so does it know that another try is to follow.

Only in mode on for their DAG. A try is read from Airflow once, when its process is first seen: from then on its limits
are held against the clock of this host, which is also the one that said when it started. Airflow is asked again just
before something is marked: what has ended by itself stays as it ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from egs_airflow.agent.acts import note_act
from egs_airflow.agent.instances import (
    Instance,
    clear,
    fail_run,
    instances_place,
    iso,
    read_instances,
    run_place,
    set_state,
    time_of,
)
from egs_airflow.agent.limits import (
    Rule,
    counts_all_tries,
    may_requeue,
    reached,
    run_limits,
    task_limits,
)
from egs_airflow.agent.processes import TaskProcess
from egs_airflow.agent.tags import Modes
from egs_airflow.order.pools import configured_pools, is_gpu_pool
from egs_airflow.rest import Rest, quoted
from egs_core.engine.specs import END, REQUEUE, Limits

BEFORE_S = 30.0
RUN_LOOK_S = 10.0
MOST_ASKED = 10
"""After so many looks a process is one of another Airflow."""


class Watched(msgspec.Struct):
    """A try that has limits. used_gpu_s: GPU time of the tries before it, where that counts."""

    one: Instance
    limits: Limits
    run: Limits
    gpus: float = 0.0
    used_gpu_s: float = 0.0


class Enforcer:
    """See the module."""

    def __init__(self, rest: Rest, modes: Modes, rules: tuple[Rule, ...]) -> None:
        self._rest, self._modes, self._rules = rest, modes, rules
        self._known: dict[str, Watched | None] = {}
        self._asked: dict[str, int] = {}
        self._gpu_pools: dict[str, bool] = {}
        self._runs_due_s = 0.0

    def enforce(self, processes: list[TaskProcess], now_s: float) -> None:
        """Mark what is past its limit by now. Raises InputError where Airflow does not answer, or refuses."""
        ids = {process.instance for process in processes}
        self._known = {key: found for key, found in self._known.items() if key in ids}
        self._asked = {key: times for key, times in self._asked.items() if key in ids}
        self._identify([process for process in processes if process.instance not in self._known])
        watched = [found for found in self._known.values() if found is not None]
        for found in watched:
            text, then = reached(found.limits, found.one.started_s, now_s, found.gpus, found.used_gpu_s)
            if text:
                self._stop(found.one, text, then)
        if now_s >= self._runs_due_s:
            self._runs_due_s = now_s + RUN_LOOK_S
            of_runs = {found.one.workload: found for found in watched if found.run.amounts != (None, None, None)}
            for found in of_runs.values():
                self._enforce_run(found.one, found.run, now_s)

    def _identify(self, unknown: list[TaskProcess]) -> None:
        """Ask which tries these processes are; most often none is unknown, and nothing is asked."""
        if not unknown:
            return
        since = iso(min(process.started_s for process in unknown) - BEFORE_S)
        found = {one.id: one for one in read_instances(self._rest, state="running", start_date_gte=since)}
        for process in unknown:
            key = process.instance
            if key in found:
                self._known[key] = self._watched(found[key])
            else:
                self._asked[key] = self._asked.get(key, 0) + 1
                if self._asked[key] >= MOST_ASKED:
                    self._known[key] = None

    def _watched(self, one: Instance) -> Watched | None:
        """What to watch of a try; None where it has no limits, or its DAG is not in mode on."""
        own, run = task_limits(self._rules, one.dag_id, one.task_id, one.config), run_limits(self._rules, one.dag_id)
        if (own.is_none and run.is_none) or self._modes.of(one.dag_id) != "on":
            return None
        before = self._used_before(one) if counts_all_tries(own) and one.number > 1 else 0.0
        return Watched(one, own, run, self._gpus(one), before)

    def _gpus(self, one: Instance) -> float:
        """The slots that it holds, where they are GPUs: of a pool that is configured as one, or that EGS has made."""
        if one.pool not in self._gpu_pools:
            names = [pool.name for pool in configured_pools()]
            pool = self._rest.get(f"pools/{quoted(one.pool)}") or {}
            self._gpu_pools[one.pool] = one.pool in names or is_gpu_pool(pool.get("description"))
        return float(one.slots) if self._gpu_pools[one.pool] else 0.0

    def _used_before(self, one: Instance) -> float:
        index = f"/{one.map_index}" if one.map_index >= 0 else ""
        place = f"{instances_place(one.dag_id, one.run_id)}/{quoted(one.task_id)}{index}/tries"
        rows = (self._rest.get(place) or {}).get("task_instances", ())
        return self._gpus(one) * sum(_lasted_s(row) for row in rows if int(row["try_number"]) < one.number)

    def _stop(self, one: Instance, text: str, then: str) -> None:
        """Clear or mark a try, unless it has ended meanwhile."""
        place = instances_place(one.dag_id, one.run_id)
        now = [row for row in read_instances(self._rest, place, state="running") if row.id == one.id]
        if now and then == REQUEUE and may_requeue(one.number):
            clear(self._rest, now[0], f"{text}: queued again")
            note_act("queued again", one, text)
        elif now:
            state = "success" if then == END else "failed"
            set_state(self._rest, now, state, f"{text}: {state}")
            note_act(state, one, text)
        self._known[one.id] = None

    def _enforce_run(self, one: Instance, limits: Limits, now_s: float) -> None:
        """Fail a DAG run that is past its limit. Its GPU time is that of its tasks' newest tries."""
        run = self._rest.get(run_place(one.dag_id, one.run_id)) or {}
        started_s = time_of(run.get("start_date"))
        if run.get("state") != "running" or not started_s:
            return
        gpu_s = self._gpu_s(one, now_s) if limits.max_gpu_s is not None else 0.0
        text, _ = reached(limits, started_s, now_s, 0.0) if limits.max_runtime_s is not None else ("", "")
        if not text and limits.max_gpu_s is not None and gpu_s >= limits.max_gpu_s:
            text = f"over its limit of {limits.max_gpu_s:g} s of GPU time"
        if text:
            fail_run(self._rest, one.dag_id, one.run_id, f"{text}: failed")
            note_act("failed the DAG run of", one, text)

    def _gpu_s(self, one: Instance, now_s: float) -> float:
        instances: Iterable[Instance] = read_instances(self._rest, instances_place(one.dag_id, one.run_id))
        begun = [other for other in instances if other.started_s]
        return sum(self._gpus(other) * ((other.ended_s or now_s) - other.started_s) for other in begun)


def _lasted_s(row: dict[str, Any]) -> float:
    started_s, ended_s = time_of(row["start_date"]), time_of(row["end_date"])
    return max(0.0, ended_s - started_s) if started_s and ended_s else 0.0
