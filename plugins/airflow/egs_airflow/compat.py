"""Every use of private or version-dependent Airflow API: `FEATURES` has each with its probe, fallback and what is lost.

`available(feature)` is asked where a feature is used, never at import. Naming features in the environment variable
EGS_AIRFLOW_WITHOUT (comma separated) makes their probes fail, and `version` there makes this Airflow an unknown one:
for tests, and for users of a broken build. Importing this module imports no Airflow.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from egs_airflow import own_process, own_scheduler, own_supervisor
from egs_core.compat import Feature, Features, installed_version, left_out

KNOWN_VERSIONS = ("3.3", "3.2")
WITHOUT = "EGS_AIRFLOW_WITHOUT"
TASK_RUNNER = os.path.join("airflow", "sdk", "execution_time", "task_runner.py")
"""Where a task's process begins. Under another name, its log has again what is said where DAG files are read."""
log = logging.getLogger("egs_airflow")  # that of `config.warn`, which asks this module for versions


@cache
def airflow_version() -> str:
    """The installed version of Airflow, without importing it; empty where there is none."""
    return installed_version("apache-airflow-core", "apache-airflow")


def supported(found: str) -> bool:
    """Whether EGS was tried with this minor version of Airflow; elsewhere it only observes."""
    return FEATURES.knows(found, KNOWN_VERSIONS)


def available(feature: str) -> bool:
    """Whether the API behind a feature is there, and not forbidden by EGS_AIRFLOW_WITHOUT."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what those modules warn about is not what was asked
        return FEATURES.has(feature)


def has_home() -> bool:
    """Whether an Airflow is set up here. Where none is, importing Airflow's configuration would write one."""
    if any(name.startswith("AIRFLOW__") for name in os.environ):
        return True
    return Path(os.environ.get("AIRFLOW_CONFIG", airflow_home() / "airflow.cfg")).expanduser().exists()


def airflow_home() -> Path:
    """The folder of the Airflow that is set up here, or would be."""
    return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()


def _callable(module: str, *names: str) -> bool:
    """Whether a module has that function or class, or one inside it."""
    found: Any = importlib.import_module(module)
    for name in names:
        found = getattr(found, name)
    return callable(found)


# --- dag_file: there is no public way to read a DAG file into DAG objects ---------------------------------------------


def read_dag_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The DAG objects of a file or folder by id, and errors by file; runs the files, writes nothing to the database."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(path), safe_mode=False, load_op_links=False, **_no_examples(DagBag))
    return dict(bag.dags), dict(bag.import_errors)


# --- serialized: Airflow's stored DAGs can be read back through its own classes only ----------------------------------


def serialize(dag: Any) -> dict[str, Any]:
    """A DAG as Airflow stores it."""
    from airflow.serialization.serialized_objects import DagSerialization

    stored: dict[str, Any] = DagSerialization.to_dict(dag)
    return stored


def deserialize(stored: dict[str, Any]) -> Any:
    """The scheduler's own form of a stored DAG."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(stored)


# --- mutation_hook: a policy that changes task instances is not called unless Airflow is told of it -------------------


def install_policy(policy: Any) -> None:
    """Register an object with policies in this process, those for task instances included."""
    from airflow import settings

    manager = settings.get_policy_plugin_manager()
    if not manager.is_registered(policy):
        manager.register(policy)
    settings.task_instance_mutation_hook.is_noop = False


# --- pool_stats: no public hook stands between the scheduler and the open slots it hands out --------------------------


def wrap_pool_stats(adjust: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Let `adjust` change what the scheduler of this process is told of its pools in each pass; returns the undo.

    The scheduler asks with `lock_rows`, and nobody else does.
    """
    from airflow.models.pool import Pool

    original = Pool.slots_stats

    def slots_stats(*args: Any, **kwargs: Any) -> Any:
        pools = original(*args, **kwargs)
        if kwargs.get("lock_rows"):
            adjust(pools)
        return pools

    def undo() -> None:
        Pool.slots_stats = staticmethod(original)

    Pool.slots_stats = staticmethod(slots_stats)
    return undo


def connect() -> Any:
    """A connection of its own to the metadata database: what fails on it cannot spoil the scheduler's transaction."""
    from airflow import settings

    return settings.engine.connect()


def _stored(version_id: Any, read: Callable[[Any], Any]) -> Any:
    """What `read` takes from the row of one stored version of a DAG; None where it is gone."""
    from airflow import settings
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    with Session(settings.engine) as session:
        stored = session.scalar(select(SerializedDagModel).where(SerializedDagModel.dag_version_id == version_id))
        return None if stored is None else read(stored)


def stored_tasks(version_id: Any) -> list[Mapping[str, Any]]:
    """The tasks of one stored version of a DAG as they are stored, without making objects of them; [] where it is
    gone. Reads and decodes the whole DAG: not inside a pass of the scheduler, and only for DAGs that are chosen."""
    dag = _stored(version_id, lambda stored: (stored.data or {}).get("dag")) or {}
    return [task["__var"] for task in dag.get("tasks", [])]


