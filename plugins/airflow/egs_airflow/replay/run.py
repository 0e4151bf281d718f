"""Run workload files on a real local Airflow, natively or with EGS: every phase lasts its scaled time.

    native   each task as it is in the file is one Airflow task, in an Airflow without EGS
    egs      mode on: EGS's order, kept slots and gangs, with usual durations known; mixed tasks split into their phases

Every task is a process of its own, so a task with a `warm_key` loads in both. Memory and the transfer of files are left
out: the machine of the replay is not the machine of the trace. The clock starts with the first submission.
"""

from __future__ import annotations

from egs_airflow.replay.dagfile import airflow_ids, check_expressible, check_gangs, dag_file, usual_seconds
from egs_airflow.replay.runs import DagRuns, carry_out
from egs_core.adapter import ReplayRequest, RunOutcome
from egs_core.replayed import check, outcome


def replay(request: ReplayRequest) -> RunOutcome:
    """Run the workloads to their end on an Airflow of their own and write the run log. Raises InputError for a workload
    that cannot run on this capacity, whose durations are not known, or that Airflow has no way to express."""
    for workload in request.workloads:
        check(workload, request.cpus, request.gpus)
        check_expressible(workload, request.policy)
        check_gangs(workload, request.cpus, request.gpus)
    header, records = carry_out(dag_runs(request), request.progress)
    return outcome(request, header, records, "Airflow")


def dag_runs(request: ReplayRequest) -> DagRuns:
    """The DAG files of the workloads, and when each is to run."""
    with_egs = request.policy == "egs"
    ids = airflow_ids(workload.name for workload in request.workloads)
    return DagRuns(
        sources={
            f"workload_{number}": dag_file(w, ids[w.name], request.time_scale, split=with_egs)
            for number, w in enumerate(request.workloads)
        },
        dags=[(ids[w.name], w.submit_s * request.time_scale, {}) for w in request.workloads],
        tasks=sum(w.graph.n_tasks for w in request.workloads),
        cpus=request.cpus,
        gpus=request.gpus,
        with_egs=with_egs,
        durations={ids[w.name]: usual_seconds(w, request.time_scale) for w in request.workloads} if with_egs else {},
    )
