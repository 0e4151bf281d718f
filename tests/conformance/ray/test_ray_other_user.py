"""`egs ps` of a user on a host where the Ray is another user's: Ray's own code would end the process there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OTHER = 65534
PROGRAM = f"""
import os, sys
import ray
import egs_ray.control.commands
from egs_core.cli.app import run
run(["ps", "--on", "ray", "--address", "127.0.0.1:1"])  # what it imports may not be that user's to read
print("begin", file=sys.stderr)
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("command", [["ps"], ["abort", "pipe#0"], ["pause", "pipe#0"]], ids=lambda words: words[0])
def test_the_ray_of_another_user_is_one_clear_line(ray_address: str, command: list[str]) -> None:
    """The line says whose it is, and the exit code is 2. Without the check Ray aborts the process as it connects:
    -6, which a shell shows as 134."""
    program = [sys.executable, "-c", PROGRAM, *command, "--on", "ray", "--address", ray_address]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path), "EGS_MODE": "off"}
    done = subprocess.run(program, env=environment, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    told = done.stderr.rpartition("begin\n")[2]
    assert done.returncode == 2, done.stderr
    (line,) = told.splitlines()
    assert f"the Ray at {ray_address} is of user root" in line, told
    assert "is not writable for you (ask as root, or share the site by `egs serve`)" in line, told
