"""A mixed task holds a GPU in Ray's own books only in its GPU phase, sees it only then, and always gives it back.

decode          fit             write
no GPU held     one GPU held    no GPU held        each step waits for the test, which looks at Ray's books
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_ray import Session
from egs_ray.convert import convert, submit_all
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for all tests here; each leaves it as it found it."""
    assert ray_address
    with t.session(tmp_path_factory.mktemp("session")) as made:
        yield made


@pytest.fixture(autouse=True)
def _all_is_given_back() -> Iterator[None]:
    """Whatever a test does, afterwards nothing is held in Ray's books."""
    yield
    t.until(t.is_idle, "all resources are free")


def books_say(gpus: float, cpus: float) -> bool:
    """Whether this much is free in Ray's books."""
    return (t.free("GPU"), t.free("CPU")) == (gpus, cpus)


def leases_are(session: Session, count: int) -> bool:
    """How many tasks hold something for a session's tasks."""
    return len(session._leases) == count


def step(folder: Path, name: str) -> tuple[int, str]:
    """Wait for a step to run: its process and the devices that it sees."""
    t.until((folder / f"{name}.runs").exists, name)
    pid, _, devices = (folder / f"{name}.runs").read_text().partition(" ")
    return int(pid), devices


@pytest.mark.parametrize("task", [t.phased, t.blocked], ids=["phase-functions", "block"])
def test_gpu_is_held_in_its_phase_only(shared: Session, tmp_path: Path, task: Any) -> None:
    """Phase by phase: none, one, none in the books; and so it is for CUDA_VISIBLE_DEVICES."""
    folder = str(tmp_path)
    made = egs_ray.run(task.bind(folder, "a"), session=shared)
    for name, gpus in (("decode", 2), ("fit", 1), ("write", 2)):
        _, devices = step(tmp_path, f"a.{name}")
        t.until(partial(books_say, gpus, 3), f"the books in {name}")
        t.until(partial(leases_are, shared, int(name == "fit")), "its own process holds its CPU")
        assert devices in ({"0", "1"} if name == "fit" else {""})
        t.signal_to(folder, f"a.{name}.end")
    seen = made.get(t.LIMIT_S)
    assert [seen[0], seen[2]] == ["", ""]


