"""EGS for Dagster: a whole adapter in one file, on the public surface of the core.

    job ──► plan of steps ──► convert ──► graph ──► longest remaining path ──► `dagster/priority` of each op (ordered)
    event log of an instance ──► read_history ──► egs audit, and what steps took, for the next order

An op states its GPUs by the tag `egs/gpus`, which Dagster's `tag_concurrency_limits` count, or by `@egs.task(gpus=…)`.
Dagster is imported when something is asked of it, so that `egs --help` and `egs doctor` work where it is broken.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from egs_core.adapter import AuditSource, Check, Surface, options_of_hints, private_api_checks, version_check
from egs_core.audit.observed import AuditRequest
from egs_core.compat import Feature, Features
from egs_core.errors import InputError
from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.validate import validate
from egs_core.hints import TaskHints, hints_of
from egs_core.mode import current_mode
from egs_core.notices import warn
from egs_core.runlog.past import Attempt, Needs, Offer, Past, PastRun, PastTask

KNOWN_VERSIONS = ("1.13",)
GPUS, PRIORITY = "egs/gpus", "dagster/priority"
UNKNOWN_S = 1.0  # of a step that has no past and no hint
MOST_RUNS = 1000
DAY_S = 86_400.0
INSIDE = "a step counts as using its GPUs while its code runs: Dagster does not tell what happens inside"
OUTCOMES = {"STEP_SUCCESS": "succeeded", "STEP_FAILURE": "failed", "STEP_UP_FOR_RETRY": "failed"}
ENDED = {"SUCCESS": "succeeded", "FAILURE": "failed", "CANCELED": "aborted"}


# --- private API ------------------------------------------------------------------------------------------------------


def _has(module: str, *names: str) -> bool:
    found: Any = import_module(module)
    for name in names:
        found = getattr(found, name)
    return callable(found)


FEATURES = Features(
    "EGS_DAGSTER_WITHOUT",
    Feature(
        "plan",
        "dagster._core.execution.api.create_execution_plan",
        lambda: _has("dagster._core.execution.api", "create_execution_plan"),
        "none",
        "jobs cannot be converted, so they are not ordered",
    ),
    Feature(
        "copy",
        "JobDefinition._copy: the same job with another graph",
        lambda: _has("dagster", "JobDefinition", "_copy"),
        "the job as it is",
        "jobs are not ordered",
    ),
    Feature(
        "snapshot",
        "DagsterInstance.get_execution_plan_snapshot",
        lambda: _has("dagster", "DagsterInstance", "get_execution_plan_snapshot"),
        "none",
        "the history has no edges and no GPUs",
    ),
)


# --- convert ----------------------------------------------------------------------------------------------------------


def convert(job: Any) -> LoadedWorkload:
    """A job as a workload, ops in graphs by their path. InputError for what is fixed at run time only."""
    import dagster

    if not isinstance(job, dagster.JobDefinition):
        raise InputError(type(job).__name__, "is no Dagster job", "pass what @job made")
    if not FEATURES.has("plan"):
        raise InputError(f"job {job.name!r}", f"Dagster {dagster.__version__} does not show its plan")
    from dagster._core.execution.api import create_execution_plan
    from dagster._core.execution.plan.step import ExecutionStep

    try:
        plan = create_execution_plan(job)
    except dagster.DagsterError as error:  # it needs a configuration, say
        raise InputError(f"job {job.name!r}", f"has no plan: {' '.join(str(error).split())[:300]}") from None
    for step in plan.step_dict.values():
        if not isinstance(step, ExecutionStep):
            raise InputError(f"job {job.name!r}: op {step.key}", "runs as often as a DynamicOut says, at run time")
    graph, numbers = Graph(), dict[str, int]()
    for step in plan.get_all_steps_in_topo_order():
        hints = hints_of(_function(job.get_node(step.node_handle).definition)) or TaskHints()
        gpus = float(step.tags.get(GPUS, hints.gpus or 0.0))
        shape = Shape(round(1000 * (hints.cpus or 1.0)), round(1000 * gpus), hints.memory_bytes or 0)
        seconds = sum(hints.expect_s) if hints.expect_s else None
        parents = tuple(sorted(numbers[key] for key in step.get_execution_dependency_keys()))
        options = options_of_hints(hints)
        phases = ((GPU if gpus else CPU, shape, seconds),)
        numbers[step.key] = graph.add_task(step.key, parents, phases, hints.name or step.key, options)
    validate(graph, f"job {job.name!r}")
    return LoadedWorkload(job.name, job.name, "", "", 0.0, graph)


def _function(definition: Any) -> Any:
    compute = getattr(definition, "compute_fn", None)
    return getattr(compute, "decorated_fn", compute)


# --- order ------------------------------------------------------------------------------------------------------------


def ordered(job: Any, home: Path | None = None) -> Any:
    """The job with priorities by longest remaining path; the ops at its top, whose priority nobody set by hand.

    home: DAGSTER_HOME whose past says what steps take. Never raises: what cannot be ordered comes back as it is, with
    one warning, and so does every job where EGS_MODE is `off` or `observe`.
    """
    if current_mode("on") != "on":
        return job
    try:
        return _with_priorities(job, {} if home is None else learned(past_of(home), job.name))
    except Exception as error:  # whatever changed in Dagster: the job runs as it would without EGS
        warn(f"job {getattr(job, 'name', job)} is not ordered: {error}")
        return job


def _with_priorities(job: Any, known_s: Mapping[str, float]) -> Any:
    from dagster import GraphDefinition, NodeInvocation

    if not FEATURES.has("copy"):
        raise InputError("Dagster", FEATURES["copy"].lost)
    graph = convert(job).graph
    seconds = [known_s.get(name, graph.work_s(task) or UNKNOWN_S) for task, name in enumerate(graph.ids)]
    ranks = upward_rank(graph, seconds)
    place = {rank: number for number, rank in enumerate(sorted(set(ranks)), 1)}
    priority = {name: str(place[rank]) for name, rank in zip(graph.ids, ranks, strict=True)}
    dependencies = {}
    for node in job.graph.nodes:
        stated = next(one for one in job.graph.dependencies if (one.alias or one.name) == node.name)
        tags = {PRIORITY: priority[node.name], **node.tags} if node.name in priority else node.tags
        again = NodeInvocation(stated.name, stated.alias, {**tags}, stated.hook_defs, stated.retry_policy)
        dependencies[again] = job.graph.dependencies[stated]
    same = job.graph
    inside = GraphDefinition(
        same.name,
        description=same.description,
        node_defs=same.node_defs,
        dependencies=dependencies,
        input_mappings=same.input_mappings,
        output_mappings=same.output_mappings,
        config=same.config_mapping,
        tags=same.tags,
    )
    return job._copy(graph_def=inside)


def learned(past: Past, pipeline: str) -> dict[str, float]:
    """The median seconds of each step that succeeded in the past."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in (one for run in past.runs if run.name == pipeline for one in run.attempts):
        if one.outcome == "succeeded" and one.ended_s is not None and one.code_s is not None:
            found[one.task].append(one.ended_s - one.code_s)
    return {task: statistics.median(seconds) for task, seconds in found.items()}


