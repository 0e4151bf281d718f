"""Pipelines on this machine, in parallel: `from egs_kubeflow.run import run` and `egs kubeflow run pipeline.yaml`."""

from egs_kubeflow.run.api import PipelineFailed, RunResult, TaskResult, run, run_file

__all__ = ["PipelineFailed", "RunResult", "TaskResult", "run", "run_file"]
