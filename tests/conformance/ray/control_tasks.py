"""Pipelines that another process is to abort, pause and preempt: of a driver that runs many, and of a script.

Every task notes each of its starts in the folder, so that a test sees who ran, in which process, and how often.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray

import egs_core as egs

STEPS = 12
STEP_S = 0.02


def starts(folder: str | Path, name: str) -> list[int]:
    """The processes in which the task has started, in order."""
    path = Path(folder, f"{name}.starts")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def note_start(folder: str, name: str) -> None:
    with Path(folder, f"{name}.starts").open("a") as file:
        file.write(f"{os.getpid()}\n")


def is_dead(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@ray.remote(num_cpus=0.1, max_retries=3)
def child(folder: str, name: str) -> None:
    note_start(folder, f"{name}.child")
    time.sleep(600)


@ray.remote(num_cpus=0.5, num_gpus=1, max_retries=3)
@egs.task(stage="fit")
def fit(folder: str, name: str, *_: Any) -> str:
    """Sleeps until a file says that it may end; has a child task that sleeps longer."""
    note_start(folder, name)
    if Path(folder, "children").exists():
        child.remote(folder, name)
    while not Path(folder, f"{name}.end").exists():
        time.sleep(0.02)
    return name


@ray.remote(num_cpus=0.1)
@egs.task(stage="load")
def load(folder: str, name: str) -> str:
    """The same without a GPU."""
    note_start(folder, name)
    while not Path(folder, f"{name}.end").exists():
        time.sleep(0.02)
    return name


@ray.remote(num_cpus=0.1)
@egs.task(stage="after")
def after(folder: str, name: str, *values: Any) -> list[Any]:
    note_start(folder, name)
    return list(values)


@ray.remote(num_cpus=0.5, num_gpus=1, max_retries=3)
@egs.task(grace="10m", max_runtime="30m")
def trained(folder: str, name: str, mode: str = "good", *_: Any) -> int:
    """Takes steps, each noted in a file, from where the try before was stopped. Where there is a file `last.waits`, the
    last one waits for a signal: the task is still there when a test wants to stop it."""
    return take_steps(folder, name, mode)


@ray.remote(num_cpus=0.5, num_gpus=1, max_retries=3)
@egs.task(max_runtime="30m")
def ungraced(folder: str, name: str, mode: str = "good", *_: Any) -> int:
    """The same, and nothing says how long it may take to save."""
    return take_steps(folder, name, mode)


@ray.remote(num_cpus=0.5, num_gpus=1)
@egs.task(grace="0.3s")
def hasty(folder: str, name: str, mode: str) -> int:
    """The same with little time to save."""
    return take_steps(folder, name, mode)


def take_steps(folder: str, name: str, mode: str) -> int:
    note_start(folder, name)
    if mode == "starts":
        with Path(folder, f"{name}.started.starts").open("a") as file:
            file.write(f"{subprocess.Popen(['sleep', '600']).pid}\n")
    done = {"step": egs.restored(0)}

    def save() -> Any:
        if mode == "raises":
            raise OSError("disk full")
        if mode == "hangs":
            time.sleep(600)
        return done["step"]

    is_first, waits, goes_on = not done["step"], Path(folder, "last.waits"), Path(folder, "last.end")
    egs.checkpoint(save)
    while done["step"] < STEPS:
        time.sleep(STEP_S)
        while done["step"] == STEPS - 1 and waits.exists() and not goes_on.exists():
            time.sleep(STEP_S)
        while mode == "stays" and is_first and done["step"] == STEPS // 2:
            time.sleep(STEP_S)  # until it is stopped
        with Path(folder, f"{name}.steps").open("a") as file:
            file.write(f"{done['step']}\n")
        done["step"] += 1
    return int(done["step"])


def _begin(folder: str, name: str) -> tuple[str, str]:
    note_start(folder, f"{name}.shell")
    return folder, name


def _go_on(given: tuple[str, str]) -> tuple[str, str, int]:
    return *given, take_steps(*given, "good")


def _linger(given: tuple[str, str, int]) -> int:
    folder, name, done = given
    note_start(folder, f"{name}.last")
    while not Path(folder, f"{name}.end").exists():
        time.sleep(0.02)
    return done


stepped = ray.remote(num_cpus=0.5, num_gpus=1)(
    egs.task(grace="10m")(egs.phases(_begin, egs.on_gpu(_go_on), _linger, name="stepped"))
)
"""The same in a GPU step, with a step before and one behind it."""


@ray.remote(num_cpus=0.5, num_gpus=1)
@egs.task(preload=egs.modules("wave"))
def doubled(folder: str, name: str, value: int) -> int:
    """Has something to preload, so that it may be submitted before its value is there."""
    note_start(folder, name)
    return 2 * value


def steps(folder: str | Path, name: str) -> list[int]:
    path = Path(folder, f"{name}.steps")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@ray.remote(num_cpus=0.1, num_gpus=1, max_calls=0, max_retries=3)
def plain(folder: str, name: str, *_: Any) -> str:
    """A task of a script that knows nothing of EGS."""
    note_start(folder, name)
    while not Path(folder, f"{name}.end").exists():
        time.sleep(0.02)
    return name


def graph(folder: str) -> Any:
    """Two loads, a fit of each, and one task after both."""
    fits = [fit.bind(folder, f"fit{i}", load.bind(folder, f"load{i}")) for i in range(2)]
    return after.bind(folder, "after", *fits)


def drive_run(folder: str) -> None:
    """One run for each folder `0`, `1`, … that is made, until it is killed; what came of it is in its `out.txt`."""
    import egs_ray

    for number in itertools.count():
        here = Path(folder, str(number))
        while not here.exists():
            time.sleep(0.02)
        run = egs_ray.run(graph(str(here)), name="pipe")
        with (here / "out.txt").open("w", buffering=1) as out:
            try:
                print("value", run.get(), file=out)
            except ray.exceptions.RayError as error:
                print("error", type(error).__name__, " ".join(str(error).split()), file=out)
            print("why", run.why("fit-0").text, file=out)


def drive_hook(folder: str) -> None:
    refs = [plain.remote(folder, f"plain{i}") for i in range(3)]
    refs.append(plain.remote(folder, "last", refs[2]))
    print_ends(refs)


def drive_saving(folder: str, task: Any = trained) -> None:
    """A task that saves what it has done, and that Ray starts again once, and what waits for it."""
    made = task.options(max_retries=1).remote(folder, "fit", "starts")
    print_ends([made, after.remote(folder, "after", made)])


def print_ends(refs: list[Any]) -> None:
    for number, ref in enumerate(refs):
        try:
            print(number, ray.get(ref), flush=True)
        except ray.exceptions.RayError as error:
            print(number, type(error).__name__, flush=True)


def start(kind: str, folder: Path, address: str, **environment: str) -> subprocess.Popen[str]:
    """This module as a driver of its own."""
    places = {"EGS_RUNLOG": str(folder / "run.jsonl"), "EGS_HISTORY": f"sqlite:///{folder}/history.db"}
    hook = {} if kind == "run" else {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}
    hook |= {"EGS_GATE": "cluster"} if kind == "gate" else {}
    path = folder / "train.py"
    path.write_text(f"from tests.conformance.ray import control_tasks as c\nc.main({kind!r}, {str(folder)!r})\n")
    root = Path(__file__).resolve().parents[3]
    modules = os.pathsep.join([str(root), str(root / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": modules, **places, **hook, **environment}
    command = [sys.executable, str(path)]
    with (folder / "out.txt").open("w") as out:
        return subprocess.Popen(command, env=variables, stdout=out, stderr=out, cwd=folder, text=True)


def main(kind: str, folder: str) -> None:
    ray.init(log_to_driver=False)
    drivers: dict[str, Callable[[str], None]] = {
        "run": drive_run,
        "hook": drive_hook,
        "gate": drive_hook,
        "saving": drive_saving,
        "saving-ungraced": partial(drive_saving, task=ungraced),
    }
    drivers[kind](folder)
    ray.shutdown()
