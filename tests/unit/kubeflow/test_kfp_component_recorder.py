"""The recorder as it runs in a container: a process of its own, the standard library, and never in the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from egs_kubeflow.components.recorder import PREFIX
from egs_kubeflow.components.wrapper import RECORDER, recorded

RUN = [sys.executable, "-IS", "-c", RECORDER]


def record_of(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith(PREFIX)]
    found: dict[str, Any] = json.loads(line.removeprefix(PREFIX))
    return found


def test_the_commands_result_and_output_pass_through() -> None:
    """Its exit code, what it prints, and a record with that code and the peak memory of its children."""
    grow = "import sys; data = bytearray(80_000_000); print('hello'); sys.exit(3)"
    done = subprocess.run(
        [*RUN, "sh", "-c", f'"{sys.executable}" -c "{grow}"; exit $?'], capture_output=True, text=True
    )
    assert done.returncode == 3
    assert done.stdout.splitlines()[0] == "hello"
    record = record_of(done.stdout)
    assert record["exit_code"] == 3
    assert record["peak_rss_bytes"] > 80_000_000
    assert 0 < record["end"] - record["start"] < 60


def test_a_killed_command_is_recorded_too() -> None:
    """As a shell has it: 128 and the signal's number."""
    done = subprocess.run([*RUN, "sh", "-c", "kill -9 $$"], capture_output=True, text=True)
    assert done.returncode == 137
    assert record_of(done.stdout)["exit_code"] == 137


def test_a_signal_reaches_the_command() -> None:
    """What ends a pod is for the component, which may save a checkpoint."""
    script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen([*RUN, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 7
    assert said.startswith("saved")


def test_gpu_use_is_what_nvidia_smi_says(tmp_path: Path) -> None:
    """An emulated nvidia-smi: busy share, utilisation and the largest memory of what it said."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '30, 1024'\necho '50, 2048'\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run([*RUN, "sleep", "0.5"], capture_output=True, text=True, env=environment)
    record = record_of(done.stdout)
    assert record["gpu_busy_share"] == 1.0
    assert record["gpu_utilization_percent"] == 50.0
    assert record["gpu_peak_memory_bytes"] == 2048 * 1024**2


def test_it_never_stands_in_the_way() -> None:
    """Where the recorder itself fails, the command runs as it would without it."""
    broken = RECORDER.replace("os.posix_spawnp(command[0]", "os.nothing(command[0]")
    done = subprocess.run(
        [sys.executable, "-c", broken, "sh", "-c", "echo ran; exit 5"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (5, "ran\n")
    broken = RECORDER.replace('"version": 1', '"version": 1 / 0')
    done = subprocess.run(
        [sys.executable, "-c", broken, "sh", "-c", "echo ran; exit 5"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (5, "ran\n")


def test_packages_are_installed_before_it_starts() -> None:
    """The installation stays in front: it is not the component's own work, and the local runner leaves it out."""
    command = ["sh", "-c", 'pip install x && "$0" "$@"', "sh", "-ec", "run", "code"]
    assert recorded(command)[:3] == command[:3]
    assert recorded(command)[-4:] == command[3:]
    assert recorded(command[3:])[0] == "python3"