# --- observe and audit: what an instance keeps of its runs ------------------------------------------------------------


def past_of(home: Path, days: float = 30.0) -> Past:
    """The runs of the last days of an instance, those that go on included. Reads only."""
    from dagster import DagsterInstance

    if not home.is_dir():
        raise InputError(str(home), "is no folder", "name DAGSTER_HOME")
    past = Past("dagster", time.time(), str(home), notes=[INSIDE], edges_known=FEATURES.has("snapshot"))
    with DagsterInstance.from_config(str(home)) as instance:
        for record in instance.get_run_records(limit=MOST_RUNS):
            if record.create_timestamp.timestamp() >= past.now_s - days * DAY_S:
                past.runs.append(_run(instance, record))
    holds = [(s, one.needs.gpus) for run in past.runs for one in run.attempts if (s := one.started_s) is not None]
    ends = [(s, -one.needs.gpus) for run in past.runs for one in run.attempts if (s := one.ended_s) is not None]
    held = most = 0.0
    for _, gpus in sorted([*holds, *ends]):
        most = max(most, held := held + gpus)
    past.offers.append(Offer(0.0, "dagster", gpus=round(most)))  # what it may use nobody tells: the most at once
    return past


def _run(instance: Any, record: Any) -> PastRun:
    made, submitted_s = record.dagster_run, record.create_timestamp.timestamp()
    run = PastRun(made.run_id, made.job_name, submitted_s, record.end_time, ENDED.get(made.status.value, "aborted"))
    if made.execution_plan_snapshot_id and FEATURES.has("snapshot"):
        for step in instance.get_execution_plan_snapshot(made.execution_plan_snapshot_id).steps:
            needs = Needs(1.0, float(step.tags.get(GPUS, 0.0)))
            above = dict.fromkeys(key for given in step.inputs for key in given.upstream_step_keys)
            run.tasks.append(PastTask(step.key, step.key, needs, tuple(above)))
    known, open_ = {task.id: task for task in run.tasks}, dict[str, Attempt]()
    ended: dict[str, float] = {}
    for entry in instance.all_logs(made.run_id):
        event = entry.dagster_event
        key, kind = (event.step_key, event.event_type_value) if event is not None else (None, "")
        if key is None or key not in known:
            continue
        if kind in ("STEP_WORKER_STARTING", "STEP_START") and key not in open_:
            before = [one for one in run.attempts if one.task == key]
            ready_s = max([ended.get(key, submitted_s), *(ended.get(up, 0.0) for up in known[key].parents)])
            open_[key] = Attempt(key, len(before) + 1, ready_s, entry.timestamp, needs=known[key].needs, node="dagster")
            run.attempts.append(open_[key])
        if kind == "STEP_START":
            open_[key].code_s = entry.timestamp
        elif kind in OUTCOMES and key in open_:
            attempt = open_.pop(key)
            attempt.ended_s, attempt.outcome = entry.timestamp, OUTCOMES[kind]
            ended[key] = entry.timestamp
        elif kind == "STEP_SKIPPED":
            run.attempts.append(Attempt(key, ended_s=entry.timestamp))
    return run


