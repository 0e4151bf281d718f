"""Reads an Airflow's DAGs, runs, tries and pools into `Seen`: GET requests only.

dags/~/dagRuns · dags/~/dagRuns/~/taskInstances      page by page, what has changed since a moment
…/taskInstances/ID[/INDEX]/tries                     only of tasks with more than one try
dags/ID/tasks                                        once for each DAG that ran
eventLogs                                            when EGS kept slots, where the asker may see that
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from egs_airflow.agent.instances import was_aborted
from egs_airflow.history.kept import read_kept
from egs_airflow.history.seen import WAITING, Dag, Pool, Run, Seen, Try, TryKey
from egs_airflow.order.pools import is_gpu_pool
from egs_airflow.rest import Rest, quoted
from egs_core.errors import InputError

Row = Mapping[str, Any]
DEFAULT_OWNER = "airflow"  # what Airflow writes for a DAG whose author named nobody


def read_airflow(rest: Rest, since_s: float, dag_id: str = "~", also_older: bool = False) -> Seen:
    """Runs that were submitted since then, of one DAG where named. Raises InputError for what cannot be understood.

    also_older: also runs that were submitted before and were still under way.
    """
    seen = Seen(time.time())
    try:
        seen.version = str(rest.get("version")["version"])
        seen.pools = {row["name"]: _pool(row) for row in rest.rows("pools", "pools")}
        place = f"dags/{dag_id if dag_id == '~' else quoted(dag_id)}/dagRuns"
        found = [_run(row) for row in _changed(rest, place, "dag_runs", since_s)]
        seen.runs = [run for run in found if also_older or run.submitted_s >= since_s]
        known = {(run.dag_id, run.run_id) for run in seen.runs}
        for dag in sorted({run.dag_id for run in seen.runs}):
            seen.dags[dag] = _dag(rest, dag)
        if known:
            rows = _changed(rest, f"{place}/~/taskInstances", "task_instances", since_s)
            seen.tries = _tries(rest, (row for row in rows if (row["dag_id"], row["dag_run_id"]) in known))
            seen.kept = read_kept(rest, since_s, dag_id)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"answers in a way that is not known: {type(error).__name__}: {error}"
        raise InputError(rest.url, problem.splitlines()[0]) from None
    return seen


def _changed(rest: Rest, path: str, key: str, since_s: float) -> Iterable[dict[str, Any]]:
    """Whatever ran since then was also written since then; of rows that changed while pages were read, one."""
    since = datetime.fromtimestamp(since_s, UTC).isoformat()
    rows = rest.rows(path, key, order_by="id", updated_at_gte=since)
    return {(r["dag_id"], r["dag_run_id"], r.get("task_id"), r.get("map_index")): r for r in rows}.values()


def _pool(row: Row) -> Pool:
    return Pool(row["name"], int(row["slots"]), is_gpu_pool(row["description"]), bool(row.get("include_deferred")))


def _run(row: Row) -> Run:
    submitted_s = _time(row["queued_at"]) or _time(row["start_date"]) or _time(row["run_after"]) or 0.0
    version = max((int(v["version_number"]) for v in row.get("dag_versions") or ()), default=0)
    return Run(row["dag_id"], row["dag_run_id"], row["state"] or "", submitted_s, _time(row["end_date"]), version)


def _dag(rest: Rest, dag_id: str) -> Dag:
    details = rest.get(f"dags/{quoted(dag_id)}/details") or {}
    owner = ", ".join(sorted(set(details.get("owners") or ()) - {DEFAULT_OWNER}))
    version = int((details.get("latest_dag_version") or {}).get("version_number") or 0)
    answer = rest.get(f"dags/{quoted(dag_id)}/tasks")
    return Dag(dag_id, owner, version, _parents(answer["tasks"]) if answer is not None else None)


def _parents(tasks: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    parents: dict[str, list[str]] = {}
    for task in tasks:
        parents.setdefault(task["task_id"], [])
        for child in task["downstream_task_ids"] or ():
            parents.setdefault(child, []).append(task["task_id"])
    return {task: tuple(sorted(found)) for task, found in parents.items()}


def _tries(rest: Rest, rows: Iterable[Row]) -> list[Try]:
    """Every try of every task instance, in the order of their numbers."""
    tries: dict[TryKey, Try] = {}
    for row in rows:
        for one in (*_earlier(rest, row), row):
            found = _try(one)
            tries[found.key] = found
    return [tries[key] for key in sorted(tries)]


def _earlier(rest: Rest, row: Row) -> Iterable[Row]:
    waits_again = row["start_date"] is not None and (row["state"] or "") in WAITING
    if int(row["try_number"]) <= 1 and not waits_again:
        return ()
    place = f"dags/{quoted(row['dag_id'])}/dagRuns/{quoted(row['dag_run_id'])}/taskInstances/{quoted(row['task_id'])}"
    index = f"/{row['map_index']}" if int(row["map_index"]) >= 0 else ""
    answer = rest.get(f"{place}{index}/tries")
    return answer["task_instances"] if answer is not None else ()


def _try(row: Row) -> Try:
    state = row["state"] or ""
    if state == "failed" and was_aborted(row.get("note") or ""):
        state = "aborted"  # by an operator with EGS, which Airflow has no state for
    has_run = state not in WAITING
    return Try(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        task_id=row["task_id"],
        map_index=int(row["map_index"]),
        number=int(row["try_number"]),
        state=state,
        pool=row["pool"] or "",
        slots=int(row["pool_slots"]),
        scheduled_s=_time(row["scheduled_when"]) if state else None,
        queued_s=_time(row["queued_when"]) if state not in ("", "scheduled") else None,
        started_s=_time(row["start_date"]) if has_run else None,
        ended_s=_time(row["end_date"]) if has_run else None,
        host=row["hostname"] or "",
        pid=int(row["pid"] or 0),
        version=int((row.get("dag_version") or {}).get("version_number") or 0),
        weight=int(row.get("priority_weight") or 0),
    )


def _time(value: str | None) -> float | None:
    return datetime.fromisoformat(value).timestamp() if value else None
