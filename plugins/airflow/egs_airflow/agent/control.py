"""Abort a DAG run, a task group of it or a task; and list what runs. An operator's act: it works in every mode.

    mark it failed, with a note ─► Airflow tries nothing again ─► the processes on this host are ended
                                                              └─► on another host its agent does that, within a second;
                                                                  where none runs, Airflow's heartbeat, in about ten

Teardown tasks of a run go on, as Airflow has it. `egs abort --on airflow DAG/RUN` and `airflow egs abort` come here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from egs_airflow import compat
from egs_airflow.agent.instances import (
    ABORTED,
    OPEN,
    Instance,
    fail_run,
    instances_place,
    own_names,
    read_instances,
    run_place,
    set_state,
)
from egs_airflow.agent.processes import ON_KILL_S, end_processes, task_processes
from egs_airflow.rest import PORT, Rest, connect
from egs_core.adapter import ControlOutcome, ControlRequest, RunningTask, RunningWorkload, who
from egs_core.errors import InputError, listed

SHOWN = 8
RUNS = "running", "queued"


class Aborted(NamedTuple):
    """tasks: that were marked; here: of these ended on this host; hosts: others on which processes are left to end."""

    tasks: tuple[str, ...]
    here: tuple[str, ...]
    hosts: tuple[str, ...]


def control(request: ControlRequest) -> ControlOutcome:
    """See `egs_core.adapter.Controlling`. Only aborting: Airflow pauses DAGs by itself. InputError for what is not."""
    if request.verb != "abort":
        raise InputError(f"egs {request.verb}", "cannot be done on Airflow", "egs abort; airflow dags pause")
    rest = connect(request.address or own_url())
    done = abort(rest, request)
    return ControlOutcome(request.workload, rest.url, done.tasks)


def running(address: str, user: str = "") -> list[RunningWorkload]:
    """The DAG runs that are under way, with the task instances that run. Raises InputError."""
    rest = connect(address or own_url(), user)
    runs = [run for state in RUNS for run in rest.rows("dags/~/dagRuns", "dag_runs", order_by="id", state=state)]
    return [_workload(rest, run["dag_id"], run["dag_run_id"], str(run["state"])) for run in runs]


def own_url() -> str:
    """The Airflow that is set up here, by its own [api] base_url; else one on this machine."""
    url = ""
    if compat.has_home():  # without one, Airflow's configuration would be written
        from airflow.configuration import conf

        url = conf.get("api", "base_url", fallback="")
    return url or f"http://127.0.0.1:{PORT}"


def abort(rest: Rest, request: ControlRequest) -> Aborted:
    """End what runs of a DAG run (stage: of a task group; task: of a task, `fit` or `fit[3]`), for good.

    Raises InputError that names what there is, for what is unknown or has ended.
    """
    dag_id, run_id = _parts(rest, request.workload)
    text = f"{ABORTED} {request.actor or who()}" + (f": {request.reason}" if request.reason else "")
    chosen = _chosen(rest, request, instances_place(dag_id, run_id))
    if request.stage or request.task:
        set_state(rest, chosen, "failed", text)
    else:
        fail_run(rest, dag_id, run_id, text)
    marked = _marked(rest, chosen, instances_place(dag_id, run_id))
    ended = {process.instance for process in _end(marked, request.grace_s)}
    if not (request.stage or request.task):
        set_state(rest, marked, "", text)
    here = tuple(one.name for one in marked if one.id in ended)
    left = {one.id for one in chosen if one.state == "running"} - ended
    hosts = {one.host for one in marked if one.id in left} - set(own_names())
    return Aborted(tuple(one.name for one in marked), here, tuple(sorted(hosts)))


def _parts(rest: Rest, workload: str) -> tuple[str, str]:
    """DAG id and run id; the run is there, and open. Raises InputError."""
    dag_id, slash, run_id = workload.partition("/")
    run = rest.get(run_place(dag_id, run_id)) if dag_id and slash and run_id else None
    if run is None:
        rows = rest.rows("dags/~/dagRuns", "dag_runs", order_by="id", state="running")
        there = [f"{row['dag_id']}/{row['dag_run_id']}" for row in rows]
        raise InputError(workload, "no such DAG run", f"DAG/RUN; there run: {listed(there, SHOWN)}")
    if run["state"] not in RUNS:
        raise InputError(workload, f"has ended: {run['state']}")
    return dag_id, run_id


def _chosen(rest: Rest, request: ControlRequest, place: str) -> list[Instance]:
    """What is open of the run and was meant. Raises InputError where a group or a task was named and nothing is."""
    query: dict[str, object] = {"task_group_id": request.stage} if request.stage else {}
    found = read_instances(rest, place, state=OPEN, **query)
    if not request.stage and not request.task:
        return found
    chosen = [one for one in found if request.task in ("", one.task_id, one.name)]
    if not chosen:
        names = sorted({one.name for one in found})
        what = request.task or f"group {request.stage}"
        hint = f"open are: {', '.join(names[:SHOWN]) or 'none'}{', …' if len(names) > SHOWN else ''}"
        raise InputError(request.workload, f"{what} is not there, or has ended", hint)
    return chosen


def _marked(rest: Rest, chosen: Iterable[Instance], place: str) -> list[Instance]:
    """Those that are failed now. A task that ended by itself meanwhile, and a teardown of a run, are not."""
    ids = {one.id for one in chosen}
    return [one for one in read_instances(rest, place, state="failed") if one.id in ids]


def _end(marked: Iterable[Instance], grace_s: float) -> list[Any]:
    ids = {one.id for one in marked}
    return end_processes([p for p in task_processes() if p.instance in ids], max(grace_s, ON_KILL_S))


def _workload(rest: Rest, dag_id: str, run_id: str, state: str) -> RunningWorkload:
    found = read_instances(rest, instances_place(dag_id, run_id))
    return RunningWorkload(
        workload=f"{dag_id}/{run_id}",
        driver=rest.url,
        state=state,
        tasks=len(found),
        open=sum(one.is_open for one in found),
        running=tuple(_task(one) for one in found if one.state == "running"),
    )


def _task(one: Instance) -> RunningTask:
    return RunningTask(one.name, one.task_id, "", one.state, one.started_s, 0.0, one.host, one.pid)
