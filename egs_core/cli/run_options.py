"""Options of `egs run` that do nothing beside another one, or without one: refused, instead of left out unseen."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import typer

from egs_core.errors import InputError

NEEDS = {
    "--retry-on": (("--retries",), "it is never started again"),
    "--json": (("--check", "--detach"), "the output is the command's own"),
    "--gang-wait": (("--gang",), "there is nothing to wait for"),
    "--torch-env": (("--gang", "--in"), "there are no others"),
    "--checkpoint-takes": (("--checkpoint-signal",), "it is asked for none"),
    "--split": (("--gpus", "--gpu-memory"), "there is nothing to split"),
    "--flavor": (("--gpus", "--gpu-memory", "--in"), "there is nothing to choose"),
    "--or-flavor": (("--gpus", "--gpu-memory"), "there is nothing to choose"),
    "--keep-ready": (("--preload",), "nothing is loaded"),
}
"""Option -> those of which one has to be there, and why."""
COUNTED = ("--cpus", "--memory")
REQUESTED = "what runs in a request has the request's"
CHECKED = "nothing is started"
EXCLUDES = {
    "--in": dict.fromkeys(
        (
            "--gpus",
            "--gpu-memory",
            *COUNTED,
            "--queue",
            "--priority",
            "--deadline",
            "--split",
            "--gang",
            "--flavor",
        ),
        REQUESTED,
    ),
    "--check": {
        "--detach": CHECKED,
        "--pty": CHECKED,
        "--gang-wait": CHECKED,
        "--torch-env": CHECKED,
        "--array": "it tells of one run",
        "--retries": CHECKED,
        "--preload": CHECKED,
        "--keep-ready": CHECKED,
        "--idle-timeout": CHECKED,
        "--split": "it tells when all its GPUs are free at its start",
        "--mlflow-loss": CHECKED,
    },
    "--split": {
        "--gang": "no GPUs are held at the start",
        "--mlflow-loss": "nothing is heard of where it is",
        "--keep-ready": "what stands ready is for runs with GPUs from start to end",
    },
    "--suspend": {
        "--pty": "a terminal cannot be put aside",
        "--split": "it has no GPUs of its own that it could give way with",
        "--gang": "a gang cannot be put aside",
        "--keep-ready": "what is put aside has to be below its egs run",
        "--check": CHECKED,
    },
    "--or-flavor": {
        "--detach": "its output and its number are those of one run",
        "--pty": "its output goes to a terminal",
        "--split": "its GPUs are other runs'",
        "--preload": "its process would begin before its errors are read",
        "--gang": "the others of a gang end with it",
        "--check": CHECKED,
    },
    "--pty": {"--preload": "its process would begin before it has its terminal"},
    "--gang": {"--keep-ready": "a gang's processes begin together"},
    "--array": {"--pty": "an array's commands cannot share a terminal"},
}
"""Option -> those that do nothing beside it, and why."""
WITHOUT_DEVICES = {
    "--requeue": "it holds nothing for which it could be evicted",
    "--deadline": "it waits for nothing in the queue",
}
"""What does nothing for a command that is split, and for which no CPUs and no memory are counted."""
NOTHING = (None, False, 0, "", "0", ())


def given_options(ctx: typer.Context) -> frozenset[str]:
    """Names of the options that a command line has, but those with a value that means nothing, as `--retries 0`."""
    found = set()
    for one in ctx.command.params:
        source, value = ctx.get_parameter_source(str(one.name)), ctx.params.get(str(one.name))
        is_written = source is not None and source.name == "COMMANDLINE"
        if is_written and not any(value is nothing or value == nothing for nothing in NOTHING):
            found.add(max(one.opts, key=len))
    return frozenset(found)


def check_options(given: AbstractSet[str]) -> None:
    """Raises InputError, which names both options, for one that another one makes useless."""
    for option, (needed, why) in NEEDS.items():
        if option in given and given.isdisjoint(needed):
            wanted = " or ".join(needed)
            raise InputError(option, f"does nothing without {wanted}: {why}", f"add {wanted}, or leave {option} out")
    for option, useless in EXCLUDES.items():
        for other, why in useless.items():
            if {option, other} <= given:
                raise _useless(other, option, why)
    if "--split" in given and given.isdisjoint(COUNTED):
        for other, why in WITHOUT_DEVICES.items():
            if other in given:
                raise _useless(other, "--split", why)


def _useless(other: str, option: str, why: str) -> InputError:
    return InputError(other, f"does nothing with {option}: {why}", f"leave {other} or {option} out")