def test_concurrent_phases_have_devices_of_their_own(shared: Session, tmp_path: Path) -> None:
    """Two GPU phases at once see two devices; a third waits in its CPU phase's process, holding nothing."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([t.blocked.bind(folder, name) for name in "abc"]), session=shared)
    for name in "abc":
        step(tmp_path, f"{name}.decode")
        t.signal_to(folder, f"{name}.decode.end")
    running = t.until(
        lambda: (
            [x for x in "abc" if (tmp_path / f"{x}.fit.runs").exists()][1:]
            and [x for x in "abc" if (tmp_path / f"{x}.fit.runs").exists()]
        )
    )
    assert {step(tmp_path, f"{name}.fit")[1] for name in running} == {"0", "1"}
    t.until(lambda: (t.free("GPU"), t.free("CPU")) == (0, 2), "the third holds nothing")
    for name in "abc":
        t.signal_to(folder, f"{name}.fit.end")
        t.signal_to(folder, f"{name}.write.end")
    assert {seen[1] for seen in made.get(t.LIMIT_S)} == {"0", "1"}


def test_a_fan_has_no_more_processes_than_slots(shared: Session, tmp_path: Path) -> None:
    """24 tasks for which there are CPUs at once: only as many begin as the node has process slots, two of them with a
    GPU; each that ends lets another begin, and all results are there."""
    (slots,) = [node.process_slots for node in shared._cluster.nodes]
    assert slots in range(4, 9)  # 4 CPUs and twice 2 GPUs, or what there is memory for
    fan = MultiOutputNode([t.crowded.bind(str(tmp_path), number) for number in range(24)])
    made = egs_ray.run(fan, session=shared)
    t.until(lambda: len(list(tmp_path.glob("*.there"))) == slots, "the slots are taken")
    waiting = [number for number in range(24) if not (tmp_path / f"{number}.began").exists()]
    assert len(waiting) == 24 - slots
    assert {made.why(f"crowded-{number}").kind for number in waiting} == {"process_slots"}
    t.signal_to(str(tmp_path), "go")
    assert made.get(t.LIMIT_S) == [number * number for number in range(24)]
    assert max(int(path.read_text()) for path in tmp_path.glob("*.there")) == slots


def test_foreign_task_queues_fairly(shared: Session, tmp_path: Path) -> None:
    """A plain num_gpus=2 task waits for EGS's phase, EGS's next phase waits for it, and both get their turn."""
    folder = str(tmp_path)
    first = egs_ray.run(t.blocked.bind(folder, "first"), session=shared)
    t.signal_to(folder, "first.decode.end")
    step(tmp_path, "first.fit")
    foreign = t.waits.options(num_gpus=2).remote(folder, "foreign")
    second = egs_ray.run(t.blocked.bind(folder, "second"), session=shared)
    t.signal_to(folder, "second.decode.end")
    step(tmp_path, "second.decode")
    assert not ray.wait([foreign], timeout=0.3)[0]
    assert not (tmp_path / "foreign.runs").exists()
    t.signal_to(folder, "first.fit.end")
    for name in ("second.fit.end", "second.write.end", "first.write.end"):
        t.signal_to(folder, name)
    step(tmp_path, "foreign")  # not starved, though EGS has a phase ready all the time
    third = egs_ray.run(t.blocked.bind(folder, "third"), session=shared)
    t.signal_to(folder, "third.decode.end")
    t.until(lambda: third.why("blocked-0").status in ("granted", "ready"), "the third is in its CPU phase or after it")
    step(tmp_path, "third.decode")
    assert not (tmp_path / "third.fit.runs").exists(), "Ray has given both GPUs to the foreign task"
    t.signal_to(folder, "foreign.end")
    t.signal_to(folder, "third.fit.end")
    t.signal_to(folder, "third.write.end")
    assert ray.get(foreign, timeout=t.LIMIT_S) == "foreign"
    for made in (first, second, third):
        made.get(t.LIMIT_S)


@pytest.mark.parametrize("phase", ["decode", "fit", "write"])
def test_gpu_comes_back_when_the_worker_is_killed(shared: Session, tmp_path: Path, phase: str) -> None:
    """A killed process gives back what its phase held; Ray's retry goes through all phases again and ends well."""
    folder, phases = str(tmp_path), ["decode", "fit", "write"]
    made = egs_ray.run(t.blocked.options(max_retries=1).bind(folder, "a"), session=shared)
    for name in phases[: phases.index(phase)]:
        t.signal_to(folder, f"a.{name}.end")
    killed, _ = step(tmp_path, f"a.{phase}")
    t.until(lambda: t.free("GPU") == (1 if phase == "fit" else 2))
    os.kill(killed, signal.SIGKILL)
    t.until(lambda: step(tmp_path, f"a.{phase}")[0] != killed, "the retry is in the same phase")
    t.until(lambda: (t.free("GPU"), t.free("CPU")) == (1 if phase == "fit" else 2, 3), "the retry holds what it should")
    for name in phases:
        t.signal_to(folder, f"a.{name}.end")
    seen = made.get(t.LIMIT_S)
    assert [seen[0], seen[1] in ("0", "1"), seen[2]] == ["", True, ""]


def test_killed_while_it_waits_for_its_gpu(shared: Session, tmp_path: Path) -> None:
    """Between two phases a task holds nothing; killed there, it starts again from its first phase."""
    folder = str(tmp_path)
    holding = [t.waits.options(num_gpus=1).bind(folder, f"h{i}") for i in range(2)]
    others = egs_ray.run(MultiOutputNode(holding), session=shared)
    for i in range(2):
        step(tmp_path, f"h{i}")
    made = egs_ray.run(t.blocked.options(max_retries=1).bind(folder, "a"), session=shared)
    killed, _ = step(tmp_path, "a.decode")
    t.signal_to(folder, "a.decode.end")
    t.until(lambda: made.why("blocked-0").status == "ready" and t.free("CPU") > 2, "it waits for a GPU")
    (tmp_path / "a.decode.end").unlink()
    os.kill(killed, signal.SIGKILL)
    t.until(lambda: step(tmp_path, "a.decode")[0] != killed, "the retry decodes")
    t.until(lambda: t.free("CPU") == pytest.approx(2.8), "the retry holds its CPU")
    for name in ("h0", "h1", "a.decode", "a.fit", "a.write"):
        t.signal_to(folder, f"{name}.end")
    assert len(made.get(t.LIMIT_S)) == 3
    others.get(t.LIMIT_S)


