"""The conformance suite's bench for the hook on scripts that know no EGS: each run is a driver process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

import egs_core
import egs_ray
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Record, Started, TaskAdded
from egs_core.testing.conformance.bench import BREAKAGES, LIMIT_S, Mark, Mode, Outcome, wait_until
from egs_core.testing.conformance.pipeline import Pipeline
from egs_ray.control import commands as control
from egs_ray.surfaces import surface
from tests.conformance.ray import run_tasks as t

ROOT = Path(__file__).resolve().parents[3]
GPUS = 2

GONE = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"


class Driver:
    """A driver process under way; see `egs_core.testing.conformance.bench.Running`."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], packages: Path) -> None:
        self.folder, self.process, self._packages = folder, process, packages

    def wait(self) -> Outcome:
        try:
            out, err = self.process.communicate(timeout=2 * LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        line = next((line for line in out.splitlines() if line.startswith("RESULT ")), "")
        assert line, f"the driver process ended with {self.process.returncode}: {out}{err}"
        result = json.loads(line.removeprefix("RESULT "))
        said = tuple(line for line in err.splitlines() if line.startswith("egs:"))
        return Outcome(result["values"], result["error"], said, self._records(), tuple(result["submitted"]))

    def _records(self) -> tuple[Any, ...]:
        log = self.folder / "log.jsonl"
        return tuple(read_run(log).records) if log.exists() and not log.is_symlink() else ()

    def abort(self, task: str = "") -> None:
        """As `egs abort` does, once the driver has told of what runs: by name, whatever the tasks are called there."""
        wait_until(lambda: any(one.running for one in self._listed()), "the driver has told of what runs")
        (workload,) = [one.workload for one in self._listed()]
        control.abort(workload, task=task, driver=str(self.process.pid), actor="test")

    def _listed(self) -> list[Any]:
        return [one for one in control.ps() if one.pid == self.process.pid]

    def break_now(self, how: str) -> None:
        if how == "uninstalled":
            _uninstall(self._packages)
            return
        signal, done = self.folder / f"signal-{how}", self.folder / f"signal-{how}.done"
        signal.touch()
        wait_until(done.exists, f"the driver has done '{how}'")


class RayScripts:
    """See `egs_core.testing.conformance.bench.Bench`. way: `script`, `hinted` for one whose functions have hints, or
    `run` for drivers that call egs_ray.run.

    dashboard: URL of the cluster's, which an audit reads. ahead: Ray's queue is out of the hook's reach, and where a
    process takes long to start, the gate lets one task more into it for the GPU that idles meanwhile.
    """

    name, gpus, ahead = "hook", GPUS, 2
    shows_devices = True

    def __init__(self, folder: Path, address: str, way: str = "script", dashboard: str = "") -> None:
        self._folder, self._address, self._way, self._dashboard = folder, address, way, dashboard
        self._drivers: list[Driver] = []
        folder.mkdir(exist_ok=True)

    def capabilities(self) -> Mapping[str, str]:
        own = surface("hinted script" if self._way == "hinted" else "script").can
        return {**own, "audit": own["audit"] if self._dashboard else "no: this cluster has no dashboard"}

    def breakages(self) -> Mapping[str, str]:
        return dict.fromkeys(BREAKAGES, "yes")

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> Driver:
        folder = self._folder / str(len(self._drivers))
        folder.mkdir()
        (folder / "pipeline.json").write_bytes(msgspec.json.encode(pipeline))
        packages = _copy_packages(folder / "packages")
        command = [sys.executable, str(Path(__file__).with_name("pipeline_driver.py")), self._way, str(folder), broken]
        process = subprocess.Popen(
            command,
            env=self._environment(folder, packages, mode, broken),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._drivers.append(Driver(folder, process, packages))
        return self._drivers[-1]

    def _environment(self, folder: Path, packages: Path, mode: Mode, broken: str) -> dict[str, str]:
        log, history = folder / "log.jsonl", folder / "history.db"
        path = os.pathsep.join([str(packages), str(ROOT), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "RAY_ADDRESS": self._address, "PYTHONPATH": path}
        if mode == "native":
            return variables
        if broken == "store":
            history.write_bytes(b"no database" * 1000)
        elif broken == "disk":
            log.symlink_to("/dev/full")
        elif broken == "api":
            variables["EGS_RAY_WITHOUT"] = "submit, wrap, auto_init, ready, task_events, actors, disconnect"
        elif broken == "worker":
            (folder / "without").mkdir()
            (folder / "without" / "sitecustomize.py").write_text(t.BLOCKER)
        variables |= {"EGS_RUNLOG": str(log), "EGS_HISTORY": f"sqlite:///{history}"}
        hook = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": mode}
        return variables if self._way == "run" else {**variables, **hook}

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        return []  # what the hook sees was submitted already: there is nothing to refuse

    def held_gpus(self) -> float:
        return GPUS - t.free("GPU")

    def is_alive(self, mark: Mark) -> bool:
        return is_alive(mark.pid)

    def audit(self, outcome: Outcome) -> Mapping[str, float]:  # noqa: ARG002 - the cluster has seen no other run
        log = self._folder / "audit.jsonl"
        command = [sys.executable, "-m", "egs_core.cli.app", "audit", "--ray", self._dashboard, "--runlog", str(log)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return held_by_name(read_run(log).records)

    def close(self) -> None:
        for driver in self._drivers:
            if driver.process.poll() is None:
                driver.process.kill()
                driver.process.communicate()


def held_by_name(records: Sequence[Record]) -> dict[str, float]:
    """GPU seconds held, by the name of the task."""
    names = {r.task: r.name for r in records if isinstance(r, TaskAdded)}
    ends = {(r.task, r.phase, r.attempt): r.t for r in records if isinstance(r, Ended)}
    held: dict[str, float] = {}
    for r in records:
        if isinstance(r, Started) and r.gpus:
            held[names[r.task]] = held.get(names[r.task], 0.0) + r.gpus * (ends[r.task, r.phase, r.attempt] - r.t)
    return held


@contextmanager
def ray_scripts(folder: Path, address: str, way: str = "script") -> Iterator[RayScripts]:
    """The bench for one scenario, on the session's Ray; afterwards nothing is held in its books."""
    bench = RayScripts(folder, address, way)
    try:
        yield bench
    finally:
        bench.close()
    t.until(t.is_idle, "all resources are free")


def is_alive(pid: int) -> bool:
    """Whether the process runs: one that ended and was not asked for its exit code does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _copy_packages(folder: Path) -> Path:
    """EGS as an installation of its own, which can be removed."""
    for package in (egs_core, egs_ray):
        assert package.__file__ is not None
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _uninstall(packages: Path) -> None:
    """All files are gone. What is left keeps Python from finding the checkout's own packages instead."""
    for package in ("egs_core", "egs_ray"):
        shutil.rmtree(packages / package)
        (packages / package).mkdir()
        (packages / package / "__init__.py").write_text(GONE)
