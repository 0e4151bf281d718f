"""A site server, its commands and `egs profile` on a real GPU: NVML, CUDA and the driver are the machine's own.

Other tests play what NVML says; these hold the same promises against a device. They skip where there is none, and on a
GPU that somebody uses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egs_core.client.gpu_users import users_of
from egs_core.server.devices import host_offer
from tests.unit.server.real_site import EGS, RealSite, wait_for

PROGRAM = str(Path(__file__).parent / "cuda_program.py")
GIB = 1 << 30
RULES = """
dry_run: false
rules:
  - {name: idle, when: {idle_for: 4s}, do: [stop], queues: [idlers]}
  - {name: full, when: {memory_above: 0.02}, for: 1s, do: [drain], dry_run: DRY}
  - {name: hot, when: {temperature_above: 1}, for: 1s, do: [drain], dry_run: true}
"""
QUEUES = "queues: [{name: work}, {name: idlers}]\n"

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu() -> str:
    """The UUID of a GPU that nobody uses."""
    ids = [device.id for device in host_offer("", ()).devices]
    unused = [one for one, users in users_of(ids).items() if not users] if ids else []
    if not unused:
        pytest.skip("no GPU here that nobody uses")
    return unused[0]


@contextmanager
def served(folder: Path, gpu: str, drains: bool) -> Iterator[RealSite]:
    """A server that offers that GPU alone. drains: the rule on its memory does what it says."""
    found = RealSite(folder / "site", None)
    try:
        (folder / "rules.yaml").write_text(RULES.replace("DRY", "false" if drains else "true"))
        (folder / "queues.yaml").write_text(QUEUES)
        files = ("--rules", str(folder / "rules.yaml"), "--queues", str(folder / "queues.yaml"))
        found.start("--devices", gpu, *files)
        wait_for(lambda: list(found.devices()), "the server has looked at its GPU")
        yield found
    finally:
        found.close()
        wait_for(lambda: not users_of([gpu])[gpu], "the GPU is free again")


@pytest.fixture
def site(tmp_path: Path, gpu: str) -> Iterator[RealSite]:
    with served(tmp_path, gpu, drains=False) as found:
        yield found


@pytest.fixture
def strict_site(tmp_path: Path, gpu: str) -> Iterator[RealSite]:
    with served(tmp_path, gpu, drains=True) as found:
        yield found


def told(file: Path) -> list[dict[str, Any]]:
    """What a program has written so far: of each of its steps."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def program(file: Path, *steps: str) -> tuple[str, ...]:
    return ("--", sys.executable, PROGRAM, str(file), *steps)


def test_a_run_gets_the_gpu_by_its_uuid_and_what_it_uses_is_measured(site: RealSite, gpu: str, tmp_path: Path) -> None:
    """CUDA shows the command that one device. Memory, heat and power are measured, and in /metrics; the GPU is its
    run's, not occupied, though NVML lists a process there."""
    file, go = tmp_path / "a", tmp_path / "go"
    run = site.run("--gpus", "1", "--queue", "work", *program(file, f"take:{GIB}", f"until:{go}"))
    wait_for(lambda: len(told(file)) == 1, "memory is taken")
    (device,) = wait_for(lambda: [d for d in site.told("ps")["devices"] if d["state"] == "held"], "it is held")
    assert device["id"] == gpu
    assert told(file)[0] | {"pid": 0} == {"step": f"take:{GIB}", "pid": 0, "visible": gpu, "shown": 1}
    wait_for(lambda: users_of([gpu])[gpu], "NVML lists its process")
    for _ in range(4):  # looks at who is there, one a second
        time.sleep(1.0)
        assert [one["state"] for one in site.told("ps")["devices"]] == ["held"]
    go.touch()
    assert run.wait(60) == 0, run.communicate()[1]


def test_a_gpu_that_others_use_is_given_out_when_they_have_gone(site: RealSite, gpu: str, tmp_path: Path) -> None:
    """A process that the server knows nothing of has a context there: `egs why` names it, and the run starts after."""
    stranger_file, file, go = tmp_path / "s", tmp_path / "a", tmp_path / "go"
    stranger = subprocess.Popen(
        [sys.executable, PROGRAM, str(stranger_file), f"take:{GIB}", f"until:{go}"],
        env=site.environment | {"CUDA_VISIBLE_DEVICES": gpu},
    )
    try:
        wait_for(lambda: told(stranger_file), "a stranger is on the GPU")
        wait_for(lambda: site.told("ps")["devices"][0]["state"] == "occupied", "the server has seen it")
        run = site.run("--gpus", "1", "--name", "mine", "--queue", "work", *program(file, "take:1024"))
        number = wait_for(lambda: site.queued().get("mine"), "it waits")
        said = site.egs("why", number).stdout
        assert "occupied by processes that this server did not start" in said
        assert str(stranger.pid) in said
        go.touch()
        assert run.wait(60) == 0, run.communicate()[1]
        assert told(file)[0]["shown"] == 1
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_command_leaves_on_a_gpu_keeps_it(site: RealSite, tmp_path: Path) -> None:
    """A process of another session is left behind with memory: the next run begins when that has ended."""
    file, go, next_file = tmp_path / "a", tmp_path / "go", tmp_path / "b"
    first = site.run("--gpus", "1", "--queue", "work", *program(file, f"child:take:{GIB},until:{go}", "idle:3"))
    wait_for(lambda: any(one["step"].startswith("take") for one in told(file)), "the child has memory")
    second = site.run("--gpus", "1", "--name", "second", "--queue", "work", *program(next_file, "take:1024"))
    wait_for(lambda: len(told(file)) == 2, "the command itself has ended")
    for _ in range(3):
        time.sleep(1.0)
        assert not told(next_file)
    go.touch()
    assert second.wait(60) == 0, second.communicate()[1]
    assert first.wait(60) == 0


