"""Whose processes use which GPUs: of real processes, by what NVML would list."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from egs_core.client import processes
from egs_core.client.gpu_users import CUDA_FILE, FOLDER, devices_of, uses_cuda

TREE = """
import os, subprocess, sys, time
opens, leads = sys.argv[1], sys.argv[2]
if leads == "yes":
    os.setpgid(0, 0)
child = subprocess.Popen([sys.executable, "-c", "import sys, time; file = open(sys.argv[1]); print(flush=True);"
    "time.sleep(600)", opens], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
Start = Callable[..., tuple[int, int]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a process with a child that has a file open, CUDA's where no other is named; both numbers."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / CUDA_FILE).touch()
    (tmp_path / "other").touch()
    with ExitStack() as started:

        def make(opens: str = CUDA_FILE, leads: str = "no") -> tuple[int, int]:
            command = [sys.executable, "-c", TREE, str(tmp_path / opens), leads]
            process = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.callback(process.kill)
            assert process.stdout is not None
            child = int(process.stdout.readline())
            started.callback(subprocess.run, ["kill", "-9", str(child)], check=False)
            return process.pid, child

        yield make


def test_a_device_is_of_the_tree_whose_process_uses_it(start: Start) -> None:
    """Each of two on its own; one that uses two has both, and one that uses none is left out, as is a stranger."""
    one, child = start()
    other, its_child = start()
    idle, _ = start()
    roots = {one: "one", other: "other", idle: "idle"}
    assert devices_of(roots, {"GPU-a": [child], "GPU-b": [its_child]}) == {"one": ("GPU-a",), "other": ("GPU-b",)}
    assert devices_of(roots, {"GPU-b": [child], "GPU-a": [child, its_child]}) == {
        "one": ("GPU-a", "GPU-b"),
        "other": ("GPU-a",),
    }
    assert devices_of({one: "one"}, {"GPU-a": [its_child]}) == {}
    assert devices_of(roots, {"GPU-a": []}) == {}


def test_what_outlives_its_parent_is_known_by_the_group(start: Start) -> None:
    """A task of Airflow leads a process group: what a shell that has ended has started is in it."""
    root, child = start(leads="yes")
    grandchild = subprocess.Popen(
        [sys.executable, "-c", "import os, sys, time; os.setpgid(0, int(sys.argv[2])); file = open(sys.argv[1]);"
         "print(flush=True); time.sleep(600)", str(_cuda_file()), str(root)],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert grandchild.stdout is not None
        grandchild.stdout.readline()
        assert devices_of({root: "task"}, {"GPU-a": [grandchild.pid]}) == {"task": ("GPU-a",)}
        assert devices_of({child: "child"}, {"GPU-a": [grandchild.pid]}) == {}
    finally:
        grandchild.kill()
        grandchild.communicate()


def test_of_all_processes_only_those_on_gpus_are_looked_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tasks run; of one task in another the nearer one has the device."""
    root, child = start()
    read, asked = processes._stat_text, list[int]()

    def note(pid: int) -> bytes:
        asked.append(pid)
        return read(pid)

    monkeypatch.setattr(processes, "_stat_text", note)
    roots = {os.getpid(): "outer", root: "inner"} | {2**22 + n: f"gone {n}" for n in range(100)}
    assert devices_of(roots, {"GPU-a": [child]}) == {"inner": ("GPU-a",)}
    assert set(asked) <= {child, *processes.parents(child)}
    assert list(processes.parents(child))[:2] == [root, os.getpid()]


def _cuda_file() -> Path:
    return Path(os.environ[FOLDER]) / CUDA_FILE


def test_a_number_of_the_hosts_is_no_process_of_a_container(start: Start) -> None:
    """NVML may list numbers that are others here: who has not CUDA's file open is not meant."""
    root, child = start(opens="other")
    assert not uses_cuda(child)
    assert devices_of({root: "task"}, {"GPU-a": [child]}) == {}
    assert not uses_cuda(2**22 + 1)