# --- what `egs` asks --------------------------------------------------------------------------------------------------


class DagsterAdapter:
    """See `egs_core.adapter.Adapter` and `HistoryReader`."""

    name = "dagster"
    audit_source = AuditSource("DAGSTER_HOME of an instance.", is_path=True)

    def surfaces(self) -> tuple[Surface, ...]:
        return (
            Surface(
                "job",
                "ordered(job); egs audit --dagster DAGSTER_HOME",
                {
                    "observe": "yes",
                    "order": "yes: of the ops at the top of a job, by their priority, when the job is made",
                    "split": "no: an op is one process",
                    "preload": "no: Dagster starts a process for each step",
                    "gang": "no: Dagster starts steps one by one",
                    "preempt": "no: running steps are left alone",
                    "limits": "no: Dagster has none that EGS could set for an op",
                    "abort": "no: Dagster's own `terminate` ends runs",
                    "audit": "yes",
                },
            ),
        )

    def doctor(self) -> list[Check]:
        try:
            found = version("dagster")
        except PackageNotFoundError:
            return [Check("dagster", False, "not installed: pip install dagster")]
        return [version_check("dagster", found, KNOWN_VERSIONS, FEATURES), *private_api_checks(FEATURES)]

    def convert(self, source: Any, select: str = "") -> LoadedWorkload:
        if isinstance(source, Path) or select:
            raise InputError(str(source), "Dagster keeps jobs in code", "pass the job: convert(job)")
        return convert(source)

    def read_history(self, request: AuditRequest) -> Past:
        if request.events is None:
            raise InputError("--dagster", "needs a folder", "DAGSTER_HOME of the instance")
        return past_of(request.events, request.days)


ADAPTER = DagsterAdapter()
