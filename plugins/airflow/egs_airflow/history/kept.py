"""When slots were kept for somebody, from Airflow's log of events: who else waited for them is held by a reservation.

kept for `large`      ├──── egs kept slots ────┤
`small` waits      ready ──┬─ reservation ─────┬─ capacity ──► queued
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from egs_airflow.history.seen import KeptSlots, Try
from egs_airflow.rest import Rest
from egs_core.errors import InputError

EVENT = "egs kept slots"
"""The event of the task for which slots were kept, at the end of that time; `extra` says what the scheduler knew."""


def read_kept(rest: Rest, since_s: float, dag_id: str = "~") -> list[KeptSlots]:
    """Each time that has ended since then; none where the asker may not see Airflow's log of events."""
    where = {} if dag_id == "~" else {"dag_id": dag_id}
    after = datetime.fromtimestamp(since_s, UTC).isoformat()
    try:
        rows = list(rest.rows("eventLogs", "event_logs", event=EVENT, after=after, order_by="when", **where))
        return [_kept(row) for row in rows]
    except (InputError, KeyError, TypeError, ValueError):  # refused, or another than we know: the rest is worth telling
        return []


def _kept(row: dict[str, str | int | None]) -> KeptSlots:
    told = json.loads(str(row["extra"]))
    until_s = datetime.fromisoformat(str(row["when"])).timestamp()
    index = row.get("map_index")
    return KeptSlots(
        dag_id=str(row["dag_id"]),
        run_id=str(row["run_id"]),
        task_id=str(row["task_id"]),
        map_index=-1 if index is None else int(index),
        pool=str(told["pool"]),
        slots=int(told["slots"]),
        reason=str(told["reason"]),
        from_s=until_s - float(told["seconds"]),
        until_s=until_s,
        gang=tuple(map(str, told.get("tasks", ()))),
    )


def held_back(one: Try, ready_s: float, until_s: float, kept: Iterable[KeptSlots]) -> Iterator[tuple[float, str, str]]:
    """When a task that waited for slots was held by a reservation, and when no longer: moment, kind and reason."""
    over_s = ready_s
    for other in sorted(kept, key=lambda found: found.from_s):
        start_s, end_s = max(other.from_s, over_s), min(other.until_s, until_s)
        if other.pool != one.pool or _is_for(other, one) or start_s >= end_s:
            continue
        if over_s > ready_s and start_s > over_s:
            yield over_s, "capacity", ""
        whom = f"gang of {other.task_id}" if other.gang else other.task_id
        yield start_s, "reservation", f"slots of pool {other.pool} were kept for {other.dag_id}.{whom} ({other.reason})"
        over_s = end_s
    if ready_s < over_s < until_s:
        yield over_s, "capacity", ""


def _is_for(kept: KeptSlots, one: Try) -> bool:
    """Whether the slots were kept for that task, or for the gang that it is in."""
    if (kept.dag_id, kept.run_id) != (one.dag_id, one.run_id):
        return False
    return one.task_id in kept.gang or (kept.task_id, kept.map_index) == (one.task_id, one.map_index)