def test_two_share_a_gpu_by_memory(site: RealSite, tmp_path: Path) -> None:
    """Both have a context on it at one time."""
    go = tmp_path / "go"
    runs = [
        site.run("--gpu-memory", "8GiB", "--queue", "work", *program(tmp_path / name, f"take:{GIB}", f"until:{go}"))
        for name in "ab"
    ]
    wait_for(lambda: told(tmp_path / "a") and told(tmp_path / "b"), "both have memory")
    go.touch()
    assert [run.wait(60) for run in runs] == [0, 0]


def test_a_command_that_holds_a_gpu_and_does_nothing_is_ended(site: RealSite, tmp_path: Path) -> None:
    """`--idle-timeout` by what NVML measures: not while kernels run, though no processor is used for longer."""
    began = time.monotonic()
    steps = ("take:1024", "compute:8", "idle:600")
    run = site.run("--gpus", "1", "--queue", "work", "--idle-timeout", "4s", *program(tmp_path / "a", *steps))
    run.wait(90)
    assert [one["step"] for one in told(tmp_path / "a")] == ["take:1024", "compute:8"]
    assert 12 < time.monotonic() - began < 60


def test_rules_see_the_real_device(strict_site: RealSite, tmp_path: Path) -> None:
    """One that idles in the queue of the rule is stopped; the device's memory and heat are measured; a GPU that is
    fuller than a rule allows is drained."""
    site = strict_site
    run = site.run("--gpus", "1", "--queue", "idlers", *program(tmp_path / "a", "take:1024", "idle:600"))
    run.wait(90)
    assert [one["step"] for one in told(tmp_path / "a")] == ["take:1024"]
    rules = {rule["name"]: rule for rule in site.told("watch")["rules"]}
    assert [(rules[name]["looked_at"], rules[name]["unknown"]) for name in ("hot", "full")] == [(1, 0), (1, 0)]
    full = site.run("--gpus", "1", "--queue", "work", *program(tmp_path / "b", f"take:{8 * GIB}", "idle:600"))
    wait_for(lambda: site.told("ps")["devices"][0].get("drained"), "the full GPU is drained")
    site.egs("abort", next(iter(site.open().values())))
    full.wait(60)


def test_a_block_of_a_split_command_holds_the_gpu(site: RealSite, gpu: str, tmp_path: Path) -> None:
    """`--split`: no device before the block, that one inside, and it is kept while CUDA's context stays."""
    file, go = tmp_path / "a", tmp_path / "go"
    run = site.run(
        "--gpus", "1", "--split", "--queue", "work", *program(file, "idle:0.2", f"block:take:{GIB}", f"until:{go}")
    )
    wait_for(lambda: len(told(file)) == 3, "the block is over")
    before, inside, behind = told(file)
    assert (before["shown"], inside["visible"], inside["shown"]) == (0, gpu, 1)
    assert behind["visible"] != gpu
    assert [one["state"] for one in site.told("ps")["devices"]] == ["held"]
    go.touch()
    assert run.wait(60) == 0, run.communicate()[1]
    wait_for(lambda: site.told("ps")["devices"][0]["state"] == "free", "it is given back with its process")


def test_a_profile_has_memory_and_work_of_the_device(site: RealSite, tmp_path: Path) -> None:
    """`egs profile`: 6 GiB and a device that works for most of the time, as NVML measured; nothing is emulated."""
    done = site.egs(
        "profile",
        "--queue",
        "work",
        "--json",
        *program(tmp_path / "a", f"take:{6 * GIB}", "compute:6"),
    )
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["measured"]
    assert measured["is_emulated"] is False
    assert 6 * GIB <= measured["peak_bytes"] < 8 * GIB
    assert measured["busy"] > 0.5


def test_a_run_is_put_aside_and_goes_on_where_it_was(site: RealSite, tmp_path: Path) -> None:
    """`--suspend`: a higher priority has nearly all of the device's memory meanwhile; then the same process goes on
    with what it had there, word for word."""
    total = site.client.runs().devices[0].memory_bytes
    file, go = tmp_path / "low", tmp_path / "go"
    steps = (f"take:{8 * GIB}", "fill:305419896", f"until:{go}", "holds:305419896", "compute:1")
    low = site.run("--gpus", "1", "--queue", "work", "--suspend", *program(file, *steps))
    wait_for(lambda: len(told(file)) == 2, "its memory is filled")
    first = ("--gpus", "1", "--queue", "work", "--priority", "5")
    high = site.run(*first, *program(tmp_path / "high", f"take:{total - 2 * GIB}", "idle:2"))
    assert high.wait(60) == 0, high.communicate()[1]
    go.touch()
    assert low.wait(60) == 0, low.communicate()[1]
    said = low.communicate()[1]
    assert "is put aside" in said
    assert "goes on where it was" in said
    assert [one["step"].partition(":")[0] for one in told(file)] == ["take", "fill", "until", "holds", "compute"]
    assert len({one["pid"] for one in told(file)}) == 1


@pytest.mark.usefixtures("gpu")
def test_doctor_names_the_gpu(tmp_path: Path) -> None:
    """`egs doctor` sees the device by NVML."""
    done = subprocess.run([*EGS, "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    (checked,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "gpus"]
    assert checked["ok"]
    assert not checked["detail"].startswith("none visible")
