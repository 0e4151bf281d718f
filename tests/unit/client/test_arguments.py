"""What `egs run` writes into a command's arguments, and which containers it refuses."""

from __future__ import annotations

import pytest

from egs_core.client.arguments import checked, written
from egs_core.errors import InputError


def test_a_commands_devices_are_written_into_its_arguments() -> None:
    """Everywhere but in the program's own name; other braces stay."""
    assert written(["{gpus}", "--on={gpus}", "{x}"], ["a", "b"]) == ["{gpus}", "--on=a,b", "{x}"]


@pytest.mark.parametrize("command", [["docker", "run"], ["/usr/bin/podman", "container", "run"]])
def test_a_container_carries_the_mark_of_its_lease(command: list[str]) -> None:
    """So that a server that is root finds its processes, which are no children of the command."""
    assert written([*command, "--rm", "image"], []) == [*command, "--env", "EGS_LEASE", "--rm", "image"]
    assert written(["docker", "ps"], []) == ["docker", "ps"]


@pytest.mark.parametrize(
    "options",
    ["-d", "--detach", "--detach=true", "-itd", "--name job -d", "-v /a:/b -d", "-v/a:/b -d", "-eX=d -d"],
)
def test_a_container_in_the_background_is_refused(options: str) -> None:
    with pytest.raises(InputError, match="its devices would be given away while it computes"):
        checked(["docker", "run", *options.split(), "image", "train"])


def test_a_command_without_a_name_is_refused() -> None:
    """As `"$PROGRAM"` is where the variable is not set: nothing can be started by it, so nothing waits for it."""
    with pytest.raises(InputError, match="the command's name is empty"):
        checked(["", "--epochs", "3"])


@pytest.mark.parametrize("words", ["image -d", "--rm image --detach", "--name -d image", "-ed i", "--detach=false x"])
def test_what_only_looks_like_it_is_not_refused(words: str) -> None:
    """An argument of the container's own command, or the value of another option."""
    checked(["docker", "run", *words.split()])
    checked(["train", "run", "-d"])
