"""Pipelines on this machine, in parallel: `from egs_kubeflow.run import run` and `egs kubeflow run pipeline.yaml`."""

from egs_kubeflow.run.api import PipelineFailed, Run, RunResult, TaskResult, run, run_file, start

__all__ = ["PipelineFailed", "Run", "RunResult", "TaskResult", "run", "run_file", "start"]