@pytest.mark.proves("ray run", "gpus")
def test_shares_and_several_gpus(shared: Session, tmp_path: Path) -> None:
    """Half a GPU twice fits on one device; a hint of two GPUs holds two."""
    folder = str(tmp_path)
    halves = egs_ray.run(MultiOutputNode([t.shared.bind(folder, name) for name in "abc"]), session=shared)
    devices = [step(tmp_path, f"{name}.fit")[1] for name in "abc"]
    t.until(lambda: t.free("GPU") == 0.5, "three halves")
    assert set(devices) == {"0", "1"}
    for name in "abc":
        t.signal_to(folder, f"{name}.fit.end")
    assert sorted(halves.get(t.LIMIT_S)) == sorted(devices)
    both = egs_ray.run(t.hinted.bind(folder, "both"), session=shared)
    assert set(step(tmp_path, "both.fit")[1].split(",")) == {"0", "1"}
    t.until(lambda: t.free("GPU") == 0)
    t.signal_to(folder, "both.fit.end")
    *given, seen = both.get(t.LIMIT_S)
    assert ",".join(given) == seen


@pytest.mark.parametrize("how", ["never", "twice", "thread", "raise"])
def test_unusual_blocks(shared: Session, how: str) -> None:
    """A block that is never entered, entered twice, entered in a helper thread, or left by an exception."""
    made = egs_ray.run(t.peculiar.options(max_retries=0).bind(how), session=shared)
    if how == "raise":
        with pytest.raises(KeyError, match="raise"):
            made.get(t.LIMIT_S)
        return
    seen = made.get(t.LIMIT_S)
    expected = {"never": 0, "twice": 4, "thread": 1}
    assert len(seen) == expected[how]
    assert all(devices in ((0,), (1,)) for devices in seen[::2])
    assert all(visible == "" for visible in seen[1::2])


def test_many_blocks_never_entered_leave_no_lease(shared: Session) -> None:
    """The engine grants no GPU to a task that has ended without taking one."""
    node = MultiOutputNode([t.peculiar.bind("never") for _ in range(8)])
    assert egs_ray.run(node, session=shared).get(t.LIMIT_S) == [[]] * 8
    t.until(t.is_idle)
    assert not len(shared._leases)


def test_without_egs_the_whole_task_reserves(tmp_path: Path) -> None:
    """Plain submission of the same graph holds the GPU from the first phase to the last."""
    folder = str(tmp_path)
    ref = submit_all(convert(t.blocked.bind(folder, "a")))
    for name in ("decode", "fit", "write"):
        _, devices = step(tmp_path, f"a.{name}")
        t.until(lambda: t.free("GPU") == 1)
        assert devices in ("0", "1")
        t.signal_to(folder, f"a.{name}.end")
    ray.get(ref, timeout=t.LIMIT_S)


def test_session_without_split_holds_it_whole(tmp_path: Path) -> None:
    """With `split` off the one phase is the whole task, and its device is seen throughout."""
    folder = str(tmp_path)
    with t.session(tmp_path, split=False) as whole:
        made = egs_ray.run(t.blocked.bind(folder, "a"), session=whole)
        for name in ("decode", "fit", "write"):
            step(tmp_path, f"a.{name}")
            t.until(lambda: t.free("GPU") == 1)
            t.signal_to(folder, f"a.{name}.end")
        seen = made.get(t.LIMIT_S)
        assert len(set(seen)) == 1
        assert seen[0] in ("0", "1")


def _devices(seen: tuple[str, ...]) -> tuple[str, ...]:
    return (*seen, os.environ["CUDA_VISIBLE_DEVICES"])


@pytest.mark.parametrize("kinds", ["cg", "gc", "g", "gg", "gcg", "cgcgc"])
def test_phases_come_in_any_order(shared: Session, kinds: str) -> None:
    """c: a CPU phase, g: a GPU phase; each sees a device exactly when it is a GPU phase, and the task ends."""
    steps = [egs.on_gpu(_devices) if kind == "g" else _devices for kind in kinds]
    task = ray.remote(num_gpus=1)(egs.task(gpu_cpus=0)(egs.phases(*steps, name=f"phases_{kinds}")))
    seen = egs_ray.run(task.bind(()), session=shared).get(t.LIMIT_S)
    assert [bool(devices) for devices in seen] == [kind == "g" for kind in kinds]
