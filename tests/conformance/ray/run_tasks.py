"""Tasks that the tests of `egs_ray.run` give to Ray, and how tests and tasks wait for each other: files as signals.

Workers import this module, so it imports neither pytest nor the test's own modules.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray

import egs_core as egs
from egs_ray import Options, Session

LIMIT_S = 150.0  # of a busy machine


def until(condition: Callable[[], Any], what: str = "", limit_s: float = LIMIT_S) -> Any:
    """Wait for a condition and return it; AssertionError when it does not come true in time. To ask Ray costs what a
    task could use: the longer it takes, the seldomer it is asked."""
    deadline, rest_s = time.monotonic() + limit_s, 0.005
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {limit_s:g} s: {what or condition}; free: {ray.available_resources()}")
        time.sleep(rest_s)
        rest_s = min(1.2 * rest_s, 0.15)
    return found


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; perhaps not yet reaped."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free(kind: str) -> float:
    """What Ray's books say is free, rounded: processes for holders take a thousandth of a GPU for a moment."""
    return round(float(ray.available_resources().get(kind, 0.0)), 2)


def is_idle() -> bool:
    """Nothing is held in Ray's books."""
    return free("GPU") == 2 and free("CPU") == 4


@contextmanager
def session(folder: Path, **options: Any) -> Iterator[Session]:
    """A session with its run log and history in the test's own folder."""
    places = {"runlog": str(folder / "run.jsonl"), "history": f"sqlite:///{folder}/history.db"}
    with Session(Options(**places, **options)) as made:
        yield made


ENDLESS_S = 8  # long enough that its process is there, also on a busy machine


@ray.remote(num_gpus=1, max_retries=2)
@egs.task(max_runtime=f"{ENDLESS_S}s")
def endless(folder: str, name: str, _before: None = None) -> None:
    """Notes its process and never ends by itself within a test."""
    Path(folder, f"{name}.pid").write_text(str(os.getpid()))
    time.sleep(600)


def signal_to(folder: str, name: str) -> None:
    Path(folder, name).touch()


def wait_for(folder: str, name: str) -> None:
    """Until the file is there."""
    until(Path(folder, name).exists, name)


def note(folder: str, name: str, text: str) -> None:
    """Write a file whole or not at all."""
    path = Path(folder, f"{name}.{os.getpid()}.new")
    path.write_text(text)
    path.rename(Path(folder, name))


# --- plain tasks ------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0.1)
def total(*values: Any, **named: Any) -> int:
    """The sum of what it is given, following references and containers as a task body would."""

    def value(item: Any) -> int:
        if isinstance(item, ray.ObjectRef):
            return 10 * value(ray.get(item))
        if isinstance(item, dict):
            return sum(2 * value(x) for x in item.values())
        if isinstance(item, list | tuple):
            return sum(3 * value(x) for x in item)
        return int(item)

    return value(list(values)) + value(named)


@ray.remote(num_cpus=0.1)
def two(number: int) -> tuple[int, int]:
    return number, number + 1


