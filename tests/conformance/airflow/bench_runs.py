"""The conformance suite's bench for Airflow: pipelines as DAG files, run with EgsLocalExecutor.

on        the DAG has the tag that mode on is for; what is stated of durations is what EGS has learned
observe   it has no tag
native    on another Airflow, in mode off; breakages that come with the start of Airflow's processes each have their own
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from egs_airflow.adapter import ADAPTER
from egs_airflow.agent.control import abort
from egs_airflow.audit import read_history
from egs_airflow.history.read import read_airflow
from egs_airflow.history.records import past_of
from egs_airflow.replay.dagfile import airflow_ids
from egs_airflow.rest import Rest
from egs_core.adapter import ControlRequest
from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.runlog.records import Ended, Record, Started, TaskAdded
from egs_core.surfaces import Surface
from egs_core.testing.conformance import body
from egs_core.testing.conformance.bench import BREAKAGES, Mark, Mode, Outcome, give_signal, wait_until
from egs_core.testing.conformance.pipeline import Pipeline
from tests.conformance.airflow import pipeline_dag
from tests.conformance.airflow.agents import Agent, an_agent
from tests.conformance.airflow.broken import BROKEN, break_airflow, broken_airflow, mend_airflow
from tests.conformance.airflow.live import WAIT_S, LiveAirflow
from tests.conformance.airflow.sites import Site

GPUS = 2
POOL = "order_gpu"
TAG = "egs-on"
NO_PROCESS = "no: Airflow starts a process for each task when it runs; modules and files are preloaded for it"
ALL_EDGES = "no: Airflow starts tasks by the DAG's edges, and EGS reads the same ones"
OWN_LINE = "egs: "


class DagRun:
    """A pipeline's DAG run; see `egs_core.testing.conformance.bench.Running`."""

    def __init__(self, airflow: LiveAirflow, pipeline: Pipeline, folder: Path, dag_id: str) -> None:
        self.folder, self.airflow, self._pipeline, self.dag_id = folder, airflow, pipeline, dag_id
        self._before = {path: path.stat().st_size for path in airflow.home.glob("*.log")}
        self.run_id = ""
        self.site: Site | None = None
        self.agent: Agent | None = None

    def go(self) -> None:
        """Have Airflow read the DAG file, and start a run."""
        self.airflow.reserialize()
        self.run_id = self.airflow.trigger(self.dag_id)

    def wait(self) -> Outcome:
        """See the protocol. What EGS says is what a user reads in one place: api-server, scheduler or a task's log."""
        state = self.airflow.wait_run(self.dag_id, self.run_id, deadline_s=WAIT_S)
        found = self.airflow.task_instances(self.dag_id, self.run_id)
        values = {name: self._value(name) for name in self._pipeline.leaves} if state == "success" else {}
        errors = [self._error(ti) for ti in found if ti["state"] == "failed"]
        error = "; ".join(errors) or ("" if state == "success" else f"DAG run: {state}")
        said = max(self._said(), key=len, default=())
        return Outcome(values, error, said, self._records(), self._submitted(found))

    def abort(self, task: str = "") -> None:
        """As `airflow egs abort DAG/RUN` does."""
        abort(self._rest(), ControlRequest("abort", f"{self.dag_id}/{self.run_id}", task=task, actor="test"))

    def break_now(self, how: str) -> None:
        """See the protocol."""
        if how == "uninstalled":
            assert self.site is not None
            self.site.uninstall()
        elif how == "process":
            assert self.agent is not None
            self.agent.process.kill()
        else:
            break_airflow(self.airflow, how)

    def let_go(self) -> None:
        """No task of it waits for a signal any more, and it has ended: its scenario may have failed before that."""
        give_signal(self, *{name for task in self._pipeline.tasks for phase in task.phases for name in phase.until})
        if self.run_id and self.airflow.state(self.dag_id, self.run_id) in ("queued", "running"):
            self.airflow.rest("PATCH", f"/dags/{self.dag_id}/dagRuns/{self.run_id}", {"state": "failed"})

    def _rest(self) -> Rest:
        return Rest(self.airflow.url, self.airflow.token)

    def _value(self, name: str) -> str:
        """What a task has returned; of one that was split its last phase."""
        ids = {ti["task_id"] for ti in self.airflow.task_instances(self.dag_id, self.run_id)}
        last = name if name in ids else max(one for one in ids if one.startswith(f"{name}."))
        place = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{last}/xcomEntries/return_value"
        return str(self.airflow.rest("GET", place)["value"])

    def _error(self, ti: dict[str, Any]) -> str:
        """The note in the grid, where there is one; else the exception in the log of the last try."""
        if ti["note"]:
            return str(ti["note"])
        for line in reversed(self._task_lines(ti["task_id"])):
            for detail in line.get("error_detail") or ():
                return f"{detail['exc_type']}: {detail['exc_value']}"
        return f"{ti['task_id']} failed"

    def _task_lines(self, task_id: str = "*") -> list[dict[str, Any]]:
        pattern = f"logs/dag_id={self.dag_id}/run_id={self.run_id}/task_id={task_id}/*.log"
        files = sorted(self.airflow.home.glob(pattern))
        return [line for path in files for line in _json_lines(path)]

    def _said(self) -> list[tuple[str, ...]]:
        """EGS's lines since the start of the run, each text once, by where a user reads them: in the log of a task, or
        in those of Airflow's processes, where the scheduler repeats what tasks have said."""
        logs = self.airflow.home.glob(f"logs/dag_id={self.dag_id}/run_id={self.run_id}/*/*.log")
        of_tasks = [tuple(dict.fromkeys(_own(str(line.get("event", "")) for line in _json_lines(log)))) for log in logs]
        repeated = {text for texts in of_tasks for text in texts}
        own = []
        for path in self.airflow.home.glob("*.log"):
            new = path.read_bytes()[self._before.get(path, 0) :].decode(errors="replace").splitlines()
            own.append(tuple(dict.fromkeys(text for text in _own(new) if text not in repeated)))
        return [*own, *of_tasks]

    def _records(self) -> tuple[Record, ...]:
        """The run log, of what Airflow tells."""
        seen = read_airflow(self._rest(), 0.0, self.dag_id)
        return tuple(past_of(seen, (POOL,)).records())

    def _submitted(self, found: list[dict[str, Any]]) -> tuple[str, ...]:
        """The DAG as Airflow shows it, and what was made of each task, without ids and places."""
        kept = ("task_id", "state", "priority_weight", "pool", "pool_slots", "queue", "try_number", "executor_config")
        made = sorted(json.dumps({name: ti[name] for name in kept}) for ti in found)
        tasks = self.airflow.rest("GET", f"/dags/{self.dag_id}/tasks")["tasks"]
        for one in tasks:
            one["downstream_task_ids"].sort()  # a set
        stated = sorted(json.dumps(one, sort_keys=True) for one in tasks)
        versions = self.airflow.rest("GET", f"/dags/{self.dag_id}/dagVersions")["total_entries"]
        lines = (*made, *stated, f"{versions} DAG versions")
        return tuple(line.replace(self.dag_id, "DAG").replace(str(self.folder), "FOLDER") for line in lines)


