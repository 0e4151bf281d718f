"""The conformance suite's bench for `egs_ray.run`, in this process, on the tests' own Ray."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.dag import MultiOutputNode

import egs_ray
from egs_core.runlog.io import read_run
from egs_core.testing.conformance.bench import BREAKAGES, LIMIT_S, Mark, Mode, Outcome, give_signal
from egs_core.testing.conformance.pipeline import Pipeline
from egs_core.testing.wire_site import look_behind
from egs_ray import Options, Session
from egs_ray.convert import convert, submit_all
from egs_ray.surfaces import surface
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.bench_script import RayScripts, is_alive
from tests.conformance.ray.killing import kill_board
from tests.conformance.ray.pipeline_tasks import describe, remote_functions

GPUS = 2


class RunUnderWay:
    """A pipeline that `egs_ray.run` runs, or Ray alone (`native` has its references then)."""

    def __init__(self, bench: RayRuns, pipeline: Pipeline, folder: Path, broken: str) -> None:
        self.folder, self._pipeline, self._bench, self._broken = folder, pipeline, bench, broken
        self._made: egs_ray.Run | None = None
        self._native: list[Any] = []

    def go(self, mode: Mode) -> None:
        node = _graph_of(self._pipeline, self.folder, self._broken)
        if mode == "native":
            self._native = submit_all(convert(node, self._pipeline.name))
        else:
            session = self._bench.session(self._broken)
            self._made = egs_ray.run(node, name=self._pipeline.name, session=session)

    def wait(self) -> Outcome:
        values: dict[str, str] = {}
        error = ""
        try:
            got = self._made.get(LIMIT_S) if self._made else ray.get(self._native, timeout=LIMIT_S)
            values = dict(zip(self._pipeline.leaves, got, strict=True))
        except ray.exceptions.RayError as failure:
            error = describe(failure)
        said = [line for line in self._bench.stderr.getvalue().splitlines() if line.startswith("egs:")]
        return Outcome(values, error, tuple(said), self._records())

    def _records(self) -> tuple[Any, ...]:
        if self._made is None or self._broken == "disk":
            return ()
        run = self._made.id
        return tuple(r for r in read_run(self._made.runlog).records if getattr(r, "workload", run) == run)

    def let_go(self) -> None:
        """No task of it waits for a signal any more: its scenario may have failed before it gave them."""
        give_signal(self, *{name for task in self._pipeline.tasks for phase in task.phases for name in phase.until})

    def abort(self, task: str = "") -> None:
        assert self._made is not None
        self._made.abort(f"{task}-0" if task else "", actor="test")

    def break_now(self, how: str) -> None:
        session = self._bench.session()
        if how == "engine":
            look_behind(session.site, lambda engine: setattr(engine, "handle", _raise))
        else:
            kill_board(session._promises)


class RayRuns:
    """See `egs_core.testing.conformance.bench.Bench`. One session for all runs of a scenario; options: of it."""

    name, gpus, ahead = "run", GPUS, 0
    shows_devices = True

    def __init__(self, folder: Path, address: str, **options: Any) -> None:
        self._folder, self._scripts = folder, RayScripts(folder / "scripts", address, way="run")
        self._options = options
        self._runs: list[RunUnderWay] = []
        self._session: Session | None = None
        self.stderr = io.StringIO()
        self._redirected = contextlib.ExitStack()

    def capabilities(self) -> Mapping[str, str]:
        return {**surface("run").can, "audit": "no: its scenario is of a cluster's history, not of a run log"}

    def breakages(self) -> Mapping[str, str]:
        return {**dict.fromkeys(BREAKAGES, "yes"), "graph": "no: egs_ray.run refuses such a graph before it starts"}

    def start(self, pipeline: Pipeline, mode: Mode, broken: str = "") -> Any:
        if broken == "uninstalled":
            return self._scripts.start(pipeline, mode, broken)
        folder = self._folder / str(len(self._runs))
        folder.mkdir()
        if not self._runs:  # not earlier: pytest puts its own in place when a test begins
            self._redirected.enter_context(contextlib.redirect_stderr(self.stderr))
        self._runs.append(RunUnderWay(self, pipeline, folder, broken))
        self._runs[-1].go(mode)
        return self._runs[-1]

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        @ray.remote
        class Model:
            def predict(self) -> int:
                return 1

        @ray.remote
        def stream() -> Iterator[int]:
            yield 1

        return [
            ("Model", lambda: convert(Model.bind().predict.bind())),  # type: ignore[attr-defined]  # Ray adds it
            ("stream", lambda: convert(stream.bind())),
            ("int", lambda: convert(3)),
        ]

    def held_gpus(self) -> float:
        return GPUS - t.free("GPU")

    def is_alive(self, mark: Mark) -> bool:
        return is_alive(mark.pid)

    def audit(self, outcome: Outcome) -> Mapping[str, float]:
        raise NotImplementedError("see capabilities")

    def session(self, broken: str = "") -> Session:
        """The scenario's session; what is broken from the start is so from its making."""
        if self._session is None:
            log, history = self._folder / "run.jsonl", self._folder / "history.db"
            if broken == "store":
                history.write_bytes(b"no database" * 1000)
            elif broken == "disk":
                log.symlink_to("/dev/full")
            elif broken == "api":
                os.environ["EGS_RAY_WITHOUT"] = "auto_init, ready, task_events, actors, disconnect"
            self._session = Session(Options(runlog=str(log), history=f"sqlite:///{history}", **self._options))
            self._session.__enter__()
        return self._session

    def close(self) -> None:
        for run in self._runs:
            run.let_go()
        if self._session is not None:
            self._session.close()
        self._scripts.close()
        self._redirected.close()
        os.environ.pop("EGS_RAY_WITHOUT", None)


@contextlib.contextmanager
def ray_runs(folder: Path, address: str, **options: Any) -> Iterator[RayRuns]:
    """The bench for one scenario; afterwards nothing is held in Ray's books."""
    bench = RayRuns(folder, address, **options)
    try:
        yield bench
    finally:
        bench.close()
    t.until(t.is_idle, "all resources are free")


def _graph_of(pipeline: Pipeline, folder: Path, broken: str) -> Any:
    functions = remote_functions(pipeline, str(folder), hinted=broken != "worker")
    if broken == "worker":
        (folder / "sitecustomize.py").write_text(t.BLOCKER)
        environment = {"env_vars": {"PYTHONPATH": str(folder)}}
        functions = {name: function.options(runtime_env=environment) for name, function in functions.items()}
    nodes: dict[str, Any] = {}
    for task in pipeline.tasks:
        nodes[task.name] = functions[task.name].bind(*(nodes[parent] for parent in task.after))
    return MultiOutputNode([nodes[name] for name in pipeline.leaves])


def _raise(*_: Any) -> Any:
    raise RuntimeError("injected")
