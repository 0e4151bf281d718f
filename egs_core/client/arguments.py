"""What `egs run` does to a command's arguments: `{gpus}` becomes the ids of its devices, and a container gets the
lease's mark.

A container's processes are children of its engine's daemon, not of the command. So their environment has to carry the
mark of the lease, by which a server that is root finds them; and what returns at once (`docker run -d`) is refused:
the lease would end while the container still computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from egs_core.client.processes import LEASE_VARIABLE
from egs_core.errors import InputError

GPUS = "{gpus}"
ENGINES = ("docker", "podman", "nerdctl")
FLAGS = {  # options of `docker run` that take no value; source: docker.com, reference of `docker container run`
    "--detach",
    "--disable-content-trust",
    "--help",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--replace",
    "--rm",
    "--sig-proxy",
    "--tty",
    "--use-api-socket",
}
SHORT_FLAGS = "dhiPqt"


def checked(command: Sequence[str]) -> None:
    """Raises InputError for what nothing can be started by, and a container that would go on in the background."""
    if not command[0]:
        raise InputError("egs run", "the command's name is empty", "name a program after --; is a variable not set?")
    at = _run_at(command)
    if at is None:
        return
    found = next((option for option in _options(command[at + 1 :]) if _is_detach(option)), None)
    if found is not None:
        problem = "the container would be no child of `egs run`, and its devices would be given away while it computes"
        raise InputError(f"{command[0]} run {found}", problem, f"leave {found} out, and use `egs run --detach`")


def written(command: Sequence[str], devices: Sequence[str]) -> list[str]:
    """The arguments to start it with.

    >>> written(["docker", "run", "--gpus", '"device={gpus}"', "image"], ["GPU-1", "GPU-2"])
    ['docker', 'run', '--env', 'EGS_LEASE', '--gpus', '"device=GPU-1,GPU-2"', 'image']
    """
    ids = ",".join(devices)
    found = [command[0], *(one.replace(GPUS, ids) for one in command[1:])]
    at = _run_at(command)
    return found if at is None else [*found[: at + 1], "--env", LEASE_VARIABLE, *found[at + 1 :]]


def _run_at(command: Sequence[str]) -> int | None:
    """Where the `run` of `docker run` or `docker container run` is; None for other commands."""
    if PurePath(command[0]).name not in ENGINES:
        return None
    if list(command[1:3]) == ["container", "run"]:
        return 2
    return 1 if list(command[1:2]) == ["run"] else None


def _options(words: Sequence[str]) -> list[str]:
    """The options, without their values, up to the image."""
    found, left = [], list(words)
    while left and left[0].startswith("-") and left[0] != "--":
        word = left.pop(0)
        found.append(word)
        flags = word[1:].rstrip(SHORT_FLAGS) == "" if not word.startswith("--") else word in FLAGS
        if not flags and "=" not in word and left and _wants_value(word):
            left.pop(0)
    return found


def _wants_value(word: str) -> bool:
    """Of an option that is no flag: whether its value is the next word. `-v` takes one, `-v/data:/data` has it."""
    return word.startswith("--") or word[1:].lstrip(SHORT_FLAGS)[1:] == ""


def _is_detach(word: str) -> bool:
    if word.startswith("--"):
        name, _, value = word.partition("=")
        return name == "--detach" and value.lower() not in ("false", "0", "f")
    for letter in word[1:].partition("=")[0]:
        if letter == "d":
            return True
        if letter not in SHORT_FLAGS:
            break
    return False
