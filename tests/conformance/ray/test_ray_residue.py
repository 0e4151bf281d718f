"""Leaving a GPU phase leaves no memory on the device: a process of its own, or what stays is held until it is gone.

Device files are stand-ins here (`residue_tasks`), as are the GPUs; on a machine with a GPU `test_ray_gpu` does it with
CUDA itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

import egs_ray
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_ray import Session
from egs_ray.worker.device_memory import FOLDER, wait_until_gone
from tests.conformance.ray import residue_tasks as rt
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def session(ray_address: str, tmp_path: Path) -> Iterator[Session]:
    """A session of its own: what it learns about devices is not for others."""
    assert ray_address
    with t.session(tmp_path) as made:
        yield made
    t.until(t.is_idle, "all resources are free")


def on_devices(task: Any, folder: Path, **options: Any) -> Any:
    """The task in processes that see device files."""
    found = rt.make_devices(folder) if not (folder / "dev").exists() else folder / "dev"
    return task.options(runtime_env={"env_vars": {FOLDER: str(found)}}, **options)


def step(folder: Path, name: str) -> tuple[int, str]:
    """Wait for a step to run: its process and the devices that it sees."""
    t.until((folder / f"{name}.runs").exists, name)
    pid, _, devices = (folder / f"{name}.runs").read_text().partition(" ")
    return int(pid), devices


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped by its parent or not."""
    return wait_until_gone(pid, 0.0)


def is_free(gpus: int) -> bool:
    return t.free("GPU") == gpus


def warnings_in(capsys: Capture) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("egs:")]


def test_what_stays_is_held_until_the_process_is_gone(session: Session, tmp_path: Path, capsys: Capture) -> None:
    """A block that leaves something keeps its GPU through the CPU phase behind it; the next one gets a clean device."""
    folder = str(tmp_path)
    made = egs_ray.run(on_devices(rt.block, tmp_path).bind(folder, "a", True), session=session)
    step(tmp_path, "a.fit")
    t.signal_to(folder, "a.fit.end")
    pid, devices = step(tmp_path, "a.write")
    assert devices == "", "a CPU phase sees no device"
    t.until(lambda: (t.free("GPU"), t.free("CPU")) == (1, 3), "held, though the block is left")
    assert made.why("block-0").status == "running"
    t.signal_to(folder, "a.write.end")
    assert made.get(t.LIMIT_S)[0] == pid
    t.until(lambda: t.free("GPU") == 2)
    assert is_gone(pid), "the GPU came back when its process was gone, not before"
    warned = warnings_in(capsys)
    assert len(warned) == 1, warned
    assert "egs.on_gpu" in warned[0]
    used = [record for record in read_run(session.learning.path).records if isinstance(record, r.Used)]
    ended = [record for record in read_run(session.learning.path).records if isinstance(record, r.Ended)]
    assert used[0].end_t < ended[-1].t, "the run log has it as held and not used behind the block"


def test_a_clean_block_gives_its_gpu_back(session: Session, tmp_path: Path, capsys: Capture) -> None:
    """A process that has not used CUDA leaves nothing: its GPU is free in the CPU phase."""
    folder = str(tmp_path)
    made = egs_ray.run(on_devices(rt.block, tmp_path).bind(folder, "a", False), session=session)
    for name in ("a.fit", "a.write"):
        step(tmp_path, name)
        t.until(partial(is_free, 1 if name == "a.fit" else 2))
        t.signal_to(folder, f"{name}.end")
    made.get(t.LIMIT_S)
    assert not warnings_in(capsys)


def test_second_block_gets_the_same_device(session: Session, tmp_path: Path) -> None:
    """CUDA stays with the first device that it has seen, so a later block of the process has to be given that one."""
    folder = str(tmp_path)
    for name in ("a.fit.end", "a.write.end"):
        t.signal_to(folder, name)
    made = egs_ray.run(on_devices(rt.block, tmp_path).bind(folder, "a", True, True), session=session)
    _, first, second = made.get(t.LIMIT_S)
    assert first == second


def test_whole_tasks_end_their_process(session: Session, tmp_path: Path) -> None:
    """A task that is all GPU, too: its process does not stay, and the GPU is not free before it is gone."""
    folder = str(tmp_path)
    t.signal_to(folder, "a.fit.end")
    pid = egs_ray.run(on_devices(rt.whole, tmp_path).bind(folder, "a"), session=session).get(t.LIMIT_S)
    t.until(lambda: t.free("GPU") == 2)
    assert is_gone(pid)


@pytest.mark.parametrize("devices", ["seen", "forced"])
def test_steps_have_processes_of_their_own(ray_address: str, tmp_path: Path, devices: str) -> None:
    """The GPU step of `egs.phases` runs, warm, in a process that is gone when the GPU is given back."""
    assert ray_address
    folder = str(tmp_path)
    with t.session(tmp_path, gpu_process=True if devices == "forced" else None) as session:
        task = on_devices(rt.phased, tmp_path) if devices == "seen" else rt.phased
        made = egs_ray.run(task.bind(folder, "well"), session=session)
        fitting, _ = step(tmp_path, "fit")
        t.until(lambda: t.free("GPU") == 1)
        t.signal_to(folder, "fit.end")
        step(tmp_path, "write")
        t.until(lambda: t.free("GPU") == 2, "the GPU is free in the CPU phase behind it")
        assert is_gone(fitting)
        t.signal_to(folder, "write.end")
        decoded, fitted, device, weights, wrote, hidden = made.get(t.LIMIT_S)
    assert decoded == wrote != fitted == fitting
    assert (device in ("0", "1"), hidden) == (True, "")
    assert weights == {"pid": fitted, "devices": ""}, "loaded in the process that uses it, with no device in sight"


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_steps_fail_as_in_the_tasks_process(ray_address: str, tmp_path: Path, how: str) -> None:
    """An exception of a GPU step is the task's; a step whose process dies is a task that died, and Ray tries again."""
    assert ray_address
    folder = str(tmp_path)
    for name in ("fit.end", "write.end"):
        t.signal_to(folder, name)
    with t.session(tmp_path, gpu_process=True) as session:
        task = rt.phased.options(max_retries=1).bind(folder, how)
        made = egs_ray.run(task, session=session)
        if how == "raises":
            with pytest.raises(KeyError, match="no fit") as caught:
                made.get(t.LIMIT_S)
            assert isinstance(caught.value, RayTaskError)
        else:
            assert made.get(t.LIMIT_S)[1] != int((tmp_path / "died").read_text())
    t.until(t.is_idle)


def test_a_process_that_has_used_cuda_serves_no_task_with_a_gpu(session: Session, tmp_path: Path) -> None:
    """Ray gives a split task one of its idle processes, where a CPU task has used CUDA, which sees no other device from
    then on: the task gets a process of EGS's own instead."""
    folder = str(tmp_path)
    used = [on_devices(rt.plain, tmp_path).remote(folder, f"plain{number}") for number in range(4)]
    for number in range(4):
        step(tmp_path, f"plain{number}")  # all at once, so that there are four processes
    for number in range(4):
        t.signal_to(folder, f"plain{number}.end")
    before = ray.get(used, timeout=t.LIMIT_S)
    made = egs_ray.run(on_devices(rt.block, tmp_path).bind(folder, "a", False), session=session)
    for name in ("a.fit", "a.write"):
        t.signal_to(folder, f"{name}.end")
    assert made.get(t.LIMIT_S)[0] not in before
