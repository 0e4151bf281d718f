"""The conformance suite's bench for the local runner: real kfp pipelines, on this machine, with emulated GPUs.

on        `egs_kubeflow.run.start`, in this process
native    kfp's own local runner, in a process of its own
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from egs_core.runlog.io import read_run
from egs_core.testing.conformance.bench import BREAKAGES, LIMIT_S, Mark, Mode, Outcome, give_signal
from egs_core.testing.conformance.pipeline import Pipeline
from egs_core.testing.wire_site import look_behind
from egs_kubeflow.adapter import ADAPTER
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.run import Run, start
from tests.conformance.kubeflow import pipelines
from tests.conformance.kubeflow.suite_pipeline import text_of

GPUS, CPUS = 2, 8
EXCEPTION = re.compile(r"^\s*(\w+Error: .*)$", re.MULTILINE)
RUNNER = "no: the runner is EGS's own; kfp.local runs the same pipeline"
CANNOT_BREAK = {
    "graph": "no: the runner reads the edges that kfp has compiled, and nothing else",
    "api": f"{RUNNER}, and without what EGS uses of it nothing starts",
    "engine": f"{RUNNER}: a fault of the engine ends the run with an error",
    "uninstalled": RUNNER,
}
BLOCKER = """
import sys

class _No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egs_core", "egs_kubeflow"):
            raise ImportError(name)

sys.meta_path.insert(0, _No())
"""
NATIVE = """
import importlib.util, sys
from kfp import local
spec = importlib.util.spec_from_file_location("pipeline", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2], workspace_root=sys.argv[2] + "-workspace")
module.pipeline()
"""


class NativeRun:
    """A pipeline under kfp's own runner."""

    def __init__(self, pipeline: Pipeline, folder: Path, module: Path) -> None:
        self.folder, self._pipeline, self._root = folder, pipeline, folder / "out"
        command = [sys.executable, "-c", NATIVE, str(module), str(self._root)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )

    def wait(self) -> Outcome:
        """See `egs_core.testing.conformance.bench.Running`; values are what its tasks have left in their folders."""
        said, _ = self._process.communicate(timeout=LIMIT_S)
        if self._process.returncode:
            return Outcome(error=_exceptions(said)[0])  # the task's own; kfp's about the pipeline follows
        return Outcome({name: self._value(name) for name in self._pipeline.leaves}, said=_own(said))

    def abort(self, task: str = "") -> None:
        raise NotImplementedError("it is kfp's")

    def break_now(self, how: str) -> None:
        raise NotImplementedError("it is kfp's")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def held_gpus(self) -> float:
        return 0.0

    def _value(self, name: str) -> str:
        (path,) = self._root.glob(f"*/{name}/executor_output.json")
        return str(json.loads(path.read_text())["parameterValues"]["Output"])


class LocalRun:
    """A pipeline under EGS's runner."""

    def __init__(self, pipeline: Pipeline, folder: Path, stderr: io.StringIO, made: Run) -> None:
        self.folder, self._pipeline, self._stderr, self._made = folder, pipeline, stderr, made
        self._is_over = False

    def wait(self) -> Outcome:
        """See `egs_core.testing.conformance.bench.Running`."""
        result = self._made.wait()
        self._is_over = True
        outputs = {task.task.partition(".")[0]: task.outputs for task in result.tasks}  # of phases the last one
        is_good = result.state == "succeeded"
        values = {name: str(outputs[name]["Output"]) for name in self._pipeline.leaves} if is_good else {}
        errors = ["".join(_exceptions(_log(task.folder))) or f"{task.task} {task.error}" for task in result.failed]
        error = "" if is_good else "; ".join(errors) or result.state
        log = self._made.runlog
        records = () if log.is_symlink() else tuple(read_run(log).records)
        return Outcome(values, error, _own(self._stderr.getvalue()), records)

    def abort(self, task: str = "") -> None:
        """As a user does who has started the run."""
        self._made.abort(task)

    def break_now(self, how: str) -> None:
        """Kill the process that tasks are forked from."""
        assert how == "process"
        (server,) = [one for one in psutil.Process().children() if str(self._made.folder) in one.cmdline()]
        os.kill(server.pid, signal.SIGKILL)

    def held_gpus(self) -> float:
        """By the engine's leases."""
        if self._is_over:
            return 0.0
        leases = look_behind(self._made._session.site, lambda engine: list(engine.state.leases.values()))
        return sum(lease.gpu_milli * len(lease.devices) for lease in leases) / 1000

    def close(self) -> None:
        """No task of it waits for a signal any more, and it has ended: its scenario may have failed before that."""
        give_signal(self, *{name for task in self._pipeline.tasks for phase in task.phases for name in phase.until})
        if not self._is_over:
            self._made.abort()
            self._made.wait()