@ray.remote(num_cpus=0.1)
def about_itself() -> dict[str, Any]:
    context = ray.get_runtime_context()
    return {
        "name": context.get_task_name(),
        "node": context.get_node_id(),
        "colour": os.environ.get("COLOUR"),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


@ray.remote(num_cpus=0.1, max_retries=0)
def fails(number: int) -> int:
    raise ValueError(f"no {number}")


@ray.remote(num_cpus=0.1, num_gpus=1, max_retries=0)
def lacks_memory() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


@ray.remote(num_cpus=0.1)
def dies_first(folder: str) -> str:
    """Its process is killed the first time."""
    if not Path(folder, "died").exists():
        signal_to(folder, "died")
        os.kill(os.getpid(), signal.SIGKILL)
    return "second"


@ray.remote(num_cpus=0.1)
def raises_first(folder: str) -> str:
    if not Path(folder, "raised").exists():
        signal_to(folder, "raised")
        raise ValueError("the first time")
    return "second"


@ray.remote(num_cpus=0.1)
def waits(folder: str, name: str, *_: Any) -> str:
    """Tells that it runs, and ends on a signal."""
    note(folder, f"{name}.runs", str(os.getpid()))
    wait_for(folder, f"{name}.end")
    return name


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(expect=0.15)
def stamp(seconds: float, *_: Any) -> tuple[float, float]:
    """Holds a GPU for a while; when it began and ended."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(expect=0.2)
def link(seconds: float, *_: Any) -> tuple[float, float]:
    """The same for a chain."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


# --- tasks with phases ------------------------------------------------------------------------------------------------


def step(folder: str, name: str) -> str:
    """One phase: tells what devices it sees and which process it is, and ends on a signal."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    note(folder, f"{name}.runs", f"{os.getpid()} {devices}")
    wait_for(folder, f"{name}.end")
    return devices


def _decode(folder: str, name: str) -> tuple[str, str, list[str]]:
    return folder, name, [step(folder, f"{name}.decode")]


def _fit(given: tuple[str, str, list[str]]) -> tuple[str, str, list[str]]:
    folder, name, seen = given
    return folder, name, [*seen, step(folder, f"{name}.fit")]


def _write(given: tuple[str, str, list[str]]) -> list[str]:
    folder, name, seen = given
    return [*seen, step(folder, f"{name}.write")]


phased = ray.remote(num_cpus=1, num_gpus=1)(egs.phases(_decode, egs.on_gpu(_fit), _write, name="phased"))


@ray.remote(num_cpus=1, num_gpus=1)
def blocked(folder: str, name: str) -> list[str]:
    """The same with a block."""
    seen = [step(folder, f"{name}.decode")]
    with egs.gpu():
        seen.append(step(folder, f"{name}.fit"))
    seen.append(step(folder, f"{name}.write"))
    return seen


@ray.remote(num_cpus=0.1, num_gpus=1)
def crowded(folder: str, number: int) -> int:
    """Notes how many of its kind have begun and are not over when it begins, itself included."""
    Path(folder, f"{number}.began").touch()
    over = {path.stem for path in Path(folder).glob("*.over")}
    note(folder, f"{number}.there", str(sum(path.stem not in over for path in Path(folder).glob("*.began"))))
    with egs.gpu():
        wait_for(folder, "go")
    Path(folder, f"{number}.over").touch()
    return number * number


@ray.remote(num_cpus=1)
@egs.task(gpus=2)
def hinted(folder: str, name: str) -> list[str]:
    """Only the hint says how many GPUs."""
    with egs.gpu() as devices:
        return [str(device) for device in devices] + [step(folder, f"{name}.fit")]


@ray.remote(num_cpus=1, num_gpus=0.5)
def shared(folder: str, name: str) -> str:
    with egs.gpu():
        return step(folder, f"{name}.fit")


@ray.remote(num_cpus=0.5, num_gpus=1)
def peculiar(how: str) -> Any:
    """Enters its block in an unusual way, or not."""
    seen: list[Any] = []
    if how == "never":
        return seen
    if how == "twice":
        for _ in range(2):
            with egs.gpu() as devices:
                seen.append(devices)
            seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return seen
    if how == "thread":

        def use() -> None:
            with egs.gpu() as devices:
                seen.append(devices)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return seen
    with egs.gpu():
        raise KeyError(how)


# --- tasks with preloads ----------------------------------------------------------------------------------------------


def load_model() -> dict[str, Any]:
    """Tells its process in the folder that the task's environment names, and takes as long as a file there says."""
    folder = os.environ["EGS_TEST_FOLDER"]
    note(folder, "load.runs", f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    if Path(folder, "load.waits").exists():
        wait_for(folder, "load.end")
    if Path(folder, "load.fails").exists():
        raise RuntimeError("no model")
    return {"pid": os.getpid(), "at": time.time()}


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(preload=[egs.modules("wave"), egs.call(load_model)])
def warmed(folder: str, *_: Any) -> dict[str, Any]:
    """What its process had when its first line ran; uses the model only when it was loaded."""
    began = time.time()
    import sys

    model = None if Path(folder, "load.unused").exists() else egs.loaded(load_model)
    return {"began": began, "pid": os.getpid(), "wave": "wave" in sys.modules, "model": model}


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(preload=[egs.call(load_model)], expect=(0.1, 0.1, 0.1))
def mixed(*_: Any) -> tuple[int, dict[str, Any]]:
    """Begins on a CPU; its process, and the model that this had in its GPU block."""
    with egs.gpu():
        return os.getpid(), egs.loaded(load_model)


@ray.remote(num_cpus=0.1)
@egs.task(expect=0.5)
def before(folder: str, name: str, *_: Any) -> float:
    """A predecessor: tells that it runs, ends on a signal, and says when."""
    note(folder, f"{name}.runs", str(os.getpid()))
    wait_for(folder, f"{name}.end")
    return time.time()


def with_folder(task: Any, folder: Path, **options: Any) -> Any:
    """The task with the test's folder in its environment: processes of another test do not serve it."""
    return task.options(runtime_env={"env_vars": {"EGS_TEST_FOLDER": str(folder)}}, **options)


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("egs_ray", "egs_core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
