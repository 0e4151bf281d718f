"""A conformance pipeline as a Dagster job, made anew in every process of its run, and the program that runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import dagster
import msgspec

from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Pipeline, Task
from examples.adapter.egs_dagster import GPUS, ordered

FOLDER = "EGS_TEST_FOLDER"
PRELOADED = ["dagster", "examples.adapter.egs_dagster", "egs_core.testing.conformance.pipeline"]
CONFIG = {
    "execution": {
        "config": {
            "multiprocess": {
                "max_concurrent": 8,
                "start_method": {"forkserver": {"preload_modules": PRELOADED}},  # else each step imports them
                "tag_concurrency_limits": [{"key": GPUS, "limit": 1}],
            }
        }
    }
}


def make_job() -> dagster.JobDefinition:
    """The job of the folder that the environment names, ordered unless EGS_MODE says otherwise."""
    folder = os.environ[FOLDER]
    pipeline = msgspec.json.decode(Path(folder, "pipeline.json").read_bytes(), type=Pipeline)
    return ordered(job_of(pipeline, folder))


def job_of(pipeline: Pipeline, folder: str) -> dagster.JobDefinition:
    """One op a task, written by hand as a user would."""
    ops = {task.name: _op(task, folder) for task in pipeline.tasks}
    dependencies = {
        task.name: {f"in{i}": dagster.DependencyDefinition(up) for i, up in enumerate(task.after)}
        for task in pipeline.tasks
    }
    graph = dagster.GraphDefinition(pipeline.name, node_defs=list(ops.values()), dependencies=dependencies)
    return graph.to_job()


def _op(task: Task, folder: str) -> dagster.OpDefinition:
    (phase,) = task.phases

    def compute(context, given):  # type: ignore[no-untyped-def]  # noqa: ARG001 - Dagster refuses a type of its own choice
        body.do_phase(folder, task.name, 0, phase.seconds, phase.until)
        if task.fails:
            raise ValueError(f"{task.name} fails")
        yield dagster.Output(body.value(task.name, tuple(given[f"in{i}"] for i in range(len(task.after)))))

    return dagster.OpDefinition(
        compute_fn=compute,
        name=task.name,
        ins={f"in{i}": dagster.In() for i in range(len(task.after))},
        outs={"result": dagster.Out()},
        tags={GPUS: f"{phase.gpus:g}"} if phase.gpus else {},
    )


def main() -> None:
    """Run the job of the folder on the instance of DAGSTER_HOME; values and the first error become a file."""
    folder = Path(os.environ[FOLDER])
    leaves = json.loads((folder / "leaves.json").read_text())
    here = sys.modules[__name__] if __name__ != "__main__" else _imported()
    with (
        dagster.DagsterInstance.get() as instance,
        dagster.execute_job(dagster.reconstructable(here.make_job), instance, CONFIG) as result,
    ):
        values = {name: result.output_for_node(name) for name in leaves} if result.success else {}
        errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    causes = [error.cause or error for error in errors if error is not None]
    error = f"{causes[0].cls_name}: {causes[0].message}".strip() if causes else ""
    (folder / "told.json").write_text(json.dumps({"values": values, "error": error}))


def _imported() -> Any:
    from tests.conformance.dagster import job_of_pipeline

    return job_of_pipeline


if __name__ == "__main__":
    main()