class AirflowRuns:
    """See `egs_core.testing.conformance.bench.Bench`. off: what EGS is kept from doing, for tests of the suite itself:
    `phases` are not declared, `order` leaves DAGs without the tag. native: starts the Airflow in mode off, or gives the
    one that was started before."""

    name, gpus, ahead = "airflow", GPUS, 0
    shows_devices = False

    def __init__(
        self, airflow: LiveAirflow, folder: Path, off: str = "", native: Callable[[], LiveAirflow] | None = None
    ) -> None:
        self._airflow, self._folder, self._off, self._native = airflow, folder, off, native
        self._others: dict[str, tuple[LiveAirflow, Site | None]] = {}
        self._runs: list[DagRun] = []
        self._stack = ExitStack()

    def capabilities(self) -> Mapping[str, str]:
        """As the adapter declares them of the surface with all parts; the suite's preload is of a process."""
        return {**_surface().can, "preload": NO_PROCESS}

    def breakages(self) -> Mapping[str, str]:
        """All but one."""
        return {**dict.fromkeys(BREAKAGES, "yes"), "graph": ALL_EDGES}

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> DagRun:
        """See the protocol."""
        airflow, site = self._where("native" if mode == "native" else broken)
        folder = self._folder / str(len(self._runs))
        folder.mkdir(parents=True)
        dag_id = airflow_ids([f"{self._folder.name}_{len(self._runs)}_{pipeline.name}"]).popitem()[1]
        is_hinted = mode == "on" and self._off != "phases" and broken not in ("worker", "uninstalled")
        tags = [TAG] if mode == "on" and self._off != "order" else []
        _write_dag(pipeline, folder, airflow.dags / f"{dag_id}.py", dag_id, is_hinted, tags)
        if mode == "on":
            _tell_durations(airflow, pipeline, dag_id)
        run = DagRun(airflow, pipeline, folder, dag_id)
        run.site = site
        self._runs.append(run)
        if broken == "process" or any(task.max_runtime_s for task in pipeline.tasks):
            run.agent = self._agent(airflow, folder)
        if broken in ("store", "disk"):
            break_airflow(airflow, broken)
            self._stack.callback(mend_airflow, airflow, broken)
        run.go()
        return run

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        """A file without a DAG, with two of which none is chosen, and one that is no stored DAG."""
        dags = "from airflow.sdk import DAG\n\none, two = DAG('one', schedule=None), DAG('two', schedule=None)\n"
        sources = {"nothing.py": "x = 1  # airflow dag\n", "several.py": dags, "stored.json": '{"dag": {}}'}
        for name, text in sources.items():
            (self._folder / name).write_text(text)
        return [
            ("nothing.py", lambda: self._graph("nothing.py")),
            ("one, two", lambda: self._graph("several.py")),
            ("stored.json", lambda: self._graph("stored.json")),
        ]

    def _graph(self, name: str) -> None:
        """`egs graph` where this Airflow is set up."""
        command = [sys.executable, "-m", "egs_core.cli.app", "graph", "--from", "airflow", str(self._folder / name)]
        environment = self._airflow.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        if done.returncode == 2:
            raise InputError("egs graph", done.stderr)

    def held_gpus(self) -> float:
        """Slots of the pool that Airflow has given away."""
        return float(sum(one.rest("GET", f"/pools/{POOL}")["occupied_slots"] for one in self._all()))

    def is_alive(self, mark: Mark) -> bool:
        """One that ended and was not asked for its exit code is not."""
        try:
            return bool(psutil.Process(mark.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def audit(self, outcome: Outcome) -> Mapping[str, float]:  # noqa: ARG002 - Airflow tells of the run itself
        """Of the last run: that Airflow may have seen others."""
        last = self._runs[-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRFLOW_CLI_TOKEN", last.airflow.token)
            records = read_history(AuditRequest(last.airflow.url, days=1.0, gpu_pools=(POOL,))).records()
        held = held_by_name(r for r in records if getattr(r, "workload", "") == f"{last.dag_id}/{last.run_id}")
        return {name.partition(".")[2]: seconds for name, seconds in held.items()}

    def close(self) -> None:
        """Every run has ended, and no GPU is held; Airflows of its own are gone."""
        try:
            for run in self._runs:
                run.let_go()
            wait_until(lambda: self.held_gpus() == 0, "no GPU is held any more")
        finally:
            self._stack.close()

    def _where(self, kind: str) -> tuple[LiveAirflow, Site | None]:
        """The session's Airflow, the native one, or one of the bench's own."""
        if kind not in BROKEN:
            return self._airflow, None
        if kind == "native" and self._native is not None:
            self._others[kind] = self._native(), None
        if kind not in self._others:
            found = self._stack.enter_context(broken_airflow(kind, self._folder / kind))
            self._others[kind] = found
        return self._others[kind]

    def _all(self) -> list[LiveAirflow]:
        return [self._airflow, *(airflow for airflow, _ in self._others.values())]

    def _agent(self, airflow: LiveAirflow, folder: Path) -> Agent:
        found = self._stack.enter_context(
            an_agent(
                airflow, folder / "agent.log", airflow.url, EGS_LEARN_EVERY="never", AIRFLOW_CLI_TOKEN=airflow.token
            )
        )
        wait_until(lambda: "mode on" in found.said(), "the agent's start")
        return found


@contextmanager
def airflow_runs(
    airflow: LiveAirflow, folder: Path, off: str = "", native: Callable[[], LiveAirflow] | None = None
) -> Iterator[AirflowRuns]:
    """The bench for one scenario."""
    bench = AirflowRuns(airflow, folder, off, native)
    try:
        yield bench
    finally:
        bench.close()


def held_by_name(records: Any) -> dict[str, float]:
    """GPU seconds held, by the name of the task."""
    found = list(records)
    names = {r.task: r.name for r in found if isinstance(r, TaskAdded)}
    ends = {(r.task, r.attempt): r.t for r in found if isinstance(r, Ended)}
    held: dict[str, float] = {}
    for r in found:
        if isinstance(r, Started) and r.gpus:
            held[names[r.task]] = held.get(names[r.task], 0.0) + r.gpus * (ends[r.task, r.attempt] - r.t)
    return held


def _write_dag(pipeline: Pipeline, folder: Path, file: Path, dag_id: str, is_hinted: bool, tags: list[str]) -> None:
    (folder / "pipeline.json").write_bytes(msgspec.json.encode(pipeline))
    (folder / "how.json").write_text(json.dumps({"hinted": is_hinted, "tags": tags, "pool": POOL}))
    assert body.__file__ is not None
    shutil.copy(body.__file__, folder)
    assert pipeline_dag.__file__ is not None
    text = Path(pipeline_dag.__file__).read_text()
    text = text.replace('FOLDER = ""', f"FOLDER = {str(folder)!r}").replace('DAG_ID = ""', f"DAG_ID = {dag_id!r}")
    file.write_text(text)


def _tell_durations(airflow: LiveAirflow, pipeline: Pipeline, dag_id: str) -> None:
    """What tasks are said to take, as if learned before."""
    airflow.tell_durations({dag_id: {task.name: sum(task.expect_s) for task in pipeline.tasks if task.expect_s}})


def _own(lines: Iterable[str]) -> Iterator[str]:
    """What EGS has said in these lines, without what loggers put around it."""
    for line in lines:
        if OWN_LINE in line:
            yield line.partition(OWN_LINE)[2].partition(" [egs_airflow]")[0]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _surface() -> Surface:
    return next(one for one in ADAPTER.surfaces() if one.name == "agent")