class LocalRuns:
    """See `egs_core.testing.conformance.bench.Bench`. is_split: phases are declared; is_loading: preloads are; options:
    of each run."""

    name, gpus, ahead = "local", GPUS, 0
    shows_devices = True

    def __init__(self, folder: Path, is_split: bool = True, is_loading: bool = True, **options: Any) -> None:
        self._folder, self._is_split, self._is_loading, self._options = folder, is_split, is_loading, options
        self._runs: list[LocalRun | NativeRun] = []
        self._stderr = io.StringIO()
        self._redirected = contextlib.ExitStack()

    def capabilities(self) -> Mapping[str, str]:
        """What the adapter declares of this machine; the suite's pipelines are within the limits that it names."""
        (surface,) = (one for one in ADAPTER.surfaces() if one.name == "run")
        return surface.can

    def breakages(self) -> Mapping[str, str]:
        """What can happen to a runner in the user's own process, and to the process it forks tasks from."""
        return {**dict.fromkeys(BREAKAGES, "yes"), **CANNOT_BREAK}

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> LocalRun | NativeRun:
        """See the protocol."""
        folder = self._folder / str(len(self._runs))
        folder.mkdir()
        if not self._runs:  # not earlier: pytest puts its own in place when a test begins
            self._redirected.enter_context(contextlib.redirect_stderr(self._stderr))
        environment = {"PYTHONPATH": str(folder)} if broken == "worker" else {}
        if broken == "worker":
            (folder / "sitecustomize.py").write_text(BLOCKER)
        module = folder / "pipeline.py"
        module.write_text(text_of(pipeline, folder, environment, self._is_split, self._is_loading))
        if any(task.loads for task in pipeline.tasks):
            self._redirected.enter_context(contextlib.chdir(folder))  # where its module to preload is
        if mode == "native":
            self._runs.append(NativeRun(pipeline, folder, module))
        else:
            self._runs.append(LocalRun(pipeline, folder, self._stderr, self._started(module, folder, broken)))
        return self._runs[-1]

    def _started(self, module: Path, folder: Path, broken: str) -> Run:
        log, history = folder / "run.jsonl", folder / "history.db"
        if broken == "disk":
            log.symlink_to("/dev/full")
        elif broken == "store":
            history.write_bytes(b"no database" * 1000)
        places: dict[str, Any] = {"root": folder / "out", "runlog": str(log), "history": f"sqlite:///{history}"}
        options = {"gpus": GPUS, "cpus": CPUS, "emulate_gpus": True, **places, **self._options}
        return start(_loaded(module), **options)

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        """A file that is no pipeline, a task without its component, and one that waits for a task that is not there."""
        (self._folder / "none.yaml").write_text("a: 1\n")
        lacking, lost = (documents_of(pipelines.twice_plain) for _ in range(2))
        del lacking.pipeline["components"]["comp-text"]
        lost.pipeline["root"]["dag"]["tasks"]["text"]["dependentTasks"] = ["nobody"]
        return [
            ("none.yaml", lambda: start(self._folder / "none.yaml")),
            ("comp-text", lambda: convert(lacking)),
            ("nobody", lambda: convert(lost)),
        ]

    def held_gpus(self) -> float:
        """GPUs held in all runs under way."""
        return sum(run.held_gpus() for run in self._runs)

    def is_alive(self, mark: Mark) -> bool:
        """One that ended and was not asked for its exit code is not."""
        try:
            return bool(psutil.Process(mark.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def audit(self, outcome: Outcome) -> Mapping[str, float]:
        raise NotImplementedError("see capabilities")

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self._redirected.close()


@contextlib.contextmanager
def local_runs(folder: Path, **options: Any) -> Iterator[LocalRuns]:
    """The bench for one scenario."""
    bench = LocalRuns(folder, **options)
    try:
        yield bench
    finally:
        bench.close()


def _loaded(module: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"suite_{module.parent.name}", module)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made.pipeline


def _log(folder: str) -> str:
    return (Path(folder) / "log.txt").read_text()


def _exceptions(text: str) -> list[str]:
    return [str(found) for found in EXCEPTION.findall(text)]


def _own(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.splitlines() if line.startswith("egs:"))