def stored_downstream(tasks: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Successors by task."""
    return {task["task_id"]: list(task.get("downstream_task_ids", ())) for task in tasks}


# --- attributes of operators that have no public name -----------------------------------------------------------------


def reads_for_a_task() -> bool:
    """Whether a DAG file is being read by a process that runs a task: that reads it once more, and whatever is logged
    then stands in the task's log. By the callers, which a process that reads DAG files for Airflow has not."""
    if own_process.stands_ready:
        return True
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith(TASK_RUNNER):
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return frame is not None


def is_sensor(task: Any) -> bool:
    """Whether a task waits for something outside of Airflow. Sensors have a mark; stored ones that are not mapped have
    only the dependency that goes with it."""
    marked = bool(getattr(task, "_is_sensor", False))
    return marked or any(type(dep).__name__ == "ReadyToRescheduleDep" for dep in getattr(task, "deps", ()))


def mapped_over(source: Any) -> Any:
    """The arguments that a mapped task or group is expanded over; None where this Airflow keeps them elsewhere."""
    found = getattr(source, "_expand_input", None)  # of a group; that of a task has a name that depends on its class
    if found is None:
        specified = getattr(source, "_get_specified_expand_input", None)
        found = specified() if specified is not None else None
    return getattr(found, "value", None)


def seconds(span: Any) -> float | None:
    """A limit of Airflow in seconds; None for none, and for one that is not a span of time."""
    total = getattr(span, "total_seconds", None)
    return None if total is None else float(total())


def _has_mutation_hook() -> bool:
    hook = importlib.import_module("airflow.settings").task_instance_mutation_hook
    return _callable("airflow.settings", "get_policy_plugin_manager") and hasattr(hook, "is_noop")


FEATURES = Features(
    WITHOUT,
    Feature(
        "dag_file",
        "airflow.dag_processing.dagbag.DagBag",
        lambda: _callable("airflow.dag_processing.dagbag", "DagBag"),
        "none",
        "`egs graph` cannot read DAG files",
    ),
    Feature(
        "serialized",
        "airflow.serialization: a DAG from its stored JSON",
        lambda: _callable("airflow.serialization.serialized_objects", "DagSerialization", "from_dict"),
        "only DAG objects convert",
        "stored DAGs cannot be read",
    ),
    Feature(
        "mutation_hook",
        "airflow.settings: policies, their `is_noop`",
        _has_mutation_hook,
        "none",
        "Airflow's own weights hold",
    ),
    Feature(
        "pool_stats",
        "Pool.slots_stats, airflow.settings.engine",
        lambda: _callable("airflow.models.pool", "Pool", "slots_stats"),
        "none",
        "no slot is kept",
    ),
    Feature(
        "idle_sleep",
        "airflow.jobs.scheduler_job_runner: its `time.sleep`",
        lambda: importlib.import_module("airflow.jobs.scheduler_job_runner").time is time,
        "the scheduler sleeps to the end",
        "the scheduler sleeps on when a task has ended",
    ),
    Feature(
        "ready",
        "airflow.sdk.execution_time: how a task's process is forked, and reads its DAG file",
        lambda: own_process.can_stand_ready(),
        "none",
        "no process has read its DAG file before its task comes",
    ),
    Feature(
        "watching",
        "airflow.sdk.execution_time.supervisor: ActivitySubprocess",
        lambda: own_supervisor.can_watch(),
        "none",
        "a task's end is heard of later, and its start makes two requests more before the user's code",
    ),
    Feature(
        "handing_out",
        "SchedulerJobRunner: one pass",
        lambda: own_scheduler.can_hand_out(),
        "none",
        "slots that come free are handed out at the end of a pass",
    ),
    Feature(
        "queueing",
        "SchedulerJobRunner: the step that hands out slots",
        lambda: _can_wrap_queueing(),
        "none",
        "no gang is kept together",
    ),
    Feature(
        "view",
        "airflow.api_fastapi: who may see which pages",
        lambda: view_access() is not None,
        "none",
        "there is no page in Airflow's UI",
    ),
)


# --- view: Airflow lets nobody into a plugin's pages by itself, and its own rules for that are not public -------------


class ViewAccess(NamedTuple):
    """FastAPI dependencies that refuse (401, 403) who may not see the runs of the DAG `dag_id`, or DAGs at all."""

    dag: Callable[..., Any]
    dags: Callable[..., Any]


def view_access() -> ViewAccess | None:
    """Airflow's own access rules. Probe: they are there and make dependencies. Fallback: None, so there is no page."""
    if "view" in left_out(WITHOUT):
        return None
    try:
        from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
        from airflow.api_fastapi.core_api.security import requires_access_dag

        return ViewAccess(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE), requires_access_dag("GET"))
    except Exception:  # moved or changed: an open page would be worse than none
        return None


# --- listener: what calls them is public, how it is registered is not -------------------------------------------------


def try_listener(listener: Any) -> None:
    """Register a listener with a manager of its own, as Airflow does with its own one: raises where a hook is gone or
    has other arguments. Probe: the module of the hooks, as it was called in 3.2 and 3.3. Fallback: it is not tried."""
    specs = _listener_specs()
    if specs is None:
        return
    import pluggy

    trial = pluggy.PluginManager("airflow")
    trial.add_hookspecs(specs)
    trial.register(listener)
    trial.check_pending()


