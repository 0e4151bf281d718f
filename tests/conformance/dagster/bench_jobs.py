"""The bench of the example adapter: jobs of a real Dagster, each run by a process and on an instance of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import dagster
import msgspec
import psutil

from egs_core.runlog.records import Ended, Started
from egs_core.testing.conformance.bench import BREAKAGES, LIMIT_S, Mark, Mode, Outcome, give_signal
from egs_core.testing.conformance.pipeline import Pipeline
from examples.adapter.egs_dagster import ADAPTER, FEATURES, convert, past_of

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "tests.conformance.dagster.job_of_pipeline"


class JobRun:
    """See `egs_core.testing.conformance.bench.Running`."""

    def __init__(self, pipeline: Pipeline, mode: Mode, folder: Path, broken: str) -> None:
        self.folder, self._pipeline, self._outcome = folder, pipeline, Outcome()
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (folder / "pipeline.json").write_bytes(msgspec.json.encode(pipeline))
        (folder / "leaves.json").write_text(json.dumps(pipeline.leaves))
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "EGS_TEST_FOLDER": str(folder),
            "EGS_MODE": "off" if mode == "native" else mode,
            "PYTHONPATH": str(ROOT),
        }
        if broken == "api":
            environment[FEATURES.variable] = ",".join(feature.name for feature in FEATURES)
        self._log = (folder / "log.txt").open("wb")
        command = [sys.executable, "-m", PROGRAM]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self) -> Outcome:
        """Its end, and what Dagster keeps of it."""
        self._process.wait(4 * LIMIT_S)
        self._log.close()
        lines = (self.folder / "log.txt").read_text().splitlines()
        told = self.folder / "told.json"
        assert told.exists(), "\n".join(lines[-30:])
        found = json.loads(told.read_text())
        said = dict.fromkeys(line for line in lines if line.startswith("egs:"))
        records = tuple(past_of(self.home).records())
        return Outcome(found["values"], found["error"], tuple(said), records, self._submitted())

    def abort(self, task: str = "") -> None:
        raise NotImplementedError("see surfaces")

    def break_now(self, how: str) -> None:
        raise NotImplementedError("see breakages")

    def held_gpus(self) -> float:
        """By the starts and ends in the instance's event log."""
        if not any(self.home.iterdir()):
            return 0.0
        records = past_of(self.home).records()
        started = sum(record.gpus for record in records if isinstance(record, Started))
        ended = {(r.task, r.attempt) for r in records if isinstance(r, Ended)}
        return started - sum(r.gpus for r in records if isinstance(r, Started) and (r.task, r.attempt) in ended)

    def stop(self) -> None:
        """Let everything go, and end the process and what it has started."""
        give_signal(self, *{name for task in self._pipeline.tasks for phase in task.phases for name in phase.until})
        if self._process.poll() is None:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                process.kill()
        self._process.wait()
        self._log.close()

    def _submitted(self) -> tuple[str, ...]:
        """The steps as Dagster has stored them with the run, to their last tag, and how the run was started."""
        with dagster.DagsterInstance.from_config(str(self.home)) as instance:
            (run,) = instance.get_runs()
            assert run.execution_plan_snapshot_id is not None
            plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
            steps = [f"{step.key} {step.inputs} {step.tags}" for step in plan.steps]
            return (*sorted(steps), json.dumps(run.run_config, sort_keys=True))


class DagsterJobs:
    """See `egs_core.testing.conformance.bench.Bench`. GPUs are what `tag_concurrency_limits` count."""

    name, gpus, ahead = "job", 1, 0
    shows_devices = False

    def __init__(self, folder: Path, off: bool = False) -> None:
        """off: without EGS whatever the mode, to see a scenario fail."""
        self._folder, self._off = folder, off
        self._runs: list[JobRun] = []

    def capabilities(self) -> Mapping[str, str]:
        """As the adapter declares them; the suite's pipelines have no graphs inside."""
        (surface,) = ADAPTER.surfaces()
        return {name: "yes" if surface.has(name) else answer for name, answer in surface.can.items()}

    def breakages(self) -> Mapping[str, str]:
        """Nothing of EGS runs while a job does: only what is asked when it is made can break."""
        none = "no: nothing of EGS runs while a job does, and it writes nothing"
        return {**dict.fromkeys(BREAKAGES, none), "api": "yes"}

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> JobRun:
        self._runs.append(
            JobRun(pipeline, "native" if self._off else mode, self._folder / str(len(self._runs)), broken)
        )
        return self._runs[-1]

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        return [("again", lambda: convert(_dynamic())), ("str", lambda: convert("a job"))]

    def held_gpus(self) -> float:
        return sum(run.held_gpus() for run in self._runs)

    def is_alive(self, mark: Mark) -> bool:
        return bool(psutil.pid_exists(mark.pid))

    def audit(self, outcome: Outcome) -> Mapping[str, float]:
        """From starts to ends of the last run, by the records of its history."""
        starts = {r.task: r.t for r in outcome.records if isinstance(r, Started) and r.gpus}
        return {r.task: r.t - starts[r.task] for r in outcome.records if isinstance(r, Ended) and r.task in starts}

    def close(self) -> None:
        for run in self._runs:
            run.stop()


def _dynamic() -> dagster.JobDefinition:
    """A job whose width is known at run time only."""

    def many(_context, _given):  # type: ignore[no-untyped-def]  # Dagster refuses other types
        yield dagster.DynamicOutput(1, mapping_key="one")

    def again(_context, _given):  # type: ignore[no-untyped-def]  # as above
        yield dagster.Output(1)

    out = {"result": dagster.DynamicOut()}
    first = dagster.OpDefinition(compute_fn=many, name="many", outs=out)
    each = dagster.OpDefinition(compute_fn=again, name="again", ins={"x": dagster.In()})
    dependencies = {"again": {"x": dagster.DependencyDefinition("many")}}
    return dagster.GraphDefinition("dynamic", node_defs=[first, each], dependencies=dependencies).to_job()
