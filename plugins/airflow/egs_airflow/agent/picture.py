"""What an Airflow looks like now, for the site: pools, DAG runs under way, their open task instances. GET requests.

    pools · dags/~/dagRuns · dags/~/dagRuns/~/taskInstances     each time
    dags/ID/tasks                                               once for each version of a DAG

Of DAGs that mode on is for. Those in which nobody has set a priority by hand are ordered; what else runs takes slots of
the pools, and of it only runs are in the picture that name files to read ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from egs_airflow import config
from egs_airflow.agent.declare import ordering, stated_files
from egs_airflow.agent.instances import OPEN, Instance, read_instances, time_of
from egs_airflow.agent.tags import Modes
from egs_airflow.history.seen import workload_of
from egs_airflow.order.durations import Durations, Known, load_durations, of_rest, stated_file
from egs_airflow.order.pools import configured_pools, is_gpu_pool
from egs_airflow.order.weights import USUAL_PRIORITY, usual_s
from egs_airflow.rest import Rest, quoted
from egs_airflow.shared import Shared
from egs_core.errors import InputError

MOST_KEPT = 512
RULES = ("downstream", "upstream", "absolute")
Edges = Mapping[str, list[str]]
ACTIVE = ("queued", "running", "restarting")
"""States in which an instance has its slots; in some pools it keeps them while it is deferred."""


@dataclass(frozen=True)
class Pool:
    """slots: as configured, -1 for no limit; taken: by whatever is not ordered; is_gpu: a slot is a GPU;
    keeps_deferred: a deferred task keeps its slots."""

    name: str
    slots: int
    taken: int = 0
    is_gpu: bool = False
    keeps_deferred: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether its slots are GPUs, of which there are so many."""
        return self.is_gpu and self.slots >= 0


@dataclass(frozen=True)
class Run:
    """A DAG run: its open task instances, and who comes after whom. known_s: durations, learned or else hinted;
    p95_s: their 95th percentiles, of those that are learned; is_ordered: whether its tasks wait in the order of EGS."""

    dag_id: str
    run_id: str
    started_s: float
    downstream: Mapping[str, Collection[str]]
    instances: Sequence[Instance]
    known_s: Mapping[str, float] = field(default_factory=dict)
    is_ordered: bool = True
    p95_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def workload(self) -> str:
        """Its id at the site, and that of its submission."""
        return workload_of(self.dag_id, self.run_id)


@dataclass(frozen=True)
class Picture:
    """All that a site is told. usual_s: what a task counts in a DAG of which nothing is known; reserve_after_s: so long
    a task of several slots waits before it goes first, and slots are kept for it."""

    pools: Sequence[Pool]
    runs: Sequence[Run]
    usual_s: float
    reserve_after_s: float


@dataclass
class Camera:
    """Reads the picture again and again. edges: by DAG and its version, who comes after whom, and whether it is
    ordered."""

    rest: Rest
    modes: Modes
    edges: dict[tuple[str, int], tuple[Edges, bool]] = field(default_factory=dict)
    learned: Shared[Durations] = field(init=False)

    def __post_init__(self) -> None:
        self.learned = of_rest(self.rest)

    def look(self) -> Picture:
        """Airflow as it is now. Raises InputError where Airflow does not answer, or in a way that is not known."""
        try:
            return self._look()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(self.rest.url, f"answers in a way that is not known: {error!r}") from None

    def _look(self) -> Picture:
        path = stated_file()
        durations = self.learned.current() if path is None else load_durations(path)
        pools = [self._pool(row) for row in self.rest.rows("pools", "pools")]
        rows = self.rest.rows("dags/~/dagRuns", "dag_runs", order_by="id", state="running")
        started = {(row["dag_id"], row["dag_run_id"]): time_of(row["start_date"]) for row in rows}
        found: dict[tuple[str, str], list[Instance]] = {}
        for one in read_instances(self.rest, state=OPEN) if started else ():
            if (place := (one.dag_id, one.run_id)) in started:
                found.setdefault(place, []).append(one)
        runs = []
        for (dag, run), instances in found.items():
            edges, is_ordered = self._edges(dag, max(one.version for one in instances))
            if is_ordered or (edges and any(stated_files(one.config) for one in instances)):
                known = {**_expected(instances), **durations.get(dag, {})}
                p95 = durations.p95.get(dag, {}) if isinstance(durations, Known) else {}
                runs.append(Run(dag, run, started[dag, run], edges, instances, known, is_ordered, p95))
        return Picture(
            [self._with_taken(*pool, runs) for pool in pools],
            runs,
            usual_s(durations),
            config.seconds_of("reserve_after"),
        )

    def _pool(self, row: Mapping[str, Any]) -> tuple[Pool, int]:
        is_gpu = row["name"] in {pool.name for pool in configured_pools()} or is_gpu_pool(row["description"])
        pool = Pool(row["name"], int(row["slots"]), 0, is_gpu, bool(row["include_deferred"]))
        return pool, int(row["occupied_slots"])

    def _with_taken(self, pool: Pool, occupied: int, runs: list[Run]) -> Pool:
        holds = (*ACTIVE, "deferred") if pool.keeps_deferred else ACTIVE
        every = (one for run in runs if run.is_ordered for one in run.instances if one.pool == pool.name)
        ours = sum(one.slots for one in every if one.state in holds)
        return Pool(pool.name, pool.slots, max(0, occupied - ours), pool.is_gpu, pool.keeps_deferred)

    def _edges(self, dag: str, version: int) -> tuple[Edges, bool]:
        """Who comes after whom in a DAG, and whether EGS orders it; nothing of one that mode on is not for."""
        if self.modes.of(dag) != "on":
            return {}, False
        if (dag, version) not in self.edges:
            rows = (self.rest.get(f"dags/{quoted(dag)}/tasks") or {}).get("tasks", ())
            is_ours = bool(rows) and not any(_is_set_by_hand(row) for row in rows)
            below = {row["task_id"]: list(row["downstream_task_ids"] or ()) for row in rows}
            self.edges[dag, version] = below, is_ours
            if len(self.edges) > MOST_KEPT:
                del self.edges[next(iter(self.edges))]
        return self.edges[dag, version]


def _expected(instances: Iterable[Instance]) -> dict[str, float]:
    """Seconds that tasks are expected to take by their hints, until that is learned."""
    found = {one.task_id: ordering(one.config, f"{one.dag_id}.{one.task_id}").expect_s for one in instances}
    return {task: seconds for task, seconds in found.items() if seconds is not None}


def _is_set_by_hand(row: Mapping[str, Any]) -> bool:
    """Whether the user gave a task a priority or a weight rule, as `weights.is_set_by_hand` sees it."""
    rule = str(row["weight_rule"] or "")
    return row["priority_weight"] != USUAL_PRIORITY or not (rule == default_rule() or rule.startswith("egs_airflow."))


def default_rule() -> str:
    """The weight rule of tasks that state none, as far as this machine knows the Airflow's configuration."""
    from egs_airflow import compat

    if not compat.has_home():
        return RULES[0]
    from airflow.configuration import conf

    return str(conf.get("core", "default_task_weight_rule", fallback=RULES[0]))
