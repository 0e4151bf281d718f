"""One attempt of one task that is no DAG: from its arguments to its outputs, by kfp's own executor.

lightweight Python component    a process of this interpreter, or of one with its packages
container component, image      a container, through docker
importer                        nothing runs
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egs_core.errors import InputError
from egs_core.worked import FOLDER, told_in
from egs_kubeflow import compat
from egs_kubeflow.run import docker
from egs_kubeflow.run.echo import AuthorsLines, Echo
from egs_kubeflow.run.forked import Starter
from egs_kubeflow.run.packages import Environments
from egs_kubeflow.run.preloads import Ahead
from egs_kubeflow.run.process import GRACE_S, Process
from egs_kubeflow.run.values import Values

VISIBLE = "CUDA_VISIBLE_DEVICES"
TOLD = ".egs-work"
"""Folder of what its processes tell by `egs.work`, in that of the attempt."""


class TaskFailed(Exception):
    """The task has failed, or could not be run; the message says how."""


@dataclass(frozen=True)
class Around:
    """What all tasks of a run share. root: the folder of the run; job: its name; number: its id. starter: of their
    processes. hides_gpus: tasks see the GPUs that they were given, and no others."""

    root: Path
    job: str
    number: str
    environments: Environments
    starter: Starter
    echo: Echo
    hides_gpus: bool


class Leaf:
    """See the module. `run` is called once; `stop` from any thread, also before. most_s: how long it may take, limit:
    which limit that is. ahead: a process that has loaded for it."""

    def __init__(
        self,
        around: Around,
        task_id: str,
        component: Any,
        executor: Any,
        folder: Path,
        most_s: float | None,
        limit: str,
        ahead: Ahead | None = None,
    ) -> None:
        self._around, self._id = around, task_id
        self._component, self._executor = component, executor
        self._folder, self._most_s, self._limit = folder, most_s, limit
        self._lines = AuthorsLines()
        self._is_late = False
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._container = ""
        self._is_stopped = False
        self._ahead = ahead

    def run(self, arguments: Values, devices: Sequence[str]) -> Values:
        """Its outputs. Raises TaskFailed."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            message, inputs = compat.task_inputs(self._component, arguments, str(self._folder))
            if self._executor.WhichOneof("spec") == "importer":
                return {"artifact": compat.imported(self._executor.importer, message, inputs, self._names())}
            code = self._start(inputs, devices)
            if self._is_late:
                raise TaskFailed(f"went over its limit of {self._limit}")
            if code:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise TaskFailed(f"{how}; its output is in {self._folder}")
            return compat.task_outputs(message, self._component)
        except (OSError, ValueError, InputError) as error:  # kfp raises ValueError for values that do not fit
            raise TaskFailed(str(error)) from error
        finally:
            if self._ahead is not None:
                self._ahead.drop()

    @property
    def pid(self) -> int:
        """The number of its process, 0 where it has none."""
        return self._process.pid if self._process is not None else 0

    def work(self) -> dict[str, float]:
        """What it has told of its work, by unit."""
        return told_in(self._folder / TOLD)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def stop(self, grace_s: float = 0.0) -> None:
        """End it; returns at once. grace_s: how long it may take to end by itself, never less than GRACE_S."""
        with self._lock:
            self._is_stopped = True
            if self._ahead is not None:
                self._ahead.give_up()
            if self._process is not None:
                self._process.stop(max(grace_s, GRACE_S))
        if self._container:
            docker.remove(self._container)

    def _start(self, inputs: dict[str, Any], devices: Sequence[str]) -> int:
        container = self._executor.container
        parts = compat.filled_command([*container.command, *container.args], inputs, self._names())
        stated = {v.name: "".join(compat.filled_command([v.value], inputs, self._names())) for v in container.env}
        if compat.runs_user_code(list(container.command)):
            command, environment = self._around.environments.ready(parts, self._id), {**os.environ, **stated}
            told = self._folder / TOLD
            told.mkdir(exist_ok=True)
            environment[FOLDER] = str(told)
            if self._around.hides_gpus:
                environment[VISIBLE] = ",".join(devices)
        else:
            self._container = f"{self._around.job}-{self._id}-{self._folder.name}".translate(_NAME)
            environment = dict(os.environ)
            command = docker.in_container(container.image, parts, stated, self._around.root, self._container, devices)
        return self._wait(command, environment)

    def _wait(self, command: list[str], environment: dict[str, str]) -> int:
        parked = self._ahead.take() if self._ahead is not None else None
        with self._lock:
            if self._is_stopped:
                raise TaskFailed("was stopped before it began")
            undo = docker.removal(self._container) if self._container else []
            self._ahead = None
            process = self._around.starter.start(command, environment, undo, parked)
            self._process = Process(process, self._folder, self._say)
        timer = threading.Timer(self._most_s or 0.0, self._stop_late)
        if self._most_s is not None:
            timer.daemon = True
            timer.start()
        try:
            return self._process.wait()
        finally:
            timer.cancel()

    def _say(self, line: str) -> None:
        if part := self._lines.part(line):
            self._around.echo(self._id, part)

    def _stop_late(self) -> None:
        self._is_late = True
        self.stop()

    def _names(self) -> dict[str, str]:
        return {
            "pipeline_resource_name": self._around.job,
            "task_resource_name": self._id,
            "pipeline_root": str(self._around.root),
            "unique_pipeline_id": self._around.number,
        }


_NAME = str.maketrans({"[": "-", "]": ""})
