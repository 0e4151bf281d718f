"""Container components: through the `docker` command, where there is one and its daemon answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ANSWERS_WITHIN_S = 20.0


@cache
def why_not() -> str:
    """Why containers cannot run here; "" where they can."""
    if shutil.which("docker") is None:
        return "there is no docker on this machine"
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "docker does not answer"
    return "" if asked.returncode == 0 else "docker's daemon does not answer"


def in_container(
    image: str, command: Sequence[str], environment: Mapping[str, str], root: Path, name: str, devices: Sequence[str]
) -> list[str]:
    """The command that runs another in a container of that name. It sees `root` where it is here, and those GPUs."""
    variables = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    gpus = ["--gpus", f'"device={",".join(devices)}"'] if devices else []
    user = f"{os.getuid()}:{os.getgid()}"  # else what it writes belongs to root
    entry, rest = (["--entrypoint", command[0]], command[1:]) if command else ([], command)
    options = ["--rm", "--name", name, "--user", user, "--volume", f"{root}:{root}", *variables, *gpus, *entry]
    return ["docker", "run", *options, image, *rest]


def remove(name: str) -> None:
    """End a container: ending the `docker` command alone may leave it running."""
    subprocess.run(removal(name), capture_output=True, timeout=ANSWERS_WITHIN_S, check=False)


def removal(name: str) -> list[str]:
    """The command that does it."""
    return ["docker", "rm", "--force", name]
