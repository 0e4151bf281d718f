"""`egs ray keep-ready`: the task of a later driver begins in a process that Ray has started before, with the modules
that the cluster was told to preload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.testing.conformance.bench import wait_until
from egs_ray.ready.raylets import Cluster
from tests.conformance.ray.conftest import _python_path

DRIVER = """
import json, os, sys
import ray
ray.init(runtime_env=json.loads(sys.argv[1]), log_to_driver=False, logging_level="ERROR")

@ray.remote(num_gpus=1)
def first(lasts_s):
    import os, sys, time
    time.sleep(lasts_s)
    begun = open("/proc/self/environ").read().split("\\0")
    return "wave" in sys.modules, "RAY_JOB_ID=ffffffff" in begun, os.environ.get("MARK")

print(*ray.get(first.remote(float(sys.argv[2]))))
"""
"""`begun`: the variables with which Ray has started the process, where a process of no job has this one."""
EGS = "import sys; from egs_core.cli.app import run; sys.exit(run(sys.argv[1:]))"
PATIENCE_S = 60.0


@contextmanager
def keeper(address: str, folder: Path) -> Iterator[Path]:
    """`egs ray keep-ready 2`: what it says."""
    said = folder / "said"
    command = [sys.executable, "-c", EGS, "ray", "keep-ready", "2", "--address", address]
    with said.open("w") as out, subprocess.Popen(command, env=variables(address), stdout=out, stderr=out) as process:
        try:
            wait_until(lambda: "they import wave" in said.read_text(), "a worker has told, and it begins")
            yield said
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, said.read_text()
        finally:
            process.kill()


def variables(address: str) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": _python_path(), "RAY_AUTH_MODE": "disabled"}


def driver(address: str, env: str, lasts_s: float = 0.0, hook: dict[str, str] | None = None) -> str:
    """What its task says: wave was imported, it began without a job, MARK."""
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, env, str(lasts_s)]
    done = subprocess.run(
        command, env=variables(address) | (hook or {}), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.proves("ray keep-ready", "preload")
def test_a_later_driver_finds_a_process_that_stands_ready(ray_address: str, tmp_path: Path) -> None:
    """For drivers with an environment of their own, without EGS's hook and with it in mode on. Two drivers show that
    such jobs come again, with processes that live for longer than a second, as where they import; each later task takes
    one that stands."""
    env = '{"env_vars": {"MARK": "ready"}}'
    hook = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on", "EGS_RUNLOG": str(tmp_path / "run.jsonl")}
    before = free(ray_address)
    with keeper(ray_address, tmp_path) as said:
        assert driver(ray_address, env, 1.5) == "True False ready"
        assert driver(ray_address, env, 1.5) == "True False ready"
        wait_until(lambda: len(free(ray_address) - before) >= 2, "two processes stand ready")
        assert driver(ray_address, env) == "True True ready"
        assert driver(ray_address, env, hook=hook) == "True True ready"
    assert said.read_text().splitlines()[-1].endswith(" stood ready")


def free(address: str) -> set[str]:
    """Processes of the node that no job has taken."""
    cluster = Cluster(address)
    (node,) = cluster.nodes()
    return {one.id for one in cluster.processes(node) or () if not one.job}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["1", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: no Ray answers there"),
        (["0"], "Invalid value for 'processes'"),
    ],
)
def test_what_cannot_be_kept_is_one_clear_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ray", "keep-ready", *words]) == 2
    assert told in capsys.readouterr().err