def _listener_specs() -> Any:
    for name in ("airflow._shared.listeners.spec.taskinstance", "airflow.listeners.spec.taskinstance"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


# --- titles of task processes: nothing public says which process on a host runs which try -----------------------------

TASK_TITLE = re.compile(rb"airflow worker -- ([0-9a-f-]{36})[\0 ]*")
"""What Airflow's task runner calls its process, with the id of the try. Fallback: none is found, and Airflow's own
heartbeat ends what was aborted."""


# --- queueing: no public hook decides which waiting tasks the scheduler looks at when it hands out slots --------------

Queue = Callable[[int], list[Any]]
"""The scheduler's own step: sets at most so many tasks that have slots to queued, uncommitted, and returns them."""


def _can_wrap_queueing() -> bool:
    """Whether the step is there, with the arguments that are known."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    step = inspect.signature(SchedulerJobRunner._executable_task_instances_to_queued)
    return list(step.parameters) == ["self", "max_tis", "session"]


def wrap_queueing(around: Callable[[Queue, int, Any], list[Any]]) -> Callable[[], None]:
    """Let `around(queue, most, session)` do that step in this process, with `queue` the scheduler's own way of doing
    it; returns the undo. Nothing else of the scheduler's work is in that transaction: Airflow rolls it back itself
    where it gets no lock."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    original = SchedulerJobRunner._executable_task_instances_to_queued

    def step(self: Any, max_tis: int, session: Any) -> list[Any]:
        return around(lambda most: list(original(self, most, session=session)), max_tis, session)

    def undo() -> None:
        SchedulerJobRunner._executable_task_instances_to_queued = original

    SchedulerJobRunner._executable_task_instances_to_queued = step
    return undo


@contextmanager
def narrowed(session: Any, criterion: Callable[[], Any]) -> Iterator[None]:
    """While it lasts the scheduler's search for tasks that may be queued finds only what meets the criterion, if there
    is one then. That search is the one for whole task instances, at most so many."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import event
    from sqlalchemy.orm import with_loader_criteria

    def narrow(state: Any) -> None:
        try:
            only = criterion()
            found: list[Any] = state.statement.column_descriptions if only is not None and state.is_select else []
            if len(found) == 1 and found[0]["expr"] is TaskInstance and state.statement._limit_clause is not None:
                option = with_loader_criteria(TaskInstance, only, propagate_to_loaders=False)
                state.statement = state.statement.options(option)
        except Exception as error:  # raised here it would end the scheduler
            log.warning("egs: gangs are not kept together: %s: %s", type(error).__name__, error)

    event.listen(session, "do_orm_execute", narrow)
    try:
        yield
    finally:
        with suppress(Exception):  # raised here it would hide what the scheduler's own step has raised
            event.remove(session, "do_orm_execute", narrow)


def stored_gangs(tasks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The gang of each task that is in one, as `executor_config` says it."""
    found = {task["task_id"]: _stored_gang(task) for task in tasks}
    return {task: gang for task, gang in found.items() if gang}


def _stored_gang(task: Mapping[str, Any]) -> str:
    value: Any = task.get("partial_kwargs", task).get("executor_config")
    for name in ("egs", "gang"):
        value = value.get("__var", value) if isinstance(value, Mapping) else None  # dictionaries are stored in wrapping
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


# --- idle_sleep: nothing public wakes a scheduler that sleeps between two passes --------------------------------------


def wrap_idle_sleep(sleep: Callable[[float], None]) -> Callable[[], None]:
    """Let `sleep` stand for what the scheduler of this process calls between two passes; returns the undo."""
    from airflow.jobs import scheduler_job_runner

    def undo() -> None:
        scheduler_job_runner.time = time

    scheduler_job_runner.time = SimpleNamespace(**{**vars(time), "sleep": sleep})
    return undo


# --- certificates: each process that runs a task reads them for its client of the api-server, unless it is a fork -----


def load_certificates() -> None:
    """Read the certificates of Airflow's own client, which then keeps them; its forks have them. Probe: the method that
    keeps them, called as Airflow does. Fallback: each process reads them, a twentieth of a second of a processor."""
    with suppress(Exception):  # moved or changed, or a file that is not there: that is for the client to say
        from airflow.sdk.api import client

        authorities = getattr(client, "API_SSL_CA_FILE_PATH", "")  # 3.3
        if authorities == "":
            authorities = client.certifi.where()
        client.Client._get_ssl_context_cached(authorities, client.API_SSL_CERT_PATH)


# --- the DAGs that ship with Airflow: 3.2 adds them to those of any folder, 3.3 no longer has the argument ------------


def _no_examples(dag_bag: Any) -> dict[str, bool]:
    """The argument that leaves them out. Probe: it is there. Fallback: none is needed."""
    name = "include_examples"
    return {name: False} if name in inspect.signature(dag_bag).parameters else {}
